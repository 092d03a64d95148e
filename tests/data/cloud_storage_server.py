"""A bucket of Cloud Storage on 127.0.0.1, which speaks what is used of its JSON API."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from bsmeta.data.io import objects, remote, remote_file, stores

PAGE = 2


def forget() -> None:
    """Clears caches, so that the next call lists and connects like a new process."""
    objects.list_objects.cache_clear()
    objects.create_http_client.cache_clear()
    stores.find_store.cache_clear()


class Storage:
    """A bucket: content and generation by name, and the status that answers get."""

    url = "gs://corpus"

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
                status, headers, body = storage.answer(self.path, self.headers)
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

    def answer(self, path: str, request_headers: Message) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers and body."""
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
        asked = request_headers.get("Range")
        if query["generation"] != str(generation) or asked is None:
            return 404, {}, b"No such object"
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        content_range = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        return 206, {"Content-Range": content_range, "Content-Encoding": "gzip"}, part

    def listing(self, query: dict[str, str]) -> dict[str, Any]:
        """Returns a page of the objects that begin with a prefix."""
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
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(remote, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(remote, "MAX_DELAY_S", 0.02)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    storage = Storage()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.endpoint)
    forget()
    yield storage
    storage.close()
    forget()
