"""The files of a manifest: downloaded, unpacked and complete, or not begun."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import tarfile
import time
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from bsmeta.config.programs.downloading import DownloadConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.file_sets import read_manifest
from bsmeta.download import main
from tests.conftest import REPOSITORY
from tests.data.file_server import FileServer, Request
from tests.waiting import STUCK_S, wait_until

TEXT = b"some text\n" * 1000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a file and an archive of two files."""
    folder = tmp_path / "source"
    (folder / "wiki/inner").mkdir(parents=True)
    (folder / "wiki/train.jsonl").write_bytes(TEXT)
    (folder / "wiki/inner/dev.jsonl").write_bytes(TEXT[:100])
    with tarfile.open(folder / "wiki.tar.gz", "w:gz") as archive:
        archive.add(folder / "wiki/train.jsonl", "train.jsonl")
        archive.add(folder / "wiki/inner", "inner")
    (folder / "titles.json").write_bytes(TEXT)
    return folder


def make_entry(folder: Path, name: str, **others: Any) -> dict[str, Any]:
    content = (folder / name).read_bytes()
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return {"path": name, "address": name, **facts, **others}


def write_manifest(folder: Path, *changes: dict[str, Any]) -> Path:
    files = [
        make_entry(folder, "wiki.tar.gz", unpack="data/wiki", unpacked_bytes=10_100),
        make_entry(folder, "titles.json"),
    ]
    for number, changed in enumerate(changes):
        files[number].update(changed)
    (folder / "manifest.json").write_text(json.dumps({"files": files}))
    return folder / "manifest.json"


def fetch(manifest: Path, folder: Path, **keys: Any) -> int:
    return main(DownloadConfig(manifest=str(manifest), folder=str(folder), **keys))


def list_files(folder: Path) -> list[str]:
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if path.parts[0] != ".download")


WHOLE = ["data/wiki/inner/dev.jsonl", "data/wiki/train.jsonl", "titles.json"]


def test_files_are_copied_from_the_folder_of_the_manifest(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert fetch(write_manifest(source), out) == 0
    assert list_files(out) == WHOLE
    assert (out / "data/wiki/train.jsonl").read_bytes() == TEXT
    assert capsys.readouterr().out == f"{out}: 2 files and folders are complete, 2 of them new\n"
    (out / "data/wiki/added").touch()
    (source / "wiki.tar.gz").unlink()
    assert fetch(source / "manifest.json", out) == 0
    assert "0 of them new" in capsys.readouterr().out


def test_files_are_downloaded_from_a_mirror_and_archives_can_be_kept(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    manifest = write_manifest(source)
    files = {f"/m/{name}": (source / name).read_bytes() for name in ("wiki.tar.gz", "titles.json")}
    with FileServer(files).running() as server:
        fetch(manifest, out, mirror=f"{server.address}/m", keep_archives=True)
    assert list_files(out) == [*WHOLE, "wiki.tar.gz"]


def test_a_manifest_may_be_yaml(source: Path, tmp_path: Path) -> None:
    fields = make_entry(source, "titles.json")
    lines = "\n    ".join(f"{key}: {value}" for key, value in fields.items())
    (source / "manifest.yaml").write_text(f"files:\n  -\n    {lines}\n")
    fetch(source / "manifest.yaml", tmp_path / "out")
    assert list_files(tmp_path / "out") == ["titles.json"]


def test_a_changed_file_is_downloaded_again(source: Path, tmp_path: Path) -> None:
    manifest, out = write_manifest(source), tmp_path / "out"
    fetch(manifest, out)
    (out / "titles.json").write_bytes(b"changed")
    with pytest.raises(ConfigurationError, match=r"titles.json exists, but is not from this"):
        fetch(manifest, out)
    (out / "titles.json").unlink()
    fetch(manifest, out)
    assert list_files(out) == WHOLE


def test_a_file_whose_time_has_changed_is_verified(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after copying the folder without its times."""
    manifest, out = write_manifest(source), tmp_path / "out"
    fetch(manifest, out)
    os.utime(out / "titles.json", (0, 0))
    capsys.readouterr()
    fetch(manifest, out)
    assert capsys.readouterr().out == f"{out}: 2 files and folders are complete, 0 of them new\n"


def test_a_file_copied_there_by_hand_is_verified(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "titles.json").write_bytes(TEXT)
    (out / "wiki.tar.gz").write_bytes((source / "wiki.tar.gz").read_bytes())
    manifest = write_manifest(source)
    (source / "titles.json").unlink()
    (source / "wiki.tar.gz").unlink()
    fetch(manifest, out)
    assert list_files(out) == WHOLE


def test_a_disk_that_is_too_small_is_refused_before_any_download(
    source: Path, tmp_path: Path
) -> None:
    huge = {"bytes": 25 * 10**15, "unpacked_bytes": 180 * 10**15}
    with pytest.raises(ConfigurationError) as error:
        fetch(write_manifest(source, huge), tmp_path / "out")
    assert "205,000,000.00 GB are needed (25,000,000.00 GB to download, " in str(error.value)
    assert "180,000,000.00 GB unpacked); nothing was downloaded" in str(error.value)
    assert list_files(tmp_path / "out") == []


def test_an_archive_larger_than_stated_is_refused(source: Path, tmp_path: Path) -> None:
    manifest = write_manifest(source, {"unpacked_bytes": 10_099})
    with pytest.raises(DataError, match=r"not unpacked: 'inner/dev.jsonl': more than 10,099 bytes"):
        fetch(manifest, tmp_path / "out")
    assert list_files(tmp_path / "out") == ["wiki.tar.gz"]


def test_all_problems_of_a_manifest_are_listed(source: Path) -> None:
    first = {
        "path": "../x.rar",
        "address": "ftp://host/x",
        "sha256": "12",
        "unpack": ".download",
        "unpacked_bytes": None,
        "bytes": -1,
    }
    with pytest.raises(ConfigurationError) as error:
        read_manifest(write_manifest(source, first, {"path": ".download/titles"}))
    assert str(error.value).splitlines() == [
        f"manifest={source}/manifest.json:",
        "  files[0]: '../x.rar': it has the part '..'; expected a path in the target folder",
        "  files[0]: '.download': .download holds the state of the download; expected a path in "
        "the target folder",
        "  files[0]: address 'ftp://host/x': expected http(s)://, file://, or a relative address",
        "  files[0]: sha256 '12': expected 64 hexadecimal digits",
        "  files[0]: negative number of bytes",
        "  files[0]: unpack and unpacked_bytes belong together",
        "  files[0]: '../x.rar' is unpacked by its suffix: one of .tar, .tar.gz, .tgz, .tar.bz2, "
        ".tar.xz, .zip",
        "  files[1]: '.download/titles': .download holds the state of the download; expected a "
        "path in the target folder",
        "  .download/titles is in .download, which is a file or an archive's folder",
    ]


def test_an_address_that_is_not_a_url_is_refused(source: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"files\[0\]: the address is not a URL \(Inv"):
        read_manifest(write_manifest(source, {"address": "http://[::/x"}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Input data was truncated"),
        ('{"files": [{"path": "a"}]}', r"missing required field `address` - at `\$.files\[0\]`"),
        ('{"files": [], "mirror": ""}', "unknown field `mirror`"),
    ],
)
def test_a_malformed_manifest_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_manifest(tmp_path / "manifest.json")


def test_a_killed_download_continues(source: Path, tmp_path: Path) -> None:
    large = os.urandom(3_000_000)
    (source / "large.bin").write_bytes(large)
    (source / "manifest.json").write_text(json.dumps({"files": [make_entry(source, "large.bin")]}))
    part = tmp_path / "out/large.bin.part"

    def half_then_nothing(request: Request, content: bytes) -> bool:
        request.send(200, content[: len(content) // 2], length=len(content))
        time.sleep(STUCK_S)
        return True

    with FileServer({"/large.bin": large}).running() as server:
        server.faults = [half_then_nothing]
        keys = [f"manifest={source}/manifest.json", f"folder={tmp_path}/out"]
        keys += [f"mirror={server.address}"]
        process = Popen([sys.executable, REPOSITORY / "bsmeta/download.py", *keys], stderr=PIPE)
        wait_until(lambda: part.exists() and part.stat().st_size >= 1_000_000, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        size = part.stat().st_size
        fetch(source / "manifest.json", tmp_path / "out", mirror=server.address)
    assert server.ranges == [None, f"bytes={size}-"]
    assert (tmp_path / "out/large.bin").read_bytes() == large


def test_the_manifest_of_the_shipped_sample_can_be_downloaded(tmp_path: Path) -> None:
    fetch(REPOSITORY / "examples/senses_sample/manifest.json", tmp_path)
    names = ["LICENSE.txt", "dev.jsonl.gz", "profiles.jsonl.gz", "train.jsonl.gz"]
    assert list_files(tmp_path) == names
    assert sum((tmp_path / name).stat().st_size for name in names) < 300_000
