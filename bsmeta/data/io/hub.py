"""Requests to the Hugging Face Hub: validated, retried, with clear errors on permanent failure.

`hub_listing` requests JSON, `HubRef` bytes of a file; both use the session, endpoint and token of
huggingface_hub. Its `HfFileSystem` is not used because it retries each request five times
regardless of `hub_retries`, restarts an interrupted range from its beginning, accepts responses of
the wrong length, content or encoding, needs the Hub to open a cached file, and sends the token to
any host named in a `Link` header.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import msgspec
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session, get_token_to_send

from bsmeta.config.data import SCHEME
from bsmeta.core.errors import DataError
from bsmeta.data.io.remote import (
    FileRef,
    Retries,
    TransientError,
    check_encoding,
    check_range,
    check_transient,
    retry_advice,
    steady,
    transport_errors,
)

Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class HubRef(FileRef):
    """A file on the Hub as it was when it was listed.

    Its `etag` is the hash of its content: SHA-256 for a large file, the Git hash (SHA-1) for
    others.

    Attributes:
        repo: `owner/name` of the data set.
        commit: Hash of the commit.
        file: Path in the data set.
    """

    repo: str
    commit: str
    file: str

    def __str__(self) -> str:
        return f"{self.dataset}@{self.commit}/{self.file}"

    @property
    def dataset(self) -> str:
        """The data set without its commit, as a URL."""
        return f"{SCHEME}datasets/{self.repo}"

    @property
    def place(self) -> str:
        """Its path, with that of the data set."""
        return f"/{self.repo}/{self.file}"

    @property
    def content_id(self) -> str:
        """Its hash, so that copies share their blocks."""
        return self.etag

    def identity(self, name: str) -> dict[str, Any]:
        """Its size, and the commit of its data set."""
        return {self.dataset: self.commit, name: self.size}

    @contextlib.contextmanager
    def open_range(self, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        """Requests the bytes of its commit, and checks that the response has them."""
        url = hf_hub_url(
            self.repo,
            self.file,
            repo_type="dataset",
            revision=self.commit,
            endpoint=constants.ENDPOINT,
        )
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with get(url, f"{self}, bytes {start} to {stop}", headers) as response:
            check_commit(response, self)
            check_encoding(response)
            check_range(response, self, start)
            yield steady(response.iter_raw(), timeout())

    def verifier(self) -> HubVerifier:
        """Computes the hash that the Hub lists."""
        return HubVerifier(self)

    def advice(self) -> str:
        """Names the Hub."""
        return hub_advice()

    @property
    def fixed_version(self) -> str:
        """The key of a commit."""
        return "at a fixed revision (data_config.dataset_revision=COMMIT)"

    def is_offline(self) -> bool:
        """Whether HF_HUB_OFFLINE is set."""
        return bool(constants.is_offline_mode())


class HubVerifier:
    """Compares a file with the hash that the Hub lists."""

    def __init__(self, ref: HubRef) -> None:
        self._expected = ref.etag
        self._hash = (
            hashlib.sha256()
            if len(ref.etag) == 64
            else hashlib.sha1(f"blob {ref.size}\0".encode(), usedforsecurity=False)
        )

    def update(self, data: bytes) -> None:
        """Adds the next bytes of the file."""
        self._hash.update(data)

    def is_right(self) -> bool:
        """Whether all bytes have the hash."""
        return self._hash.hexdigest() == self._expected


def get_json(url: str, what: str, retries: int, form: type[Form]) -> Iterator[Form]:
    """The pages of a JSON response, decoded as a given type.

    Raises:
        DataError: If the Hub refuses or cannot be reached, or the next page is on another host.
    """
    attempts = Retries(retries, hub_advice())
    next_page: str | None = url
    while next_page:
        try:
            with get(next_page, what) as response:
                page = msgspec.json.decode(
                    b"".join(steady(response.iter_bytes(), timeout())), type=form
                )
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


@contextlib.contextmanager
def get(url: str, what: str, headers: dict[str, str] | None = None) -> Iterator[httpx2.Response]:
    """A successful response of the Hub, to be read inside the context.

    Raises:
        TransientError: If the request, or reading the response, may succeed on a retry.
        DataError: If it will not.
    """
    if constants.is_offline_mode():
        raise DataError(f"{what}: HF_HUB_OFFLINE is set, and this is not in the cache")
    try:
        with transport_errors(what, f"{shown_endpoint()} (HF_ENDPOINT)"):
            sent = build_hf_headers(headers=headers)
            with get_session().stream("GET", url, headers=sent, timeout=timeout()) as response:
                check_status(response, what)
                yield response
    except RuntimeError as error:
        # huggingface_hub closes its session when a connection in another thread fails.
        if "closed" not in str(error):
            raise
        raise TransientError("the session was closed") from None


def check_status(response: httpx2.Response, what: str) -> None:
    """Raises the error for a bad status: either a transient one, or one that names the fix."""
    check_transient(response)
    status = response.status_code
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


def check_commit(response: httpx2.Response, ref: HubRef) -> None:
    """Checks the commit and the hash, which are in the Hub's own response, before the redirect.

    Raises:
        DataError: If it is a different file.
    """
    for answer in (*response.history, response):
        commit = answer.headers.get("X-Repo-Commit")
        etag = answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag") or ""
        etag = etag.removeprefix("W/").strip('"')
        if commit is not None and (commit != ref.commit or etag not in ("", ref.etag)):
            expected = f"commit {ref.commit}, ETag {ref.etag}"
            raise ref.changed(f"commit {commit}, ETag {etag}", expected)


def timeout() -> float:
    """Seconds without data that are a failure."""
    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


def hub_advice() -> str:
    """What a user can do when the Hub cannot be reached."""
    return retry_advice(shown_endpoint(), "HF_ENDPOINT")


def shown_endpoint() -> str:
    """The Hub that is used, without any user or password in its address."""
    parts = urlsplit(constants.ENDPOINT)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"
