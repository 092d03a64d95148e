"""What the stores of remote files (`hf://`, `s3://`, `gs://`) have in common.

A `Store` lists the files that a `Pattern` matches, and opens ranges of them: over HTTP (`hub.Hub`,
`objects.S3`, `objects.CloudStorage`) or with TensorFlow (`tensorflow_files`). `stores` chooses one
by the scheme. Retries and the checks of a response are here; `remote_file` reads files.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, TypeVar

import httpx2
from huggingface_hub.utils import parse_ratelimit_headers

from bsmeta.core.errors import DataError
from bsmeta.core.progress import report_progress, reporting
from bsmeta.core.secrets import redact, shown_url
from bsmeta.data.io.file_ref import FileRef, RemoteSettings, root_of
from bsmeta.data.io.verifier import Verifier

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

Result = TypeVar("Result")

Opened = AbstractContextManager[Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The files that a URL names.

    Attributes:
        scheme: Its store; see `FileRef`.
        container: The data set, or the bucket.
        pattern: A file, a folder or a glob (with `**`) in it.
        revision: A branch, a tag or a commit of a data set.
    """

    scheme: str
    container: str
    pattern: str
    revision: str = ""

    def __str__(self) -> str:
        return (self.pattern or "*") + (f" at revision {self.revision}" if self.revision else "")

    @property
    def root(self) -> str:
        """The URL of the data set or the bucket."""
        return root_of(self.scheme, self.container)

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
        return _match_names(self.pattern.split("/"), file.split("/"))


def _match_names(patterns: Sequence[str], names: Sequence[str]) -> bool:
    """Whether globs match names of folders and, last, a file; `**` matches any number of names.

    After a `**`, the names that follow are tried at one place after the other. A single expression
    for the whole path would try every division of it, and a server may list any names.
    """
    part = row = 0
    retry: tuple[int, int] | None = None  # the part after the last `**`, and the first name for it
    while row < len(names):
        if part < len(patterns) and patterns[part] == "**":
            if part == len(patterns) - 1:
                return True
            part += 1
            retry = part, row
        elif part < len(patterns) and _match_name(patterns[part], names[row]):
            part += 1
            row += 1
        elif retry is not None:
            part, row = retry[0], retry[1] + 1
            retry = part, row
        else:
            return False
    return part == len(patterns)


def _match_name(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) and (bool(name) or pattern != "*")


class Store(ABC):
    """Lists and reads the files of a scheme.

    Attributes:
        form: The form of its URLs, where PATH is a pattern.
        variable: The environment variable that names its server, if there is one.
        fixed_version: How a new run avoids that a file changes while it is read.
        hint: What else a user should know if nothing matches.
    """

    form: ClassVar[str]
    variable: ClassVar[str] = ""
    fixed_version: ClassVar[str]
    hint: ClassVar[str] = ""

    @property
    @abstractmethod
    def server(self) -> str:
        """Scheme, host and port of the server, for messages."""

    @abstractmethod
    def parse(self, url: str, revision: str | None) -> Pattern:
        """What a URL names; `revision` is used if the URL has none.

        Raises:
            ValueError: If it is malformed.
        """

    @abstractmethod
    def list_files(self, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
        """The files in the folder of a pattern (and below it, for a deep one).

        Raises:
            DataError: If the server refuses or cannot be reached.
        """

    @abstractmethod
    def open_range(self, ref: FileRef, start: int, stop: int) -> Opened:
        """The content from byte `start` to `stop` (exclusive), in chunks, which may be more.

        Raises:
            TransientError: If opening or reading it may succeed on a retry.
            DataError: If it will not, or the file has changed.
        """

    @abstractmethod
    def verifier(self, ref: FileRef) -> Verifier | None:
        """A new verifier of a file's content; None if no hash of the content is known."""

    def is_offline(self) -> bool:
        """Whether only what is in the cache can be read."""
        return False

    def advice(self) -> str:
        """What a user can do about a server that cannot be reached."""
        return (
            f"see whether {self.server} can be reached from here ({self.variable}, a proxy), start "
            "again later, or raise data_config.hub_retries"
        )

    def changed(self, ref: FileRef, found: str, expected: str) -> DataError:
        """The error for a file that differs from the listed one."""
        return DataError(
            f"{ref}: the file has changed since it was listed: found {found}, expected "
            f"{expected}; start a new run, {self.fixed_version}"
        )


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
        cancelled: Ends waiting and reading when set.
    """

    def __init__(self, retries: int, advice: str, cancelled: threading.Event | None = None) -> None:
        self._retries = retries
        self._advice = advice
        self._cancelled = cancelled or threading.Event()
        self._failures = 0

    def call(self, what: str, request: Callable[[], Result]) -> Result:
        """The result of a request that is repeated after transient failures.

        Raises:
            DataError: If the retries are exhausted.
        """
        while True:
            try:
                result = request()
            except TransientError as error:
                self.wait(what, error)
            else:
                self._failures = 0
                return result

    def read(
        self, what: str, open_from: Callable[[int], Opened], start: int, stop: int, size: int
    ) -> Iterator[bytes]:
        """Bytes `start` to `stop` (exclusive) of a file, in parts.

        If a connection is interrupted, the next one resumes at the first missing byte.

        Args:
            open_from: Opens the file at a byte.
            size: Bytes of the whole file.

        Raises:
            DataError: If the retries are exhausted.
            CancelledError: If it was cancelled.
        """
        place = start
        while place < stop:
            opened_at = place
            try:
                with open_from(place) as parts:
                    for part in parts:
                        yield part[: stop - place]
                        place += len(part)
                        if self._cancelled.is_set():
                            raise CancelledError
                        if place >= stop:
                            return
                raise TransientError("the connection was closed before the end")
            except TransientError as error:
                if place > opened_at and not isinstance(error, SlowError):
                    self._failures = 0
                self.wait(f"{what}, byte {place} of {size}", error)

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
    scheme, separator, rest = shown_url(url).partition("://")
    return f"{scheme}{separator}{rest.partition('/')[0]}"


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


def check_range(store: Store, response: httpx2.Response, ref: FileRef, start: int) -> None:
    """Checks that a successful response contains the listed file from byte `start` on.

    Args:
        store: The store that has responded.

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
        raise store.changed(ref, f"{match[3]} bytes", f"{ref.size} bytes")
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
    return redact(f"{type(error).__name__}: {error}".removesuffix(": "))
