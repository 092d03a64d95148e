"""The objects of a run on Google Cloud Storage, with requests and google-auth.

Objects are listed, read, uploaded whole and deleted with the JSON API. Files larger than a part are
uploaded with the multipart uploads of the XML API, which Google recommends for parallel parts: an
unfinished upload is not an object, while parts that are composed later are. Each object, and each
part, is uploaded with the MD5 of its content, which the server verifies.
(https://cloud.google.com/storage/docs/json_api, …/docs/multipart-uploads, …/docs/retry-strategy)

google-cloud-storage (3.17) is not used because it would add nine packages (protobuf and
opentelemetry-api among them) to google-auth and requests, which reading `gs://` needs anyway, and
its parallel uploads (`transfer_manager.upload_chunks_concurrently`) divide one file at a time. The
S3-compatible mode of the XML API is not used because it needs HMAC keys instead of the credentials
that reading uses.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from xml.etree import ElementTree

import msgspec

from bsmeta.core.cloud_storage import WRITE_SCOPE, CloudStorageAccess, read_error_message
from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.core.parsing import decode_json
from bsmeta.core.secrets import redact
from bsmeta.training.buckets.bucket import (
    ATTEMPTS,
    BLOCK_BYTES,
    EXISTS_STATUSES,
    PART_BYTES,
    REFUSED_STATUSES,
    PartedUpload,
    RunBucket,
    StoredObject,
    choose_delay,
)

if TYPE_CHECKING:  # an optional library
    from requests import PreparedRequest, Response

Value = TypeVar("Value")

_RETRIED_STATUSES = (408, 429, 500, 502, 503, 504)
_TIMEOUTS_S = (10.0, 60.0)  # to connect, and without data
_COMPLETION_TIMEOUTS_S = (10.0, 600.0)  # making an object of its parts may take minutes
_HASH_ERRORS = ("BadDigest", "hash")  # in the error of an upload that was damaged on its way


class ResponseError(Exception):
    """An error response, or a response that is none of Cloud Storage.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status} ({message})" if message else f"HTTP {status}")
        self.status = status


class _ListedObject(msgspec.Struct):
    """An object in a listing."""

    name: str
    size: str
    generation: str


class _ListingPage(msgspec.Struct):
    """A page of a listing."""

    items: list[_ListedObject] = []
    nextPageToken: str = ""


class _ObjectSize(msgspec.Struct):
    """The size of an object."""

    size: str


class _ObjectHash(msgspec.Struct):
    """The MD5 of an object that was uploaded whole."""

    md5Hash: str


class GCSBucket(RunBucket):
    """The objects of a run on Cloud Storage, or on an emulator (STORAGE_EMULATOR_HOST)."""

    permissions = "the role roles/storage.objectUser in it"
    credential_sources = "GOOGLE_APPLICATION_CREDENTIALS or the default account"
    server_variables = "STORAGE_EMULATOR_HOST"

    def __init__(self, url: str, *, part_bytes: int = PART_BYTES) -> None:
        from requests import Session
        from requests.adapters import HTTPAdapter
        from urllib3 import Retry

        class Retries(Retry):
            """Retries with the delays of all stores."""

            def get_backoff_time(self) -> float:
                return choose_delay(len(self.history))

        super().__init__(url, part_bytes=part_bytes)
        with self._convert_errors("opening"):
            self._access = CloudStorageAccess.open(WRITE_SCOPE)
        if not self._access.has_credentials and not self._access.is_emulator:
            raise ConfigurationError(
                f"out_dir={self.url}: found no credentials; run gcloud auth application-default "
                "login, or set GOOGLE_APPLICATION_CREDENTIALS"
            )

        retries = Retries(
            ATTEMPTS - 1,
            allowed_methods=None,  # all of them
            status_forcelist=_RETRIED_STATUSES,
            raise_on_status=False,
            respect_retry_after_header=False,  # a server could ask for hours
        )
        self._session = Session()
        self._session.auth = self._authorize
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retries))

        endpoint = self._access.endpoint
        self._objects_url = f"{endpoint}/storage/v1/b/{self._bucket}/o"
        self._upload_url = f"{endpoint}/upload/storage/v1/b/{self._bucket}/o"
        self._parts_url = f"{endpoint}/{self._bucket}"

    def _authorize(self, request: PreparedRequest) -> PreparedRequest:
        request.headers.update(self._access.make_authorization_header())
        return request

    def _send(self, method: str, url: str, **options: Any) -> Response:
        """Sends a request, with retries.

        Args:
            options: Of `requests.Session.request`.

        Raises:
            ResponseError: If the status is an error.
        """
        response = self._session.request(method, url, **{"timeout": _TIMEOUTS_S, **options})
        if response.status_code >= 300:
            body = response.content
            message = read_error_message(body) or _find_text(body, "Code")
            raise ResponseError(response.status_code, message)
        return response

    def _locate(self, key: str) -> str:
        """Returns the URL of an object in the JSON API."""
        return f"{self._objects_url}/{quote(key, safe='')}"

    def _list(self, prefix: str) -> Iterator[StoredObject]:
        fields = "items(name,size,generation),nextPageToken"
        parameters = {"prefix": prefix, "fields": fields}
        while True:
            page = _decode(self._send("GET", self._objects_url, params=parameters), _ListingPage)
            for entry in page.items:
                yield StoredObject(entry.name, int(entry.size), entry.generation)
            if not page.nextPageToken:
                return
            parameters["pageToken"] = page.nextPageToken

    def _is_readable(self, key: str) -> bool:
        try:
            self._measure(key)
        except ResponseError as error:
            if error.status not in (403, 404):
                raise
            return False
        return True

    def _measure(self, key: str) -> int:
        response = self._send("GET", self._locate(key), params={"fields": "size"})
        return int(_decode(response, _ObjectSize).size)

    def _read_blocks(self, key: str, start: int) -> Iterator[bytes] | None:
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        try:
            response = self._send(
                "GET", self._locate(key), params={"alt": "media"}, headers=headers, stream=True
            )
        except ResponseError as error:
            if error.status != 404:
                raise
            return None
        blocks: Iterator[bytes] = response.iter_content(BLOCK_BYTES)
        return blocks

    def _put(self, key: str, content: bytes, *, is_new: bool) -> bool:
        checksum = encode_md5(content)
        metadata = json.dumps({"name": key, "md5Hash": checksum}).encode()
        boundary = uuid.uuid4().hex
        body = b"".join(
            (
                f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
                metadata,
                f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
                content,
                f"\r\n--{boundary}--\r\n".encode(),
            )
        )
        parameters = {"uploadType": "multipart", "fields": "md5Hash"}
        if is_new:
            parameters["ifGenerationMatch"] = "0"
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}

        try:
            response = self._send(
                "POST", self._upload_url, params=parameters, data=body, headers=headers
            )
        except ResponseError as error:
            if not is_new or error.status not in EXISTS_STATUSES:
                raise
            return False
        stored_checksum = _decode(response, _ObjectHash).md5Hash
        if stored_checksum != checksum:
            message = f"stored an object with MD5 {stored_checksum}, expected {checksum}"
            raise ResponseError(response.status_code, message)
        return True

    def _delete(self, key: str) -> None:
        try:
            self._send("DELETE", self._locate(key))
        except ResponseError as error:
            if error.status != 404:
                raise

    def _begin_parts(self, key: str) -> str:
        response = self._send("POST", self._locate_parts(key), params={"uploads": ""})
        upload_id = _find_text(response.content, "UploadId")
        if not upload_id:
            raise ResponseError(response.status_code, "the response has no UploadId")
        return upload_id

    def _put_part(self, upload: PartedUpload, number: int, content: bytes) -> dict[str, str]:
        response = self._send(
            "PUT",
            self._locate_parts(upload.key),
            params={"partNumber": str(number), "uploadId": upload.upload_id},
            headers={"Content-MD5": encode_md5(content)},
            data=content,
        )
        if "ETag" not in response.headers:
            raise ResponseError(response.status_code, "the response has no ETag")
        return {"ETag": response.headers["ETag"]}

    def _complete_parts(self, upload: PartedUpload) -> None:
        root = ElementTree.Element("CompleteMultipartUpload")
        for number, receipt in sorted(upload.receipts.items()):
            part = ElementTree.SubElement(root, "Part")
            ElementTree.SubElement(part, "PartNumber").text = str(number)
            ElementTree.SubElement(part, "ETag").text = receipt["ETag"]

        try:
            self._send(
                "POST",
                self._locate_parts(upload.key),
                params={"uploadId": upload.upload_id},
                data=ElementTree.tostring(root),
                timeout=_COMPLETION_TIMEOUTS_S,
            )
        except ResponseError as error:
            # If the response to an earlier attempt was lost, the upload has become the object.
            if error.status != 404:
                raise
        size = self._measure(upload.key)
        expected_size = upload.file.stat().st_size
        if size != expected_size:
            raise ResponseError(200, f"stored an object of {size} bytes, expected {expected_size}")

    def _abort_parts(self, upload: PartedUpload) -> None:
        parameters = {"uploadId": upload.upload_id}
        self._send("DELETE", self._locate_parts(upload.key), params=parameters)

    def _locate_parts(self, key: str) -> str:
        """Returns the URL of an object in the XML API."""
        return f"{self._parts_url}/{quote(key, safe='')}"

    def _is_interruption(self, error: Exception) -> bool:
        from requests.exceptions import ChunkedEncodingError, ConnectionError
        from urllib3.exceptions import MaxRetryError

        has_been_retried = any(isinstance(cause, MaxRetryError) for cause in error.args)
        return isinstance(error, (ChunkedEncodingError, ConnectionError)) and not has_been_retried

    @contextmanager
    def _convert_errors(self, action: str) -> Iterator[None]:
        from google.auth.exceptions import GoogleAuthError, TransportError
        from requests.exceptions import RequestException

        try:
            yield
        except ResponseError as error:
            is_damaged = any(text in str(error) for text in _HASH_ERRORS)
            if error.status not in REFUSED_STATUSES or is_damaged:
                raise self._make_failure(action, error) from None
            raise self._make_refusal(action, error) from None
        except UserError:
            raise
        except (GoogleAuthError, ValueError) as error:  # ValueError: a malformed address
            if isinstance(error, TransportError):
                raise self._make_failure(action, error) from None
            raise ConfigurationError(
                f"out_dir={self.url}: {action}: {redact(str(error))}; run gcloud auth "
                "application-default login, or correct GOOGLE_APPLICATION_CREDENTIALS or "
                "STORAGE_EMULATOR_HOST"
            ) from None
        except RequestException as error:
            raise self._make_failure(action, error) from None


def _decode(response: Response, value_type: type[Value]) -> Value:
    """Decodes a response of the JSON API.

    Raises:
        ResponseError: If it is something else, such as a page of a proxy.
    """
    try:
        return decode_json(response.content, value_type)
    except msgspec.MsgspecError as error:
        raise ResponseError(response.status_code, f"not of Cloud Storage: {error}") from None


def _find_text(body: bytes, tag: str) -> str:
    """Returns the text of an element in a response of the XML API; "" if there is none."""
    try:
        return ElementTree.fromstring(body).findtext(f"{{*}}{tag}", "")
    except ElementTree.ParseError:
        return ""


def encode_md5(content: bytes) -> str:
    """Returns the MD5 of an object, in the form of the API."""
    digest = hashlib.md5(content, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()
