"""Names that someone chooses to reach a file outside the folder that they are meant for."""

from __future__ import annotations

HOSTILE_NAMES = (
    # Parents, in every position
    "..", "../x", "../../x", "../../../../../../../../tmp/x", "a/..", "a/../x", "a/../../x",
    "a/b/../../../x", "../a", "..//x", "a/..//x", "../", "a/../", "../../.ssh/authorized_keys",
    # The folder itself, and empty parts
    "", ".", "./x", "a/./x", "a/.", "/", "//", "a//x", "a/", "//x", "///etc/passwd", "./.",
    "a/.//x",
    # Absolute paths
    "/x", "/etc/passwd", "/tmp/x", "/../x", "//server/share/x",
    # Windows: drives, backslashes, devices with a path
    "C:", "C:x", "C:\\x", "C:/x", "c:/windows/x", "z:..", "..\\x", "a\\..\\..\\x", "\\x",
    "\\\\s\\x", "a\\x", "a/..\\x", "\\\\?\\C:\\x",
    # Characters that end a name for some program, or are shown as something else
    "\0", "x\0.jsonl", "../x\0", "a\nb", "a\rb", "x\n/../y", "\x1b[2Jx", "\x7f", "a\x00/b", "a\tb",
    "\x80x", "a\x85b",
    # Not text, and longer than a file system takes
    "\ud800", "a/\udcff", "x" * 256, "a/" + "y" * 300, "é" * 128,
)  # fmt: skip
"""None of them can be the path of a file inside a folder, on whatever system."""

HARMLESS_NAMES = (
    "x", "a/x", "a/b/c.jsonl.gz", "..x", "x..", "...", "a/...x", ".hidden", "a b", "é",
    "日本.jsonl", "~", "~root/x", "$HOME", "%2e%2e", "a;b", "-rf", "x" * 255, "ab:c", "http:",
    "Ünïcode/ß",
)  # fmt: skip
"""These are odd, but each is the name of a file in the folder."""
