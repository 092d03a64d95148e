"""Files that are read over HTTP in ranges: what `hf://`, `s3://` and `gs://` have in common.

A `FileRef` identifies a file as it was listed, and opens a range of it (`hub.HubRef`,
`objects.ObjectRef`); a `RemotePattern` lists the files that a URL names. Everything else is here or
in `files`: retries, the checks of a response, reading a range, and comparing a file with its hash.

Messages contain neither credentials nor the address of a request, which may grant access like a
password.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import random
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import httpx2
from fsspec.utils import glob_translate
from huggingface_hub.utils import get_token_to_send, parse_ratelimit_headers

from bsmeta.core.errors import DataError
from bsmeta.core.progress import report_progress, reporting
from bsmeta.core.secrets import redact

log = logging.getLogger(__name__)

FIRST_DELAY = 1.0  # maximum seconds before the first retry; doubled before each further retry
LONGEST_DELAY = 60.0
LONGEST_WAIT = 900.0  # maximum seconds that a server may ask us to wait
SLOWEST = 1024  # bytes per second; a connection slower than this for `SLOW_TIMEOUTS` is dropped
SLOW_TIMEOUTS = 6  # times the timeout of a request
REPORTED_S = 5.0  # a longer wait is reported as progress this often
TRANSIENT_STATUS = (408, 425, 429)  # and all from 500 on
TRANSIENT_ERRORS = (
    httpx2.TimeoutException,
    httpx2.NetworkError,
    httpx2.RemoteProtocolError,
    httpx2.ProxyError,
)
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How remote files are read.

    Attributes:
        folder: Where listings and blocks of files are kept.
        cache_bytes: Maximum bytes of blocks to keep.
        retries: Number of consecutive failures after which reading is abandoned.
    """

    folder: str
    cache_bytes: int
    retries: int


class Verifier(Protocol):
    """Compares the content of a file with its hash."""

    def update(self, data: bytes) -> None:
        """Adds the next bytes of the file."""

    def is_right(self) -> bool | None:
        """Whether all bytes have the hash; None if the hash is not one of the content."""


@dataclass(frozen=True, slots=True)
class FileRef(ABC):
    """A remote file as it was when it was listed; its string is its URL.

    Attributes:
        size: In bytes.
        etag: What identifies its content.
        settings: How it is read.
    """

    size: int
    etag: str
    settings: RemoteSettings

    @property
    @abstractmethod
    def place(self) -> str:
        """An absolute path that identifies it among the files of its kind."""

    @property
    @abstractmethod
    def content_id(self) -> str:
        """What identifies its content in the cache, together with the size."""

    @abstractmethod
    def identity(self, name: str) -> dict[str, Any]:
        """What must not change before a run is resumed; JSON-serializable.

        Args:
            name: The name of the shard that it is.
        """

    @abstractmethod
    def open_range(self, start: int, stop: int) -> AbstractContextManager[Iterator[bytes]]:
        """The content from byte `start` to `stop` (exclusive), in chunks, which may be more.

        Raises:
            TransientError: If opening or reading it may succeed on a retry.
            DataError: If it will not, or the file has changed.
        """

    @abstractmethod
    def verifier(self) -> Verifier | None:
        """A new verifier of its content; None if no hash of the content is known."""

    @abstractmethod
    def advice(self) -> str:
        """What the user can do when the retries are exhausted."""

    @property
    @abstractmethod
    def fixed_version(self) -> str:
        """How a new run avoids that the file changes while it is read."""

    def is_offline(self) -> bool:
        """Whether only what is in the cache can be read."""
        return False

    def changed(self, found: str, expected: str) -> DataError:
        """The error for a file that differs from the listed one."""
        return DataError(
            f"{self}: the file has changed since it was listed: found {found}, expected "
            f"{expected}; start a new run, {self.fixed_version}"
        )


@dataclass(frozen=True, slots=True)
class RemotePattern(ABC):
    """The files that a URL names.

    Attributes:
        pattern: A file, a folder or a glob (with `**`), relative to what `place` names.
    """

    pattern: str

    @property
    @abstractmethod
    def place(self) -> str:
        """What the pattern is relative to, for messages."""

    @property
    def hint(self) -> str:
        """What else a user should know if nothing matches."""
        return ""

    @abstractmethod
    def with_pattern(self, pattern: str) -> Self:
        """Another pattern in the same place."""

    @abstractmethod
    def list_files(self, settings: RemoteSettings) -> list[tuple[str, FileRef]]:
        """The files in `folder` (and below it, for a deep pattern), by their relative paths."""

    @property
    def folder(self) -> str:
        """The folder that contains everything that the pattern may match."""
        parts = self.pattern.split("/")
        fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
        return "/".join(parts[:fixed])

    @property
    def is_deep(self) -> bool:
        """Whether it matches files in folders below `folder`."""
        below = self.pattern.removeprefix(self.folder).strip("/")
        return "/" in below or "**" in below

    def matches(self, file: str) -> bool:
        """Whether the glob matches a file; as in a shell, only `**` matches several folders."""
        return re.match(glob_translate(self.pattern), file) is not None


def remote_files(
    pattern: RemotePattern, suffixes: tuple[str, ...], settings: RemoteSettings, key: str
) -> list[FileRef]:
    """The files that a pattern matches: a file, those of a folder, or those of a glob.

    Args:
        suffixes: File name suffixes of the files to take from a folder.
        key: The key that contains the pattern, for the message.

    Raises:
        DataError: If the server refuses or cannot be reached, or nothing matches.
    """
    files = pattern.list_files(settings)
    if glob.has_magic(pattern.pattern):
        chosen = [ref for path, ref in files if pattern.matches(path)]
    else:
        chosen = [ref for path, ref in files if path == pattern.pattern]
        if not chosen and not pattern.pattern.endswith(suffixes):
            folder = f"{pattern.pattern}/*".lstrip("/")
            files = pattern.with_pattern(folder).list_files(settings)
            chosen = [ref for path, ref in files if path.endswith(suffixes)]
    if not chosen:
        others = [path for path, _ in files if path.endswith(suffixes)]
        found = f"; there is, for example, {others[0]}" if others else ""
        raise DataError(f"{key}: {pattern.place}: nothing matches {pattern}{found}{pattern.hint}")
    return chosen


class TransientError(Exception):
    """A failure that a retry may resolve.

    Args:
        wait: Seconds to wait, if the server requests it.
    """

    def __init__(self, cause: str, wait: float | None = None) -> None:
        super().__init__(cause if wait is None else f"{cause}, which asks to wait {wait:.0f} s")
        self.wait = wait


class SlowError(TransientError):
    """A connection that is too slow; the bytes it delivers do not count as progress."""


class CancelledError(Exception):
    """The response is no longer needed."""


class Retries:
    """Waits after each failure, longer every time, and raises after too many consecutive failures.

    Args:
        retries: Number of consecutive failures that are retried.
        advice: What the user can do when they are exhausted.
        cancelled: Stops the wait when set.
    """

    def __init__(self, retries: int, advice: str, cancelled: threading.Event | None = None) -> None:
        self._retries = retries
        self._advice = advice
        self._cancelled = cancelled or threading.Event()
        self._failures = 0

    def reset(self) -> None:
        """Resets the count of failures after progress."""
        self._failures = 0

    def wait(self, what: str, error: TransientError) -> None:
        """Waits after a failure, with jitter, so that processes do not all retry at once.

        Raises:
            DataError: If the retries are exhausted.
            CancelledError: If the wait was cancelled.
        """
        self._failures += 1
        if self._failures > self._retries:
            raise DataError(
                f"{what}: given up after {self._failures} failures in a row, the last one: "
                f"{error}; {self._advice}"
            )
        longest = min(FIRST_DELAY * 2 ** (self._failures - 1), LONGEST_DELAY)
        delay = random.uniform(longest / 2, longest)
        if error.wait is not None:
            delay = min(error.wait, LONGEST_WAIT) + random.uniform(0, FIRST_DELAY)
        log.warning("%s: %s; retrying in %.1f s", what, error, delay)
        while delay > 0:
            report_progress()  # a server that asks for patience is no hang
            if self._cancelled.wait(min(delay, REPORTED_S)):
                raise CancelledError
            delay -= REPORTED_S


def shown_server(url: str) -> str:
    """The scheme, host and port of a URL, without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def retry_advice(server: str, hint: str) -> str:
    """What a user can do about a server that cannot be reached.

    Args:
        hint: What may be wrong on this side, such as the variable that names the server.
    """
    return (
        f"see whether {server} can be reached from here ({hint}, a proxy), start again later, or "
        "raise data_config.hub_retries"
    )


def read_range(ref: FileRef, start: int, stop: int, cancelled: threading.Event) -> bytes:
    """Bytes `start` to `stop` (exclusive) of a file; see `range_parts`."""
    data = bytearray()
    for part in range_parts(ref, start, stop, cancelled):
        data += part
    return bytes(data)


def range_parts(ref: FileRef, start: int, stop: int, cancelled: threading.Event) -> Iterator[bytes]:
    """Bytes `start` to `stop` (exclusive) of a file, in parts.

    If a connection is interrupted, the next one resumes at the first missing byte.

    Raises:
        DataError: If the server refuses, now has a different file, or cannot be reached.
        CancelledError: If it was cancelled.
    """
    attempts = Retries(ref.settings.retries, ref.advice(), cancelled)
    place = start
    while place < stop:
        opened_at = place
        try:
            with ref.open_range(place, stop) as parts:
                for part in parts:
                    yield part[: stop - place]
                    place += len(part)
                    if cancelled.is_set():
                        raise CancelledError
                    if place >= stop:
                        break
                else:
                    raise TransientError("the connection was closed before the end")
        except TransientError as error:
            if place > opened_at and not isinstance(error, SlowError):
                attempts.reset()
            attempts.wait(f"{ref}, byte {place} of {ref.size}", error)


@contextlib.contextmanager
def transport_errors(what: str, server: str) -> Iterator[None]:
    """Turns errors of an HTTP request into those of this module.

    Raises:
        TransientError: If the request, or reading the response, may succeed on a retry.
        DataError: If it will not.
    """
    try:
        yield
    except TRANSIENT_ERRORS as error:
        raise TransientError(error_message(error)) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise DataError(f"{what}: cannot be read from {server}: {error_message(error)}") from None


def steady(parts: Iterator[bytes], timeout: float) -> Iterator[bytes]:
    """The parts of a response.

    Args:
        timeout: Of a request, in seconds.

    Raises:
        SlowError: If they arrive slower than `SLOWEST`, for example one byte before each timeout.
    """
    period = SLOW_TIMEOUTS * timeout
    since, count = time.monotonic(), 0
    for part in reporting(parts):
        yield part
        count += len(part)
        seconds = time.monotonic() - since
        if seconds > period:
            if count < SLOWEST * seconds:
                raise SlowError(f"only {count} bytes came in {seconds:.1f} s")
            since, count = time.monotonic(), 0


def check_transient(response: httpx2.Response, reason: str = "") -> None:
    """Raises a `TransientError` for a status that a retry may change.

    Args:
        reason: What the server says about it.
    """
    status = response.status_code
    if status in TRANSIENT_STATUS or status >= 500:
        shown = f"HTTP {status} ({reason})" if reason else f"HTTP {status}"
        raise TransientError(shown, requested_wait(response.headers))


def check_encoding(response: httpx2.Response) -> None:
    """Raises a `TransientError` if a response is compressed, though that was not requested."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise TransientError(f"Content-Encoding {encoding}, which was not requested")


def check_range(response: httpx2.Response, ref: FileRef, start: int) -> None:
    """Checks that a successful response contains the listed file from byte `start` on.

    Raises:
        TransientError: If it contains something else.
        DataError: If it is a different file, or the server does not support byte ranges.
    """
    length = response.headers.get("Content-Length")
    if response.status_code != 206:
        if length != str(ref.size):
            kind = response.headers.get("Content-Type", "no Content-Type")
            found = f"HTTP {response.status_code} with {length or 'an unknown number of'} bytes"
            raise TransientError(f"{found} ({kind}) instead of a part of the file")
        if start > 0:
            raise DataError(f"{ref}: the server does not give ranges of bytes, which are needed")
        return  # the whole file, of which the beginning is used
    found = response.headers.get("Content-Range", "")
    if (match := CONTENT_RANGE.fullmatch(found)) is None or int(match[1]) != start:
        raise TransientError(f"another part of the file than requested ({found})")
    if match[3] not in ("*", str(ref.size)):
        raise ref.changed(f"{match[3]} bytes", f"{ref.size} bytes")
    if length not in (None, str(int(match[2]) + 1 - start)):
        raise TransientError(f"{length} bytes in an answer that announces {found}")


def requested_wait(headers: httpx2.Headers) -> float | None:
    """Seconds that a server asks us to wait; None if it does not."""
    after = headers.get("Retry-After", "").strip()
    if after.isdigit():
        return float(after)
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def error_message(error: BaseException) -> str:
    """The type of an error and its message, without secrets."""
    text = redact(f"{type(error).__name__}: {error}".removesuffix(": "))
    token = get_token_to_send(None)  # of the Hub, which may come from a file
    return text.replace(token, "<token>") if token else text
