"""Names from outside: one function joins them to a folder; the lock of written files."""

from __future__ import annotations

import os
import socket
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import (
    UnsafeNameError,
    find_name_fault,
    hash_file,
    hold_write_lock,
    join_inside,
    refuse_special_file,
    refuse_unwritable_folder,
)
from tests.core.hostile_names import HARMLESS_NAMES, HOSTILE_NAMES


def test_at_least_sixty_distinct_hostile_names_are_tried() -> None:
    assert len(set(HOSTILE_NAMES)) == len(HOSTILE_NAMES) >= 60


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_hostile_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafeNameError):
        join_inside(tmp_path, name, "listing")


@pytest.mark.parametrize("name", HARMLESS_NAMES, ids=ascii)
def test_harmless_names_are_unchanged(tmp_path: Path, name: str) -> None:
    path = join_inside(tmp_path, name, "listing")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("content")
    assert path.relative_to(tmp_path).as_posix() == name


def test_the_message_names_the_source_of_the_name_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        join_inside(tmp_path, "a/../../x", "s3://bucket/a/../../x")
    assert str(error.value) == (
        f"s3://bucket/a/../../x: the name 'a/../../x' cannot be used for a file in {tmp_path}: it "
        "has the part '..'; expected a relative path, such as folder/file. Rename it there, or "
        "leave it out"
    )


def test_links_may_leave_the_folder_only_where_allowed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "inner").symlink_to(folder)
    (folder / "loop").symlink_to(folder / "loop")

    with pytest.raises(UnsafeNameError, match="a symbolic link leads out of"):
        join_inside(folder, "link/x", "listing")
    assert join_inside(folder, "link/x", "listing", follow_links=True) == folder / "link/x"
    assert join_inside(folder, "inner/x", "listing") == folder / "inner/x"
    assert join_inside(folder, "loop", "listing") == folder / "loop"

    # The folder itself may be reached through a link.
    (tmp_path / "alias").symlink_to(folder)
    assert join_inside(tmp_path / "alias", "x", "listing") == tmp_path / "alias/x"


@given(st.text(st.sampled_from("./\\a:C\0\n~"), max_size=12) | st.text(max_size=20))
@example("..")
def test_an_accepted_name_stays_inside_the_folder(name: str) -> None:
    if find_name_fault(name) is not None:
        return
    folder = "/srv/folder"
    joined = os.path.normpath(f"{folder}/{name}")
    assert joined == f"{folder}/{name}"  # nothing to simplify: no part of it has a meaning
    assert PurePosixPath(joined).is_relative_to(folder)
    assert joined != folder
    assert name.isprintable() or all(not 0 <= ord(character) < 32 for character in name)


def test_only_errors_of_the_written_file_are_reported_as_write_errors(tmp_path: Path) -> None:
    written = tmp_path / "out" / "table"
    with (
        pytest.raises(DataError, match=f"{written} cannot be written: .*No such file"),
        hold_write_lock(written, "the table"),
    ):
        (written / "missing" / "part").write_bytes(b"")

    source = tmp_path / "source.jsonl"
    with pytest.raises(FileNotFoundError), hold_write_lock(written, "the table"):
        source.read_bytes()

    (tmp_path / "file").write_bytes(b"")
    below_a_file = tmp_path / "file" / "folder" / "table"
    with (
        pytest.raises(DataError, match=f"{below_a_file} cannot be written: "),
        hold_write_lock(below_a_file, "the table"),
    ):
        raise AssertionError("the lock cannot be made")


def make_special_file(path: Path, file_type: str) -> None:
    if file_type == "pipe":
        os.mkfifo(path)
    elif file_type == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("file_type", ["pipe", "socket", "device"])
def test_what_can_block_forever_is_refused(
    tmp_path: Path, file_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the names of sockets have at most 108 bytes
    make_special_file(Path("x.tsv"), file_type)
    with pytest.raises(DataError) as error:
        hash_file("x.tsv")
    assert str(error.value) == (
        "x.tsv is a pipe, a socket or a device; expected a file, which can be read more than once: "
        "write its content to one, and name that"
    )


def test_other_paths_are_not_refused_as_special(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "link", "loop", "missing", "."):
        refuse_special_file(tmp_path / name)
    assert hash_file(tmp_path / "link") == "55f2b31a6acfaa64"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "loop").symlink_to("loop")
    for name, obstacle in {
        "file": "a file",
        "file/reports": f"below {tmp_path}/file, which is a file",
        "loop": "a link that leads nowhere (Too many levels of symbolic links)",
    }.items():
        with pytest.raises(ConfigurationError) as error:
            refuse_unwritable_folder(tmp_path / name, "out_dir")
        assert str(error.value) == (
            f"out_dir: {tmp_path}/{name} is {obstacle}; expected a writable folder, or "
            "a new name: out_dir=FOLDER"
        )

    refuse_unwritable_folder(tmp_path / "new" / "reports", "out_dir")
    assert not (tmp_path / "new").exists()
