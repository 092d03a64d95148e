"""Which files an `hf://` pattern matches, at one commit.

`remote.remote_files` chooses from the `HubRef`s of this module. The listing of a commit never
changes, so it is kept in the cache folder; with HF_HUB_OFFLINE it is read from there.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
import xxhash
from fsspec.utils import glob_translate
from huggingface_hub import constants
from huggingface_hub.errors import HfUriError
from huggingface_hub.utils import parse_hf_uri

from bsmeta.config.data import SCHEME
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import replacing
from bsmeta.data.io.hub import HubRef, get_json
from bsmeta.data.io.remote import FileRef, RemotePattern, RemoteSettings

log = logging.getLogger(__name__)

EVERYWHERE = "**/*.jsonl.gz"
COMMIT = re.compile("[0-9a-f]{40}")


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
