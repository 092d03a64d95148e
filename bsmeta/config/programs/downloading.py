"""Schema of `download.py`."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.core.keys import key


@dataclass(frozen=True, kw_only=True)
class DownloadConfig:
    """Settings to download, verify and unpack the files of a manifest."""

    manifest: str | None = key(None, is_path=True)
    """JSON or YAML file with `files`: each `path`, `address`, `bytes`, `sha256`, and of an archive
    `unpack` (a folder) and `unpacked_bytes`"""
    folder: str | None = key(None, is_path=True)
    """folder to download into"""
    mirror: str | None = key(None)
    """base of relative addresses, http(s):// or file://; null: the folder of the manifest"""
    keep_archives: bool = key(False)
    """keep archives after unpacking them"""
    retries: int = key(8, at_least=0)
    """consecutive failures after which a download is given up; progress resets the count"""
    timeout: float = key(60.0, above=0)
    """seconds without data after which a request is repeated"""
