"""A container of Azure Blob Storage on 127.0.0.1, which speaks what is used of its REST API."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from email.message import Message
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from bsmeta.data.io.remote import remote_file, store
from tests.data.bucket_server import Answer, ObjectServer
from tests.data.cloud_storage_server import PAGE, forget

ACCOUNT = "corpora"
KEY = base64.b64encode(bytes(range(64))).decode()
SIGNATURE = "q1Zb8T2hXk0vJ5mW7uYc3RfLd9sNgEaPoIi4KtVxQw%3D"
SAS = f"sv=2021-12-02&sr=c&sp=rl&se=2036-01-01T00%3A00%3A00Z&sig={SIGNATURE}"

CODES = {
    401: "NoAuthenticationInformation",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServerBusy",
}
VARIABLES = (
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
)
SIGNED = (
    "Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
    "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range",
)  # fmt: skip


def refuse(status: int, code: str, **headers: str) -> Answer:
    """Returns a refusal; its body begins with a byte order mark, like Azure's."""
    body = f"\ufeff<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>"
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, body.encode()


class AzureServer(ObjectServer):
    """A container, public unless a key or a SAS token is required.

    Attributes:
        answers: Replacements for the answers to the next requests.
        key: The account key that requests must be signed with; "": none.
        sas: The SAS token that their query must end in; "": none.
        ignores_conditions: Whether it ignores If-Match.
    """

    url = "az://corpus"

    def __init__(self) -> None:
        super().__init__()
        self.endpoint += f"/{ACCOUNT}"
        self.answers: list[Answer] = []
        self.key = ""
        self.sas = ""
        self.ignores_conditions = False

    def answer(
        self, method: str, target: str, headers: Message, content: bytes
    ) -> tuple[Answer, int | None]:
        self.requests.append((method, target, headers.get("Range", "")))
        return self._respond(target, headers), None

    def _respond(self, path: str, request_headers: Message) -> Answer:
        """Returns status, headers and body."""
        asked = request_headers.get("Range", "")
        if self.answers:
            return self.answers.pop(0)
        if self.statuses:
            status = self.statuses.pop()
            return refuse(status, CODES[status])
        if request_headers["x-ms-version"] != "2021-12-02":
            return refuse(400, "InvalidHeaderValue")
        if self.key and request_headers["Authorization"] != self._sign(path, request_headers):
            return refuse(403, "AuthenticationFailed")
        if self.sas and not path.endswith(self.sas):
            return refuse(403, "AuthenticationFailed")

        url = urlsplit(path)
        container, _, name = url.path.removeprefix(f"/{ACCOUNT}/").partition("/")
        if container != "corpus":
            return refuse(404, "ContainerNotFound")
        if not name:
            return 200, {}, self._list(dict(parse_qsl(url.query))).encode()

        content, generation = self.objects.get(unquote(name), (b"", 0))
        if not generation:
            return refuse(404, "BlobNotFound")
        etag = f'"{format_etag(generation)}"'
        if not self.ignores_conditions and request_headers.get("If-Match", etag) != etag:
            return refuse(412, "ConditionNotMet")
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        content_range = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        headers = {"Content-Range": content_range, "Content-Encoding": "gzip", "ETag": etag}
        return 206, headers, part

    def _list(self, query: dict[str, str]) -> str:
        """Returns a page of the blobs that begin with a prefix."""
        assert query["restype"] == "container"
        assert query["comp"] == "list"
        prefix = query.get("prefix", "")
        names = [name for name in sorted(self.objects) if name.startswith(prefix)]
        if "delimiter" in query:
            names = [name for name in names if "/" not in name.removeprefix(prefix)]
        first = int(query.get("marker", "0"))

        blobs = ""
        for name in names[first : first + PAGE]:
            content, generation = self.objects[name]
            md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
            stored_md5 = "" if "composed" in name else md5
            blobs += (
                f"<Blob><Name>{escape(name)}</Name><Properties>"
                f"<Etag>{format_etag(generation)}</Etag><Content-MD5>{stored_md5}</Content-MD5>"
                f"<Content-Length>{len(content)}</Content-Length></Properties></Blob>"
            )
        marker = str(first + PAGE) if first + PAGE < len(names) else ""
        return format_listing(blobs, marker)

    def _sign(self, path: str, headers: Message) -> str:
        """Returns the Authorization header of a request by the specification of Shared Key."""
        url = urlsplit(path)
        text = "GET\n" + "".join(f"{headers.get(name, '')}\n" for name in SIGNED)
        for name in sorted(name.lower() for name in headers):
            if name.startswith("x-ms-"):
                text += f"{name}:{headers[name]}\n"
        text += f"/{ACCOUNT}{url.path}"
        for name, value in sorted(parse_qsl(url.query, keep_blank_values=True)):
            text += f"\n{name}:{value}"
        key = base64.b64decode(self.key)
        signature = base64.b64encode(hmac.digest(key, text.encode(), "sha256")).decode()
        return f"SharedKey {ACCOUNT}:{signature}"


def format_etag(generation: int) -> str:
    """Returns the ETag of a generation, which is not a hash."""
    return f"0x8DE{generation:012X}"


def format_listing(blobs: str, marker: str = "") -> str:
    """Formats a page of a listing."""
    return (
        "<?xml version='1.0' encoding='utf-8'?><EnumerationResults><Blobs>"
        f"{blobs}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"
    )


@pytest.fixture
def az(monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureServer]:
    """A server with one public container, small blocks and short delays."""
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(store, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(store, "MAX_DELAY_S", 0.02)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    server = AzureServer()
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.endpoint)
    forget()
    yield server
    server.close()
    forget()
