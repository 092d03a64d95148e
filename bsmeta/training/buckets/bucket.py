"""The objects of a run in a bucket: the rules that all stores share, and the contract of a store.

`RunBucket` names objects below the prefix of a run, divides files into parts, uploads several at a
time, continues interrupted downloads, and verifies files by a manifest. A derived class sends the
requests of one store: `s3.py`, `gcs.py`. `open_bucket` in `choice.py` chooses it.

The stores of `bsmeta.data.io.remote.objects` only read, in loader processes that are forked; these
clients are used in the threads of one process, so that libraries can send the requests and retry
them.
"""

from __future__ import annotations

import io
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar

from bsmeta.config.run_location import BUCKET_URL
from bsmeta.core.errors import CheckpointError, ConfigurationError, DataError
from bsmeta.core.files import replace_atomically
from bsmeta.core.progress import report_progress
from bsmeta.core.secrets import redact
from bsmeta.models.manifest import FileEntry, find_fault

PART_BYTES = 64 << 20
"""Size of the parts in which larger files are uploaded; a file has at most 10,000 parts."""
MAX_PARTS = 10_000
ATTEMPTS = 10
"""Attempts of a request."""
MAX_DELAY_S = 20.0
"""Limit of the delay between two attempts."""
BLOCK_BYTES = 1 << 20
"""Size of the blocks in which a download is written."""
REFUSED_STATUSES = (400, 401, 403, 404)
"""HTTP statuses that the same request would get again."""
EXISTS_STATUSES = (409, 412)
"""HTTP statuses of a conditional upload whose object exists, or is being written."""

_NUM_UPLOADS = 4  # files and parts that are uploaded at a time


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
class PartedUpload:
    """A large file that is uploaded in parts.

    Attributes:
        name: The name of its object below the prefix.
        key: The full name of its object.
        upload_id: The store's id of the upload.
        part_bytes: Size of all parts except the last.
        receipts: What the store returned for the uploaded parts, by number from 1.
    """

    name: str
    key: str
    file: Path
    upload_id: str
    part_bytes: int
    num_parts: int
    receipts: dict[int, dict[str, str]] = field(default_factory=dict)


def choose_delay(num_failures: int) -> float:
    """Draws the seconds to wait before the next attempt."""
    return min(2.0**num_failures, MAX_DELAY_S) * random.random()


class RunBucket(ABC):
    """The objects below the prefix of a run; methods can be called from several threads.

    A derived class sends single requests. They are retried, and raise the errors of its library,
    which `_convert_errors` converts. Their keys are full names of objects, prefix included.

    Attributes:
        url: `SCHEME://BUCKET/PREFIX`, for messages.
        permissions: The permissions that a run needs.
        credential_sources: Where to correct the credentials.
        server_variables: Where to correct the address of the server.

    Args:
        part_bytes: Size of the parts of an upload.

    Raises:
        ConfigurationError: If the store's configuration is malformed, or there are no credentials.
    """

    permissions: ClassVar[str]
    credential_sources: ClassVar[str]
    server_variables: ClassVar[str]

    def __init__(self, url: str, *, part_bytes: int = PART_BYTES) -> None:
        match = BUCKET_URL.fullmatch(url)
        assert match is not None, url  # checked with the configuration
        scheme, self._bucket, path = match.groups()
        prefix = path.rstrip("/")
        self._root_url = f"{scheme}{self._bucket}"
        self.url = f"{self._root_url}/{prefix}"
        self._prefix = f"{prefix}/"
        self._part_bytes = part_bytes

    # --- the requests of a store ------------------------------------------------------------

    @abstractmethod
    def _list(self, prefix: str) -> Iterator[StoredObject]:
        """Lists the objects whose keys begin with a prefix; their names are keys."""

    @abstractmethod
    def _is_readable(self, key: str) -> bool:
        """Whether an object exists and the credentials permit to read it."""

    @abstractmethod
    def _measure(self, key: str) -> int:
        """Returns the size of an object in bytes."""

    @abstractmethod
    def _read_blocks(self, key: str, start: int) -> Iterator[bytes] | None:
        """Reads an object from a position before its end; returns None if it does not exist."""

    @abstractmethod
    def _put(self, key: str, content: bytes, *, is_new: bool) -> bool:
        """Uploads an object, with a checksum that the store verifies.

        Returns:
            False if it `is_new`, but another object has the key.
        """

    @abstractmethod
    def _delete(self, key: str) -> None:
        """Deletes an object; a missing one is ignored."""

    @abstractmethod
    def _begin_parts(self, key: str) -> str:
        """Begins an upload in parts; returns its id."""

    @abstractmethod
    def _put_part(self, upload: PartedUpload, number: int, content: bytes) -> dict[str, str]:
        """Uploads a part, with a checksum that the store verifies; returns its receipt."""

    @abstractmethod
    def _complete_parts(self, upload: PartedUpload) -> None:
        """Makes an object of the uploaded parts."""

    @abstractmethod
    def _abort_parts(self, upload: PartedUpload) -> None:
        """Deletes uploaded parts."""

    @abstractmethod
    def _is_interruption(self, error: Exception) -> bool:
        """Whether an error of a download means that its connection was interrupted."""

    @abstractmethod
    def _convert_errors(self, action: str) -> AbstractContextManager[None]:
        """Converts the errors of the store's library, in which secrets are redacted.

        Raises:
            ConfigurationError: If the request is refused.
            DataError: If the server cannot be reached, or keeps failing.
        """

    # --- reading ----------------------------------------------------------------------------

    def list_objects(self, folder: str = "") -> list[StoredObject]:
        """Lists the objects whose names begin with `folder`.

        The empty objects that mark folders in the console of a store (`checkpoint-8step/`) are left
        out.
        """
        objects: list[StoredObject] = []
        with self._convert_errors("listing"):
            for entry in self._list(self._prefix + folder):
                name = entry.name.removeprefix(self._prefix)
                if name and not name.endswith("/"):
                    objects.append(StoredObject(name, entry.size, entry.etag))
        return objects

    def find_parent_with(self, name: str) -> str | None:
        """Returns the address of a prefix above this one that has an object; None if none has.

        Prefixes that the credentials do not permit to read are skipped.
        """
        parts = self._prefix.rstrip("/").split("/")
        for length in range(len(parts) - 1, 0, -1):
            parent = "/".join(parts[:length])
            with self._convert_errors(f"reading {self._root_url}/{parent}/{name}"):
                if self._is_readable(f"{parent}/{name}"):
                    return f"{self._root_url}/{parent}"
        return None

    def read(self, name: str) -> bytes | None:
        """Returns the content of a small object; None if it does not exist."""
        stream = io.BytesIO()
        try:
            self._write_content(name, stream)
        except ObjectMissingError:
            return None
        return stream.getvalue()

    def download(self, name: str, file: Path) -> None:
        """Writes the content of an object to a file; the caller verifies it.

        Raises:
            ObjectMissingError: If there is no such object.
        """
        with file.open("wb") as stream:
            self._write_content(name, stream)

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

    def _write_content(self, name: str, stream: BinaryIO) -> None:
        """Writes the content of an object to an empty stream, with several attempts."""
        with self._convert_errors(f"reading {name}"):
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._append_rest(name, stream)
                    return
                except Exception as error:
                    if attempt == ATTEMPTS or not self._is_interruption(error):
                        raise
                    time.sleep(choose_delay(attempt))

    def _append_rest(self, name: str, stream: BinaryIO) -> None:
        """Appends the rest of an object to a stream that holds its first bytes."""
        key = self._prefix + name
        position = stream.tell()
        if position and position == self._measure(key):
            return

        blocks = self._read_blocks(key, position)
        if blocks is None:
            raise ObjectMissingError(f"{self.url}/{name}: the object is missing")
        for block in blocks:
            stream.write(block)
            report_progress()

    # --- writing ----------------------------------------------------------------------------

    def write(self, name: str, content: bytes, *, is_new: bool = False) -> None:
        """Uploads a small object.

        Args:
            is_new: Only if there is no object of this name.

        Raises:
            ObjectExistsError: If `is_new`, and an object with other content exists.
        """
        with self._convert_errors(f"writing {name}"):
            if self._put(self._prefix + name, content, is_new=is_new):
                return

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
        incomplete: list[PartedUpload] = []
        with ThreadPoolExecutor(_NUM_UPLOADS, "upload") as pool:
            try:
                for name, file in files.items():
                    size = file.stat().st_size
                    if size <= self._part_bytes:
                        calls.append(pool.submit(self._upload_whole, name, file))
                        continue
                    upload = self._plan_parts(name, file, size)
                    incomplete.append(upload)
                    for number in range(1, upload.num_parts + 1):
                        calls.append(pool.submit(self._upload_part, upload, number))

                finished, _ = wait(calls, return_when=FIRST_EXCEPTION)
                for call in finished:
                    call.result()
                while incomplete:
                    with self._convert_errors(f"writing {incomplete[0].name}"):
                        self._complete_parts(incomplete[0])
                    incomplete.pop(0)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                for upload in incomplete:
                    self._drop_parts(upload)
                raise

    def _upload_whole(self, name: str, file: Path) -> None:
        self.write(name, file.read_bytes())
        report_progress()

    def _plan_parts(self, name: str, file: Path, size: int) -> PartedUpload:
        """Begins the upload of a file in parts of equal size."""
        key = self._prefix + name
        with self._convert_errors(f"writing {name}"):
            upload_id = self._begin_parts(key)
        part_bytes = max(self._part_bytes, -(-size // MAX_PARTS))
        num_parts = -(-size // part_bytes)
        return PartedUpload(name, key, file, upload_id, part_bytes, num_parts)

    def _upload_part(self, upload: PartedUpload, number: int) -> None:
        with upload.file.open("rb") as stream:
            stream.seek((number - 1) * upload.part_bytes)
            content = stream.read(upload.part_bytes)

        with self._convert_errors(f"writing {upload.name}"):
            upload.receipts[number] = self._put_part(upload, number, content)
        report_progress()

    def _drop_parts(self, upload: PartedUpload) -> None:
        """Deletes uploaded parts; the error because of which it is called is more important."""
        with suppress(ConfigurationError, DataError), self._convert_errors("deleting parts"):
            self._abort_parts(upload)

    def delete(self, *names: str) -> None:
        """Deletes objects, one after the other; missing ones are ignored."""
        for name in names:
            with self._convert_errors(f"deleting {name}"):
                self._delete(self._prefix + name)
            report_progress()

    # --- errors -----------------------------------------------------------------------------

    def _make_refusal(self, action: str, error: Exception) -> ConfigurationError:
        """Makes the error for a request that is refused."""
        return ConfigurationError(
            f"out_dir={self.url}: {action}: {redact(str(error))}; expected a bucket that exists "
            f"and credentials with {self.permissions}. Correct out_dir, {self.credential_sources}, "
            f"or {self.server_variables}"
        )

    def _make_failure(self, action: str, error: Exception) -> DataError:
        """Makes the error for a server that cannot be reached, or keeps failing."""
        return DataError(
            f"{self.url}: {action}: {redact(str(error))}; see whether the server can be reached "
            f"({self.server_variables}, a proxy), and resume (resume_from_checkpoint_dir=latest)"
        )
