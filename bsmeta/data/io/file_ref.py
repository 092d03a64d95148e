"""Remote files as their store listed them, and the settings for reading them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HUB = "hf"  # the scheme of data sets on the Hub
DEFAULT_PATTERN = "**/*.jsonl.gz"  # the files to read if a data set is given without a path


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Settings for reading remote files.

    Attributes:
        cache_folder: The folder in which listings and file blocks are cached.
        cache_bytes: Size limit of the cached blocks; 0 caches none.
        retries: Number of consecutive failures after which reading is abandoned.
        uses_tensorflow: Whether TensorFlow reads the files, regardless of their scheme.
    """

    cache_folder: str
    cache_bytes: int
    retries: int
    uses_tensorflow: bool = False


@dataclass(frozen=True, slots=True)
class FileRef:
    """A remote file as it was listed; `str` returns its URL.

    Attributes:
        size: Size in bytes.
        etag: Identifies the content: on the Hub, the SHA-256 of a large file and the Git hash
            (SHA-1) of any other; on S3, the ETag; on Cloud Storage, the MD5 or the CRC32C; on
            Azure, the MD5 or the ETag; with TensorFlow, the hash of samples.
        settings: The settings for reading the file.
        scheme: The store: `hf`, `s3`, `gs`, `az`, or a file system of TensorFlow.
        container: The data set (`owner/name`), the bucket, or the container on Azure.
        path: Path in the data set, or name of the object in the bucket.
        version: The commit of the data set; the generation on Cloud Storage; the ETag on Azure; ""
            on S3 and with TensorFlow.
    """

    size: int
    etag: str
    settings: RemoteSettings
    scheme: str
    container: str
    path: str
    version: str = ""

    def __str__(self) -> str:
        commit = f"@{self.version}" if self.scheme == HUB else ""
        return f"{format_root(self.scheme, self.container)}{commit}/{self.path}"

    @property
    def store_path(self) -> str:
        """The absolute path of the file in its store, which begins with the container."""
        return f"/{self.container}/{self.path}"

    @property
    def content_id(self) -> str:
        """Identifies the content in the cache, together with the size.

        On the Hub, this is the hash, so that copies share their blocks. Elsewhere, it includes the
        URL, because an ETag is not always a hash.
        """
        return self.etag if self.scheme == HUB else f"{self} {self.etag} {self.version}"

    def fingerprint(self, name: str) -> dict[str, Any]:
        """Returns the file's entry in the fingerprint of a run, which must match to resume it.

        Args:
            name: Name of the shard.

        Returns:
            A dict of JSON types.
        """
        if self.scheme == HUB:
            return {format_root(self.scheme, self.container): self.version, name: self.size}
        return {name: {"bytes": self.size, "etag": self.etag}}


def format_root(scheme: str, container: str) -> str:
    """Returns the URL of a data set or a bucket."""
    return f"{scheme}://datasets/{container}" if scheme == HUB else f"{scheme}://{container}"
