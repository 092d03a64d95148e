"""Requests to the Hugging Face Hub that outlast its bad moments, and say what cannot be outlasted.

`hub` asks for listings and `remote` for bytes of files, over huggingface_hub's session and with its
endpoint and token.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import threading
from collections.abc import Generator, Iterator
from typing import Any

import httpx2
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session

from bsmeta.config.errors import DataError
from bsmeta.data.hub_answers import (
    TransientError,
    check,
    check_unchanged,
    said,
    shown_endpoint,
)
from bsmeta.data.hub_paths import HubPath

log = logging.getLogger(__name__)

FIRST_DELAY = 1.0  # most seconds before the first retry; twice as many before each next one
LONGEST_DELAY = 60.0
LONGEST_WAIT = 900.0  # seconds that a server may ask us to wait
OUTLASTED = (
    httpx2.TimeoutException,
    httpx2.NetworkError,
    httpx2.RemoteProtocolError,
    httpx2.ProxyError,
)


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


def timeout() -> float:
    """Seconds without a byte after which a connection counts as dead."""
    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
