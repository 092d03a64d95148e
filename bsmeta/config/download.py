"""Schema of `download.py`: which files, from where, to where."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.config.keys import key


@dataclass(kw_only=True)
class DownloadConfig:
    """Downloads the files of a manifest, verifies and unpacks them."""

    manifest: str | None = key(
        None,
        "JSON or YAML file with `files`: each `path`, `address`, `bytes`, `sha256`, and of an "
        "archive `unpack` (a folder) and `unpacked_bytes`",
        is_path=True,
    )
    folder: str | None = key(None, "where the files go", is_path=True)
    mirror: str | None = key(
        None,
        "what relative addresses begin with: http(s):// or file://; null: the folder of the "
        "manifest",
    )
    keep_archives: bool = key(False, "keep archives that were unpacked")
    retries: int = key(
        8, "failures in a row after which a download is given up; progress starts over", at_least=0
    )
    timeout: float = key(60.0, "seconds without data after which a request is repeated", above=0)
