"""Objects of Cloud Storage, on a small server that speaks what is used of its JSON API."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io import remote, remote_file
from bsmeta.data.io.files import FileRef
from bsmeta.data.io.remote import store_of
from bsmeta.data.io.shards import list_shards
from tests.data.helpers import Run, run, same, small_config, write_shards
from tests.data.hub_server import shards_in
from tests.data.test_objects import CONTENT, STEPS, forget, read

URL = "gs://corpus"
PAGE = 2


class Storage:
    """A bucket: content and generation by name, and the status that answers get."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.statuses: list[int] = []
        storage = self

        class Handler(BaseHTTPRequestHandler):
            """A request to this bucket."""

            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Says nothing."""

            def do_GET(self) -> None:
                status, headers, body = storage.answer(self.path, self.headers.get("Range"))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()

    def put(self, contents: dict[str, bytes]) -> None:
        """Stores objects; their generations increase."""
        for name, content in contents.items():
            self.objects[name] = (content, self.objects.get(name, (b"", 1))[1] + 1)

    def answer(self, path: str, asked: str | None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        if self.statuses:
            status = self.statuses.pop()
            return status, {}, json.dumps({"error": {"message": f"status {status}"}}).encode()
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        bucket, _, name = parts.path.removeprefix("/storage/v1/b/").partition("/o")
        if bucket != "corpus":
            return 404, {}, json.dumps({"error": {"message": "no bucket"}}).encode()
        if not name:
            return 200, {}, json.dumps(self.listing(query)).encode()
        content, generation = self.objects.get(unquote(name[1:]), (b"", 0))
        if query["generation"] != str(generation) or asked is None:
            return 404, {}, b"No such object"
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        place = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        return 206, {"Content-Range": place, "Content-Encoding": "gzip"}, part

    def listing(self, query: dict[str, str]) -> dict[str, Any]:
        """A page of the objects that begin with a prefix."""
        names = [name for name in sorted(self.objects) if name.startswith(query.get("prefix", ""))]
        if "delimiter" in query:
            names = [n for n in names if "/" not in n.removeprefix(query.get("prefix", ""))]
        first = int(query.get("pageToken", "0"))
        page: dict[str, Any] = {}
        if first + PAGE < len(names):
            page["nextPageToken"] = str(first + PAGE)
        items = []
        for name in names[first : first + PAGE]:
            content, generation = self.objects[name]
            item = {"name": name, "size": str(len(content)), "generation": str(generation)}
            md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
            items.append(item | ({"crc32c": "AAAA"} if "composed" in name else {"md5Hash": md5}))
        return page | ({"items": items} if items else {})


@pytest.fixture
def gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A server with one bucket, small blocks and short delays."""
    monkeypatch.setattr(remote_file, "BLOCK", 1000)
    monkeypatch.setattr(remote, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(remote, "LONGEST_DELAY", 0.02)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    storage = Storage()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.endpoint)
    forget()
    yield storage
    storage.close()
    forget()


def refs(folder: Path, train_file: str) -> list[FileRef]:
    config = DataConfig(train_file=train_file, cache_dir=str(folder / "cache"), hub_retries=4)
    paths = [shard.path for shard in list_shards(config)]
    assert all(isinstance(path, FileRef) for path in paths)
    return paths  # type: ignore[return-value]


def test_listing_reading_and_checking(gs: Storage, tmp_path: Path) -> None:
    """An object stored with an encoding is read as it is stored."""
    contents = {f"web/{name}.jsonl": CONTENT for name in ("a b+ü", "b", "composed", "c")}
    gs.put({**contents, "web/": b"", "web/2020/d.jsonl": b"x"})
    gs.statuses = [503, 429]
    found = refs(tmp_path, f"{URL}/web/*.jsonl")
    assert [ref.path for ref in found] == sorted(contents)
    gs.statuses = [500]
    assert [read(ref) for ref in found] == [CONTENT] * 4
    for ref, is_right in zip(found, (True, True, True, None), strict=True):
        verifier = ref.store.verifier(ref)
        if verifier is not None:
            verifier.update(CONTENT)
        assert (verifier and verifier.is_right()) is is_right


def test_an_object_that_is_overwritten(gs: Storage, tmp_path: Path) -> None:
    gs.put({"a.jsonl": CONTENT})
    (ref,) = refs(tmp_path, f"{URL}/a.jsonl")
    gs.put({"a.jsonl": CONTENT[::-1]})
    with pytest.raises(DataError, match=r"gs://corpus/a\.jsonl: the file has changed since it"):
        read(ref)


def test_refusals(gs: Storage, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such bucket: corpse"):
        refs(tmp_path, "gs://corpse/*.jsonl")
    gs.statuses = [401]
    with pytest.raises(DataError, match=r"HTTP 401 \(status 401\): it is not public, and"):
        refs(tmp_path, f"{URL}/*.jsonl")


def test_credentials_that_cannot_be_read(gs: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")
    with pytest.raises(ConfigurationError, match=r"unset it for a public bucket: .* was not found"):
        store_of("gs")


def test_the_batches_of_local_files(gs: Storage, tmp_path: Path) -> None:
    folder = write_shards(tmp_path, [30, 41, 17, 26])
    gs.put(shards_in(folder))
    whole = run(small_config(folder), STEPS)
    values = {"train_file": f"{URL}/*.jsonl.gz", "cache_dir": str(tmp_path / "cache")}
    first = run(small_config(tmp_path, **values), 3)
    gs.statuses = [503]
    rest = run(small_config(tmp_path, **values), STEPS - 3, state=first.state)
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), whole)
