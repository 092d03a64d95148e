"""Requests to the Hugging Face Hub: validated, retried, with clear errors on permanent failure.

`hub_listing` requests JSON, `files` requests bytes of a `FileRef`; both use the session, endpoint
and token of huggingface_hub. Its `HfFileSystem` is not used because it retries each request five
times regardless of `hub_retries`, restarts an interrupted range from its beginning, accepts
responses of the wrong length, content or encoding, needs the Hub to open a cached file, and sends
the token to any host named in a `Link` header.

Messages contain neither the token nor the address of a redirect, which grants access like a
password.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
import msgspec
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import (
    build_hf_headers,
    get_session,
    get_token_to_send,
    parse_ratelimit_headers,
)

from bsmeta.config.data import SCHEME
from bsmeta.core.errors import DataError
from bsmeta.core.progress import report_progress, reporting

log = logging.getLogger(__name__)

FIRST_DELAY = 1.0  # maximum seconds before the first retry; doubled before each further retry
LONGEST_DELAY = 60.0
LONGEST_WAIT = 900.0  # maximum seconds that a server may ask us to wait
SLOWEST = 1024  # bytes per second; a connection slower than this for `SLOW_TIMEOUTS` is dropped
SLOW_TIMEOUTS = 6  # times the timeout of a request
TRANSIENT_STATUS = (408, 425, 429)  # and all from 500 on
TRANSIENT_ERRORS = (
    httpx2.TimeoutException,
    httpx2.NetworkError,
    httpx2.RemoteProtocolError,
    httpx2.ProxyError,
)
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")

Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class HubSettings:
    """How files are read from the Hub.

    Attributes:
        folder: Where listings and blocks of files are kept.
        cache_bytes: Maximum bytes of blocks to keep.
        retries: Number of consecutive failures after which reading is abandoned.
    """

    folder: str
    cache_bytes: int
    retries: int


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file on the Hub as it was when it was listed.

    Attributes:
        repo: `owner/name` of the data set.
        commit: Hash of the commit.
        file: Path in the data set.
        etag: Hash of the content: SHA-256 for a large file, the Git hash (SHA-1) for others.
        settings: How it is read.
    """

    repo: str
    commit: str
    file: str
    size: int
    etag: str
    settings: HubSettings

    def __str__(self) -> str:
        return f"{self.dataset}@{self.commit}/{self.file}"

    @property
    def dataset(self) -> str:
        """The data set without its commit, as a URL."""
        return f"{SCHEME}datasets/{self.repo}"


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
        cancelled: Stops the wait when set.
        advice: What the user can do when they are exhausted.
    """

    def __init__(
        self, retries: int, cancelled: threading.Event | None = None, advice: str | None = None
    ) -> None:
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
            advice = self._advice or (
                f"see whether {shown_endpoint()} can be reached from here (HF_ENDPOINT, a proxy), "
                "start again later, or raise data_config.hub_retries"
            )
            raise DataError(
                f"{what}: given up after {self._failures} failures in a row, the last one: "
                f"{error}; {advice}"
            )
        longest = min(FIRST_DELAY * 2 ** (self._failures - 1), LONGEST_DELAY)
        delay = random.uniform(longest / 2, longest)
        if error.wait is not None:
            delay = min(error.wait, LONGEST_WAIT) + random.uniform(0, FIRST_DELAY)
        log.warning("%s: %s; tried again in %.1f s", what, error, delay)
        report_progress()
        if self._cancelled.wait(delay):
            raise CancelledError


def get_json(url: str, what: str, retries: int, form: type[Form]) -> Iterator[Form]:
    """The pages of a JSON response, decoded as a given type.

    Raises:
        DataError: If the Hub refuses or cannot be reached, or the next page is on another host.
    """
    attempts = Retries(retries)
    next_page: str | None = url
    while next_page:
        try:
            with get(next_page, what) as response:
                page = msgspec.json.decode(b"".join(steady(response.iter_bytes())), type=form)
                link = response.links.get("next", {}).get("url")
        except msgspec.ValidationError as error:
            attempts.wait(what, TransientError(f"the answer is JSON of another form: {error}"))
        except (msgspec.DecodeError, RecursionError):
            attempts.wait(what, TransientError("the answer is not JSON"))
        except TransientError as error:
            attempts.wait(what, error)
        else:
            attempts.reset()
            next_page = str(response.url.join(link)) if link else None
            if next_page and urlsplit(next_page)[:2] != urlsplit(url)[:2]:
                raise DataError(
                    f"{what}: the next page of the listing is on another host, "
                    f"{urlsplit(next_page).netloc}, which must not get the token; set HF_ENDPOINT "
                    "to the Hub itself, or to a mirror that serves all pages"
                )
            yield page


def read_range(ref: FileRef, start: int, stop: int, cancelled: threading.Event) -> bytes:
    """Bytes `start` to `stop` (exclusive) of a file.

    If a connection is interrupted, the next one resumes at the first missing byte.

    Raises:
        DataError: If the Hub refuses, now has a different file, or cannot be reached.
        CancelledError: If it was cancelled.
    """
    url = hf_hub_url(
        ref.repo, ref.file, repo_type="dataset", revision=ref.commit, endpoint=constants.ENDPOINT
    )
    data = bytearray()
    attempts = Retries(ref.settings.retries, cancelled)
    while start + len(data) < stop:
        place = start + len(data)
        headers = {"Range": f"bytes={place}-{stop - 1}", "Accept-Encoding": "identity"}
        try:
            with get(url, f"{ref}, bytes {place} to {stop}", headers) as response:
                check_range(response, ref, place)
                for part in steady(response.iter_raw()):
                    data += part[: stop - start - len(data)]
                    if cancelled.is_set():
                        raise CancelledError
                    if start + len(data) == stop:
                        break
                else:
                    raise TransientError("the connection was closed before the end")
        except TransientError as error:
            if start + len(data) > place and not isinstance(error, SlowError):
                attempts.reset()
            attempts.wait(f"{ref}, byte {start + len(data)} of {ref.size}", error)
    return bytes(data)


@contextlib.contextmanager
def get(url: str, what: str, headers: dict[str, str] | None = None) -> Iterator[httpx2.Response]:
    """A successful response of the Hub, to be read inside the context.

    Raises:
        TransientError: If the request, or reading the response, may succeed on a retry.
        DataError: If it will not.
    """
    if constants.is_offline_mode():
        raise DataError(f"{what}: HF_HUB_OFFLINE is set, and this is not in the cache")
    timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        sent = build_hf_headers(headers=headers)
        with get_session().stream("GET", url, headers=sent, timeout=timeout) as response:
            check_status(response, what)
            yield response
    except TRANSIENT_ERRORS as error:
        raise TransientError(error_message(error)) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        where = f"{shown_endpoint()} (HF_ENDPOINT)"
        raise DataError(f"{what}: cannot be read from {where}: {error_message(error)}") from None
    except RuntimeError as error:
        # huggingface_hub closes its session when a connection in another thread fails.
        if "closed" not in str(error):
            raise
        raise TransientError("the session was closed") from None


def steady(parts: Iterator[bytes], timeout: float | None = None) -> Iterator[bytes]:
    """The parts of a response.

    Args:
        timeout: Of a request, in seconds; None: HF_HUB_DOWNLOAD_TIMEOUT.

    Raises:
        SlowError: If they arrive slower than `SLOWEST`, for example one byte before each timeout.
    """
    period = SLOW_TIMEOUTS * float(timeout or constants.HF_HUB_DOWNLOAD_TIMEOUT)
    since, count = time.monotonic(), 0
    for part in reporting(parts):
        yield part
        count += len(part)
        seconds = time.monotonic() - since
        if seconds > period:
            if count < SLOWEST * seconds:
                raise SlowError(f"only {count} bytes came in {seconds:.1f} s")
            since, count = time.monotonic(), 0


def check_status(response: httpx2.Response, what: str) -> None:
    """Raises the error for a bad status: either a transient one, or one that names the fix."""
    status = response.status_code
    if status in TRANSIENT_STATUS or status >= 500:
        raise TransientError(f"HTTP {status}", requested_wait(response.headers))
    if status < 300:
        return
    code = response.headers.get("X-Error-Code")
    if status in (401, 403) and get_token_to_send(None) is None:
        reason = (
            "the data set is private or gated, or does not exist; set HF_TOKEN to a token that may "
            "read it, or correct its name"
        )
    elif status in (401, 403):
        reason = (
            "the token (HF_TOKEN) is not valid, or may not read this data set (access to a gated "
            "one is requested on its page), or its name is wrong"
        )
    elif code == "RevisionNotFound":
        reason = (
            "there is no such revision; correct data_config.dataset_revision or what follows the @"
        )
    elif code == "EntryNotFound":
        reason = "there is no such file or folder in this revision; correct the path"
    elif status == 404:
        reason = (
            "there is no such data set, file or revision, or it is private; correct the name, or "
            "set HF_TOKEN"
        )
    else:
        reason = "the request is refused"
    raise DataError(f"{what}: {shown_endpoint()} answers HTTP {status}: {reason}")


def check_range(response: httpx2.Response, ref: FileRef, start: int) -> None:
    """Checks that a response contains the listed file from byte `start` on.

    The Hub's own response has the commit and the hash; a redirect target only reports the size.

    Raises:
        TransientError: If it contains something else.
        DataError: If it is a different file, or the server does not support byte ranges.
    """
    for answer in (*response.history, response):
        commit = answer.headers.get("X-Repo-Commit")
        etag = answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag") or ""
        etag = etag.removeprefix("W/").strip('"')
        if commit is not None and (commit != ref.commit or etag not in ("", ref.etag)):
            expected = f"commit {ref.commit}, ETag {ref.etag}"
            raise changed(ref, f"commit {commit}, ETag {etag}", expected)
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise TransientError(f"Content-Encoding {encoding}, which was not requested")
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
        raise changed(ref, f"{match[3]} bytes", f"{ref.size} bytes")
    if length not in (None, str(int(match[2]) + 1 - start)):
        raise TransientError(f"{length} bytes in an answer that announces {found}")


def changed(ref: FileRef, found: str, expected: str) -> DataError:
    """The error for a file that differs from the listed one."""
    return DataError(
        f"{ref}: the file has changed since it was listed: found {found}, expected {expected}; "
        "start a new run, at a fixed revision (data_config.dataset_revision=COMMIT)"
    )


def requested_wait(headers: httpx2.Headers) -> float | None:
    """Seconds that a server asks us to wait; None if it does not."""
    after = headers.get("Retry-After", "").strip()
    if after.isdigit():
        return float(after)
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def error_message(error: Exception) -> str:
    """The type of an error and its message, without the token."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    token = get_token_to_send(None)
    return text.replace(token, "<token>") if token else text


def shown_endpoint() -> str:
    """The Hub that is used, without any user or password in its address."""
    parts = urlsplit(constants.ENDPOINT)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"
