"""Files on the Hugging Face Hub: listed at a commit, and read in ranges.

A `HubPattern` lists the files that an `hf://` URL names; the listing of a commit never changes, so
it is kept in the cache folder, and read from there with HF_HUB_OFFLINE. A `HubRef` reads one of
them. Requests use the session, endpoint and token of huggingface_hub, and are validated and
retried. Its `HfFileSystem` is not used because it retries each request five times
regardless of `hub_retries`, restarts an interrupted range from its beginning, accepts responses of
the wrong length, content or encoding, needs the Hub to open a cached file, and sends the token to
any host named in a `Link` header.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
import xxhash
from fsspec.utils import glob_translate
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.errors import HfUriError
from huggingface_hub.utils import build_hf_headers, get_session, get_token_to_send, parse_hf_uri

from bsmeta.config.data import SCHEME
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import replacing
from bsmeta.data.io.remote import (
    FileRef,
    RemotePattern,
    RemoteSettings,
    Retries,
    TransientError,
    check_encoding,
    check_range,
    check_transient,
    retry_advice,
    shown_server,
    steady,
    transport_errors,
)

log = logging.getLogger(__name__)

Form = TypeVar("Form")

EVERYWHERE = "**/*.jsonl.gz"
COMMIT = re.compile("[0-9a-f]{40}")


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
        with transport_errors(what, f"{shown_server(constants.ENDPOINT)} (HF_ENDPOINT)"):
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
    raise DataError(f"{what}: {shown_server(constants.ENDPOINT)} answers HTTP {status}: {reason}")


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
    return retry_advice(shown_server(constants.ENDPOINT), "HF_ENDPOINT")


class Lfs(msgspec.Struct):
    """Metadata of a large file; `oid` is its SHA-256."""

    oid: str


class Entry(msgspec.Struct):
    """An entry of a folder in a response of the Hub; `oid` is its Git hash."""

    type: str
    path: str
    oid: str
    size: Annotated[int, msgspec.Meta(ge=0)] = 0
    lfs: Lfs | None = None


class Revision(msgspec.Struct):
    """A revision in a response of the Hub; `sha` is its commit."""

    sha: Annotated[str, msgspec.Meta(pattern=f"^{COMMIT.pattern}$")]


class Listing(msgspec.Struct):
    """The files of a folder at a commit: path, size in bytes, and hash of each."""

    commit: str
    files: list[tuple[str, int, str]]


@dataclass(frozen=True, slots=True)
class HubPattern(RemotePattern):
    """Files of a data set.

    Attributes:
        repo: `owner/name` of the data set.
        revision: A branch, a tag or a commit.
    """

    repo: str
    revision: str

    def __str__(self) -> str:
        return f"{self.pattern} at revision {self.revision}"

    @property
    def place(self) -> str:
        """The data set."""
        return f"{SCHEME}datasets/{self.repo}"

    @property
    def hint(self) -> str:
        """How local files are named beside those of a data set."""
        return (
            " (where data_config.dataset_name is set, a local file is named by its absolute path)"
        )

    def with_pattern(self, pattern: str) -> HubPattern:
        """Another pattern in the same revision."""
        return replace(self, pattern=pattern)

    def list_files(self, settings: RemoteSettings) -> list[tuple[str, FileRef]]:
        """The files at the commit of the revision."""
        return [(ref.file, ref) for ref in list_files(self, settings)]

    @classmethod
    def parse(cls, url: str, revision: str | None, key: str) -> HubPattern:
        """Parses `hf://datasets/OWNER/NAME[@REVISION][/PATTERN]`.

        Args:
            url: What the user wrote.
            revision: The revision if the URL has none; None is the main branch.
            key: The key that contains it, for the message.

        Raises:
            ConfigurationError: If the URL does not have this form.
        """
        try:
            uri = parse_hf_uri(url)
            pattern = (uri.path_in_repo or EVERYWHERE).strip("/")
            glob_translate(pattern)
            if uri.type == "dataset":
                return cls(pattern, uri.id, uri.revision or revision or constants.DEFAULT_REVISION)
            problem = f"found a {uri.type}"
        except (HfUriError, ValueError) as error:
            problem = str(error)
        raise ConfigurationError(
            f"{key}={url}: expected hf://datasets/OWNER/NAME[@REVISION]/PATH, "
            f"where PATH is a file, a folder or a glob ({problem})"
        )


def list_files(pattern: HubPattern, settings: RemoteSettings) -> list[HubRef]:
    """The files in the folder of a pattern (and below it, for a deep one)."""
    kept = Path(settings.folder) / "listings"
    of_revision = kept / listing_name(pattern, pattern.revision)
    if constants.is_offline_mode():
        listing = load(of_revision)
        if listing is None:
            raise DataError(
                f"HF_HUB_OFFLINE is set, and {kept} has no listing of {pattern.pattern} in "
                f"hf://datasets/{pattern.repo} at revision {pattern.revision}; start once without "
                "HF_HUB_OFFLINE, or use local files"
            )
    else:
        commit = commit_of(pattern.repo, pattern.revision, settings.retries, constants.ENDPOINT)
        of_commit = kept / listing_name(pattern, commit)
        listing = load(of_commit)
        if listing is None:
            listing = Listing(commit, fetch_tree(pattern, commit, settings.retries))
            save(of_commit, listing)
        if of_revision != of_commit:
            save(of_revision, listing)
    return [
        HubRef(size, etag, settings, pattern.repo, listing.commit, file)
        for file, size, etag in listing.files
    ]


@cache
def commit_of(repo: str, revision: str, retries: int, endpoint: str) -> str:
    """The commit of a revision; resolved once, so that a run reads only one commit."""
    if COMMIT.fullmatch(revision):
        return revision
    url = f"{endpoint}/api/datasets/{repo}/revision/{quote(revision, safe='')}"
    what = f"hf://datasets/{repo}@{revision}"
    (answer,) = get_json(url, what, retries, Revision)
    log.info("%s is commit %s", what, answer.sha)
    return answer.sha


def fetch_tree(pattern: HubPattern, commit: str, retries: int) -> list[tuple[str, int, str]]:
    """Path, size and hash of each file in the folder of a pattern."""
    folder = f"/{quote(pattern.folder, safe='')}" if pattern.folder else ""
    url = f"{constants.ENDPOINT}/api/datasets/{pattern.repo}/tree/{commit}{folder}"
    url += f"?recursive={pattern.is_deep}&expand=False"
    what = f"hf://datasets/{pattern.repo}@{commit}/{pattern.folder}".rstrip("/")
    return [
        (entry.path, entry.size, entry.lfs.oid if entry.lfs else entry.oid)
        for page in get_json(url, what, retries, list[Entry])
        for entry in page
        if entry.type == "file"
    ]


def listing_name(pattern: HubPattern, revision: str) -> str:
    """The name of the file in which a listing is cached."""
    facts = json.dumps([pattern.repo, revision, pattern.folder, pattern.is_deep])
    return f"{pattern.repo.replace('/', '--')}-{xxhash.xxh3_64_hexdigest(facts.encode())}.json"


def load(path: Path) -> Listing | None:
    """A cached listing; None if there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Listing)
    except (OSError, msgspec.DecodeError):
        return None


def save(path: Path, listing: Listing) -> None:
    """Writes a listing to the cache, atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(msgspec.json.encode(listing))
    except OSError as error:
        log.warning("the listing of a data set is not kept: %s", error)
