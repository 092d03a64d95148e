"""Reads, writes and deletes the objects of a run in a bucket on S3, with botocore.

The store of `bsmeta.data.io.objects` only reads, in loader processes that are forked; this client
is used in the threads of one process, so that botocore can send the requests and retry them.
Each object is uploaded with the SHA-256 of its content, which the server verifies.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from bsmeta.config.run_location import BUCKET_URL
from bsmeta.core.errors import CheckpointError, ConfigurationError, DataError
from bsmeta.core.files import replace_atomically
from bsmeta.core.progress import report_progress
from bsmeta.core.secrets import declare_secrets, redact
from bsmeta.models.manifest import FileEntry, find_fault

PART_BYTES = 64 << 20
"""Size of the parts in which larger files are uploaded; a file has at most 10,000 parts."""
MAX_PARTS = 10_000
ATTEMPTS = 10
"""Attempts of a request, unless AWS_MAX_ATTEMPTS is set; botocore waits up to 20 s between two."""

_BLOCK_BYTES = 1 << 20
_NUM_UPLOADS = 4  # files and parts that are uploaded at a time
_REFUSED_STATUSES = (400, 401, 403, 404)
_INTERRUPTION_CODES = ("RequestTimeout", "IncompleteBody", "BadDigest")


class ObjectExistsError(Exception):
    """A conditional upload found an object of this name."""


class ObjectMissingError(CheckpointError):
    """An object does not exist, or no longer."""


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing.

    Attributes:
        name: Its name below the prefix.
        size: In bytes.
        etag: Changes with the content.
    """

    name: str
    size: int
    etag: str = field(default="", compare=False)


@dataclass
class _PartedUpload:
    """A large file that is uploaded in parts.

    Attributes:
        name: The name of its object below the prefix.
        target: Parameters that each request about it has.
        parts: ETags and checksums of the uploaded parts, by number from 1.
    """

    name: str
    file: Path
    target: dict[str, str]
    part_bytes: int
    num_parts: int
    parts: dict[int, dict[str, str]] = field(default_factory=dict)


class RunBucket:
    """The objects below the prefix of a run; methods can be called from several threads.

    Attributes:
        url: `s3://BUCKET/PREFIX`, for messages.

    Args:
        part_bytes: Size of the parts of an upload.

    Raises:
        ConfigurationError: If the configuration of AWS is malformed, or there are no credentials.
    """

    def __init__(self, url: str, *, part_bytes: int = PART_BYTES) -> None:
        from botocore.config import Config
        from botocore.session import Session

        match = BUCKET_URL.fullmatch(url)
        assert match is not None, url  # checked with the configuration
        prefix = match[2].rstrip("/")
        self.url = f"s3://{match[1]}/{prefix}"
        self._bucket = match[1]
        self._prefix = f"{prefix}/"
        self._part_bytes = part_bytes

        with self._convert_errors("opening"):
            session = Session()
            credentials = session.get_credentials()
            if credentials is None:
                raise ConfigurationError(
                    f"out_dir={self.url}: found no credentials; set AWS_ACCESS_KEY_ID and "
                    "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
                )
            frozen = credentials.get_frozen_credentials()
            declare_secrets(frozen.secret_key, frozen.token)

            retries: dict[str, Any] = {"mode": "standard"}
            if "AWS_MAX_ATTEMPTS" not in os.environ:
                retries["total_max_attempts"] = ATTEMPTS
            # Without TLS, botocore would hash each body again for its signature, which includes the
            # SHA-256 of the content anyway.
            settings = {"payload_signing_enabled": False}
            self._client = session.create_client("s3", config=Config(retries=retries, s3=settings))

    def list_objects(self, folder: str = "") -> list[StoredObject]:
        """Lists the objects whose names begin with `folder`.

        The empty objects that mark folders in the console of S3 (`checkpoint-8step/`) are left out.
        """
        objects: list[StoredObject] = []
        with self._convert_errors("listing"):
            paginator = self._client.get_paginator("list_objects_v2")
            for page in paginator.paginate(Bucket=self._bucket, Prefix=self._prefix + folder):
                for entry in page.get("Contents", []):
                    name = entry["Key"].removeprefix(self._prefix)
                    if name and not name.endswith("/"):
                        objects.append(StoredObject(name, entry["Size"], entry.get("ETag", "")))
        return objects

    def find_parent_with(self, name: str) -> str | None:
        """Returns the address of a prefix above this one that has an object; None if none has.

        Prefixes that the credentials do not permit to read are skipped.
        """
        parts = self._prefix.rstrip("/").split("/")
        for length in range(len(parts) - 1, 0, -1):
            parent = "/".join(parts[:length])
            with self._convert_errors(f"reading s3://{self._bucket}/{parent}/{name}"):
                try:
                    self._client.head_object(Bucket=self._bucket, Key=f"{parent}/{name}")
                    return f"s3://{self._bucket}/{parent}"
                except self._client.exceptions.ClientError as error:
                    if _read_status(error) not in (403, 404):
                        raise
        return None

    def read(self, name: str) -> bytes | None:
        """Returns the content of a small object; None if it does not exist."""
        with self._convert_errors(f"reading {name}"):
            try:
                response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            except self._client.exceptions.NoSuchKey:
                return None
            content: bytes = response["Body"].read()
        return content

    def download(self, name: str, file: Path) -> None:
        """Writes the content of an object to a file; the caller verifies it.

        Raises:
            ObjectMissingError: If there is no such object.
        """
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        with self._convert_errors(f"reading {name}"), file.open("wb") as stream:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._append_rest(name, stream)
                    return
                except self._client.exceptions.NoSuchKey:
                    message = f"{self.url}/{name}: the object is missing"
                    raise ObjectMissingError(message) from None
                except (HTTPClientError, IncompleteReadError):  # the connection was interrupted
                    if attempt == ATTEMPTS:
                        raise
                    time.sleep(min(2**attempt, 20) * random.random())

    def download_verified(self, name: str, file: Path, expected: FileEntry) -> None:
        """Replaces a file by an object, unless the object differs from its entry in a manifest.

        Raises:
            CheckpointError: If the object is missing or has changed.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(file) as temporary:
            self.download(name, temporary)
            fault = find_fault(temporary, expected)
            if fault is not None:
                difference = fault.removeprefix(f"{temporary}: ")
                raise CheckpointError(f"{self.url}/{name}: the object has changed: {difference}")

    def _append_rest(self, name: str, stream: BinaryIO) -> None:
        """Appends the rest of an object to a stream that holds its first bytes."""
        source = {"Bucket": self._bucket, "Key": self._prefix + name}
        position = stream.tell()
        if position:
            if position == self._client.head_object(**source)["ContentLength"]:
                return
            source["Range"] = f"bytes={position}-"

        response = self._client.get_object(**source)
        for block in response["Body"].iter_chunks(_BLOCK_BYTES):
            stream.write(block)
            report_progress()

    def write(self, name: str, content: bytes, *, is_new: bool = False) -> None:
        """Uploads a small object.

        Args:
            is_new: Only if there is no object of this name (`If-None-Match: *`).

        Raises:
            ObjectExistsError: If `is_new`, and an object with other content exists.
        """
        condition = {"IfNoneMatch": "*"} if is_new else {}
        with self._convert_errors(f"writing {name}"):
            try:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=self._prefix + name,
                    Body=content,
                    ChecksumSHA256=_encode_digest(content),
                    **condition,
                )
                return
            except self._client.exceptions.ClientError as error:
                if not is_new or _read_status(error) not in (409, 412):
                    raise

        # If the response to an earlier attempt was lost, the object is the one of this call.
        if self.read(name) != content:
            raise ObjectExistsError(f"{self.url}/{name}")

    def upload(self, name: str, file: Path) -> None:
        """Uploads a file; see `upload_all`."""
        self.upload_all({name: file})

    def upload_all(self, files: Mapping[str, Path]) -> None:
        """Uploads files by the names of their objects, several at a time, large ones in parts.

        After an error, no further part is begun, and the parts of incomplete objects are deleted.
        """
        calls: list[Future[None]] = []
        incomplete: list[_PartedUpload] = []
        with ThreadPoolExecutor(_NUM_UPLOADS, "upload") as pool:
            try:
                for name, file in files.items():
                    size = file.stat().st_size
                    if size <= self._part_bytes:
                        calls.append(pool.submit(self._upload_whole, name, file))
                        continue
                    upload = self._begin_parts(name, file, size)
                    incomplete.append(upload)
                    for number in range(1, upload.num_parts + 1):
                        calls.append(pool.submit(self._upload_part, upload, number))

                finished, _ = wait(calls, return_when=FIRST_EXCEPTION)
                for call in finished:
                    call.result()
                while incomplete:
                    self._complete_parts(incomplete[0])
                    incomplete.pop(0)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                for upload in incomplete:
                    self._abort_parts(upload)
                raise

    def _upload_whole(self, name: str, file: Path) -> None:
        self.write(name, file.read_bytes())
        report_progress()

    def _begin_parts(self, name: str, file: Path, size: int) -> _PartedUpload:
        target = {"Bucket": self._bucket, "Key": self._prefix + name}
        with self._convert_errors(f"writing {name}"):
            response = self._client.create_multipart_upload(**target, ChecksumAlgorithm="SHA256")
        part_bytes = max(self._part_bytes, -(-size // MAX_PARTS))
        target["UploadId"] = response["UploadId"]
        return _PartedUpload(name, file, target, part_bytes, num_parts=-(-size // part_bytes))

    def _upload_part(self, upload: _PartedUpload, number: int) -> None:
        with upload.file.open("rb") as stream:
            stream.seek((number - 1) * upload.part_bytes)
            content = stream.read(upload.part_bytes)

        checksum = _encode_digest(content)
        with self._convert_errors(f"writing {upload.name}"):
            response = self._client.upload_part(
                **upload.target, PartNumber=number, Body=content, ChecksumSHA256=checksum
            )
        upload.parts[number] = {"ETag": response["ETag"], "ChecksumSHA256": checksum}
        report_progress()

    def _complete_parts(self, upload: _PartedUpload) -> None:
        parts = [{"PartNumber": number, **upload.parts[number]} for number in sorted(upload.parts)]
        with self._convert_errors(f"writing {upload.name}"):
            self._client.complete_multipart_upload(
                **upload.target, MultipartUpload={"Parts": parts}
            )

    def _abort_parts(self, upload: _PartedUpload) -> None:
        """Deletes uploaded parts; the error because of which it is called is more important."""
        with suppress(ConfigurationError, DataError), self._convert_errors("deleting parts"):
            self._client.abort_multipart_upload(**upload.target)

    def delete(self, *names: str) -> None:
        """Deletes objects, one after the other; missing ones are ignored."""
        for name in names:
            with self._convert_errors(f"deleting {name}"):
                self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)
            report_progress()

    @contextmanager
    def _convert_errors(self, action: str) -> Iterator[None]:
        """Converts errors of botocore, in which secrets are redacted.

        Raises:
            ConfigurationError: If the request is refused.
            DataError: If the server cannot be reached, or keeps failing.
        """
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            HTTPClientError,
            IncompleteReadError,
        )

        try:
            yield
        except ClientError as error:
            is_refused = _read_status(error) in _REFUSED_STATUSES
            if not is_refused or error.response["Error"]["Code"] in _INTERRUPTION_CODES:
                raise self._make_failure(action, error) from None
            raise ConfigurationError(
                f"out_dir={self.url}: {action}: {redact(str(error))}; expected a bucket that "
                "exists and credentials with s3:ListBucket, s3:GetObject, s3:PutObject and "
                "s3:DeleteObject. Correct out_dir, AWS_PROFILE or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_ENDPOINT_URL"
            ) from None
        except (HTTPClientError, IncompleteReadError) as error:
            raise self._make_failure(action, error) from None
        except (BotoCoreError, ValueError) as error:  # ValueError: a malformed endpoint
            raise ConfigurationError(
                f"out_dir={self.url}: {action}: {redact(str(error))}; correct the configuration of "
                "AWS (its environment variables, ~/.aws)"
            ) from None

    def _make_failure(self, action: str, error: Exception) -> DataError:
        """Makes the error for a server that cannot be reached, or keeps failing."""
        return DataError(
            f"{self.url}: {action}: {redact(str(error))}; see whether the server can be reached "
            "(AWS_ENDPOINT_URL, a proxy), and resume (resume_from_checkpoint_dir=latest)"
        )


def _encode_digest(content: bytes) -> str:
    """Returns the SHA-256 of an object, in the form of its header."""
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def _read_status(error: Any) -> int:
    """Returns the HTTP status of botocore's `ClientError`."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
