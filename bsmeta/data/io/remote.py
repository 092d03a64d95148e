"""The interface and the shared code of the stores of remote files (`hf://`, `s3://`, …).

A `Store` lists the files that a `Pattern` matches, and opens byte ranges of them: over HTTP
(`hub.Hub`, `objects.S3`, `objects.CloudStorage`, `azure_blobs.AzureBlobs`) or with TensorFlow
(`tensorflow_files`). `stores` chooses one by the scheme. This module retries requests and checks
responses; `remote_file` reads the files.

Messages contain neither credentials nor the URL of a request, which may grant access like a
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
from bsmeta.core.progress import report_each, report_progress
from bsmeta.core.secrets import format_url, redact
from bsmeta.data.io.file_ref import FileRef, RemoteSettings, find_root
from bsmeta.data.io.verifier import Verifier

log = logging.getLogger(__name__)

FIRST_DELAY = 1.0  # maximum seconds before the first retry; doubled before each further retry
LONGEST_DELAY = 60.0  # seconds
LONGEST_WAIT = 900.0  # maximum seconds that a server may ask us to wait
SLOWEST = 1024  # bytes per second; a connection slower than this for `SLOW_TIMEOUTS` is dropped
SLOW_TIMEOUTS = 6  # as a multiple of the timeout of a request
REPORTED_S = 5.0  # seconds between the progress reports of a long wait
TRANSIENT_STATUS = (408, 425, 429)  # in addition to every status from 500 on
TRANSIENT_ERRORS = (
    httpx2.TimeoutException,
    httpx2.NetworkError,
    httpx2.RemoteProtocolError,
    httpx2.ProxyError,
)
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")

Result = TypeVar("Result")

OpenedRange = AbstractContextManager[Iterator[bytes]]
"""A context in which the chunks of a byte range can be read."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The files that a URL names.

    Attributes:
        scheme: Scheme of the store; see `FileRef`.
        container: The data set, or the bucket.
        pattern: A file, a folder or a glob (with `**`) in the container.
        revision: A branch, a tag or a commit of a data set.
    """

    scheme: str
    container: str
    pattern: str
    revision: str = ""

    def __str__(self) -> str:
        revision = f" at revision {self.revision}" if self.revision else ""
        return f"{self.pattern or '*'}{revision}"

    @property
    def root(self) -> str:
        """URL of the data set or the bucket."""
        return find_root(self.scheme, self.container)

    @property
    def folder(self) -> str:
        """The deepest folder that contains every possible match of the pattern."""
        names = self.pattern.split("/")
        magic = (index for index, name in enumerate(names) if glob.has_magic(name))
        depth = next(magic, len(names) - 1)
        return "/".join(names[:depth])

    @property
    def is_deep(self) -> bool:
        """Whether the pattern matches files in folders below `folder`."""
        below_folder = self.pattern.removeprefix(self.folder).strip("/")
        return "/" in below_folder or "**" in below_folder

    def matches(self, file: str) -> bool:
        """Returns whether the glob matches a file; as in a shell, only `**` spans folders."""
        return _match_names(self.pattern.split("/"), file.split("/"))


def _match_names(patterns: Sequence[str], names: Sequence[str]) -> bool:
    """Returns whether globs match the names of a path; `**` matches any number of names.

    If the patterns after a `**` do not match, they are tried again one name further on; an earlier
    `**` is never reconsidered. So the time is at most the product of the two lengths. A regular
    expression for the whole path would try every division of it, and a server may list any names.

    Args:
        names: The names of the folders and, last, of the file.
    """
    pattern_index = name_index = 0
    is_after_stars = False
    retry_pattern = 0  # index of the pattern after the last `**`
    retry_name = 0  # index of the first name that this pattern was tried on

    while name_index < len(names):
        has_pattern = pattern_index < len(patterns)
        if has_pattern and patterns[pattern_index] == "**":
            if pattern_index == len(patterns) - 1:
                return True
            pattern_index += 1
            is_after_stars = True
            retry_pattern = pattern_index
            retry_name = name_index
        elif has_pattern and _match_name(patterns[pattern_index], names[name_index]):
            pattern_index += 1
            name_index += 1
        elif is_after_stars:
            retry_name += 1
            pattern_index = retry_pattern
            name_index = retry_name
        else:
            return False

    return pattern_index == len(patterns)


def _match_name(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) and (bool(name) or pattern != "*")


class Store(ABC):
    """Lists and reads the files of a scheme.

    Attributes:
        form: Form of the URLs, where PATH is a pattern.
        variable: Environment variable that names the server, if there is one.
        fixed_version: Advice on how a new run prevents files from changing while it reads them.
        hint: Advice that is added to the message when nothing matches.
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
        """Parses a URL; `revision` is used if the URL has none.

        Raises:
            ValueError: If the URL is malformed.
        """

    @abstractmethod
    def list_files(self, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
        """Lists the files in the folder of a pattern (and below it, if the pattern is deep).

        Raises:
            DataError: If the server refuses or cannot be reached.
        """

    @abstractmethod
    def open_range(self, ref: FileRef, start: int, stop: int) -> OpenedRange:
        """Opens the content from byte `start` to `stop` (exclusive), read in chunks.

        The chunks may continue beyond `stop`.

        Raises:
            TransientError: If opening or reading may succeed on a retry.
            DataError: If a retry cannot help, or the file has changed.
        """

    @abstractmethod
    def verifier(self, ref: FileRef) -> Verifier | None:
        """Returns a new verifier of a file's content; None if no hash of the content is known."""

    def is_offline(self) -> bool:
        """Returns whether only cached content can be read."""
        return False

    def format_advice(self) -> str:
        """Returns advice for a user whose server cannot be reached."""
        return (
            f"see whether {self.server} can be reached from here ({self.variable}, a proxy), start "
            "again later, or raise data_config.hub_retries"
        )

    def make_changed_error(self, ref: FileRef, actual: str, expected: str) -> DataError:
        """Returns the error for a file that differs from the listed one."""
        return DataError(
            f"{ref}: the file has changed since it was listed: found {actual}, expected "
            f"{expected}; start a new run, {self.fixed_version}"
        )


class TransientError(Exception):
    """A failure that a retry may resolve.

    Args:
        wait: Seconds that the server asks us to wait; None if it does not.
    """

    def __init__(self, cause: str, wait: float | None = None) -> None:
        super().__init__(cause if wait is None else f"{cause}, which asks to wait {wait:.0f} s")
        self.wait = wait


class SlowError(TransientError):
    """A connection is too slow; the bytes that it delivers do not count as progress."""


class CancelledError(Exception):
    """The response is no longer needed."""


class Retries:
    """Waits after each failure, longer every time, and raises after too many consecutive failures.

    Args:
        retries: Number of consecutive failures that are retried.
        advice: Advice for the user when the retries are exhausted.
        cancelled: Ends waiting and reading when set.
    """

    def __init__(self, retries: int, advice: str, cancelled: threading.Event | None = None) -> None:
        self._retries = retries
        self._advice = advice
        self._cancelled = cancelled or threading.Event()
        self._failures = 0

    def call(self, subject: str, request: Callable[[], Result]) -> Result:
        """Calls a request until it succeeds, and returns its result.

        Args:
            subject: The file or the listing, for messages.

        Raises:
            DataError: If the retries are exhausted.
        """
        while True:
            try:
                result = request()
            except TransientError as error:
                self.wait(subject, error)
            else:
                self._failures = 0
                return result

    def read(
        self,
        subject: str,
        open_from: Callable[[int], OpenedRange],
        start: int,
        stop: int,
        size: int,
    ) -> Iterator[bytes]:
        """Yields bytes `start` to `stop` (exclusive) of a file, in chunks.

        If a connection is interrupted, the next one resumes at the first missing byte.

        Args:
            subject: The file, for messages.
            open_from: Opens the file at a byte.
            size: Bytes of the whole file.

        Raises:
            DataError: If the retries are exhausted.
            CancelledError: If reading was cancelled.
        """
        position = start
        while position < stop:
            opened_at = position
            try:
                with open_from(position) as chunks:
                    for chunk in chunks:
                        yield chunk[: stop - position]
                        position += len(chunk)
                        if self._cancelled.is_set():
                            raise CancelledError
                        if position >= stop:
                            return
                raise TransientError("the connection was closed before the end")
            except TransientError as error:
                if position > opened_at and not isinstance(error, SlowError):
                    self._failures = 0
                self.wait(f"{subject}, byte {position} of {size}", error)

    def wait(self, subject: str, error: TransientError) -> None:
        """Waits after a failure, with jitter, so that processes do not all retry at once.

        Raises:
            DataError: If the retries are exhausted.
            CancelledError: If the wait was cancelled.
        """
        self._failures += 1
        if self._failures > self._retries:
            raise DataError(
                f"{subject}: given up after {self._failures} failures in a row, the last one: "
                f"{error}; {self._advice}"
            )

        longest = min(FIRST_DELAY * 2 ** (self._failures - 1), LONGEST_DELAY)
        delay = random.uniform(longest / 2, longest)
        if error.wait is not None:
            delay = min(error.wait, LONGEST_WAIT) + random.uniform(0, FIRST_DELAY)
        log.warning("%s: %s; retrying in %.1f s", subject, error, delay)

        while delay > 0:
            report_progress()  # a wait that the server asks for is not a hang
            if self._cancelled.wait(min(delay, REPORTED_S)):
                raise CancelledError
            delay -= REPORTED_S


def format_server(url: str) -> str:
    """Returns the scheme, host and port of a URL, without user and password."""
    scheme, separator, location = format_url(url).partition("://")
    return f"{scheme}{separator}{location.partition('/')[0]}"


@contextlib.contextmanager
def convert_transport_errors(subject: str, server: str) -> Iterator[None]:
    """Turns the errors of an HTTP request into errors of this module.

    Raises:
        TransientError: If the request, or reading the response, may succeed on a retry.
        DataError: If a retry cannot help.
    """
    try:
        yield
    except TRANSIENT_ERRORS as error:
        raise TransientError(describe_error(error)) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise DataError(
            f"{subject}: cannot be read from {server}: {describe_error(error)}"
        ) from None


def refuse_slow_response(chunks: Iterator[bytes], timeout: float) -> Iterator[bytes]:
    """Yields the chunks of a response as long as they arrive fast enough.

    Args:
        timeout: Timeout of the request, in seconds.

    Raises:
        SlowError: If they arrive slower than `SLOWEST`, for example one byte before each timeout.
    """
    period = SLOW_TIMEOUTS * timeout
    period_start = time.monotonic()
    received = 0  # bytes in this period
    for chunk in report_each(chunks):
        yield chunk
        received += len(chunk)

        seconds = time.monotonic() - period_start
        if seconds > period:
            if received < SLOWEST * seconds:
                raise SlowError(f"only {received} bytes came in {seconds:.1f} s")
            period_start = time.monotonic()
            received = 0


def check_transient(response: httpx2.Response, reason: str = "") -> None:
    """Raises a `TransientError` for a status that a retry may change.

    Args:
        reason: The server's explanation of the status, if there is one.
    """
    status = response.status_code
    if status in TRANSIENT_STATUS or status >= 500:
        cause = f"HTTP {status} ({reason})" if reason else f"HTTP {status}"
        raise TransientError(cause, read_requested_wait(response.headers))


def check_encoding(response: httpx2.Response) -> None:
    """Raises a `TransientError` if a response is compressed without being requested so."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise TransientError(f"Content-Encoding {encoding}, which was not requested")


def check_range(store: Store, response: httpx2.Response, ref: FileRef, start: int) -> None:
    """Checks that a successful response contains the listed file from byte `start` on.

    Args:
        store: The store that sent the response.

    Raises:
        TransientError: If the response contains something else.
        DataError: If it is of a different file, or the server does not support byte ranges.
    """
    length = response.headers.get("Content-Length")
    if response.status_code != 206:
        if length != str(ref.size):
            content_type = response.headers.get("Content-Type", "no Content-Type")
            content = f"HTTP {response.status_code} with {length or 'an unknown number of'} bytes"
            raise TransientError(f"{content} ({content_type}) instead of a part of the file")
        if start > 0:
            raise DataError(f"{ref}: the server does not give ranges of bytes, which are needed")
        return  # the whole file: the caller uses its beginning

    content_range = response.headers.get("Content-Range", "")
    match = CONTENT_RANGE.fullmatch(content_range)
    if match is None or int(match[1]) != start:
        raise TransientError(f"another part of the file than requested ({content_range})")

    last_byte = int(match[2])
    file_size = match[3]
    if file_size not in ("*", str(ref.size)):
        raise store.make_changed_error(ref, f"{file_size} bytes", f"{ref.size} bytes")
    if length not in (None, str(last_byte + 1 - start)):
        raise TransientError(f"{length} bytes in an answer that announces {content_range}")


def read_requested_wait(headers: httpx2.Headers) -> float | None:
    """Returns the seconds that a server asks us to wait; None if it does not."""
    retry_after = headers.get("Retry-After", "").strip()
    if retry_after.isdigit():
        return float(retry_after)

    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    return None


def describe_error(error: BaseException) -> str:
    """Returns the type of an error and its message, without secrets."""
    return redact(f"{type(error).__name__}: {error}".removesuffix(": "))
