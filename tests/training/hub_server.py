"""The part of the Hub's interface that an upload needs, on loopback; it can misbehave.

Set `behavior` to `good`, to a status code that every call is answered with, or to `hang`.
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OID = "0" * 40


class HubServer(ThreadingHTTPServer):
    """Keeps uploads in `files`, by path, and the tokens of calls."""

    daemon_threads = True

    def __init__(self, behavior: str | int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behavior = behavior
        self.files: dict[str, bytes] = {}
        self.repositories: list[str] = []
        self.private: list[bool] = []
        self.tokens: set[str] = set()
        self.released = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._misbehaves():
            return
        self.server.tokens.add(self.headers.get("Authorization", ""))
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            name = json.loads(body)
            full = "/".join(filter(None, (name.get("organization"), name["name"])))
            self.server.repositories.append(full)
            self.server.private.append(name.get("private", name.get("visibility") == "private"))
            self._answer({"url": f"{self.server.address}/{full}", "name": full})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif "/commit/" in path:
            self._commit(body)
        else:
            self._answer({"error": path}, 404)

    def do_GET(self) -> None:
        if not self._misbehaves():
            self._answer({"id": "owner/name", "sha": OID, "siblings": [], "tags": []})

    def _commit(self, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = line["value"]["content"]
                self.server.files[line["value"]["path"]] = base64.b64decode(content)
        url = f"{self.server.address}/owner/name/commit/{OID}"
        self._answer({"success": True, "commitUrl": url, "commitOid": OID})

    def _misbehaves(self) -> bool:
        if self.server.behavior == "hang":
            self.server.released.wait()
        if isinstance(self.server.behavior, int):
            self._answer({"error": "no"}, self.server.behavior)
        return self.server.behavior != "good"

    def _answer(self, value: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
