"""Names of files on the Hugging Face Hub: what a user writes, and what a listing makes of it.

`hub` lists a `HubPattern` as `HubPath`s, which `remote` opens; in between they are handled as any
other path of a shard is.
"""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from bsmeta.config.data import SCHEME
from bsmeta.config.errors import ConfigurationError

EVERYWHERE = "**/*.jsonl.gz"
MAIN = "main"

URL = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?"
    r"(?:/(?P<pattern>.*))?"
)


@dataclass(frozen=True, slots=True)
class HubSettings:
    """How files are read from the Hub.

    Attributes:
        folder: Where listings and blocks of files are kept.
        cache_bytes: Most bytes of blocks to keep.
        retries: Failures in a row after which reading is given up.
    """

    folder: str
    cache_bytes: int
    retries: int


class HubPath(str):
    """A file on the Hub as it was when it was listed.

    It is a string, `hf://datasets/OWNER/NAME@COMMIT/FILE`, so that all that passes paths on takes
    it, too; it can be pickled.

    Attributes:
        repo: `owner/name` of the data set.
        commit: Hash of the commit.
        file: Path in the data set.
        size: Bytes.
        etag: Hash of the content (SHA-1 of git, or SHA-256 of large files).
        settings: How it is read.
    """

    __slots__ = ("commit", "etag", "file", "repo", "settings", "size")

    def __new__(
        cls, repo: str, commit: str, file: str, *, size: int, etag: str, settings: HubSettings
    ) -> HubPath:
        path = super().__new__(cls, f"{SCHEME}datasets/{repo}@{commit}/{file}")
        path.repo, path.commit, path.file = repo, commit, file
        path.size, path.etag, path.settings = size, etag, settings
        return path

    repo: str
    commit: str
    file: str
    size: int
    etag: str
    settings: HubSettings

    def __reduce__(self) -> tuple[Any, ...]:
        values = (self.repo, self.commit, self.file, self.size, self.etag, self.settings)
        return _restored, values

    @property
    def dataset(self) -> str:
        """The data set without its commit, as a URL."""
        return f"{SCHEME}datasets/{self.repo}"


def _restored(
    repo: str, commit: str, file: str, size: int, etag: str, settings: HubSettings
) -> HubPath:
    return HubPath(repo, commit, file, size=size, etag=etag, settings=settings)


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
        """Reads `hf://datasets/OWNER/NAME[@REVISION][/PATTERN]`.

        Args:
            url: What the user wrote.
            revision: The revision where the URL names none; None is the main branch.
            key: The key that it stands in, for the message.

        Raises:
            ConfigurationError: If it is of another form.
        """
        match = URL.fullmatch(url)
        if match is None:
            raise ConfigurationError(
                f"{key}={url}: expected hf://datasets/OWNER/NAME[@REVISION]/PATH, "
                "where PATH is a file, a folder or a glob"
            )
        named = (match["revision"] or revision or MAIN).replace("%2F", "/")
        return cls(match["repo"], named, (match["pattern"] or EVERYWHERE).strip("/"))

    @property
    def is_glob(self) -> bool:
        """Whether the pattern may stand for several files."""
        return glob.has_magic(self.pattern)

    @property
    def folder(self) -> str:
        """The folder below which everything lies that the pattern may mean."""
        parts = self.pattern.split("/")
        fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
        return "/".join(parts[:fixed])

    @property
    def is_deep(self) -> bool:
        """Whether it reaches into folders below `folder`."""
        below = self.pattern.removeprefix(self.folder).strip("/")
        return "/" in below or "**" in below

    def matches(self, file: str) -> bool:
        """Whether a glob means a file; as in a shell, only `**` stands for several folders."""
        return _match(self.pattern.split("/"), file.split("/"))


def _match(patterns: list[str], names: list[str]) -> bool:
    if not patterns or not names:
        return not patterns and not names
    if patterns[0] == "**":
        rest = patterns[1:]
        return not rest or any(_match(rest, names[skipped:]) for skipped in range(len(names)))
    return fnmatchcase(names[0], patterns[0]) and _match(patterns[1:], names[1:])
