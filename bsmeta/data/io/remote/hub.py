"""Lists data sets on the Hugging Face Hub at a commit, and reads ranges of their files.

The listing of a commit never changes, so it is kept in the cache folder, and read from there when
HF_HUB_OFFLINE is set. Requests use the session, the endpoint and the token of huggingface_hub.
Their responses are checked, and failures are retried.

The library's `HfFileSystem` (2.4.0) is not used. When it reads, it retries each request five times
regardless of `hub_retries`, restarts an interrupted range from its beginning, accepts responses of
the wrong length, content or encoding, and needs the Hub to open a cached file. When it lists, it
sends the token to any host named in a `Link` header, cannot follow a link without a host, raises a
`KeyError` or `TypeError` without a retry for unexpected JSON, accepts a negative size, and waits
for a response however slowly it arrives.
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
from typing import Annotated, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
import xxhash
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.errors import HfUriError
from huggingface_hub.utils import build_hf_headers, get_session, get_token_to_send, parse_hf_uri

from bsmeta.core.errors import DataError
from bsmeta.core.files import replace_atomically
from bsmeta.core.parsing import decode_json
from bsmeta.core.secrets import declare_secrets
from bsmeta.data.io.cache import keep_if_possible
from bsmeta.data.io.file_ref import DEFAULT_PATTERN, HUB, FileRef, RemoteSettings
from bsmeta.data.io.remote.store import (
    Pattern,
    Retries,
    Store,
    TransientError,
    check_encoding,
    check_range,
    check_transient,
    convert_transport_errors,
    format_server,
    refuse_slow_response,
)
from bsmeta.data.io.remote.verifier import Verifier

logger = logging.getLogger(__name__)

COMMIT = re.compile("[0-9a-f]{40}")

Page = TypeVar("Page")


class Hub(Store):
    """The data sets on the Hub, or on a mirror (HF_ENDPOINT)."""

    syntax = "hf://datasets/OWNER/NAME[@REVISION]/PATH"
    server_variables = "HF_ENDPOINT"
    version_advice = "at a fixed revision (data_config.dataset_revision=COMMIT)"
    no_match_hint = (
        " (where data_config.dataset_name is set, a local file is named by its absolute path)"
    )

    @property
    def server(self) -> str:
        return format_server(constants.ENDPOINT)

    def is_offline(self) -> bool:
        return bool(constants.is_offline_mode())

    def parse_url(self, url: str, revision: str | None) -> Pattern:
        try:
            uri = parse_hf_uri(url)
        except HfUriError as error:
            raise ValueError(str(error)) from error
        if uri.type != "dataset":
            raise ValueError(f"found a {uri.type}")
        return Pattern(
            scheme=HUB,
            container=uri.id,
            glob=(uri.path_in_repo or DEFAULT_PATTERN).strip("/"),
            revision=uri.revision or revision or constants.DEFAULT_REVISION,
        )

    def make_verifier(self, ref: FileRef) -> Verifier:
        is_large = len(ref.etag) == 64  # hexadecimal digits of a SHA-256
        if is_large:
            return Verifier(hashlib.sha256(), ref.etag)

        # Git hashes this header before the content.
        header = f"blob {ref.size}\0".encode()
        return Verifier(hashlib.sha1(header, usedforsecurity=False), ref.etag)

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
        with self._open(url, f"{ref}, bytes {start} to {stop}", headers) as response:
            self._check_commit(response, ref)
            check_encoding(response)
            check_range(self, response, ref, start)
            yield refuse_slow_response(response.iter_raw(), constants.HF_HUB_DOWNLOAD_TIMEOUT)

    def list_files(self, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
        folder = Path(settings.cache_folder) / "listings"
        revision_file = folder / _name_listing(pattern, pattern.revision)
        if self.is_offline():
            listing = _load_listing(revision_file)
            if listing is None:
                raise DataError(
                    f"HF_HUB_OFFLINE is set, and {folder} has no listing of {pattern.glob} in "
                    f"{pattern.root} at revision {pattern.revision}; start once without "
                    "HF_HUB_OFFLINE, or use local files"
                )
        else:
            commit = resolve_commit(
                pattern.container, pattern.revision, settings.retries, constants.ENDPOINT
            )
            commit_file = folder / _name_listing(pattern, commit)
            listing = _load_listing(commit_file)
            if listing is None:
                listing = Listing(commit, self._list_tree(pattern, commit, settings.retries))
                _save_listing(commit_file, listing)

            # Offline, the commit of a revision is unknown, so the listing is found by the revision.
            if revision_file != commit_file:
                _save_listing(revision_file, listing)

        return [
            FileRef(
                size=file.size,
                etag=file.etag,
                settings=settings,
                scheme=HUB,
                container=pattern.container,
                path=file.path,
                version=listing.commit,
            )
            for file in listing.files
        ]

    def _list_tree(self, pattern: Pattern, commit: str, retries: int) -> list[ListedFile]:
        """Lists the files in the folder of a pattern at a commit; see `list_files`."""
        folder = f"/{quote(pattern.folder, safe='')}" if pattern.folder else ""
        url = f"{constants.ENDPOINT}/api/datasets/{pattern.container}/tree/{commit}{folder}"
        url += f"?recursive={pattern.is_deep}&expand=False"
        subject = f"{pattern.root}@{commit}/{pattern.folder}".rstrip("/")

        files = []
        for page in self.get_json_pages(url, subject, retries, list[Entry]):
            for entry in page:
                if entry.type == "file":
                    etag = entry.lfs.oid if entry.lfs else entry.oid
                    files.append(ListedFile(entry.path, entry.size, etag))
        return files

    def get_json_pages(
        self, url: str, subject: str, retries: int, page_type: type[Page]
    ) -> Iterator[Page]:
        """Yields the pages of a JSON response.

        Args:
            url: URL of the first page.
            subject: The requested object, for messages.
            page_type: The type as which each page is decoded.

        Raises:
            DataError: If the Hub refuses or cannot be reached, or the next page is on another host.
        """
        attempts = Retries(retries, self.format_advice())
        page_url: str | None = url
        while page_url:
            request = partial(self._get_page, page_url, subject, page_type)
            page, page_url = attempts.call(subject, request)
            if page_url and urlsplit(page_url)[:2] != urlsplit(url)[:2]:
                host = format_server(page_url).partition("://")[2]
                raise DataError(
                    f"{subject}: the next page of the listing is on another host, {host}, which "
                    "must not get the token; set HF_ENDPOINT to the Hub itself, or to a mirror "
                    "that serves all pages"
                )
            yield page

    def _get_page(self, url: str, subject: str, page_type: type[Page]) -> tuple[Page, str | None]:
        """Returns a page of a JSON response, and the URL of the next page (None: the last one).

        Raises:
            TransientError: If a retry may succeed.
            DataError: If the Hub refuses.
        """
        with self._open(url, subject) as response:
            chunks = refuse_slow_response(response.iter_bytes(), constants.HF_HUB_DOWNLOAD_TIMEOUT)
            body = b"".join(chunks)
            link = response.links.get("next", {}).get("url")
            next_url = str(response.url.join(link)) if link else None

        try:
            page = decode_json(body, page_type)
        except msgspec.ValidationError as error:
            raise TransientError(f"the answer is JSON of another form: {error}") from None
        except msgspec.DecodeError:
            raise TransientError("the answer is not JSON") from None
        return page, next_url

    @contextlib.contextmanager
    def _open(
        self, url: str, subject: str, headers: dict[str, str] | None = None
    ) -> Iterator[httpx2.Response]:
        """Sends a GET request, and opens its successful response for reading inside the context.

        Raises:
            TransientError: If a retry may succeed.
            DataError: If the Hub refuses, or HF_HUB_OFFLINE is set.
        """
        if self.is_offline():
            raise DataError(f"{subject}: HF_HUB_OFFLINE is set, and this is not in the cache")

        declare_secrets(get_token_to_send(None))  # it may come from a file
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        try:
            with convert_transport_errors(subject, f"{self.server} (HF_ENDPOINT)"):
                all_headers = build_hf_headers(headers=headers)
                with get_session().stream(
                    "GET", url, headers=all_headers, timeout=timeout
                ) as response:
                    self._check_status(response, subject)
                    yield response
        except RuntimeError as error:
            # huggingface_hub closes its session when a connection in another thread fails.
            if "closed" not in str(error):
                raise
            raise TransientError("the session was closed") from None

    def _check_status(self, response: httpx2.Response, subject: str) -> None:
        """Checks that a response has a successful status.

        Raises:
            TransientError: If a retry may succeed.
            DataError: If not; the message names the remedy.
        """
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
                "there is no such revision; correct data_config.dataset_revision, or the revision "
                "after the @"
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
        raise DataError(f"{subject}: {self.server} answers HTTP {status}: {reason}")

    def _check_commit(self, response: httpx2.Response, ref: FileRef) -> None:
        """Checks that a response is for the listed commit and hash of a file.

        Both are in headers of the Hub's own response, which may be a redirect to another server.

        Raises:
            DataError: If the file has changed.
        """
        for answer in (*response.history, response):
            commit = answer.headers.get("X-Repo-Commit")
            etag = answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag") or ""
            etag = etag.removeprefix("W/").strip('"')
            if commit is not None and (commit != ref.version or etag not in ("", ref.etag)):
                expected = f"commit {ref.version}, ETag {ref.etag}"
                raise self.make_changed_error(ref, f"commit {commit}, ETag {etag}", expected)


@cache
def resolve_commit(repo: str, revision: str, retries: int, endpoint: str) -> str:
    """Returns the commit of a revision; cached, so that a run reads only one commit."""
    if COMMIT.fullmatch(revision):
        return revision

    url = f"{endpoint}/api/datasets/{repo}/revision/{quote(revision, safe='')}"
    subject = f"hf://datasets/{repo}@{revision}"
    (resolved,) = Hub().get_json_pages(url, subject, retries, Revision)
    logger.info("%s is commit %s", subject, resolved.sha)
    return resolved.sha


class LargeFile(msgspec.Struct):
    """The large-file (LFS) metadata in an `Entry`; `oid` is the SHA-256 of the content."""

    oid: str


class Entry(msgspec.Struct):
    """A file or folder in a listing of the Hub; `oid` is its Git hash."""

    type: str
    path: str
    oid: str
    size: Annotated[int, msgspec.Meta(ge=0)] = 0
    lfs: LargeFile | None = None


class Revision(msgspec.Struct):
    """The response of the Hub for a revision; `sha` is its commit."""

    sha: Annotated[str, msgspec.Meta(pattern=f"^{COMMIT.pattern}$")]


class ListedFile(NamedTuple):
    """A file in a listing.

    Attributes:
        size: Size in bytes.
        etag: SHA-256 of a large file, Git hash of any other.
    """

    path: str
    size: int
    etag: str


class Listing(msgspec.Struct):
    """The files in a folder of a data set at a commit; cached as JSON."""

    commit: str
    files: list[ListedFile]


def _name_listing(pattern: Pattern, revision: str) -> str:
    """Returns the name of the file in which a listing is cached."""
    request = json.dumps([pattern.container, revision, pattern.folder, pattern.is_deep])
    request_hash = xxhash.xxh3_64_hexdigest(request.encode())
    return f"{pattern.container.replace('/', '--')}-{request_hash}.json"


def _load_listing(path: Path) -> Listing | None:
    """Reads a cached listing; None if it is missing or cannot be read."""
    try:
        return decode_json(path.read_bytes(), Listing)
    except (OSError, msgspec.DecodeError):
        return None


def _save_listing(path: Path, listing: Listing) -> None:
    with keep_if_possible("the listing of a data set is"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as part:
            part.write_bytes(msgspec.json.encode(listing))
