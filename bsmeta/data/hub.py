"""Which files a data set on the Hugging Face Hub has, at one commit.

`shards` asks here for what `hf://` stands for. A listing is kept in the cache folder: of a commit
it never changes, and with HF_HUB_OFFLINE it is all there is.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import xxhash
from huggingface_hub import RepoFile, constants

from bsmeta.config.checks.data import check_data
from bsmeta.config.data import DataConfig
from bsmeta.config.errors import DataError
from bsmeta.data.cache import Cache
from bsmeta.data.hub_paths import HubPath, HubPattern, HubSettings
from bsmeta.data.hub_requests import get_json

log = logging.getLogger(__name__)

COMMIT = re.compile("[0-9a-f]{40}")


def hub_settings(config: DataConfig) -> HubSettings:
    """How files are read from the Hub in a configuration.

    Raises:
        ConfigurationError: If a value is impossible.
    """
    check_data(config)
    folder = Cache(config.cache_dir).folder / "hub"
    return HubSettings(str(folder.absolute()), int(config.hub_cache_gb * 1e9), config.hub_retries)


def hub_files(
    pattern: HubPattern, suffixes: tuple[str, ...], settings: HubSettings
) -> list[HubPath]:
    """The files that a pattern stands for: a file, those of a folder, or those of a glob.

    Args:
        pattern: The pattern.
        suffixes: Ends of names of the files that are taken from a folder.
        settings: How the files will be read.

    Raises:
        DataError: If the Hub refuses or cannot be reached, or nothing matches.
    """
    listed = listing(pattern, settings)
    if pattern.is_glob:
        chosen = [path for path in listed if pattern.matches(path.file)]
    else:
        chosen = [path for path in listed if path.file == pattern.pattern]
        if not chosen:
            folder = HubPattern(pattern.repo, pattern.revision, f"{pattern.pattern}/*")
            listed = listing(folder, settings) if not pattern.pattern.endswith(suffixes) else []
            chosen = [path for path in listed if path.endswith(suffixes)]
    if not chosen:
        raise DataError(
            f"hf://datasets/{pattern.repo}: nothing matches {pattern.pattern} at revision "
            f"{pattern.revision} (where data_config.dataset_name is set, a local file is named by "
            "its absolute path)"
        )
    return chosen


def listing(pattern: HubPattern, settings: HubSettings) -> list[HubPath]:
    """The files in the folder of a pattern (below it, too, for a deep one).

    Raises:
        DataError: If the Hub refuses or cannot be reached.
    """
    kept = Path(settings.folder) / "listings"
    of_revision = kept / listing_name(pattern, pattern.revision)
    if constants.is_offline_mode():
        found = load(of_revision)
        if found is None:
            raise DataError(
                f"HF_HUB_OFFLINE is set, and {kept} has no listing of {pattern.pattern} in "
                f"hf://datasets/{pattern.repo} at revision {pattern.revision}; start once without "
                "HF_HUB_OFFLINE, or use local files"
            )
    else:
        commit = commit_of(pattern.repo, pattern.revision, settings.retries, constants.ENDPOINT)
        of_commit = kept / listing_name(pattern, commit)
        found = load(of_commit)
        if found is None:
            found = {"commit": commit, "files": tree(pattern, commit, settings.retries)}
            save(of_commit, found)
        if of_revision != of_commit:
            save(of_revision, found)
    return [
        HubPath(pattern.repo, found["commit"], file, size=size, etag=etag, settings=settings)
        for file, size, etag in found["files"]
    ]


@cache
def commit_of(repo: str, revision: str, retries: int, endpoint: str) -> str:
    """The commit that a revision is of; asked once, so that a run reads only one.

    Raises:
        DataError: If the Hub refuses or cannot be reached.
    """
    if COMMIT.fullmatch(revision):
        return revision
    url = f"{endpoint}/api/datasets/{repo}/revision/{quote(revision, safe='')}"
    what = f"hf://datasets/{repo}@{revision}"
    (facts,) = get_json(url, what, retries)
    commit = facts["sha"]
    log.info("%s is commit %s", what, commit)
    return str(commit)


def tree(pattern: HubPattern, commit: str, retries: int) -> list[tuple[str, int, str]]:
    """Path, size and hash of each file in the folder of a pattern.

    Raises:
        DataError: If the Hub refuses or cannot be reached.
    """
    folder = f"/{quote(pattern.folder, safe='')}" if pattern.folder else ""
    url = f"{constants.ENDPOINT}/api/datasets/{pattern.repo}/tree/{commit}{folder}"
    url += f"?recursive={pattern.is_deep}&expand=False"
    what = f"hf://datasets/{pattern.repo}@{commit}/{pattern.folder}".rstrip("/")
    files = [
        RepoFile(**entry)
        for page in get_json(url, what, retries)
        for entry in page
        if entry["type"] == "file"
    ]
    return [(file.path, file.size, file.lfs.sha256 if file.lfs else file.blob_id) for file in files]


def listing_name(pattern: HubPattern, revision: str) -> str:
    """The file that a listing is kept in."""
    facts = json.dumps([pattern.repo, revision, pattern.folder, pattern.is_deep])
    return f"{pattern.repo.replace('/', '--')}-{xxhash.xxh3_64_hexdigest(facts.encode())}.json"


def load(path: Path) -> dict[str, Any] | None:
    """A listing that was kept; None if there is none."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def save(path: Path, found: dict[str, Any]) -> None:
    """Keeps a listing, all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(found, file)
        os.replace(file.name, path)
    except OSError as error:
        log.warning("the listing of a data set is not kept: %s", error)
