"""Lists objects in buckets (`s3://` and `gs://`), and reads ranges of them over HTTP.

`Bucket` is also the base class of `azure_blobs`, which needs no library.

The stores' libraries are used only for authentication. botocore signs requests to S3; it takes the
credentials, the endpoint, the region and the trusted certificates from its environment variables
(AWS_PROFILE, AWS_ENDPOINT_URL, …) and files. google-auth provides the token for Cloud Storage.
Requests are sent and checked like requests to the Hub.

s3fs and gcsfs are not used because they retry each request on their own, read whole ranges into
memory before yielding the first byte, and run in a thread that does not survive the fork of the
loader processes.

obstore (0.12.1), which reads all three stores, is not used because its runtime does not survive a
fork, either: a loader process hangs if the main process sent a request before the fork, and so do
later requests of the main process. It also

- ignores the wait that a server asks for, the region that S3 reports, AWS profiles, and the
  credentials from the programs that they name;
- takes a page of HTML for an empty listing, lists a whole folder even if the pattern continues with
  literal text, and refuses a listing with a name such as `a//b`;
- handles signals only when a request has ended, and states the status and the cause of a failure
  only in the text of a message.

Overwritten objects are detected. S3 compares the object with the ETag in each request. On Cloud
Storage, requests name the listed generation, which an overwrite removes unless the bucket keeps
versions.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import os
import re
import ssl
import threading
from abc import abstractmethod
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, ClassVar
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

import httpx2
import msgspec

from bsmeta.core.cloud_storage import READ_SCOPE, CloudStorageAccess, read_error_message
from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.core.parsing import decode_json
from bsmeta.core.secrets import declare_secrets
from bsmeta.data.io.file_ref import FileRef, RemoteSettings
from bsmeta.data.io.remote.store import (
    Pattern,
    Retries,
    Store,
    TransientError,
    check_range,
    check_transient,
    convert_transport_errors,
    describe_error,
    format_server,
    refuse_slow_response,
)
from bsmeta.data.io.remote.verifier import Verifier

TIMEOUT_S = 30.0  # without data, after which a request has failed
PRESIGNED_EXPIRY_S = 900  # a presigned URL is used at once
MD5_ETAG = re.compile("[0-9a-f]{32}")
MULTIPART_ETAG = re.compile(r"[0-9a-f]{32}-(\d+)")
OBJECT_URL = re.compile(r"[^:]+://([^/]+)(?:/(.*))?", re.DOTALL)
DOT_SEGMENT = re.compile(r"(?<=/)\.{1,2}(?=/|$)")
MISSING_BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound")
ARCHIVED_CODES = ("InvalidObjectState", "BlobArchived")

Headers = dict[str, str]


class Bucket(Store):
    """A store of objects in buckets.

    Each process lists a folder once, and reads only listed objects.

    Attributes:
        ca_bundle: File of the trusted certificates; None trusts the certificates of SSL_CERT_FILE,
            SSL_CERT_DIR or the system.
        regions: Region of each bucket that S3 reported to be outside the configured region.
    """

    scheme: ClassVar[str]
    version_advice = "and do not overwrite objects while a run reads them"

    def __init__(self) -> None:
        self.ca_bundle: str | None = None
        self.regions: dict[str, str] = {}
        self._lock = threading.Lock()

    def parse_url(self, url: str, revision: str | None) -> Pattern:
        match = OBJECT_URL.fullmatch(url)
        if match is None:
            raise ValueError("found no bucket")
        return Pattern(self.scheme, match[1], (match[2] or "").strip("/"))

    def list_files(self, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
        return list_objects(self, pattern, settings)

    @abstractmethod
    def list_page(
        self,
        pattern: Pattern,
        page_token: str,
        subject: str,
        settings: RemoteSettings,
    ) -> tuple[list[FileRef], str]:
        """Requests a page of a listing.

        Args:
            page_token: Token of the page; "" requests the first page.
            subject: The listed folder, for messages.

        Returns:
            The objects on the page, and the token of the next page ("" after the last page).
        """

    @contextlib.contextmanager
    def open_range(self, ref: FileRef, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        url, headers = self._make_content_request(ref)
        headers |= {"Range": f"bytes={start}-{stop - 1}"}
        subject = f"{ref}, bytes {start} to {stop}"
        with self._request("GET", url, ref, subject, headers) as response:
            self._check_version(response, ref)
            check_range(self, response, ref, start)
            # Not decoded: the raw bytes are the stored bytes, whatever their Content-Encoding.
            yield refuse_slow_response(response.iter_raw(), TIMEOUT_S)

    def make_verifier(self, ref: FileRef) -> Verifier | None:
        if MD5_ETAG.fullmatch(ref.etag):
            return Verifier(hashlib.md5(usedforsecurity=False), ref.etag)
        return None

    @abstractmethod
    def _make_content_request(self, ref: FileRef) -> tuple[str, Headers]:
        """Returns the URL and the headers that request the content of an object."""

    def _authorize(self, method: str, url: str, headers: Headers) -> tuple[str, Headers]:
        """Returns the URL and the headers of a request with credentials added.

        Unchanged if they already contain the credentials.
        """
        return url, headers

    def _get_listed_etag(self, ref: FileRef) -> str:
        """Returns the listed ETag of an object, in the form of the ETag header."""
        return ref.etag

    def _check_version(self, response: httpx2.Response, ref: FileRef) -> None:
        """Checks that a response is for the listed version of an object.

        Raises:
            DataError: If the object has changed.
        """
        etag = response.headers.get("ETag", "").removeprefix("W/").strip('"')
        if etag not in ("", self._get_listed_etag(ref)):
            raise self.make_changed_error(ref, f"ETag {etag}", f"ETag {self._get_listed_etag(ref)}")

    @abstractmethod
    def _read_error_code(self, body: bytes) -> str:
        """Returns the error code or message in the body of an error response; "" if none."""

    @abstractmethod
    def _advise_on_access(self, code: str) -> str:
        """Returns the likely reason why access is denied, and its remedy.

        Args:
            code: The store's error code; see `_read_error_code`.
        """

    def _explain_missing_bucket(self, bucket: str) -> str:
        """Returns why the listing of a bucket is not found, and the remedy."""
        return f"there is no such bucket: {bucket}; correct its name, or the endpoint"

    @contextlib.contextmanager
    def _request(
        self,
        method: str,
        url: str,
        source: FileRef | Pattern,
        subject: str,
        headers: Headers,
    ) -> Iterator[httpx2.Response]:
        """Sends a request, and opens its successful response for reading inside the context.

        Args:
            source: The requested object, or the pattern of the requested listing.
            subject: The object or listing, for messages.

        Raises:
            TransientError: If a retry may succeed.
            DataError: If the request is refused.
        """
        with convert_transport_errors(subject, self.server):
            client = create_http_client(os.getpid(), self.ca_bundle)
            url, headers = self._authorize(method, url, headers)
            with client.stream(method, url, headers=headers) as response:
                if response.status_code >= 300:
                    self._check_status(response, source, subject)
                yield response

    def _get_body(self, url: str, pattern: Pattern, subject: str, headers: Headers) -> bytes:
        """Returns the whole body of the response to a listing request; see `_request`."""
        with self._request("GET", url, pattern, subject, headers) as response:
            return b"".join(refuse_slow_response(response.iter_bytes(), TIMEOUT_S))

    def _check_status(
        self, response: httpx2.Response, source: FileRef | Pattern, subject: str
    ) -> None:
        """Raises the error for the status of an error response.

        Raises:
            TransientError: If a retry may succeed, such as in the region that S3 reports.
            DataError: If not; the message names the remedy.
        """
        status = response.status_code
        code = self._read_error_code(response.read())
        answer = f"HTTP {status} ({code})" if code else f"HTTP {status}"

        check_transient(response, code)
        if code == "RequestTimeout":
            raise TransientError(answer)

        is_gone = status in (412, 416) or (status == 404 and code not in MISSING_BUCKET_CODES)
        if is_gone and isinstance(source, FileRef):
            etag = self._get_listed_etag(source)
            raise self.make_changed_error(source, answer, f"the object of ETag {etag}")

        bucket = source.container
        region = response.headers.get("x-amz-bucket-region")
        if region and status in (301, 307, 400) and region != self.regions.get(bucket):
            self.regions[bucket] = region
            raise TransientError(f"{answer}: the bucket is in the region {region}")

        reason = self._explain_refusal(status, code, bucket)
        raise DataError(f"{subject}: {self.server} answers {answer}: {reason}")

    def _explain_refusal(self, status: int, code: str, bucket: str) -> str:
        """Returns the likely reason why a request was refused, and its remedy if there is one."""
        if status == 404 or code == "InvalidResourceName":
            return self._explain_missing_bucket(bucket)
        if code in ARCHIVED_CODES:
            return "the object is archived; restore it first"
        if status in (401, 403) or "Token" in code or code == "PublicAccessNotPermitted":
            return self._advise_on_access(code)
        return "the request is refused"


@cache
def create_http_client(process_id: int, ca_bundle: str | None) -> httpx2.Client:
    """Returns the HTTP client of a process.

    Args:
        process_id: Id of the current process. It has a client of its own, because connections do
            not survive a fork.
        ca_bundle: See `Bucket`.

    Raises:
        ConfigurationError: If the trusted certificates cannot be read.
    """
    if ca_bundle is None:
        return httpx2.Client(timeout=TIMEOUT_S)

    try:
        context = ssl.create_default_context(cafile=ca_bundle)
    except OSError as error:
        raise ConfigurationError(
            f"{ca_bundle} (AWS_CA_BUNDLE, or ca_bundle in ~/.aws/config): found "
            f"{describe_error(error)}, expected a file of certificates (PEM); correct the path, or "
            "unset it"
        ) from None
    return httpx2.Client(timeout=TIMEOUT_S, verify=context)


@cache
def list_objects(store: Bucket, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
    """Lists the objects in the folder of a pattern, and below it if the pattern is deep; cached."""
    subject = f"{pattern.root}/{pattern.folder}".rstrip("/")
    attempts = Retries(settings.retries, store.format_advice())
    objects: list[FileRef] = []
    page_token = ""
    while True:
        request = partial(store.list_page, pattern, page_token, subject, settings)
        refs, page_token = attempts.call(subject, request)
        # A name that ends in a slash is the marker of a folder.
        objects += [ref for ref in refs if not ref.path.endswith("/")]
        if not page_token:
            return objects


def extract_literal_prefix(pattern: Pattern) -> str:
    """Returns the part of a glob before its first wildcard, with which every match begins."""
    return re.split(r"[*?\[]", pattern.glob, maxsplit=1)[0]


def encode_dot_segments(path: str) -> str:
    """Encodes the segments `.` and `..` of a URL's path, which HTTP clients would remove."""
    return DOT_SEGMENT.sub(lambda segment: segment[0].replace(".", "%2E"), path)


def parse_listing(body: bytes, tag: str) -> ElementTree.Element:
    """Parses a listing in XML.

    Args:
        tag: Expected tag of the root element, without its namespace.

    Raises:
        TransientError: If the body is something else, such as an error page of a proxy.
    """
    try:
        listing = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise TransientError(f"the answer is not a listing: {error}") from None
    if not listing.tag.endswith(tag):
        raise TransientError(f"the answer is not a listing, but {listing.tag}")
    return listing


def read_xml_error_code(body: bytes) -> str:
    """Returns the error code in the XML body of an error response; "" if there is none."""
    match = re.search(rb"<Code>([\w.]+)</Code>", body)
    return match[1].decode() if match else ""


class S3(Bucket):
    """Objects on S3, or on a server with the same protocol (AWS_ENDPOINT_URL).

    Raises:
        ConfigurationError: If the configuration of AWS is malformed.
    """

    scheme = "s3"
    syntax = "s3://BUCKET/PATH"
    server_variables = "AWS_ENDPOINT_URL"

    def __init__(self) -> None:
        from botocore.session import Session

        super().__init__()
        self._session = Session()
        with self._convert_errors():
            self._has_credentials = self._session.get_credentials() is not None
            self.ca_bundle = self._session.get_config_variable("ca_bundle") or None
        self._clients: dict[str | None, Any] = {}

    @property
    def server(self) -> str:
        return format_server(self._create_client(None).meta.endpoint_url)

    def list_page(
        self,
        pattern: Pattern,
        page_token: str,
        subject: str,
        settings: RemoteSettings,
    ) -> tuple[list[FileRef], str]:
        bucket = pattern.container
        parameters = {"Prefix": extract_literal_prefix(pattern), "EncodingType": "url"}
        if not pattern.is_deep:
            parameters["Delimiter"] = "/"
        if page_token:
            parameters["ContinuationToken"] = page_token
        url = self._presign_request("list_objects_v2", bucket, parameters)

        body = self._get_body(url, pattern, subject, {})
        listing = parse_listing(body, "ListBucketResult")

        is_encoded = listing.findtext("{*}EncodingType") == "url"  # some servers ignore the request
        refs = []
        for entry in listing.iterfind("{*}Contents"):
            name = entry.findtext("{*}Key", "")
            name = unquote_plus(name) if is_encoded else name
            etag = entry.findtext("{*}ETag", "").strip('"')
            size = int(entry.findtext("{*}Size", ""))
            refs.append(FileRef(size, etag, settings, self.scheme, bucket, name))
        return refs, listing.findtext("{*}NextContinuationToken", "")

    def make_verifier(self, ref: FileRef) -> Verifier | None:
        """Creates a verifier of the ETag; None if its form is unknown.

        The ETag is an MD5, for an object uploaded in parts the MD5 of the MD5s of its parts.
        """
        multipart = MULTIPART_ETAG.fullmatch(ref.etag)
        content_hash: Any
        if multipart:
            content_hash = MultipartMD5(self, ref, int(multipart[1]))
        elif MD5_ETAG.fullmatch(ref.etag):
            content_hash = hashlib.md5(usedforsecurity=False)
        else:
            return None

        def is_doubtful() -> bool:
            return not content_hash.hexdigest() or self._is_encrypted(ref)

        return Verifier(content_hash, ref.etag, is_doubtful)

    def _is_encrypted(self, ref: FileRef) -> bool:
        """Returns whether S3 encrypts an object so that its ETag is not a hash of the content."""
        headers = self.request_head(ref)
        encryption = headers.get("x-amz-server-side-encryption", "")
        has_customer_key = "x-amz-server-side-encryption-customer-algorithm" in headers
        return encryption.startswith("aws:kms") or has_customer_key

    def request_head(self, ref: FileRef, part: int | None = None) -> httpx2.Headers:
        """Requests the headers of an object, or of one of the parts in which it was uploaded.

        Args:
            part: Number of the part, from 1; None for the whole object.

        Raises:
            DataError: If the request is refused, or the retries are exhausted.
        """
        parameters: dict[str, Any] = {"Key": ref.path}
        if part:
            parameters["PartNumber"] = part

        def request() -> httpx2.Headers:
            url = self._presign_request("head_object", ref.container, parameters)
            with self._request("HEAD", url, ref, str(ref), {}) as response:
                return response.headers

        return Retries(ref.settings.retries, self.format_advice()).call(str(ref), request)

    def _make_content_request(self, ref: FileRef) -> tuple[str, Headers]:
        url = self._presign_request("get_object", ref.container, {"Key": ref.path})
        return url, {"If-Match": f'"{ref.etag}"', "Accept-Encoding": "identity"}

    def _read_error_code(self, body: bytes) -> str:
        return read_xml_error_code(body)

    def _advise_on_access(self, code: str) -> str:
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

    def _presign_request(self, method: str, bucket: str, parameters: dict[str, Any]) -> str:
        """Returns the presigned URL of a request, which grants access until it expires.

        Args:
            method: The botocore method of the request, such as `get_object`.
        """
        with self._convert_errors():
            client = self._create_client(self.regions.get(bucket))

            # Credentials from a file or from the machine are not redacted yet.
            credentials = self._session.get_credentials()
            if credentials is not None:
                frozen = credentials.get_frozen_credentials()
                declare_secrets(frozen.secret_key, frozen.token)

            bucket_parameters = {"Bucket": bucket, **parameters}
            url = client.generate_presigned_url(
                method, Params=bucket_parameters, ExpiresIn=PRESIGNED_EXPIRY_S
            )

        path, separator, query = url.partition("?")
        return f"{encode_dot_segments(path)}{separator}{query}"

    def _create_client(self, region: str | None) -> Any:
        """Returns botocore's client for a region; None is the configured region."""
        from botocore import UNSIGNED
        from botocore.config import Config

        signature = "s3v4" if self._has_credentials else UNSIGNED
        with self._lock, self._convert_errors():
            if region not in self._clients:
                self._clients[region] = self._session.create_client(
                    "s3", region_name=region, config=Config(signature_version=signature)
                )
            return self._clients[region]

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Converts errors of botocore into a `ConfigurationError`."""
        from botocore.exceptions import BotoCoreError

        try:
            yield
        except UserError:
            raise
        except (BotoCoreError, ValueError) as error:  # ValueError: a malformed endpoint
            raise ConfigurationError(
                f"s3://… cannot be read: {describe_error(error)}; correct the configuration of AWS "
                "(its environment variables, ~/.aws)"
            ) from None


class MultipartMD5:
    """Computes the ETag of an object on S3 that was uploaded in parts: the MD5 of their MD5s.

    The ETag can be computed only if all parts except the last have the same known size.
    """

    def __init__(self, store: S3, ref: FileRef, num_parts: int) -> None:
        self._store = store
        self._ref = ref
        self._num_parts = num_parts
        self._part_size: int | None = None  # requested with the first bytes; see `_get_part_size`
        self._part_digests = b""  # of the complete parts
        self._part_hash = hashlib.md5(usedforsecurity=False)
        self._num_missing = 0  # bytes until the end of the current part

    def update(self, data: bytes) -> None:
        """Adds the next bytes of the object."""
        if self._part_size is None:
            self._part_size = self._get_part_size()
            self._num_missing = self._part_size

        while self._part_size and len(data) >= self._num_missing:
            self._part_hash.update(data[: self._num_missing])
            data = data[self._num_missing :]

            self._part_digests += self._part_hash.digest()
            self._part_hash = hashlib.md5(usedforsecurity=False)
            self._num_missing = self._part_size

        self._part_hash.update(data)
        self._num_missing -= len(data)

    def hexdigest(self) -> str:
        """Returns the ETag of the bytes so far; "" if it cannot be computed."""
        if not self._part_size:
            return ""

        part_digests = self._part_digests
        if self._num_missing < self._part_size:  # the last part may be shorter
            part_digests += self._part_hash.digest()
        return f"{hashlib.md5(part_digests, usedforsecurity=False).hexdigest()}-{self._num_parts}"

    def _get_part_size(self) -> int:
        """Requests the size of the first part in bytes; 0 if it is unknown, or the sizes differ."""
        headers = self._store.request_head(self._ref, part=1)
        size = int(headers.get("Content-Length", "0"))
        if size == 0 or headers.get("x-amz-mp-parts-count") != str(self._num_parts):
            return 0
        return size if math.ceil(self._ref.size / size) == self._num_parts else 0


class _ListedObject(msgspec.Struct):
    """An object in a listing of Cloud Storage."""

    name: str
    size: str
    generation: str
    md5Hash: str = ""
    crc32c: str = ""


class _ListingPage(msgspec.Struct):
    """A page of a listing of Cloud Storage."""

    items: list[_ListedObject] = []
    nextPageToken: str = ""


class CloudStorage(Bucket):
    """Objects on Google Cloud Storage, or on an emulator of its JSON API (STORAGE_EMULATOR_HOST).

    Raises:
        ConfigurationError: If the configured credentials cannot be read.
    """

    scheme = "gs"
    syntax = "gs://BUCKET/PATH"
    server_variables = "STORAGE_EMULATOR_HOST"

    def __init__(self) -> None:
        from google.auth.exceptions import DefaultCredentialsError

        super().__init__()
        try:
            self._access = CloudStorageAccess.open(READ_SCOPE)
        except DefaultCredentialsError as error:
            raise ConfigurationError(
                "gs://… cannot be read: GOOGLE_APPLICATION_CREDENTIALS is wrong; correct it, "
                f"or unset it for a public bucket: {describe_error(error)}"
            ) from None

    @property
    def server(self) -> str:
        return format_server(self._access.endpoint)

    def list_page(
        self,
        pattern: Pattern,
        page_token: str,
        subject: str,
        settings: RemoteSettings,
    ) -> tuple[list[FileRef], str]:
        bucket = pattern.container
        fields = "items(name,size,generation,md5Hash,crc32c),nextPageToken"
        parameters = {"prefix": extract_literal_prefix(pattern), "fields": fields}
        if not pattern.is_deep:
            parameters["delimiter"] = "/"
        if page_token:
            parameters["pageToken"] = page_token

        url = f"{self._access.endpoint}/storage/v1/b/{quote(bucket, safe='')}/o"
        url = f"{url}?{httpx2.QueryParams(parameters)}"
        body = self._get_body(url, pattern, subject, self._make_authorization_header())
        try:
            listing = decode_json(body, _ListingPage)
        except msgspec.MsgspecError as error:
            raise TransientError(f"the answer is not a listing: {error}") from None

        refs = [
            FileRef(
                size=int(entry.size),
                etag=base64.b64decode(entry.md5Hash).hex() or f"crc32c:{entry.crc32c}",
                settings=settings,
                scheme=self.scheme,
                container=bucket,
                path=entry.name,
                version=entry.generation,
            )
            for entry in listing.items
        ]
        return refs, listing.nextPageToken

    def _make_content_request(self, ref: FileRef) -> tuple[str, Headers]:
        name = f"b/{quote(ref.container, safe='')}/o/{quote(ref.path, safe='')}"
        url = f"{self._access.endpoint}/storage/v1/{name}?alt=media&generation={ref.version}"
        # If gzip were not accepted, the store would decompress objects stored with this encoding.
        return url, {"Accept-Encoding": "gzip", **self._make_authorization_header()}

    def _check_version(self, response: httpx2.Response, ref: FileRef) -> None:
        generation = response.headers.get("x-goog-generation", ref.version)
        if generation != ref.version:
            raise self.make_changed_error(
                ref, f"generation {generation}", f"generation {ref.version}"
            )

    def _read_error_code(self, body: bytes) -> str:
        return read_error_message(body)

    def _advise_on_access(self, code: str) -> str:
        if not self._access.has_credentials:
            return (
                "it is not public, and there are no credentials; run gcloud auth "
                "application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
            )
        return (
            "the account (GOOGLE_APPLICATION_CREDENTIALS, or the default one) may not list the "
            "bucket and read its objects (roles/storage.objectViewer), or the name is wrong"
        )

    def _make_authorization_header(self) -> Headers:
        """Returns the header with the token, which is renewed if it has expired; empty without one.

        Raises:
            TransientError: If renewing may succeed on a retry.
            ConfigurationError: If the credentials are refused.
        """
        from google.auth.exceptions import GoogleAuthError, TransportError

        try:
            return self._access.make_authorization_header()
        except TransportError as error:
            raise TransientError(describe_error(error)) from None
        except GoogleAuthError as error:
            raise ConfigurationError(
                f"gs://… cannot be read: {describe_error(error)}; run gcloud auth "
                "application-default login, or correct GOOGLE_APPLICATION_CREDENTIALS"
            ) from None
