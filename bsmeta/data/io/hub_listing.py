"""Which files an `hf://` pattern matches, at one commit.

`shards` gets `FileRef`s from here. The listing of a commit never changes, so it is kept in the
cache folder; with HF_HUB_OFFLINE it is read from there.
"""

from __future__ import annotations

import glob
import json
import logging
import re
from dataclasses import dataclass
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

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.cache import replacing
from bsmeta.data.io.hub import FileRef, HubSettings, get_json

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
class HubPattern:
    """Files of a data set.

    Attributes:
        repo: `owner/name` of the data set.
        revision: A branch, a tag or a commit.
        pattern: A file, a folder or a glob (with `**`) in the data set.
    """

    repo: str
    revision: str
    pattern: str

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
                return cls(uri.id, uri.revision or revision or constants.DEFAULT_REVISION, pattern)
            problem = f"found a {uri.type}"
        except (HfUriError, ValueError) as error:
            problem = str(error)
        raise ConfigurationError(
            f"{key}={url}: expected hf://datasets/OWNER/NAME[@REVISION]/PATH, "
            f"where PATH is a file, a folder or a glob ({problem})"
        )

    @property
    def folder(self) -> str:
        """The folder that contains everything that the pattern may match."""
        parts = self.pattern.split("/")
        fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
        return "/".join(parts[:fixed])

    @property
    def is_deep(self) -> bool:
        """Whether it matches files in folders below `folder`."""
        below = self.pattern.removeprefix(self.folder).strip("/")
        return "/" in below or "**" in below

    def matches(self, file: str) -> bool:
        """Whether the glob matches a file; as in a shell, only `**` matches several folders."""
        return re.match(glob_translate(self.pattern), file) is not None


def hub_files(
    pattern: HubPattern, suffixes: tuple[str, ...], settings: HubSettings, key: str
) -> list[FileRef]:
    """The files that a pattern matches: a file, those of a folder, or those of a glob.

    Args:
        suffixes: File name suffixes of the files to take from a folder.
        key: The key that contains the pattern, for the message.

    Raises:
        DataError: If the Hub refuses or cannot be reached, or nothing matches.
    """
    files = list_files(pattern, settings)
    if glob.has_magic(pattern.pattern):
        chosen = [ref for ref in files if pattern.matches(ref.file)]
    else:
        chosen = [ref for ref in files if ref.file == pattern.pattern]
        if not chosen and not pattern.pattern.endswith(suffixes):
            folder = HubPattern(pattern.repo, pattern.revision, f"{pattern.pattern}/*")
            files = list_files(folder, settings)
            chosen = [ref for ref in files if ref.file.endswith(suffixes)]
    if not chosen:
        others = [ref.file for ref in files if ref.file.endswith(suffixes)]
        found = f"; there is, for example, {others[0]}" if others else ""
        raise DataError(
            f"{key}: hf://datasets/{pattern.repo}: nothing matches {pattern.pattern} at revision "
            f"{pattern.revision}{found} (where data_config.dataset_name is set, a local file is "
            "named by its absolute path)"
        )
    return chosen


def list_files(pattern: HubPattern, settings: HubSettings) -> list[FileRef]:
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
        FileRef(pattern.repo, listing.commit, file, size, etag, settings)
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
