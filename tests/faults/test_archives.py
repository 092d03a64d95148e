"""Row 17 of the fault matrix: archives with `../`, links, devices, or a bomb inside.

A header or a member list may be a bomb, too: what an archive may cost in memory is measured.
Only `bsmeta.data.io.archives` unpacks archives; nothing that it refuses leaves a trace.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import io
import lzma
import stat
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from isal import igzip

from bsmeta.core.errors import DataError
from bsmeta.data.io import archives
from bsmeta.data.io.archives import unpack
from tests.conftest import REPOSITORY
from tests.core.hostile_names import HOSTILE_NAMES
from tests.hostile import Ending, Limits, failures, random_changes, read_all

pytestmark = pytest.mark.faults

MODULES = {"tarfile", "zipfile", "py7zr", "rarfile", "patoolib"}
CALLS = {"extractall", "unpack_archive"}
UNPACKS = REPOSITORY / "bsmeta/data/io/archives.py"

MOST = 1_000_000


def files() -> list[Path]:
    folders = ("bsmeta", "examples", "experiments")
    return [file for name in folders for file in sorted((REPOSITORY / name).rglob("*.py"))]


def list_unpacking(tree: ast.AST) -> set[str]:
    """Returns the archive modules that a file imports, and the unpacking functions it calls."""
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


def test_row_17_only_one_module_unpacks_archives() -> None:
    for file in files():
        found = list_unpacking(ast.parse(file.read_text()))
        allowed = {"tarfile", "zipfile"} if file == UNPACKS else set()
        assert found <= allowed, file


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import tarfile", {"tarfile"}),
        ("from zipfile import ZipFile", {"zipfile"}),
        ("import shutil\nshutil.unpack_archive(name)", {"unpack_archive"}),
        ("from shutil import unpack_archive", {"unpack_archive"}),
        ("archive.extractall(folder)", {"extractall"}),
        ("import gzip\ngzip.open(name)", set()),
    ],
)
def test_row_17_unpacking_code_is_detected(source: str, names: set[str]) -> None:
    assert list_unpacking(ast.parse(source)) == names


def tar(path: Path, *members: tuple[str, bytes | dict[str, Any]], mode: str = "w:gz") -> Path:
    """Writes an archive of members: a content, or the attributes of a header."""
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
    """Writes an archive of far more content than allowed."""
    info = tarfile.TarInfo("a")
    info.size = 1 << 40
    with gzip.open(path, "wb", 1) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(50):
            file.write(bytes(1 << 20))
    return path


def false_size(path: Path) -> Path:
    """Writes a zip file that states 10 bytes for a file of 2 MB."""
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
    "twice": (
        "tgz",
        lambda path: tar(path, ("a", b"1"), ("a", b"2")),
        "'a': a path that already exists",
    ),
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
def test_row_17_a_refused_archive_leaves_no_files(tmp_path: Path, name: str) -> None:
    suffix, make, message = MALICIOUS[name]
    archive = make(tmp_path / f"archive.{suffix}")
    with pytest.raises(DataError, match=message):
        unpack(archive, tmp_path / "out/inner", MOST)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [archive.name, "out"]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_row_17_a_member_outside_the_folder_is_refused(
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
    monkeypatch.setattr(archives, "MAX_FILES", 9)
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


def unpack_beside(most: int, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        unpack(path, Path(folder) / "out", most)


def header(kind: bytes, size: int = 0, name: str = "a") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def extended(kind: bytes, content: bytes) -> bytes:
    """Returns a header of a type, and its content in whole blocks."""
    return header(kind, len(content)) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def pax(keyword: str, size: int) -> bytes:
    """Returns a record of a PAX header of `size` bytes."""
    record = f"{size} {keyword}=".encode()
    return record + b"x" * (size - len(record) - 1) + b"\n"


def sparse_blocks(count: int) -> bytes:
    """Returns a sparse file whose map continues for `count` blocks of about 21 parts each."""
    first = bytearray(header(tarfile.GNUTYPE_SPARSE))
    first[482] = 1  # the map continues
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    part = b"%011o\0%011o\0" % (0, 0)
    block = part * 21 + b"\1" + bytes(7)
    return bytes(first) + block * count


def entries(count: int, comment: bytes = b"") -> bytes:
    """Returns a zip file with a list of missing files, each with the comment."""
    files = []
    for number in range(count):
        name = b"%d" % number
        sizes = (0, 0, 0, len(name), 0, len(comment), 0, 0, 0, 0)
        files.append(struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, *sizes))
        files += name, comment
    listed = b"".join(files)
    end = (0, 0, count & 0xFFFF, count & 0xFFFF, len(listed), 0, 0)
    return listed + struct.pack("<4s4H2LH", b"PK\5\6", *end)


def zip_of(content: bytes, method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a", content)
    return file.getvalue()


MB = 1_000_000
COSTLY: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "PAX header": (
        "tar.gz",
        lambda: igzip.compress(extended(tarfile.XHDTYPE, pax("path", 150 * MB))),
        "'a header': more than 1,048,576 bytes",
    ),
    "GNU long name": (
        "tar.gz",
        lambda: igzip.compress(extended(tarfile.GNUTYPE_LONGNAME, b"a" * (150 * MB))),
        "'a header': more than 1,048,576 bytes",
    ),
    "GNU long link": (
        "tar.gz",
        lambda: igzip.compress(extended(tarfile.GNUTYPE_LONGLINK, b"a" * (150 * MB))),
        "'a header': more than 1,048,576 bytes",
    ),
    "PAX headers one after the other": (
        "tar.gz",
        lambda: igzip.compress(extended(tarfile.XHDTYPE, pax("comment", MB)) * 200),
        "'a header': more than 1,048,576 bytes",
    ),
    "global headers": (
        "tar.gz",
        lambda: igzip.compress(
            b"".join(
                extended(tarfile.XGLTYPE, pax(f"key{number}", MB))
                + header(tarfile.REGTYPE, name=str(number))
                for number in range(150)
            )
        ),
        "'its global headers': more than 1,048,576 bytes",
    ),
    "sparse map": (
        "tar.gz",
        lambda: igzip.compress(sparse_blocks(100_000)),
        "'a header': more than 1,048,576 bytes",
    ),
    "list of a zip file": ("zip", lambda: entries(300_000), "more than 100,000 files"),
    "comments in the list of a zip file": (
        "zip",
        lambda: entries(2_000, bytes(60_000)),
        "'its member list': more than 16,000,000 bytes",
    ),
    "bzip2 in zip": (
        "zip",
        lambda: zip_of(bytes(300 * MB), zipfile.ZIP_BZIP2),
        "'a': compressed with a method other than deflate",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", COSTLY)
def test_row_17_memory_is_limited_before_it_is_used(name: str) -> None:
    suffix, make, message = COSTLY[name]
    intact = gzip.compress(header(tarfile.REGTYPE)) if suffix != "zip" else zip_of(b"", 0)
    reader = partial(unpack_beside, 1000 * MB)
    limits = Limits(memory_bytes=100 * MB)
    archive = f"a.{suffix}"
    (outcome,) = read_all(reader, [make()], intact=intact, name=archive, limits=limits)
    assert (outcome.ending, archive in outcome.detail) == (Ending.REFUSED, True), outcome
    assert message in outcome.detail


def test_row_17_the_dictionary_of_xz_is_limited(tmp_path: Path) -> None:
    content = bytearray(lzma.compress(header(tarfile.DIRTYPE), lzma.FORMAT_ALONE))
    content[1:5] = (1 << 27).to_bytes(4, "little")  # bytes of its dictionary
    (tmp_path / "a.tar.xz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar\.xz cannot be unpacked .*Memory usage limit"):
        unpack(tmp_path / "a.tar.xz", tmp_path / "out", MOST)


def test_row_17_xz_streams_with_padding_are_unpacked(tmp_path: Path) -> None:
    content = tar(tmp_path / "a.tar", ("a", bytes(range(256)) * 9_000), mode="w").read_bytes()
    half = len(content) // 2
    streams = lzma.compress(content[:half]), lzma.compress(content[half:])
    (tmp_path / "a.tar.xz").write_bytes(bytes(8).join(streams) + bytes(4))
    unpack(tmp_path / "a.tar.xz", tmp_path / "out", 3_000_000)
    assert (tmp_path / "out/a").read_bytes() == bytes(range(256)) * 9_000


def test_row_17_a_negative_size_does_not_seek_backward(tmp_path: Path) -> None:
    first = bytearray(header(tarfile.REGTYPE))
    first[124:136] = b"\xff" * 10 + (-2048 & 0xFFFF).to_bytes(2, "big")
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    inputs = [gzip.compress(bytes(1024) + bytes(first)), gzip.compress(header(b"0") * 3 + first)]
    outcomes = read_all(
        partial(unpack_beside, MOST), inputs, intact=gzip.compress(header(b"0")), name="a.tgz"
    )
    assert failures(outcomes) == []


@pytest.mark.parametrize("count", [500, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_row_17_damaged_archives_are_refused_or_unpacked(
    tmp_path: Path, suffix: str, count: int
) -> None:
    archive = tmp_path / f"a.{suffix}"
    members = ("a/b", b"1" * 900), ("c" * 120, b"2"), ("d", b"")
    if suffix == "zip":
        zipped(archive, *members)
    else:
        tar(archive, *members, mode={"tar": "w"}.get(suffix, f"w:{suffix[4:]}"))
    intact = archive.read_bytes()
    inputs = random_changes(intact, count)
    outcomes = read_all(partial(unpack_beside, MOST), inputs, intact=intact, name=archive.name)
    assert failures(outcomes) == []
