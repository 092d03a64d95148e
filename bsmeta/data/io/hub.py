"""Data sets on the Hugging Face Hub: listed at a commit, and read in ranges.

The listing of a commit never changes, so it is kept in the cache folder, and read from there with
HF_HUB_OFFLINE. Requests use the session, endpoint and token of huggingface_hub, and are validated
and retried. Its `HfFileSystem` is not used because it retries each request five times regardless of
`hub_retries`, restarts an interrupted range from its beginning, accepts responses of the wrong
length, content or encoding, needs the Hub to open a cached file, and sends the token to any host
named in a `Link` header.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
import xxhash
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.errors import HfUriError
from huggingface_hub.utils import build_hf_headers, get_session, get_token_to_send, parse_hf_uri

from bsmeta.core.errors import DataError
from bsmeta.core.files import replacing
from bsmeta.core.parsing import decode_json
from bsmeta.core.secrets import hide
from bsmeta.data.io.cache import kept_if_possible
from bsmeta.data.io.file_ref import EVERYWHERE, HUB, FileRef, RemoteSettings
from bsmeta.data.io.remote import (
    Pattern,
    Retries,
    Store,
    TransientError,
    check_encoding,
    check_range,
    check_transient,
    shown_server,
    steady,
    transport_errors,
)
from bsmeta.data.io.verifier import Verifier

log = logging.getLogger(__name__)

COMMIT = re.compile("[0-9a-f]{40}")

Form = TypeVar("Form")


class Hub(Store):
    """The Hub, or a mirror (HF_ENDPOINT)."""

    form = "hf://datasets/OWNER/NAME[@REVISION]/PATH"
    variable = "HF_ENDPOINT"
    fixed_version = "at a fixed revision (data_config.dataset_revision=COMMIT)"
    hint = " (where data_config.dataset_name is set, a local file is named by its absolute path)"

    @property
    def server(self) -> str:
        return shown_server(constants.ENDPOINT)

    def is_offline(self) -> bool:
        return bool(constants.is_offline_mode())

    def parse(self, url: str, revision: str | None) -> Pattern:
        try:
            uri = parse_hf_uri(url)
        except HfUriError as error:
            raise ValueError(str(error)) from error
        if uri.type != "dataset":
            raise ValueError(f"found a {uri.type}")
        pattern = (uri.path_in_repo or EVERYWHERE).strip("/")
        return Pattern(HUB, uri.id, pattern, uri.revision or revision or constants.DEFAULT_REVISION)

    def verifier(self, ref: FileRef) -> Verifier:
        git = hashlib.sha1(f"blob {ref.size}\0".encode(), usedforsecurity=False)
        return Verifier(hashlib.sha256() if len(ref.etag) == 64 else git, ref.etag)

    @contextlib.contextmanager
    def open_range(self, ref: FileRef, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        url = hf_hub_url(
            ref.container,
            ref.path,
            repo_type="dataset",
            revision=ref.version,
            endpoint=constants.ENDPOINT,
        )
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with self._get(url, f"{ref}, bytes {start} to {stop}", headers) as response:
            self._check_commit(response, ref)
            check_encoding(response)
            check_range(self, response, ref, start)
            yield steady(response.iter_raw(), constants.HF_HUB_DOWNLOAD_TIMEOUT)

    def list_files(self, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
        kept = Path(settings.folder) / "listings"
        of_revision = kept / _listing_name(pattern, pattern.revision)
        if self.is_offline():
            listing = _load(of_revision)
            if listing is None:
                raise DataError(
                    f"HF_HUB_OFFLINE is set, and {kept} has no listing of {pattern.pattern} in "
                    f"{pattern.root} at revision {pattern.revision}; start once without "
                    "HF_HUB_OFFLINE, or use local files"
                )
        else:
            commit = commit_of(
                pattern.container, pattern.revision, settings.retries, constants.ENDPOINT
            )
            of_commit = kept / _listing_name(pattern, commit)
            listing = _load(of_commit)
            if listing is None:
                listing = Listing(commit, self._tree(pattern, commit, settings.retries))
                _save(of_commit, listing)
            if of_revision != of_commit:
                _save(of_revision, listing)
        return [
            FileRef(size, etag, settings, HUB, pattern.container, path, listing.commit)
            for path, size, etag in listing.files
        ]

    def _tree(self, pattern: Pattern, commit: str, retries: int) -> list[tuple[str, int, str]]:
        """Path, size and hash of each file in the folder of a pattern."""
        folder = f"/{quote(pattern.folder, safe='')}" if pattern.folder else ""
        url = f"{constants.ENDPOINT}/api/datasets/{pattern.container}/tree/{commit}{folder}"
        url += f"?recursive={pattern.is_deep}&expand=False"
        what = f"{pattern.root}@{commit}/{pattern.folder}".rstrip("/")
        return [
            (entry.path, entry.size, entry.lfs.oid if entry.lfs else entry.oid)
            for page in self.get_json(url, what, retries, list[Entry])
            for entry in page
            if entry.type == "file"
        ]

    def get_json(self, url: str, what: str, retries: int, form: type[Form]) -> Iterator[Form]:
        """The pages of a JSON response, decoded as a given type.

        Raises:
            DataError: If the Hub refuses or cannot be reached, or the next page is on another host.
        """
        attempts = Retries(retries, self.advice())
        next_page: str | None = url
        while next_page:
            page, next_page = attempts.call(what, partial(self._page, next_page, what, form))
            if next_page and urlsplit(next_page)[:2] != urlsplit(url)[:2]:
                host = shown_server(next_page).partition("://")[2]
                raise DataError(
                    f"{what}: the next page of the listing is on another host, {host}, which must "
                    "not get the token; set HF_ENDPOINT to the Hub itself, or to a mirror that "
                    "serves all pages"
                )
            yield page

    def _page(self, url: str, what: str, form: type[Form]) -> tuple[Form, str | None]:
        """A page of a JSON response, and the address of the next one."""
        with self._get(url, what) as response:
            body = b"".join(steady(response.iter_bytes(), constants.HF_HUB_DOWNLOAD_TIMEOUT))
            link = response.links.get("next", {}).get("url")
        try:
            page = decode_json(body, form)
        except msgspec.ValidationError as error:
            raise TransientError(f"the answer is JSON of another form: {error}") from None
        except msgspec.DecodeError:
            raise TransientError("the answer is not JSON") from None
        return page, str(response.url.join(link)) if link else None

    @contextlib.contextmanager
    def _get(
        self, url: str, what: str, headers: dict[str, str] | None = None
    ) -> Iterator[httpx2.Response]:
        """A successful response of the Hub, to be read inside the context."""
        if self.is_offline():
            raise DataError(f"{what}: HF_HUB_OFFLINE is set, and this is not in the cache")
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        hide(get_token_to_send(None))  # which may come from a file
        try:
            with transport_errors(what, f"{self.server} (HF_ENDPOINT)"):
                sent = build_hf_headers(headers=headers)
                with get_session().stream("GET", url, headers=sent, timeout=timeout) as response:
                    self._check_status(response, what)
                    yield response
        except RuntimeError as error:
            # huggingface_hub closes its session when a connection in another thread fails.
            if "closed" not in str(error):
                raise
            raise TransientError("the session was closed") from None

    def _check_status(self, response: httpx2.Response, what: str) -> None:
        """Raises the error for a bad status: either a transient one, or one that names the fix."""
        check_transient(response)
        status = response.status_code
        if status < 300:
            return
        code = response.headers.get("X-Error-Code")
        if status in (401, 403) and get_token_to_send(None) is None:
            reason = (
                "the data set is private or gated, or does not exist; set HF_TOKEN to a token that "
                "may read it, or correct its name"
            )
        elif status in (401, 403):
            reason = (
                "the token (HF_TOKEN) is not valid, or may not read this data set (access to a "
                "gated one is requested on its page), or its name is wrong"
            )
        elif code == "RevisionNotFound":
            reason = (
                "there is no such revision; correct data_config.dataset_revision or what follows "
                "the @"
            )
        elif code == "EntryNotFound":
            reason = "there is no such file or folder in this revision; correct the path"
        elif status == 404:
            reason = (
                "there is no such data set, file or revision, or it is private; correct the name, "
                "or set HF_TOKEN"
            )
        else:
            reason = "the request is refused"
        raise DataError(f"{what}: {self.server} answers HTTP {status}: {reason}")

    def _check_commit(self, response: httpx2.Response, ref: FileRef) -> None:
        """Checks commit and hash, which are in the Hub's own response, before the redirect."""
        for answer in (*response.history, response):
            commit = answer.headers.get("X-Repo-Commit")
            etag = answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag") or ""
            etag = etag.removeprefix("W/").strip('"')
            if commit is not None and (commit != ref.version or etag not in ("", ref.etag)):
                expected = f"commit {ref.version}, ETag {ref.etag}"
                raise self.changed(ref, f"commit {commit}, ETag {etag}", expected)


@cache
def commit_of(repo: str, revision: str, retries: int, endpoint: str) -> str:
    """The commit of a revision; resolved once, so that a run reads only one commit."""
    if COMMIT.fullmatch(revision):
        return revision
    url = f"{endpoint}/api/datasets/{repo}/revision/{quote(revision, safe='')}"
    what = f"hf://datasets/{repo}@{revision}"
    (answer,) = Hub().get_json(url, what, retries, Revision)
    log.info("%s is commit %s", what, answer.sha)
    return answer.sha


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


def _listing_name(pattern: Pattern, revision: str) -> str:
    """The name of the file in which a listing is cached."""
    facts = json.dumps([pattern.container, revision, pattern.folder, pattern.is_deep])
    name = xxhash.xxh3_64_hexdigest(facts.encode())
    return f"{pattern.container.replace('/', '--')}-{name}.json"


def _load(path: Path) -> Listing | None:
    """A cached listing; None if there is none, or it cannot be read."""
    try:
        return decode_json(path.read_bytes(), Listing)
    except (OSError, msgspec.DecodeError):
        return None


def _save(path: Path, listing: Listing) -> None:
    with kept_if_possible("the listing of a data set is"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(msgspec.json.encode(listing))
