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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

import httpx2
import msgspec
from fsspec.utils import glob_translate

from bsmeta.core.errors import ConfigurationError, DataError, UserError, missing_extra
from bsmeta.data.io.remote import (
    FileRef,
    RemotePattern,
    RemoteSettings,
    Retries,
    TransientError,
    Verifier,
    check_range,
    check_transient,
    error_message,
    retry_advice,
    shown_server,
    steady,
    transport_errors,
)

TIMEOUT = 30.0  # seconds without data that are a failure
EXPIRY = 900  # seconds; a signed address is used at once
MD5 = re.compile("[0-9a-f]{32}")
OF_PARTS = re.compile(r"[0-9a-f]{32}-(\d+)")
ADDRESS = re.compile(r"(s3|gs)://([^/]+)(?:/(.*))?", re.DOTALL)

Headers = dict[str, str]

REGIONS: dict[str, str] = {}
"""The regions of buckets that are in another one than the configured: S3 reports them."""


@dataclass(frozen=True, slots=True)
class ObjectRef(FileRef):
    """An object as it was when it was listed.

    Its `etag` is the ETag on S3, and on Cloud Storage the MD5 or the CRC32C of its content.

    Attributes:
        scheme: `s3` or `gs`.
        key: Its name in the bucket.
        generation: Its version on Cloud Storage; "" on S3.
    """

    scheme: str
    bucket: str
    key: str
    generation: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def place(self) -> str:
        """The bucket and the key."""
        return f"/{self.bucket}/{self.key}"

    @property
    def content_id(self) -> str:
        """Its URL and version: an ETag is not always a hash of the content."""
        return f"{self} {self.etag} {self.generation}"

    def identity(self, name: str) -> dict[str, Any]:
        """Its size and ETag."""
        return {name: {"bytes": self.size, "etag": self.etag}}

    @contextlib.contextmanager
    def open_range(self, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        """Requests the bytes of its version, and checks that the response has them."""
        store = store_of(self.scheme)
        url, headers = store.content_request(self)
        headers |= {"Range": f"bytes={start}-{stop - 1}"}
        what = f"{self}, bytes {start} to {stop}"
        with request(store, self.bucket, "GET", url, what, headers, ref=self) as response:
            store.check_version(response, self)
            check_range(response, self, start)  # as stored, whatever its Content-Encoding
            yield steady(response.iter_raw(), TIMEOUT)

    def verifier(self) -> Verifier | None:
        """Computes the MD5, of an object that was uploaded in parts that of its parts."""
        if MD5.fullmatch(self.etag):
            return Md5(self)
        parts = OF_PARTS.fullmatch(self.etag)
        return Md5OfParts(self, int(parts[1])) if parts and self.scheme == "s3" else None

    def advice(self) -> str:
        """Names the endpoint."""
        return store_of(self.scheme).advice()

    @property
    def fixed_version(self) -> str:
        """Objects that a run reads must stay."""
        return "and do not overwrite objects while a run reads them"


@dataclass(frozen=True, slots=True)
class ObjectPattern(RemotePattern):
    """Objects in a bucket.

    Attributes:
        scheme: `s3` or `gs`.
    """

    scheme: str
    bucket: str

    def __str__(self) -> str:
        return self.pattern or "*"

    @property
    def place(self) -> str:
        """The bucket."""
        return f"{self.scheme}://{self.bucket}"

    def with_pattern(self, pattern: str) -> ObjectPattern:
        """Another pattern in the same bucket."""
        return replace(self, pattern=pattern)

    def list_files(self, settings: RemoteSettings) -> list[tuple[str, FileRef]]:
        """The objects as they were at the first call of this process, which reads only those."""
        return [(ref.key, ref) for ref in list_objects(self, settings)]

    @classmethod
    def parse(cls, url: str, key: str) -> ObjectPattern:
        """Parses `s3://BUCKET/PATTERN` or `gs://BUCKET/PATTERN`.

        Args:
            url: What the user wrote.
            key: The key that contains it, for the message.

        Raises:
            ConfigurationError: If the URL does not have this form.
        """
        match = ADDRESS.fullmatch(url)
        problem = "found no bucket"
        if match is not None:
            try:
                pattern = (match[3] or "").strip("/")
                glob_translate(pattern)
                return cls(pattern, match[1], match[2])
            except ValueError as error:
                problem = str(error)
        scheme = url.partition("://")[0]
        raise ConfigurationError(
            f"{key}={url}: expected {scheme}://BUCKET/PATH, where PATH is a file, a folder or a "
            f"glob ({problem})"
        )


class Store(Protocol):
    """What differs between the stores."""

    def listing_request(
        self, bucket: str, prefix: str, page: str, *, deep: bool
    ) -> tuple[str, Headers]:
        """The address and the headers of a page of a listing."""

    def parse_listing(
        self, body: bytes, bucket: str, settings: RemoteSettings
    ) -> tuple[list[ObjectRef], str]:
        """The objects of a page, and the token of the next page ("": none).

        Raises:
            TransientError: If it is not a listing.
        """

    def content_request(self, ref: ObjectRef) -> tuple[str, Headers]:
        """The address and the headers of the content of an object."""

    def check_version(self, response: httpx2.Response, ref: ObjectRef) -> None:
        """Raises a `DataError` if a response is about another version of an object."""

    def error_code(self, body: bytes) -> str:
        """What the store says about a refusal."""

    def no_access(self, code: str) -> str:
        """What to do about a refusal for lack of permission."""

    def advice(self) -> str:
        """What a user can do when the store cannot be reached."""

    @property
    def server(self) -> str:
        """The server, for messages."""


@cache
def store_of(scheme: str) -> Store:
    """The store of a scheme.

    Raises:
        ConfigurationError: If its library is missing, or its configuration is wrong.
    """
    try:
        return S3() if scheme == "s3" else CloudStorage()
    except ModuleNotFoundError as error:
        named = missing_extra(error)
        if named is None:
            raise
        raise ConfigurationError(f"{scheme}://… cannot be read: {named}") from error


@cache
def client_of(process: int) -> httpx2.Client:
    """The connections of a process; those of its parent do not survive a fork."""
    return httpx2.Client(timeout=TIMEOUT)


@cache
def list_objects(pattern: ObjectPattern, settings: RemoteSettings) -> list[ObjectRef]:
    """The objects in the folder of a pattern (and below it, for a deep one).

    Raises:
        DataError: If the store refuses or cannot be reached.
    """
    store = store_of(pattern.scheme)
    what = f"{pattern.place}/{pattern.folder}".rstrip("/")
    attempts = Retries(settings.retries, store.advice())
    found: list[ObjectRef] = []
    page: str | None = ""
    prefix = listing_prefix(pattern)
    while page is not None:
        try:
            url, headers = store.listing_request(pattern.bucket, prefix, page, deep=pattern.is_deep)
            with request(store, pattern.bucket, "GET", url, what, headers) as response:
                body = b"".join(steady(response.iter_bytes(), TIMEOUT))
            refs, next_page = store.parse_listing(body, pattern.bucket, settings)
        except TransientError as error:
            attempts.wait(what, error)
        else:
            attempts.reset()
            found += refs
            page = next_page or None
    return found


def listing_prefix(pattern: ObjectPattern) -> str:
    """What the names of all objects begin with that a pattern may match."""
    return re.split(r"[*?\[]", pattern.pattern, maxsplit=1)[0]


@contextlib.contextmanager
def request(
    store: Store,
    bucket: str,
    method: str,
    url: str,
    what: str,
    headers: Headers,
    ref: ObjectRef | None = None,
) -> Iterator[httpx2.Response]:
    """A successful response of a store, to be read inside the context.

    Args:
        ref: The object that is requested, if it is one.

    Raises:
        TransientError: If the request, or reading the response, may succeed on a retry.
        DataError: If it will not.
    """
    with transport_errors(what, store.server):
        client = client_of(os.getpid())
        with client.stream(method, url, headers=headers) as response:
            if response.status_code >= 300:
                check_status(store, response, bucket, what, ref)
            yield response


def check_status(
    store: Store, response: httpx2.Response, bucket: str, what: str, ref: ObjectRef | None
) -> None:
    """Raises the error for a bad status: either a transient one, or one that names the fix."""
    status, code = response.status_code, store.error_code(response.read())
    check_transient(response, code)
    shown = f"HTTP {status} ({code})" if code else f"HTTP {status}"
    if code == "RequestTimeout":
        raise TransientError(shown)
    if ref is not None and (status in (412, 416) or (status == 404 and code != "NoSuchBucket")):
        raise ref.changed(shown, f"the object of ETag {ref.etag}")
    region = response.headers.get("x-amz-bucket-region")
    if region and status in (301, 307, 400) and region != REGIONS.get(bucket):
        REGIONS[bucket] = region
        raise TransientError(f"{shown}: the bucket is in the region {region}")
    if status == 404:
        reason = f"there is no such bucket: {bucket}; correct its name, or the endpoint"
    elif code == "InvalidObjectState":
        reason = "the object is archived; restore it first"
    elif status in (401, 403) or "Token" in code:
        reason = store.no_access(code)
    else:
        reason = "the request is refused"
    raise DataError(f"{what}: {store.server} answers {shown}: {reason}")


class S3:
    """Signs requests to S3, or to a server that speaks its protocol (AWS_ENDPOINT_URL)."""

    def __init__(self) -> None:
        from botocore.session import Session

        self._session = Session()
        with self._errors():
            self._has_credentials = self._session.get_credentials() is not None
        self._clients: dict[str | None, Any] = {}
        self._lock = threading.Lock()

    @property
    def server(self) -> str:
        return shown_server(self._client(None).meta.endpoint_url)

    def listing_request(
        self, bucket: str, prefix: str, page: str, *, deep: bool
    ) -> tuple[str, Headers]:
        parameters = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url"}
        parameters |= {} if deep else {"Delimiter": "/"}
        parameters |= {"ContinuationToken": page} if page else {}
        return self._sign("list_objects_v2", parameters), {}

    def parse_listing(
        self, body: bytes, bucket: str, settings: RemoteSettings
    ) -> tuple[list[ObjectRef], str]:
        try:
            root = ElementTree.fromstring(body)
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
            if not key.endswith("/"):  # the marker of a folder
                found.append(ObjectRef(size, etag, settings, "s3", bucket, key))
        return found, root.findtext("{*}NextContinuationToken", "")

    def content_request(self, ref: ObjectRef) -> tuple[str, Headers]:
        url = self._sign("get_object", {"Bucket": ref.bucket, "Key": ref.key})
        return url, {"If-Match": f'"{ref.etag}"', "Accept-Encoding": "identity"}

    def check_version(self, response: httpx2.Response, ref: ObjectRef) -> None:
        etag = response.headers.get("ETag", "").removeprefix("W/").strip('"')
        if etag not in ("", ref.etag):
            raise ref.changed(f"ETag {etag}", f"ETag {ref.etag}")

    def head(self, ref: ObjectRef, part: int | None = None) -> httpx2.Headers:
        """The headers of an object, or of one of the parts that it was uploaded in."""
        parameters = {"Bucket": ref.bucket, "Key": ref.key}
        parameters |= {"PartNumber": part} if part else {}  # type: ignore[dict-item]
        attempts = Retries(ref.settings.retries, self.advice())
        while True:
            try:
                url = self._sign("head_object", parameters)
                with request(self, ref.bucket, "HEAD", url, str(ref), {}, ref=ref) as response:
                    return response.headers
            except TransientError as error:
                attempts.wait(str(ref), error)

    def error_code(self, body: bytes) -> str:
        match = re.search(rb"<Code>([\w.]+)</Code>", body)
        return match[1].decode() if match else ""

    def no_access(self, code: str) -> str:
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

    def advice(self) -> str:
        return retry_advice(self.server, "AWS_ENDPOINT_URL")

    def _sign(self, method: str, parameters: dict[str, Any]) -> str:
        """The signed address of a request, which grants what it asks for until it expires."""
        with self._errors():
            client = self._client(REGIONS.get(parameters["Bucket"]))
            return str(client.generate_presigned_url(method, Params=parameters, ExpiresIn=EXPIRY))

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


class Md5:
    """Compares an object with its MD5."""

    def __init__(self, ref: ObjectRef) -> None:
        self._ref = ref
        self._hash = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes) -> None:
        """Adds the next bytes of the object."""
        self._hash.update(data)

    def is_right(self) -> bool | None:
        """Whether all bytes have the hash; None if the ETag is not one."""
        return _judged(self._ref, self._hash.hexdigest())


class Md5OfParts:
    """Compares an object on S3 that was uploaded in parts with the MD5 of their MD5s.

    Args:
        count: The number of parts.
    """

    def __init__(self, ref: ObjectRef, count: int) -> None:
        self._ref = ref
        self._count = count
        self._part_bytes: int | None = None  # not known yet
        self._parts = b""
        self._part = hashlib.md5(usedforsecurity=False)
        self._left = 0  # bytes until the end of the part

    def update(self, data: bytes) -> None:
        """Adds the next bytes of the object."""
        if self._part_bytes is None:
            self._part_bytes = self._left = part_bytes(self._ref, self._count)
        while self._part_bytes and len(data) >= self._left:
            self._part.update(data[: self._left])
            data = data[self._left :]
            self._end_part()
            self._left = self._part_bytes
        self._part.update(data)
        self._left -= len(data)

    def is_right(self) -> bool | None:
        """Whether all bytes have the hash; None if the parts are not of equal size."""
        if not self._part_bytes:
            return None
        if self._left < self._part_bytes:
            self._end_part()
        whole = hashlib.md5(self._parts, usedforsecurity=False).hexdigest()
        return _judged(self._ref, f"{whole}-{self._count}")

    def _end_part(self) -> None:
        self._parts += self._part.digest()
        self._part = hashlib.md5(usedforsecurity=False)


def part_bytes(ref: ObjectRef, count: int) -> int:
    """Bytes of each part but the last of an object on S3; 0 if they are not known or not equal."""
    store = store_of(ref.scheme)
    assert isinstance(store, S3)
    headers = store.head(ref, part=1)
    size = int(headers.get("Content-Length", "0"))
    is_known = headers.get("x-amz-mp-parts-count") == str(count)
    return size if is_known and size and math.ceil(ref.size / size) == count else 0


def _judged(ref: ObjectRef, found: str) -> bool | None:
    """Whether a hash is that of an object; None if its ETag is no hash of its content."""
    if found == ref.etag:
        return True
    store = store_of(ref.scheme)
    if isinstance(store, S3):
        headers = store.head(ref)
        encryption = headers.get("x-amz-server-side-encryption", "")
        if encryption.startswith("aws:kms") or (
            "x-amz-server-side-encryption-customer-algorithm" in headers
        ):
            return None
    return False


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


class CloudStorage:
    """Addresses the JSON API of Google Cloud Storage, or of STORAGE_EMULATOR_HOST."""

    def __init__(self) -> None:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        scope = "https://www.googleapis.com/auth/devstorage.read_only"
        self._credentials: Any = None
        self._lock = threading.Lock()
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

    def listing_request(
        self, bucket: str, prefix: str, page: str, *, deep: bool
    ) -> tuple[str, Headers]:
        parameters = {"prefix": prefix, "fields": "items(name,size,generation,md5Hash,crc32c),"
                      "nextPageToken"}  # fmt: skip
        parameters |= {} if deep else {"delimiter": "/"}
        parameters |= {"pageToken": page} if page else {}
        query = httpx2.QueryParams(parameters)
        return f"{self._endpoint}/storage/v1/b/{quote(bucket, safe='')}/o?{query}", self._token()

    def parse_listing(
        self, body: bytes, bucket: str, settings: RemoteSettings
    ) -> tuple[list[ObjectRef], str]:
        try:
            page = msgspec.json.decode(body, type=_Objects)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise TransientError(f"the answer is not a listing: {error}") from None
        found = [
            ObjectRef(
                int(entry.size),
                base64.b64decode(entry.md5Hash).hex() or f"crc32c:{entry.crc32c}",
                settings,
                "gs",
                bucket,
                entry.name,
                entry.generation,
            )
            for entry in page.items
            if not entry.name.endswith("/")  # the marker of a folder
        ]
        return found, page.nextPageToken

    def content_request(self, ref: ObjectRef) -> tuple[str, Headers]:
        name = f"b/{quote(ref.bucket, safe='')}/o/{quote(ref.key, safe='')}"
        url = f"{self._endpoint}/storage/v1/{name}?alt=media&generation={ref.generation}"
        # Without gzip, the store would unpack an object that is stored with this encoding.
        return url, {"Accept-Encoding": "gzip", **self._token()}

    def check_version(self, response: httpx2.Response, ref: ObjectRef) -> None:
        found = response.headers.get("x-goog-generation", ref.generation)
        if found != ref.generation:
            raise ref.changed(f"generation {found}", f"generation {ref.generation}")

    def error_code(self, body: bytes) -> str:
        try:
            return msgspec.json.decode(body, type=_Refusal).error.message
        except msgspec.MsgspecError:
            return ""

    def no_access(self, code: str) -> str:
        if self._credentials is None:
            return (
                "it is not public, and there are no credentials; run gcloud auth "
                "application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
            )
        return (
            "the account (GOOGLE_APPLICATION_CREDENTIALS, or the default one) may not list the "
            "bucket and read its objects (roles/storage.objectViewer), or the name is wrong"
        )

    def advice(self) -> str:
        return retry_advice(self.server, "STORAGE_EMULATOR_HOST")

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
        return {"Authorization": f"Bearer {self._credentials.token}"}
