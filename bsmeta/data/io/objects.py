"""Objects in buckets, `s3://` and `gs://`: listed, and read in ranges over HTTP.

The libraries of the stores are used for what only they know: botocore signs requests to S3, with
the credentials, the endpoint and the region of its environment variables and files (AWS_PROFILE,
AWS_ENDPOINT_URL, …); google-auth gives the token for Cloud Storage. Requests are sent and checked
as those to the Hub: s3fs and gcsfs retry each request on their own, read whole ranges into memory
before the first byte is seen, and run in a thread that does not survive the fork of the loader
processes.

An object that is overwritten is noticed: S3 compares the ETag of each request, and of Cloud Storage
the generation that was listed is read, which is gone after that unless the bucket keeps versions.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import os
import re
import threading
from abc import abstractmethod
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, ClassVar
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

import httpx2
import msgspec

from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.core.parsing import decode_json
from bsmeta.core.secrets import hide
from bsmeta.data.io.file_ref import FileRef, RemoteSettings
from bsmeta.data.io.remote import (
    Pattern,
    Retries,
    Store,
    TransientError,
    check_range,
    check_transient,
    error_message,
    shown_server,
    steady,
    transport_errors,
)
from bsmeta.data.io.verifier import Verifier

TIMEOUT = 30.0  # seconds without data that are a failure
EXPIRY = 900  # seconds; a signed address is used at once
MD5 = re.compile("[0-9a-f]{32}")
OF_PARTS = re.compile(r"[0-9a-f]{32}-(\d+)")
ADDRESS = re.compile(r"[^:]+://([^/]+)(?:/(.*))?", re.DOTALL)

Headers = dict[str, str]


class Bucket(Store):
    """A store of objects in buckets.

    Objects are listed once by each process, which reads only those.

    Attributes:
        regions: Those of buckets that are in another one than configured, as S3 reports them.
    """

    scheme: ClassVar[str]
    fixed_version = "and do not overwrite objects while a run reads them"

    def __init__(self) -> None:
        self.regions: dict[str, str] = {}
        self._lock = threading.Lock()

    def parse(self, url: str, revision: str | None) -> Pattern:
        match = ADDRESS.fullmatch(url)
        if match is None:
            raise ValueError("found no bucket")
        return Pattern(self.scheme, match[1], (match[2] or "").strip("/"))

    def list_files(self, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
        return list_objects(self, pattern, settings)

    @abstractmethod
    def list_page(
        self, pattern: Pattern, page: str, what: str, settings: RemoteSettings
    ) -> tuple[list[FileRef], str]:
        """A page of a listing, and the token of the next page ("": none)."""

    @contextlib.contextmanager
    def open_range(self, ref: FileRef, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        url, headers = self._content_request(ref)
        headers |= {"Range": f"bytes={start}-{stop - 1}"}
        what = f"{ref}, bytes {start} to {stop}"
        with self._request("GET", url, ref, what, headers) as response:
            self._check_version(response, ref)
            check_range(self, response, ref, start)  # as stored, whatever its Content-Encoding
            yield steady(response.iter_raw(), TIMEOUT)

    def verifier(self, ref: FileRef) -> Verifier | None:
        if MD5.fullmatch(ref.etag):
            return Verifier(hashlib.md5(usedforsecurity=False), ref.etag)
        return None

    @abstractmethod
    def _content_request(self, ref: FileRef) -> tuple[str, Headers]:
        """The address and the headers of the content of an object."""

    @abstractmethod
    def _check_version(self, response: httpx2.Response, ref: FileRef) -> None:
        """Raises a `DataError` if a response is about another version of an object."""

    @abstractmethod
    def _error_code(self, body: bytes) -> str:
        """What the store says about a refusal."""

    @abstractmethod
    def _no_access(self, code: str) -> str:
        """What to do about a refusal for lack of permission."""

    @contextlib.contextmanager
    def _request(
        self, method: str, url: str, of: FileRef | Pattern, what: str, headers: Headers
    ) -> Iterator[httpx2.Response]:
        """A successful response about an object, or a listing, to be read inside the context."""
        with transport_errors(what, self.server):
            client = client_of(os.getpid())
            with client.stream(method, url, headers=headers) as response:
                if response.status_code >= 300:
                    self._check_status(response, of, what)
                yield response

    def _body(self, url: str, pattern: Pattern, what: str, headers: Headers) -> bytes:
        with self._request("GET", url, pattern, what, headers) as response:
            return b"".join(steady(response.iter_bytes(), TIMEOUT))

    def _check_status(self, response: httpx2.Response, of: FileRef | Pattern, what: str) -> None:
        """Raises the error for a bad status: either a transient one, or one that names the fix."""
        status, code = response.status_code, self._error_code(response.read())
        check_transient(response, code)
        shown = f"HTTP {status} ({code})" if code else f"HTTP {status}"
        if code == "RequestTimeout":
            raise TransientError(shown)
        is_gone = status in (412, 416) or (status == 404 and code != "NoSuchBucket")
        if is_gone and isinstance(of, FileRef):
            raise self.changed(of, shown, f"the object of ETag {of.etag}")
        region = response.headers.get("x-amz-bucket-region")
        if region and status in (301, 307, 400) and region != self.regions.get(of.container):
            self.regions[of.container] = region
            raise TransientError(f"{shown}: the bucket is in the region {region}")
        if status == 404:
            reason = f"there is no such bucket: {of.container}; correct its name, or the endpoint"
        elif code == "InvalidObjectState":
            reason = "the object is archived; restore it first"
        elif status in (401, 403) or "Token" in code:
            reason = self._no_access(code)
        else:
            reason = "the request is refused"
        raise DataError(f"{what}: {self.server} answers {shown}: {reason}")


@cache
def client_of(process: int) -> httpx2.Client:
    """The connections of a process; those of its parent do not survive a fork."""
    return httpx2.Client(timeout=TIMEOUT)


@cache
def list_objects(store: Bucket, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
    """The objects in the folder of a pattern (and below it, for a deep one)."""
    what = f"{pattern.root}/{pattern.folder}".rstrip("/")
    attempts = Retries(settings.retries, store.advice())
    found: list[FileRef] = []
    page: str | None = ""
    while page is not None:
        request = partial(store.list_page, pattern, page, what, settings)
        refs, next_page = attempts.call(what, request)
        found += [ref for ref in refs if not ref.path.endswith("/")]  # the marker of a folder
        page = next_page or None
    return found


def _listing_prefix(pattern: Pattern) -> str:
    """What the names of all objects begin with that a pattern may match."""
    return re.split(r"[*?\[]", pattern.pattern, maxsplit=1)[0]


class S3(Bucket):
    """Signs requests to S3, or to a server that speaks its protocol (AWS_ENDPOINT_URL)."""

    scheme = "s3"
    form = "s3://BUCKET/PATH"
    variable = "AWS_ENDPOINT_URL"

    def __init__(self) -> None:
        from botocore.session import Session

        super().__init__()
        self._session = Session()
        with self._errors():
            self._has_credentials = self._session.get_credentials() is not None
        self._clients: dict[str | None, Any] = {}

    @property
    def server(self) -> str:
        return shown_server(self._client(None).meta.endpoint_url)

    def list_page(
        self, pattern: Pattern, page: str, what: str, settings: RemoteSettings
    ) -> tuple[list[FileRef], str]:
        bucket = pattern.container
        parameters = {"Prefix": _listing_prefix(pattern), "EncodingType": "url"}
        parameters |= {} if pattern.is_deep else {"Delimiter": "/"}
        parameters |= {"ContinuationToken": page} if page else {}
        url = self._sign("list_objects_v2", bucket, parameters)
        try:
            root = ElementTree.fromstring(self._body(url, pattern, what, {}))
        except ElementTree.ParseError as error:
            raise TransientError(f"the answer is not a listing: {error}") from None
        if not root.tag.endswith("ListBucketResult"):
            raise TransientError(f"the answer is not a listing, but {root.tag}")
        found = []
        is_encoded = root.findtext("{*}EncodingType") == "url"  # some servers ignore the request
        for entry in root.iterfind("{*}Contents"):
            key = entry.findtext("{*}Key", "")
            key = unquote_plus(key) if is_encoded else key
            etag = entry.findtext("{*}ETag", "").strip('"')
            size = int(entry.findtext("{*}Size", ""))
            found.append(FileRef(size, etag, settings, self.scheme, bucket, key))
        return found, root.findtext("{*}NextContinuationToken", "")

    def verifier(self, ref: FileRef) -> Verifier | None:
        """Computes the MD5, of an object that was uploaded in parts that of its parts."""
        found: Any = hashlib.md5(usedforsecurity=False)
        if parts := OF_PARTS.fullmatch(ref.etag):
            found = Md5OfParts(self, ref, int(parts[1]))
        elif not MD5.fullmatch(ref.etag):
            return None
        return Verifier(found, ref.etag, lambda: not found.hexdigest() or self._is_encrypted(ref))

    def _is_encrypted(self, ref: FileRef) -> bool:
        """Whether the ETag of an object is no hash of its content."""
        headers = self.head(ref)
        encryption = headers.get("x-amz-server-side-encryption", "")
        by_customer = "x-amz-server-side-encryption-customer-algorithm" in headers
        return encryption.startswith("aws:kms") or by_customer

    def head(self, ref: FileRef, part: int | None = None) -> httpx2.Headers:
        """The headers of an object, or of one of the parts that it was uploaded in."""
        parameters = {"Key": ref.path} | ({"PartNumber": part} if part else {})

        def request() -> httpx2.Headers:
            url = self._sign("head_object", ref.container, parameters)
            with self._request("HEAD", url, ref, str(ref), {}) as response:
                return response.headers

        return Retries(ref.settings.retries, self.advice()).call(str(ref), request)

    def _content_request(self, ref: FileRef) -> tuple[str, Headers]:
        url = self._sign("get_object", ref.container, {"Key": ref.path})
        return url, {"If-Match": f'"{ref.etag}"', "Accept-Encoding": "identity"}

    def _check_version(self, response: httpx2.Response, ref: FileRef) -> None:
        etag = response.headers.get("ETag", "").removeprefix("W/").strip('"')
        if etag not in ("", ref.etag):
            raise self.changed(ref, f"ETag {etag}", f"ETag {ref.etag}")

    def _error_code(self, body: bytes) -> str:
        match = re.search(rb"<Code>([\w.]+)</Code>", body)
        return match[1].decode() if match else ""

    def _no_access(self, code: str) -> str:
        if not self._has_credentials:
            return (
                "it is not public, and there are no credentials; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        if code in ("ExpiredToken", "TokenRefreshRequired"):
            return "the credentials have expired; renew them, and resume"
        if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"):
            return (
                "the credentials are not valid for this endpoint; correct AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or AWS_ENDPOINT_URL"
            )
        if code == "RequestTimeTooSkewed":
            return "the clock of this machine is wrong; set it"
        return (
            "the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE, or a role) do not permit "
            "s3:ListBucket of the bucket and s3:GetObject of its objects, or the name is wrong"
        )

    def _sign(self, method: str, bucket: str, parameters: dict[str, Any]) -> str:
        """The signed address of a request, which grants what it asks for until it expires."""
        with self._errors():
            client = self._client(self.regions.get(bucket))
            credentials = self._session.get_credentials()
            if credentials is not None:  # which may come from a file, or from the machine
                frozen = credentials.get_frozen_credentials()
                hide(frozen.secret_key, frozen.token)
            asked = {"Bucket": bucket, **parameters}
            return str(client.generate_presigned_url(method, Params=asked, ExpiresIn=EXPIRY))

    def _client(self, region: str | None) -> Any:
        from botocore import UNSIGNED
        from botocore.config import Config

        version = "s3v4" if self._has_credentials else UNSIGNED
        with self._lock, self._errors():
            if region not in self._clients:
                self._clients[region] = self._session.create_client(
                    "s3", region_name=region, config=Config(signature_version=version)
                )
            return self._clients[region]

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError

        try:
            yield
        except UserError:
            raise
        except (BotoCoreError, ValueError) as error:  # ValueError: a malformed endpoint
            raise ConfigurationError(
                f"s3://… cannot be read: {error_message(error)}; correct the configuration of AWS "
                "(its environment variables, ~/.aws)"
            ) from None


class Md5OfParts:
    """The ETag of an object on S3 that was uploaded in parts: the MD5 of their MD5s.

    It is empty if the parts are not known, or not of equal size.

    Args:
        count: The number of parts.
    """

    def __init__(self, store: S3, ref: FileRef, count: int) -> None:
        self._store = store
        self._ref = ref
        self._count = count
        self._part_bytes: int | None = None  # not known yet
        self._parts = b""
        self._part = hashlib.md5(usedforsecurity=False)
        self._left = 0  # bytes until the end of the part

    def update(self, data: bytes) -> None:
        """Adds the next bytes of the object."""
        if self._part_bytes is None:
            self._part_bytes = self._left = self._size_of_parts()
        while self._part_bytes and len(data) >= self._left:
            self._part.update(data[: self._left])
            data = data[self._left :]
            self._parts += self._part.digest()
            self._part = hashlib.md5(usedforsecurity=False)
            self._left = self._part_bytes
        self._part.update(data)
        self._left -= len(data)

    def hexdigest(self) -> str:
        """The ETag of the bytes so far."""
        if not self._part_bytes:
            return ""
        last = self._part.digest() if self._left < self._part_bytes else b""
        whole = hashlib.md5(self._parts + last, usedforsecurity=False).hexdigest()
        return f"{whole}-{self._count}"

    def _size_of_parts(self) -> int:
        """Bytes of each part but the last; 0 if they are not known or not equal."""
        headers = self._store.head(self._ref, part=1)
        size = int(headers.get("Content-Length", "0"))
        is_known = headers.get("x-amz-mp-parts-count") == str(self._count)
        are_equal = size > 0 and math.ceil(self._ref.size / size) == self._count
        return size if is_known and are_equal else 0


class _Object(msgspec.Struct):
    """An object in a response of Cloud Storage."""

    name: str
    size: str
    generation: str
    md5Hash: str = ""
    crc32c: str = ""


class _Objects(msgspec.Struct):
    """A page of a listing of Cloud Storage."""

    items: list[_Object] = []
    nextPageToken: str = ""


class _Failure(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    """An error in a response of Cloud Storage."""

    error: _Failure


class CloudStorage(Bucket):
    """Addresses the JSON API of Google Cloud Storage, or of STORAGE_EMULATOR_HOST."""

    scheme = "gs"
    form = "gs://BUCKET/PATH"
    variable = "STORAGE_EMULATOR_HOST"

    def __init__(self) -> None:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        super().__init__()
        scope = "https://www.googleapis.com/auth/devstorage.read_only"
        self._credentials: Any = None
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        if emulator:
            self._endpoint = emulator if "://" in emulator else f"http://{emulator}"
            return
        self._endpoint = "https://storage.googleapis.com"
        try:
            self._credentials, _ = google.auth.default(scopes=[scope])
        except DefaultCredentialsError as error:  # a public bucket needs none
            if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
                raise ConfigurationError(
                    "gs://… cannot be read: GOOGLE_APPLICATION_CREDENTIALS is wrong; correct it, "
                    f"or unset it for a public bucket: {error_message(error)}"
                ) from None

    @property
    def server(self) -> str:
        return shown_server(self._endpoint)

    def list_page(
        self, pattern: Pattern, page: str, what: str, settings: RemoteSettings
    ) -> tuple[list[FileRef], str]:
        bucket = pattern.container
        fields = "items(name,size,generation,md5Hash,crc32c),nextPageToken"
        parameters = {"prefix": _listing_prefix(pattern), "fields": fields}
        parameters |= {} if pattern.is_deep else {"delimiter": "/"}
        parameters |= {"pageToken": page} if page else {}
        url = f"{self._endpoint}/storage/v1/b/{quote(bucket, safe='')}/o"
        body = self._body(f"{url}?{httpx2.QueryParams(parameters)}", pattern, what, self._token())
        try:
            found = decode_json(body, _Objects)
        except msgspec.MsgspecError as error:
            raise TransientError(f"the answer is not a listing: {error}") from None
        refs = [
            FileRef(
                int(entry.size),
                base64.b64decode(entry.md5Hash).hex() or f"crc32c:{entry.crc32c}",
                settings,
                self.scheme,
                bucket,
                entry.name,
                entry.generation,
            )
            for entry in found.items
        ]
        return refs, found.nextPageToken

    def _content_request(self, ref: FileRef) -> tuple[str, Headers]:
        name = f"b/{quote(ref.container, safe='')}/o/{quote(ref.path, safe='')}"
        url = f"{self._endpoint}/storage/v1/{name}?alt=media&generation={ref.version}"
        # Without gzip, the store would unpack an object that is stored with this encoding.
        return url, {"Accept-Encoding": "gzip", **self._token()}

    def _check_version(self, response: httpx2.Response, ref: FileRef) -> None:
        found = response.headers.get("x-goog-generation", ref.version)
        if found != ref.version:
            raise self.changed(ref, f"generation {found}", f"generation {ref.version}")

    def _error_code(self, body: bytes) -> str:
        try:
            return decode_json(body, _Refusal).error.message
        except msgspec.MsgspecError:
            return ""

    def _no_access(self, code: str) -> str:
        if self._credentials is None:
            return (
                "it is not public, and there are no credentials; run gcloud auth "
                "application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
            )
        return (
            "the account (GOOGLE_APPLICATION_CREDENTIALS, or the default one) may not list the "
            "bucket and read its objects (roles/storage.objectViewer), or the name is wrong"
        )

    def _token(self) -> Headers:
        """The header with the token, which is renewed when it expires."""
        if self._credentials is None:
            return {}
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.auth.transport.requests import Request

        try:
            with self._lock:
                if not self._credentials.valid:
                    self._credentials.refresh(Request())
        except TransportError as error:
            raise TransientError(error_message(error)) from None
        except GoogleAuthError as error:
            raise ConfigurationError(
                f"gs://… cannot be read: {error_message(error)}; run gcloud auth "
                "application-default login, or correct GOOGLE_APPLICATION_CREDENTIALS"
            ) from None
        hide(self._credentials.token)
        return {"Authorization": f"Bearer {self._credentials.token}"}
