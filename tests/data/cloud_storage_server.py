"""A bucket of Cloud Storage on 127.0.0.1, which speaks what is used of its APIs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit
from xml.etree import ElementTree

import pytest

from bsmeta.data.io.remote import objects, remote_file, store, stores
from tests.data.bucket_server import (
    BUCKET,
    RUN_PREFIX,
    Answer,
    Environ,
    Fault,
    ObjectServer,
    error,
)

PAGE = 2


def forget() -> None:
    """Clears caches, so that the next call lists and connects like a new process."""
    objects.list_objects.cache_clear()
    objects.create_http_client.cache_clear()
    stores.find_store.cache_clear()


class Storage(ObjectServer):
    """A bucket, with the JSON API, and uploads in parts of the XML API; see `BucketServer`.

    Attributes:
        token: The access token that requests must have; "": none.
    """

    url = f"gs://{BUCKET}"
    run_url = f"gs://{BUCKET}/{RUN_PREFIX}"

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.token = ""
        self._uploads: dict[str, tuple[str, dict[int, bytes]]] = {}  # name and parts, by id
        self._access = threading.Lock()

    def remove(self, key: str) -> None:
        """Deletes an object."""
        del self.objects[key]

    def list_keys(self) -> list[str]:
        """Lists all objects in order."""
        return sorted(self.objects)

    def list_unfinished(self) -> list[str]:
        """Lists the objects of unfinished uploads in parts."""
        return [name for name, _ in self._uploads.values()]

    def drop_uploads(self) -> None:
        """Forgets all unfinished uploads in parts."""
        self._uploads.clear()

    def answer(
        self, method: str, target: str, headers: Message, content: bytes
    ) -> tuple[Answer, int | None]:
        request = _Request.parse(method, target, headers, content)
        environ = request.describe()
        query = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        self.requests.append((environ["REQUEST_METHOD"], query, environ.get("HTTP_RANGE", "")))
        if self.statuses:
            return refuse(self.statuses.pop()), None
        cut = None
        for fault in list(self.faults):
            answer = fault(environ)
            if isinstance(answer, tuple):
                return answer, None
            cut = answer if isinstance(answer, int) else cut

        if request.path.startswith("/token"):
            token = {"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"}
            return (200, {}, json.dumps(token).encode()), None
        if self.token and headers.get("Authorization") != f"Bearer {self.token}":
            return refuse(401, "Invalid Credentials"), None
        if request.bucket != BUCKET:
            return refuse(404, "no bucket"), None
        with self._access:
            respond = self._respond_in_xml if request.is_xml else self._respond
            return respond(request), cut

    def _respond(self, request: _Request) -> Answer:
        """Answers a request of the JSON API."""
        query = request.query
        if not request.name:
            return 200, {}, json.dumps(self.listing(query)).encode()
        if request.method == "POST":
            return self._insert(request)
        content, generation = self.objects.get(request.name, (b"", 0))
        if generation == 0:
            return refuse(404, "No such object")
        if request.method == "DELETE":
            del self.objects[request.name]
            return 204, {}, b""
        if query.get("alt") != "media":
            return 200, {}, json.dumps({"size": str(len(content))}).encode()
        return self._read(request, content, generation)

    def _read(self, request: _Request, content: bytes, generation: int) -> Answer:
        """Answers with the content of an object, or with a range of it."""
        if request.query.get("generation", str(generation)) != str(generation):
            return refuse(404, "No such object")
        asked = request.headers.get("Range")
        if asked is None:
            return 200, {}, content
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last or len(content)) + 1]
        content_range = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        headers = {"Content-Range": content_range}
        if last:  # of a shard, which is read as it is stored
            headers["Content-Encoding"] = "gzip"
        return 206, headers, part

    def _insert(self, request: _Request) -> Answer:
        """Stores an object that was uploaded whole, unless its hash or its condition is wrong."""
        name = request.name
        checksum = encode_md5(request.content)
        if request.checksum != checksum:
            return refuse(400, "Provided MD5 hash does not match calculated MD5 hash")
        expected = request.query.get("ifGenerationMatch")
        if expected is not None and int(expected) != self.objects.get(name, (b"", 0))[1]:
            return refuse(412, "At least one of the pre-conditions you specified did not hold.")
        self.put({name: request.content})
        return 200, {}, json.dumps({"md5Hash": checksum}).encode()

    def _respond_in_xml(self, request: _Request) -> Answer:
        """Answers a request about an upload in parts."""
        if "uploads" in request.query:
            upload_id = f"id{len(self.requests)}"
            self._uploads[upload_id] = (request.name, {})
            result = f"<UploadId>{upload_id}</UploadId>"
            return 200, {}, _wrap("InitiateMultipartUploadResult", result)

        upload_id = request.query["uploadId"]
        name, parts = self._uploads.get(upload_id, ("", {}))
        if name != request.name:
            return 404, {}, error("NoSuchUpload")
        if request.method == "PUT":
            checksum = encode_md5(request.content)
            if request.headers.get("Content-MD5", checksum) != checksum:
                return 400, {}, error("BadDigest")
            parts[int(request.query["partNumber"])] = request.content
            etag = f'"{hashlib.md5(request.content).hexdigest()}"'
            return 200, {"ETag": etag, "X-Goog-Hash": f"md5={checksum}"}, b""

        del self._uploads[upload_id]
        if request.method == "DELETE":
            return 204, {}, b""
        listed = ElementTree.fromstring(request.content).iterfind("{*}Part")
        content = b""
        for entry in listed:
            part = parts[int(entry.findtext("{*}PartNumber", ""))]
            if entry.findtext("{*}ETag", "").strip('"') != hashlib.md5(part).hexdigest():
                return 400, {}, error("InvalidPart")
            content += part
        self.put({name: content})
        return 200, {}, _wrap("CompleteMultipartUploadResult", "")

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
            md5 = encode_md5(content)
            items.append(item | ({"crc32c": "AAAA"} if "composed" in name else {"md5Hash": md5}))
        return page | ({"items": items} if items else {})


@dataclass(frozen=True)
class _Request:
    """A request.

    Attributes:
        name: Of the object; "" for a listing.
        content: Of the object or the part that is uploaded.
        checksum: The MD5 that is declared with an object.
    """

    method: str
    path: str
    is_xml: bool
    bucket: str
    name: str
    query: dict[str, str]
    headers: Message
    content: bytes
    checksum: str

    @classmethod
    def parse(cls, method: str, target: str, headers: Message, content: bytes) -> _Request:
        """Takes a request of either API apart."""
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query, True).items()}
        is_xml = "/storage/v1/" not in url.path
        path = url.path if is_xml else url.path.partition("/storage/v1/b/")[2]
        bucket, _, name = path.lstrip("/").partition("/" if is_xml else "/o")
        name = unquote(name if is_xml else name[1:])
        checksum = ""
        if query.get("uploadType") == "multipart":
            boundary = headers["Content-Type"].partition("boundary=")[2].strip("'\"").encode()
            head, _, rest = content.partition(b"--" + boundary)[2].partition(b"--" + boundary)
            metadata = json.loads(head.partition(b"\r\n\r\n")[2])
            name = metadata["name"]
            checksum = metadata.get("md5Hash", "")
            end = b"\r\n--" + boundary + b"--"
            content = rest.partition(b"\r\n\r\n")[2].rpartition(end)[0]
        return cls(method, url.path, is_xml, bucket, name, query, headers, content, checksum)

    def describe(self) -> Environ:
        """Describes the request as S3 receives it."""
        method = self.method
        query = dict(self.query)
        if not self.is_xml:
            if not self.name:
                query["list-type"] = "2"
            elif method == "POST":
                method = "PUT"
            elif method == "GET" and query.get("alt") != "media":
                method = "HEAD"
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": f"/{self.bucket}/{self.name}".rstrip("/"),
            "QUERY_STRING": urlencode(query),
        }
        if "Range" in self.headers:
            environ["HTTP_RANGE"] = self.headers["Range"]
        return environ


def refuse(status: int, message: str = "") -> Answer:
    """The answer of the JSON API to a request that fails."""
    message = message or f"status {status}"
    return status, {}, json.dumps({"error": {"message": message}}).encode()


def encode_md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content).digest()).decode()


def _wrap(tag: str, content: str) -> bytes:
    """Returns a document of the XML API."""
    return f'<{tag} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}</{tag}>'.encode()


@pytest.fixture
def gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A server with one bucket, small blocks and short delays."""
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(store, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(store, "MAX_DELAY_S", 0.02)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    storage = Storage()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.endpoint)
    forget()
    yield storage
    storage.close()
    forget()
