"""A Hub of one data set on 127.0.0.1 that can misbehave.

It implements the required part of the Hub: the revision and the tree of a data set (in pages), and
the files, which it redirects to another path; byte ranges, and a token for all but that path.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from huggingface_hub import constants

REPO = "owner/name"
COMMIT = "c0ffee" + "0" * 34
TOKEN = "hf_secret"
LIBRARYS_OWN = "/api/agent-harnesses"
"""huggingface_hub asks for it once in a process, before whichever request comes first."""
PAGE = 2

Fault = Callable[["Answer"], bool]
"""Looks at a request, and answers it wrongly (true) or leaves it to the server."""


class Hub:
    """The server.

    Attributes:
        files: Content by path in the data set.
        token: The required token; None: none.
        faults: Tried in turn at each request.
        requests: Method, path and range of each request.
        commit: The commit of every known revision.
        sent: Bytes of the bodies of its answers.

    Args:
        page: Entries of a page of a listing.
    """

    def __init__(self, files: dict[str, bytes], page: int = PAGE) -> None:
        self.files = files
        self.page = page
        self.sent = 0
        self.token: str | None = None
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str]] = []
        self.commit = COMMIT
        self.listed: dict[str, bytes] = dict(files)
        hub = self

        class Handler(Answer):
            """A request to this server."""

            def do_GET(self) -> None:
                self.answer(hub)

            do_HEAD = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def content_requests(self) -> list[str]:
        """Returns the requested ranges of files."""
        return [asked for _, path, asked in self.requests if path.startswith("/stored/")]


@cache
def etag_of(content: bytes) -> str:
    """Returns the hash of a content on the server."""
    return hashlib.sha256(content).hexdigest()


class Answer(BaseHTTPRequestHandler):
    """One request to a `Hub`."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer in one chunk: two would wait for each other's acknowledgement
    hub: Hub
    commit: str  # that the answer is about; a fault may change it

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def answer(self, hub: Hub) -> None:
        """Answers, unless a fault does."""
        self.hub, self.commit = hub, hub.commit
        self.range = self.headers.get("Range", "")
        if self.path == LIBRARYS_OWN:
            self.give(404)
            return
        hub.requests.append((self.command, self.path, self.range))
        if any(fault(self) for fault in list(hub.faults)):
            return
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        if path.startswith("/stored/"):
            self.give_content(path.removeprefix("/stored/"))
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.give(401, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith(f"/api/datasets/{REPO}/revision/"):
            self.give_revision(path.rsplit("/revision/")[1])
        elif path.startswith(f"/api/datasets/{REPO}/tree/{self.commit}"):
            folder = path.removeprefix(f"/api/datasets/{REPO}/tree/{self.commit}").strip("/")
            self.give_tree(folder, parse_qs(parts.query))
        elif path.startswith(f"/datasets/{REPO}/resolve/{self.commit}/"):
            self.redirect(path.removeprefix(f"/datasets/{REPO}/resolve/{self.commit}/"))
        else:
            self.give(404, {"X-Error-Code": "RepoNotFound"})

    def give(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Sends a whole answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.hub.sent += len(body)
            self.wfile.write(body)

    def give_json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        """Sends an answer in JSON."""
        self.give(200, headers, json.dumps(value).encode())

    def give_revision(self, revision: str) -> None:
        if revision == "gone":
            self.give(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            self.give_json({"id": REPO, "sha": self.hub.commit})

    def give_tree(self, folder: str, query: dict[str, list[str]]) -> None:
        prefix = f"{folder}/" if folder else ""
        below = {f: c for f, c in self.hub.listed.items() if f.startswith(prefix)}
        if folder and not below:
            self.give(404, {"X-Error-Code": "EntryNotFound"})
            return
        if query["recursive"] == ["False"]:
            below = {f: c for f, c in below.items() if "/" not in f.removeprefix(prefix)}
        entries = [{"type": "directory", "path": "folder", "oid": "0", "size": 0}]
        entries += [
            {
                "type": "file",
                "path": file,
                "oid": "0" * 40,
                "size": len(content),
                "lfs": {"oid": etag_of(content), "size": len(content), "pointerSize": 130},
            }
            for file, content in sorted(below.items())
        ]
        first = int(query.get("cursor", ["0"])[0])
        headers = {}
        after = first + self.hub.page
        if after < len(entries):
            page = f"{urlsplit(self.path).path}?recursive={query['recursive'][0]}"
            url = f"{self.hub.endpoint}{page}&cursor={after}"
            headers["Link"] = f'<{url}>; rel="next"'
        self.give_json(entries[first:after], headers)

    def redirect(self, file: str) -> None:
        content = self.hub.files.get(file)
        if content is None:
            self.give(404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {
            "Location": f"/stored/{quote(file)}?signature=s3cret",
            "X-Repo-Commit": self.commit,
            "X-Linked-Etag": f'"{etag_of(content)}"',
            "X-Linked-Size": str(len(content)),
        }
        self.give(302, headers)

    def give_content(self, file: str) -> None:
        content = self.hub.files[file]
        first, last = self.asked()
        part = content[first : last + 1]
        headers = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(content)}"}
        self.give(206, headers | {"ETag": '"of the storage"'}, part)

    def asked(self) -> tuple[int, int]:
        """Returns first and last byte of the range."""
        first, last = self.range.removeprefix("bytes=").split("-")
        return int(first), int(last)

    def give_part(self, count: int) -> None:
        """Sends the beginning of an answer, then cuts the connection."""
        file = unquote(urlsplit(self.path).path).removeprefix("/stored/")
        content = self.hub.files[file]
        first, last = self.asked()
        self.send_response(206)
        self.send_header("Content-Length", str(len(content[first : last + 1])))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[first : first + count])
        self.wfile.flush()
        self.close_connection = True


def is_content(answer: Answer) -> bool:
    """Whether a request is for bytes of a file."""
    return answer.path.startswith("/stored/")


def is_anything(_: Answer) -> bool:
    """Whether a request counts: always."""
    return True


def failing(
    status: int,
    times: int,
    headers: dict[str, str] | None = None,
    where: Callable[[Answer], bool] = is_content,
) -> Fault:
    """Answers the first requests with a bad status."""
    lock, left = threading.Lock(), [times]

    def fault(answer: Answer) -> bool:
        if not where(answer):
            return False
        with lock:
            left[0] -= 1
            if left[0] < 0:
                return False
        answer.give(status, headers)
        return True

    return fault


def cutting(after: int, times: int) -> Fault:
    """Ends the first answers with content after `after` bytes."""
    lock, left = threading.Lock(), [times]

    def fault(answer: Answer) -> bool:
        if not is_content(answer):
            return False
        with lock:
            left[0] -= 1
            if left[0] < 0:
                return False
        answer.give_part(after)
        return True

    return fault


@contextmanager
def used_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Makes huggingface_hub use a server that runs during the context."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    with hub:
        yield hub


def shards_in(folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder as files of a data set."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
