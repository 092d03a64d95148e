"""Requests to the Hugging Face Hub that outlast its bad moments, and say what cannot be outlasted.

`hub` asks for listings and `remote` for bytes of files, over huggingface_hub's session and with its
endpoint and token. Neither of these is ever in a message: what is said of an error is its kind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import threading
from collections.abc import Generator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import (
    build_hf_headers,
    get_session,
    get_token_to_send,
    parse_ratelimit_headers,
)

from bsmeta.config.errors import DataError
from bsmeta.data.hub_paths import HubPath

log = logging.getLogger(__name__)

FIRST_DELAY = 1.0  # most seconds before the first retry; twice as many before each next one
LONGEST_DELAY = 60.0
LONGEST_WAIT = 900.0  # seconds that a server may ask us to wait
TRANSIENT = (408, 425, 429)  # and all from 500 on
OUTLASTED = (
    httpx2.TimeoutException,
    httpx2.NetworkError,
    httpx2.RemoteProtocolError,
    httpx2.ProxyError,
)


class TransientError(Exception):
    """A failure that may be gone at the next attempt.

    Args:
        cause: What happened.
        wait: Seconds to wait, where the server says so.
    """

    def __init__(self, cause: str, wait: float | None = None) -> None:
        super().__init__(cause)
        self.wait = wait


class CancelledError(Exception):
    """Nobody wants the answer any more."""


class Patience:
    """Waits after each failure, longer every time, and ends after too many in a row.

    Args:
        retries: Failures in a row that are outlasted.
        cancelled: Ends the waiting when set.
    """

    def __init__(self, retries: int, cancelled: threading.Event | None = None) -> None:
        self._retries = retries
        self._cancelled = cancelled or threading.Event()
        self._failures = 0

    def restore(self) -> None:
        """Something went well: failures are counted anew."""
        self._failures = 0

    def wait(self, what: str, error: TransientError) -> None:
        """Waits after a failure, with jitter, so that many processes do not return all at once.

        Args:
            what: What failed, for the message.
            error: The failure.

        Raises:
            DataError: If it was one too many.
            CancelledError: If the waiting was cancelled.
        """
        self._failures += 1
        if self._failures > self._retries:
            raise DataError(
                f"{what}: given up after {self._failures} failures in a row, the last one: "
                f"{error}; see whether {shown_endpoint()} can be reached from here (HF_ENDPOINT, a "
                "proxy), start again later, or raise data_config.hub_retries"
            )
        longest = min(FIRST_DELAY * 2 ** (self._failures - 1), LONGEST_DELAY)
        delay = random.uniform(longest / 2, longest)
        if error.wait is not None:
            delay = min(error.wait, LONGEST_WAIT) + random.uniform(0, FIRST_DELAY)
        log.warning("%s: %s; tried again in %.1f s", what, error, delay)
        if self._cancelled.wait(delay):
            raise CancelledError


def get_json(url: str, what: str, retries: int) -> Iterator[Any]:
    """The pages of an answer in JSON.

    Raises:
        DataError: If the Hub refuses, or cannot be reached.
    """
    patience = Patience(retries)
    next_page: str | None = url
    while next_page:
        try:
            with answering(what):
                response = get_session().get(
                    next_page, headers=build_hf_headers(), timeout=timeout()
                )
                check(response, what)
                page = response.json()
        except json.JSONDecodeError:
            patience.wait(what, TransientError("the answer is not JSON"))
            continue
        except TransientError as error:
            patience.wait(what, error)
            continue
        patience.restore()
        next_page = response.links.get("next", {}).get("url")
        yield page


def read_range(path: HubPath, start: int, stop: int, cancelled: threading.Event) -> bytes:
    """Bytes `start` to `stop` (exclusive) of a file.

    Where a connection is cut, the next one goes on at the byte that is missing.

    Raises:
        DataError: If the Hub refuses, has another file by now, or cannot be reached.
        CancelledError: If it was cancelled.
    """
    data = bytearray()
    patience = Patience(path.settings.retries, cancelled)
    while len(data) < stop - start:
        place = start + len(data)
        try:
            with (
                answering(f"{path}, bytes {place} to {stop}"),
                contextlib.closing(received(path, place, stop)) as parts,
            ):
                for part in parts:
                    data += part
                    if cancelled.is_set():
                        raise CancelledError
            if start + len(data) < stop:
                raise TransientError("the connection was closed before the end")
        except TransientError as error:
            if start + len(data) > place:
                patience.restore()
            patience.wait(f"{path}, byte {start + len(data)} of {path.size}", error)
    return bytes(data)


def received(path: HubPath, start: int, stop: int) -> Generator[bytes, None, None]:
    """What one request for bytes `start` to `stop` gives of them."""
    url = hf_hub_url(
        path.repo,
        path.file,
        repo_type="dataset",
        revision=path.commit,
        endpoint=constants.ENDPOINT,
    )
    headers = build_hf_headers(
        headers={"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    )
    with get_session().stream("GET", url, headers=headers, timeout=timeout()) as response:
        check(response, path)
        check_unchanged(response, path, start)
        left = stop - start
        for part in response.iter_raw():
            yield part[:left]
            left -= len(part)
            if left <= 0:
                return


@contextlib.contextmanager
def answering(what: str) -> Iterator[None]:
    """Turns the errors of a connection into those of this module."""
    if constants.is_offline_mode():
        raise DataError(f"{what}: HF_HUB_OFFLINE is set, and this is not in the cache")
    try:
        yield
    except OUTLASTED as error:
        raise TransientError(said(error)) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        where = f"{shown_endpoint()} (HF_ENDPOINT)"
        raise DataError(f"{what}: cannot be asked for from {where}: {said(error)}") from None
    except RuntimeError as error:
        # huggingface_hub closes its session when a connection of another thread failed.
        if "closed" not in str(error):
            raise
        raise TransientError("the session was closed") from None


def check(response: httpx2.Response, what: str) -> None:
    """Passes over answers that bring what was asked for.

    Raises:
        TransientError: If it may go better next time.
        DataError: If it will not; says what to do.
    """
    status = response.status_code
    if status in TRANSIENT or status >= 500:
        raise TransientError(f"HTTP {status}", asked_wait(response.headers))
    if status >= 300:
        reason = refusal(status, response.headers.get("X-Error-Code", ""))
        raise DataError(f"{what}: {shown_endpoint()} answers HTTP {status}: {reason}")


def refusal(status: int, code: str) -> str:
    """What a refusal means, and what to do."""
    if status in (401, 403):
        if get_token_to_send(None) is None:
            return (
                "the data set is private or gated, or does not exist; set HF_TOKEN to a token that "
                "may read it, or mend its name"
            )
        return (
            "the token (HF_TOKEN) is not valid, or may not read this data set (gated ones must be "
            "asked for on their page), or its name is wrong"
        )
    if code == "RevisionNotFound":
        return "there is no such revision; mend data_config.dataset_revision or what follows the @"
    if code == "EntryNotFound":
        return "there is no such file or folder in this revision; mend the path"
    if status == 404:
        return (
            "there is no such data set, file or revision, or it is private; mend the name, or set "
            "HF_TOKEN"
        )
    return "the request is refused"


def check_unchanged(response: httpx2.Response, path: HubPath, start: int) -> None:
    """Compares the file that an answer is of with the one that was listed.

    The Hub's own answer has its commit and hash; what it redirects to knows only its size.

    Raises:
        DataError: If it is another one, or the server does not know byte ranges.
    """
    for answer in (*response.history, response):
        commit = answer.headers.get("X-Repo-Commit")
        if commit is None:
            continue
        etag = answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag") or ""
        etag = etag.removeprefix("W/").strip('"')
        if commit != path.commit or etag not in ("", path.etag):
            found = f"commit {commit}, ETag {etag}"
            raise DataError(changed(path, found, f"commit {path.commit}, ETag {path.etag}"))
    if response.status_code != 206:
        size = response.headers.get("Content-Length")
        if start == 0 and size in (None, str(path.size)):
            return  # the whole file, from which the beginning is taken
        raise DataError(f"{path}: the server does not give ranges of bytes, which are needed")
    first, _, size = response.headers.get("Content-Range", "").partition("/")
    if size not in ("*", str(path.size)):
        raise DataError(changed(path, f"{size} bytes", f"{path.size} bytes"))
    if not first.startswith(f"bytes {start}-"):
        raise TransientError(f"another part of the file than asked for ({first})")


def changed(path: HubPath, found: str, expected: str) -> str:
    """The message for a file that is not the one that was listed."""
    return (
        f"{path}: the file has changed since it was listed: found {found}, expected {expected}; "
        "start the run anew, at a revision that stays (data_config.dataset_revision=COMMIT)"
    )


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks us to wait; None if it does not."""
    after = headers.get("Retry-After", "").strip()
    if after.isdigit():
        return float(after)
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    return None


def said(error: Exception) -> str:
    """The kind of an error, and what it says, without the token."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    token = get_token_to_send(None)
    return text.replace(token, "<token>") if token else text


def shown_endpoint() -> str:
    """The Hub that is used, without any user or password in its address."""
    parts = urlsplit(constants.ENDPOINT)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"


def timeout() -> float:
    """Seconds without a byte after which a connection counts as dead."""
    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
