"""The interface of the stores of remote files (`hf://`, `s3://`, …), and the code that they share.

A `Store` lists the files that a `Pattern` matches, and opens byte ranges of them: over HTTP
(`hub.Hub`, `objects.S3`, `objects.CloudStorage`, `azure_blobs.AzureBlobs`) or with TensorFlow
(`tensorflow_files`). `stores` chooses the store for a scheme. This module retries requests and
checks responses; `remote_file` reads the files.

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
from bsmeta.data.io.file_ref import FileRef, RemoteSettings, format_root
from bsmeta.data.io.remote.verifier import Verifier

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 1.0  # at most, before the first retry; doubled before each further one
MAX_DELAY_S = 60.0
MAX_REQUESTED_WAIT_S = 900.0  # longer waits that a server asks for are cut to this
MIN_BYTES_PER_SECOND = 1024  # a connection that is slower for `SLOW_TIMEOUTS` timeouts is dropped
SLOW_TIMEOUTS = 6
REPORT_INTERVAL_S = 5.0  # between progress reports during a wait
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
        glob: The path of a file or a folder in the container, or a glob (with `**`).
        revision: A branch, a tag or a commit of a data set; "" in other stores.
    """

    scheme: str
    container: str
    glob: str
    revision: str = ""

    def __str__(self) -> str:
        revision = f" at revision {self.revision}" if self.revision else ""
        return f"{self.glob or '*'}{revision}"

    @property
    def root(self) -> str:
        """The URL of the data set or the bucket."""
        return format_root(self.scheme, self.container)

    @property
    def folder(self) -> str:
        """The deepest folder that contains every possible match of the pattern."""
        names = self.glob.split("/")
        for depth, name in enumerate(names):
            if glob.has_magic(name):
                return "/".join(names[:depth])
        return "/".join(names[:-1])

    @property
    def is_deep(self) -> bool:
        """Whether the pattern matches files in folders below `folder`."""
        below_folder = self.glob.removeprefix(self.folder).strip("/")
        return "/" in below_folder or "**" in below_folder

    def matches(self, path: str) -> bool:
        """Returns whether the glob matches a path; as in a shell, only `**` spans folders."""
        return _match_names(self.glob.split("/"), path.split("/"))


def _match_names(patterns: Sequence[str], names: Sequence[str]) -> bool:
    """Returns whether globs match the names in a path one by one; `**` matches any number of names.

    If the globs after a `**` do not match, they are tried again one name further on; an earlier
    `**` is never reconsidered, so the time is at most the product of the two lengths. A regular
    expression for the whole path could backtrack exponentially, and a server may list any names.

    Args:
        patterns: One glob for each name.
        names: The names of the folders, then the name of the file.
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
    """Returns whether a glob matches a name; `*` alone does not match an empty name."""
    return fnmatchcase(name, pattern) and (bool(name) or pattern != "*")


class Store(ABC):
    """Lists and reads the files of a scheme.

    Attributes:
        syntax: The syntax of the URLs, for messages; PATH stands for a path or a glob.
        server_variables: The environment variables that name the server; "" if there are none.
        version_advice: The end of the advice to start a new run: how to read unchanging files.
        no_match_hint: A hint that is added to the message if nothing matches.
    """

    syntax: ClassVar[str]
    server_variables: ClassVar[str] = ""
    version_advice: ClassVar[str]
    no_match_hint: ClassVar[str] = ""

    @property
    @abstractmethod
    def server(self) -> str:
        """Scheme, host and port of the server, for messages."""

    @abstractmethod
    def parse_url(self, url: str, revision: str | None) -> Pattern:
        """Parses a URL.

        Args:
            revision: The revision if the URL has none; None is the main branch.

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
        """Opens the content from byte `start` to `stop` (exclusive), to be read in chunks.

        The last chunk may extend beyond `stop`.

        Raises:
            TransientError: If opening or reading may succeed on a retry.
            DataError: If a retry cannot help, or the file has changed.
        """

    @abstractmethod
    def make_verifier(self, ref: FileRef) -> Verifier | None:
        """Creates a verifier of a file's content; None if the store lists no hash of it."""

    def is_offline(self) -> bool:
        """Returns whether only cached content can be read."""
        return False

    def format_advice(self) -> str:
        """Returns advice for a user if the server cannot be reached."""
        return (
            f"see whether {self.server} can be reached from here ({self.server_variables}, a "
            "proxy), start again later, or raise data_config.hub_retries"
        )

    def make_changed_error(self, ref: FileRef, actual: str, expected: str) -> DataError:
        """Returns the error for a file that differs from the listed one."""
        return DataError(
            f"{ref}: the file has changed since it was listed: found {actual}, expected "
            f"{expected}; start a new run, {self.version_advice}"
        )


class TransientError(Exception):
    """A failure that a retry may resolve.

    Args:
        requested_wait_s: Seconds that the server asks to wait before a retry; None if it does not.
    """

    def __init__(self, cause: str, requested_wait_s: float | None = None) -> None:
        if requested_wait_s is not None:
            cause = f"{cause}, which asks to wait {requested_wait_s:.0f} s"
        super().__init__(cause)
        self.requested_wait_s = requested_wait_s


class SlowError(TransientError):
    """A connection is too slow; its bytes do not reset the count of consecutive failures."""


class CancelledError(Exception):
    """Reading was cancelled, because the content is no longer needed."""


class Retries:
    """Retries requests with exponential backoff, up to a number of consecutive failures.

    Args:
        retries: Number of consecutive failures that are retried.
        advice: Advice for the user when the retries are exhausted.
        cancelled: If set, waiting and reading end with a `CancelledError`.
    """

    def __init__(self, retries: int, advice: str, cancelled: threading.Event | None = None) -> None:
        self._retries = retries
        self._advice = advice
        self._cancelled = cancelled or threading.Event()
        self._num_failures = 0  # consecutive

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
                self._wait_after(error, subject)
            else:
                self._num_failures = 0
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
            open_from: Opens the file at the given byte.
            size: Size of the whole file in bytes, for messages.

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
                    self._num_failures = 0
                self._wait_after(error, f"{subject}, byte {position} of {size}")

    def _wait_after(self, error: TransientError, subject: str) -> None:
        """Waits after a failure, with jitter, so that processes do not all retry at once.

        Raises:
            DataError: If the retries are exhausted.
            CancelledError: If the wait was cancelled.
        """
        self._num_failures += 1
        if self._num_failures > self._retries:
            raise DataError(
                f"{subject}: given up after {self._num_failures} failures in a row, the last one: "
                f"{error}; {self._advice}"
            )

        max_delay = min(FIRST_DELAY_S * 2 ** (self._num_failures - 1), MAX_DELAY_S)
        delay = random.uniform(max_delay / 2, max_delay)
        if error.requested_wait_s is not None:
            requested_delay = min(error.requested_wait_s, MAX_REQUESTED_WAIT_S)
            delay = requested_delay + random.uniform(0, FIRST_DELAY_S)
        logger.warning("%s: %s; retrying in %.1f s", subject, error, delay)

        while delay > 0:
            report_progress()  # so that the watchdog does not take the wait for a hang
            if self._cancelled.wait(min(delay, REPORT_INTERVAL_S)):
                raise CancelledError
            delay -= REPORT_INTERVAL_S


def format_server(url: str) -> str:
    """Returns the scheme, host and port of a URL, without user and password."""
    scheme, separator, location = format_url(url).partition("://")
    return f"{scheme}{separator}{location.partition('/')[0]}"


@contextlib.contextmanager
def convert_transport_errors(subject: str, server: str) -> Iterator[None]:
    """Converts errors of httpx2 into errors of this module.

    Args:
        subject: The requested file or listing, for messages.
        server: The server, for messages.

    Raises:
        TransientError: If a retry of the request, or of reading the response, may succeed.
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
        timeout: Timeout of the request in seconds.

    Raises:
        SlowError: If they arrive more slowly than `MIN_BYTES_PER_SECOND`, such as one byte just
            before each timeout.
    """
    period_s = SLOW_TIMEOUTS * timeout
    period_start = time.monotonic()
    num_received = 0  # bytes in this period
    for chunk in report_each(chunks):
        yield chunk
        num_received += len(chunk)

        elapsed_s = time.monotonic() - period_start
        if elapsed_s > period_s:
            if num_received < MIN_BYTES_PER_SECOND * elapsed_s:
                raise SlowError(f"only {num_received} bytes came in {elapsed_s:.1f} s")
            period_start = time.monotonic()
            num_received = 0


def check_transient(response: httpx2.Response, reason: str = "") -> None:
    """Checks that the status of a response is not one that a retry may change.

    Args:
        reason: The server's explanation of the status, if there is one.

    Raises:
        TransientError: If it is.
    """
    status = response.status_code
    if status in TRANSIENT_STATUS or status >= 500:
        cause = f"HTTP {status} ({reason})" if reason else f"HTTP {status}"
        raise TransientError(cause, read_requested_wait(response.headers))


def check_encoding(response: httpx2.Response) -> None:
    """Checks that a response is not compressed, because no compression was requested.

    Raises:
        TransientError: If it is.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise TransientError(f"Content-Encoding {encoding}, which was not requested")


def check_range(store: Store, response: httpx2.Response, ref: FileRef, start: int) -> None:
    """Checks that a successful response contains the listed file from byte `start` on.

    Args:
        store: The store that sent the response.

    Raises:
        TransientError: If the response is malformed or contains other bytes.
        DataError: If the file has changed, or the server does not support byte ranges.
    """
    length = response.headers.get("Content-Length")
    if response.status_code != 206:
        if length != str(ref.size):
            content_type = response.headers.get("Content-Type", "no Content-Type")
            content = f"HTTP {response.status_code} with {length or 'an unknown number of'} bytes"
            raise TransientError(f"{content} ({content_type}) instead of a part of the file")
        if start > 0:
            raise DataError(
                f"{ref}: the server does not support range requests, which are needed to read from "
                "the middle of a file; copy the file, and name the copy"
            )
        return  # the whole file, of which the caller uses the beginning

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
    """Returns the number of seconds that a server asks to wait; None if it does not."""
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
