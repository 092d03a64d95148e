"""Downloads from a server that cuts, lies and stalls: the right file in the end, or an error."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from bsmeta.core.errors import DataError
from bsmeta.data.io.file_sets import Entry, download
from bsmeta.data.io.remote import store
from tests.data.file_server import FileServer, Request
from tests.waiting import STUCK_S

CONTENT = bytes(range(256)) * 1000
HTML = b"<html>Please log in</html>"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(store, "FIRST_DELAY_S", 0.01)
    with FileServer({"/data.bin": CONTENT}).running() as running:
        yield running


def make_source(server: FileServer, content: bytes = CONTENT, name: str = "data.bin") -> Entry:
    sha256 = hashlib.sha256(content).hexdigest()
    return Entry(name, f"{server.address}/{name}", len(content), sha256)


def fetch(server: FileServer, folder: Path, retries: int = 2, timeout: float = 20.0) -> bytes:
    path = folder / "out/data.bin"
    download(make_source(server), path, retries=retries, timeout=timeout)
    assert [file.name for file in path.parent.iterdir()] == ["data.bin"]
    return path.read_bytes()


def cut(request: Request, content: bytes) -> bool:
    start = request.start
    stated = f"bytes {start}-{len(content) - 1}/{len(content)}"
    headers = {"Content-Range": stated} if start else {}
    half = content[start : start + 50_000]
    request.send(206 if start else 200, half, length=len(content) - start, **headers)
    return True


def whole_file_despite_the_range(request: Request, content: bytes) -> bool:
    request.send(200, content)
    return True


def html_with_200(request: Request, content: bytes) -> bool:
    request.send(200, HTML, **{"Content-Type": "text/html"})
    return True


def another_range(request: Request, content: bytes) -> bool:
    request.send(
        206, content[7:], **{"Content-Range": f"bytes 7-{len(content) - 1}/{len(content)}"}
    )
    return True


def compressed(request: Request, content: bytes) -> bool:
    request.send(200, content, **{"Content-Encoding": "gzip"})
    return True


def busy(request: Request, content: bytes) -> bool:
    request.send(503, b"", **{"Retry-After": "0"})
    return True


def wrong_bytes(request: Request, content: bytes) -> bool:
    request.send(200, content[::-1])
    return True


def longer(request: Request, content: bytes) -> bool:
    request.send(200, content + b"more")
    return True


def test_a_file_is_downloaded_at_once(server: FileServer, tmp_path: Path) -> None:
    assert fetch(server, tmp_path) == CONTENT
    assert server.ranges == [None]


def test_a_cut_connection_is_resumed(server: FileServer, tmp_path: Path) -> None:
    server.faults = [cut] * 4  # more than the retries: each makes progress
    assert fetch(server, tmp_path) == CONTENT
    assert server.ranges == [None, *(f"bytes={place}-" for place in range(50_000, 250_000, 50_000))]


@pytest.mark.parametrize("fault", [html_with_200, another_range, compressed, busy, longer])
def test_an_answer_that_is_not_the_file_is_requested_again(
    server: FileServer, tmp_path: Path, fault: object, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults = [cut, fault]  # type: ignore[list-item]
    with caplog.at_level(logging.WARNING):
        assert fetch(server, tmp_path) == CONTENT
    assert server.ranges == [None, "bytes=50000-", "bytes=50000-"]


def test_without_range_requests_the_download_restarts(server: FileServer, tmp_path: Path) -> None:
    server.faults = [cut, whole_file_despite_the_range]
    assert fetch(server, tmp_path) == CONTENT
    assert len(server.ranges) == 2


def test_wrong_bytes_are_refused_and_not_kept(server: FileServer, tmp_path: Path) -> None:
    server.faults = [wrong_bytes]
    with pytest.raises(DataError, match="is not the expected file: its sha256 is"):
        fetch(server, tmp_path)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_part_of_another_file_is_downloaded_from_the_beginning(
    server: FileServer, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/data.bin.part").write_bytes(b"another file")
    assert fetch(server, tmp_path) == CONTENT
    assert server.ranges == ["bytes=12-", None]


def test_an_interrupted_download_continues_with_its_part(
    server: FileServer, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/data.bin.part").write_bytes(CONTENT[:100_000])
    assert fetch(server, tmp_path) == CONTENT
    assert server.ranges == ["bytes=100000-"]


@pytest.mark.long
def test_a_stalled_request_is_repeated(server: FileServer, tmp_path: Path) -> None:
    released = threading.Event()

    def stall(request: Request, content: bytes) -> bool:
        request.send(200, content[:1000], length=len(content))
        return released.wait(STUCK_S)

    server.faults = [stall]
    assert fetch(server, tmp_path, timeout=5) == CONTENT
    released.set()
    assert server.ranges == [None, "bytes=1000-"]


def test_too_many_failures_end_the_download(server: FileServer, tmp_path: Path) -> None:
    server.faults = [cut, *[busy] * 4]
    with pytest.raises(DataError, match=r"byte 50000 of 256000: given up after 3 failures .*503"):
        fetch(server, tmp_path)
    assert (tmp_path / "out/data.bin.part").read_bytes() == CONTENT[:50_000]


def test_a_missing_file_ends_the_download(server: FileServer, tmp_path: Path) -> None:
    source = make_source(server, name="other.bin")
    named = structs.replace(source, address=source.address.replace("//", "//user:secret@"))
    with pytest.raises(DataError, match="HTTP 404; correct the address") as error:
        download(named, tmp_path / "other.bin", retries=9, timeout=9)
    assert "secret" not in str(error.value)
    assert server.ranges == [None]


def test_a_file_url_is_copied_and_verified(tmp_path: Path) -> None:
    (tmp_path / "a b.bin").write_bytes(CONTENT)
    (tmp_path / "c.bin.part").write_bytes(CONTENT[:9])
    address = (tmp_path / "a b.bin").as_uri()
    source = Entry("c.bin", address, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    download(source, tmp_path / "c.bin", retries=0, timeout=1)
    assert (tmp_path / "c.bin").read_bytes() == CONTENT
    with pytest.raises(DataError, match="has 256,000 bytes instead of 7"):
        download(structs.replace(source, bytes=7), tmp_path / "d.bin", retries=0, timeout=1)
    missing = structs.replace(source, address=f"{address}x")
    with pytest.raises(DataError, match="cannot be read: No such file"):
        download(missing, tmp_path / "d.bin", retries=0, timeout=1)


def test_a_full_disk_is_not_blamed_on_the_source(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    (tmp_path / "c.bin.part").symlink_to("/dev/full")
    source = Entry("c.bin", (tmp_path / "a.bin").as_uri(), len(CONTENT), "")
    with pytest.raises(OSError, match="No space left on device"):
        download(source, tmp_path / "c.bin", retries=0, timeout=1)
