"""The objects of a run on S3, with botocore.

Each object, and each part of a large one, is uploaded with the SHA-256 of its content, which the
server verifies.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.core.secrets import declare_secrets, redact
from bsmeta.training.buckets.bucket import (
    ATTEMPTS,
    BLOCK_BYTES,
    EXISTS_STATUSES,
    PART_BYTES,
    REFUSED_STATUSES,
    PartedUpload,
    RunBucket,
    StoredObject,
)

_INTERRUPTION_CODES = ("RequestTimeout", "IncompleteBody", "BadDigest")


class S3Bucket(RunBucket):
    """The objects of a run on S3; requests are tried `ATTEMPTS` or AWS_MAX_ATTEMPTS times."""

    permissions = "s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject"
    credential_sources = "AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    server_variables = "AWS_ENDPOINT_URL"

    def __init__(self, url: str, *, part_bytes: int = PART_BYTES) -> None:
        from botocore.config import Config
        from botocore.session import Session

        super().__init__(url, part_bytes=part_bytes)
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

    def _list(self, prefix: str) -> Iterator[StoredObject]:
        paginator = self._client.get_paginator("list_objects_v2")
        for page in paginator.paginate(Bucket=self._bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                yield StoredObject(entry["Key"], entry["Size"], entry.get("ETag", ""))

    def _is_readable(self, key: str) -> bool:
        try:
            self._client.head_object(Bucket=self._bucket, Key=key)
        except self._client.exceptions.ClientError as error:
            if _read_status(error) not in (403, 404):
                raise
            return False
        return True

    def _measure(self, key: str) -> int:
        return int(self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"])

    def _read_blocks(self, key: str, start: int) -> Iterator[bytes] | None:
        options = {"Range": f"bytes={start}-"} if start else {}
        try:
            response = self._client.get_object(Bucket=self._bucket, Key=key, **options)
        except self._client.exceptions.NoSuchKey:
            return None
        blocks: Iterator[bytes] = response["Body"].iter_chunks(BLOCK_BYTES)
        return blocks

    def _put(self, key: str, content: bytes, *, is_new: bool) -> bool:
        condition = {"IfNoneMatch": "*"} if is_new else {}
        try:
            self._client.put_object(
                Bucket=self._bucket,
                Key=key,
                Body=content,
                ChecksumSHA256=_encode_digest(content),
                **condition,
            )
        except self._client.exceptions.ClientError as error:
            if not is_new or _read_status(error) not in EXISTS_STATUSES:
                raise
            return False
        return True

    def _delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=key)

    def _begin_parts(self, key: str) -> str:
        response = self._client.create_multipart_upload(
            Bucket=self._bucket, Key=key, ChecksumAlgorithm="SHA256"
        )
        return str(response["UploadId"])

    def _put_part(self, upload: PartedUpload, number: int, content: bytes) -> dict[str, str]:
        checksum = _encode_digest(content)
        response = self._client.upload_part(
            **self._locate(upload), PartNumber=number, Body=content, ChecksumSHA256=checksum
        )
        return {"ETag": response["ETag"], "ChecksumSHA256": checksum}

    def _complete_parts(self, upload: PartedUpload) -> None:
        receipts = sorted(upload.receipts.items())
        parts = [{"PartNumber": number, **receipt} for number, receipt in receipts]
        self._client.complete_multipart_upload(
            **self._locate(upload), MultipartUpload={"Parts": parts}
        )

    def _abort_parts(self, upload: PartedUpload) -> None:
        self._client.abort_multipart_upload(**self._locate(upload))

    def _locate(self, upload: PartedUpload) -> dict[str, str]:
        """Returns the parameters that each request about an upload has."""
        return {"Bucket": self._bucket, "Key": upload.key, "UploadId": upload.upload_id}

    def _is_interruption(self, error: Exception) -> bool:
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        return isinstance(error, (HTTPClientError, IncompleteReadError))

    @contextmanager
    def _convert_errors(self, action: str) -> Iterator[None]:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            HTTPClientError,
            IncompleteReadError,
        )

        try:
            yield
        except ClientError as error:
            is_refused = _read_status(error) in REFUSED_STATUSES
            if not is_refused or error.response["Error"]["Code"] in _INTERRUPTION_CODES:
                raise self._make_failure(action, error) from None
            raise self._make_refusal(action, error) from None
        except (ConnectionError, HTTPClientError, IncompleteReadError) as error:
            raise self._make_failure(action, error) from None
        except UserError:
            raise
        except (BotoCoreError, ValueError) as error:  # ValueError: a malformed endpoint
            raise ConfigurationError(
                f"out_dir={self.url}: {action}: {redact(str(error))}; correct the configuration of "
                "AWS (its environment variables, ~/.aws)"
            ) from None


def _encode_digest(content: bytes) -> str:
    """Returns the SHA-256 of an object, in the form of its header."""
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def _read_status(error: Any) -> int:
    """Returns the HTTP status of botocore's `ClientError`."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
