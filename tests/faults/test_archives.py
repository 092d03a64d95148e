"""Row 17 of the fault matrix: archives with `../`, links, devices, or a bomb inside.

Only `bsmeta.data.io.archives` unpacks archives; nothing that it refuses leaves a trace.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bsmeta.core.errors import DataError
from bsmeta.data.io import archives
from bsmeta.data.io.archives import unpack
from tests.conftest import REPOSITORY
from tests.core.hostile_names import HOSTILE_NAMES

pytestmark = pytest.mark.faults

MODULES = {"tarfile", "zipfile", "py7zr", "rarfile", "patoolib"}
CALLS = {"extractall", "unpack_archive"}
UNPACKS = REPOSITORY / "bsmeta/data/io/archives.py"

MOST = 1_000_000


def files() -> list[Path]:
    folders = ("bsmeta", "examples", "experiments")
    return [file for name in folders for file in sorted((REPOSITORY / name).rglob("*.py"))]


def unpacking(tree: ast.AST) -> set[str]:
    """The archive modules that a file imports, and the unpacking functions that it calls."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0]} & MODULES
            found |= {alias.name for alias in node.names} & CALLS
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & CALLS
    return found


def test_row_17_one_module_unpacks_archives() -> None:
    for file in files():
        found = unpacking(ast.parse(file.read_text()))
        allowed = {"tarfile", "zipfile"} if file == UNPACKS else set()
        assert found <= allowed, file


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import tarfile", {"tarfile"}),
        ("from zipfile import ZipFile", {"zipfile"}),
        ("import shutil\nshutil.unpack_archive(name)", {"unpack_archive"}),
        ("from shutil import unpack_archive", {"unpack_archive"}),
        ("archive.extractall(folder)", {"extractall"}),
        ("import gzip\ngzip.open(name)", set()),
    ],
)
def test_row_17_unpacking_is_found(source: str, found: set[str]) -> None:
    assert unpacking(ast.parse(source)) == found


def tar(path: Path, *members: tuple[str, bytes | dict[str, Any]], mode: str = "w:gz") -> Path:
    """An archive of members: a content, or the attributes of a header."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                for key, value in content.items():
                    setattr(info, key, value)
                archive.addfile(info)
    return path


def zipped(path: Path, *members: tuple[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


def zeros(path: Path) -> Path:
    """Far more content than the files are allowed to have, without a file."""
    info = tarfile.TarInfo("a")
    info.size = 1 << 40
    with gzip.open(path, "wb", 1) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(50):
            file.write(bytes(1 << 20))
    return path


def false_size(path: Path) -> Path:
    """A zip file that states 10 bytes for a file of 2 MB."""
    zipped(path, ("a", bytes(2 * MOST)))
    data = path.read_bytes()
    path.write_bytes(data.replace((2 * MOST).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    return path


LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc"}
Make = Callable[[Path], Path]
MALICIOUS: dict[str, tuple[str, Make, str]] = {
    "parent": ("tar.gz", lambda path: tar(path, ("../x", b"1")), "'../x': it has the part"),
    "inner parent": ("tar", lambda path: tar(path, ("a/../../x", b"1"), mode="w"), "part '..'"),
    "absolute": ("tar", lambda path: tar(path, ("/tmp/x", b"1"), mode="w"), "an absolute path"),
    "backslash": ("zip", lambda path: zipped(path, ("..\\x", b"1")), "it has a backslash"),
    "zip parent": ("zip", lambda path: zipped(path, ("a/../../x", b"1")), "it has the part '..'"),
    "link": ("tgz", lambda path: tar(path, ("l", LINK), ("l/x", b"1")), "'l': a link or a device"),
    "hard link": (
        "tar.xz",
        lambda path: tar(path, ("l", {**LINK, "type": tarfile.LNKTYPE}), mode="w:xz"),
        "a link or a device",
    ),
    "device": (
        "tar.bz2",
        lambda path: tar(path, ("d", {"type": tarfile.CHRTYPE, "devmajor": 1}), mode="w:bz2"),
        "'d': a link or a device",
    ),
    "zip link": (
        "zip",
        lambda path: zipped(path, ("l", b"/etc"), mode=stat.S_IFLNK | 0o777),
        "'l': a link or a device",
    ),
    "twice": ("tgz", lambda path: tar(path, ("a", b"1"), ("a", b"2")), "'a': a path that is there"),
    "file and folder": ("tgz", lambda path: tar(path, ("a", b"1"), ("a/b", b"2")), "'a/b': a path"),
    "bomb": ("tar.gz", lambda path: tar(path, ("a", bytes(MOST + 1))), "more than 1,000,000 bytes"),
    "two files": (
        "tar.gz",
        lambda path: tar(path, ("a", bytes(MOST)), ("b", b"1")),
        "'b': more than 1,000,000 bytes",
    ),
    "zip bomb": ("zip", lambda path: zipped(path, ("a", bytes(2 * MOST))), "more than 1,000,000"),
    "false size": ("zip", false_size, "cannot be unpacked|more than"),
    "zeros": ("tar.gz", zeros, "more than 1,000,000 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALICIOUS)
def test_row_17_what_is_refused_leaves_no_trace(tmp_path: Path, name: str) -> None:
    suffix, make, message = MALICIOUS[name]
    archive = make(tmp_path / f"archive.{suffix}")
    with pytest.raises(DataError, match=message):
        unpack(archive, tmp_path / "out/inner", MOST)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [archive.name, "out"]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_row_17_a_member_is_inside_the_folder_or_refused(
    tmp_path: Path, suffix: str, name: str
) -> None:
    archive, out = tmp_path / f"archive.{suffix}", tmp_path / "deep/er/out"
    try:
        if suffix == "tar":
            tar(archive, (name, b"1"), mode="w")
        else:
            zipped(archive, (name, b"1"))
    except (UnicodeError, ValueError):
        pytest.skip(f"{suffix} cannot hold the name")
    with contextlib.suppress(DataError):
        unpack(archive, out, MOST)
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - {archive}
    assert all(path.is_relative_to(out) for path in written)

    # Archivers write `./x` themselves, and both formats end a name at NUL.
    ended = name.partition("\0")[0].removeprefix("./").removesuffix("/")
    assert not written or ended in ("x", "a"), name


def test_row_17_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 9)
    archive = tar(tmp_path / "a.tar.gz", *((f"f{number}", b"") for number in range(10)))
    with pytest.raises(DataError, match="'f9': more than 9 files"):
        unpack(archive, tmp_path / "out", MOST)


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "zip"])
def test_row_17_honest_archives_are_unpacked(tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / f"a.{suffix}"
    if suffix == "zip":
        zipped(archive, ("a/b.txt", b"1" * 9), ("a/", b""), ("c", b""))
    else:
        mode = {"tar": "w", "tgz": "w:gz"}.get(suffix, f"w:{suffix[4:]}")
        folder = {"type": tarfile.DIRTYPE, "mode": 0o000}
        tar(archive, ("./a", folder), ("./a/b.txt", b"1" * 9), ("c", b""), mode=mode)
    unpack(archive, tmp_path / "out", 9)
    found = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == {"a/b.txt": b"1" * 9, "c": b""}


def test_row_17_a_damaged_archive_is_named(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", ("a", bytes(range(256)) * 100))
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"a.tar.gz cannot be unpacked"):
        unpack(archive, tmp_path / "out", MOST)
    assert not (tmp_path / "out").exists()
