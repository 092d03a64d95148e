"""What the answers of the Hugging Face Hub mean: to try again, or what the user must mend.

`hub_requests` asks; here its answers and errors get their words. Neither the token nor the address
that a request was redirected to is ever in them: the latter is as good as a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants
from huggingface_hub.utils import get_token_to_send, parse_ratelimit_headers

from bsmeta.config.errors import DataError
from bsmeta.data.hub_paths import HubPath

TRANSIENT = (408, 425, 429)  # and all from 500 on


class TransientError(Exception):
    """A failure that may be gone at the next attempt.

    Args:
        cause: What happened.
        wait: Seconds to wait, where the server says so.
    """

    def __init__(self, cause: str, wait: float | None = None) -> None:
        super().__init__(cause)
        self.wait = wait


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
