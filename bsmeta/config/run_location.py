"""Where a run writes its files: its run folder, or the staging folder of a run in a bucket."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from pathlib import Path

from bsmeta.config.schema import RunConfig

BUCKET_LIBRARIES = {"s3://": "botocore", "gs://": "google.auth"}
"""Scheme of the buckets that can hold a run -> library that it needs; `az://` can only be read."""
RUN_ADDRESS = " or ".join(f"{scheme}BUCKET/PREFIX" for scheme in BUCKET_LIBRARIES)
"""The form of an address, for messages."""
BUCKET_URL = re.compile(rf"({'|'.join(BUCKET_LIBRARIES)})([a-z0-9][a-z0-9._\-]+)/([^/?#=][^?#=]*)")
"""Its groups are the scheme, the bucket and the prefix, which may end with slashes."""
_HASH_LENGTH = 8
_MAX_NAME_BYTES = 200  # of the end of an address in a local name; file systems allow 255


def is_in_bucket(out_dir: str) -> bool:
    """Whether `out_dir` is the address of a bucket."""
    return out_dir.startswith(tuple(BUCKET_LIBRARIES))


def lacks_bucket_library(out_dir: str) -> bool:
    """Whether `out_dir` is the address of a bucket whose library is not installed."""
    for scheme, library in BUCKET_LIBRARIES.items():
        if out_dir.startswith(scheme):
            try:
                return importlib.util.find_spec(library) is None
            except ModuleNotFoundError:  # not even its parent package
                return True
    return False


def is_run_address(url: str) -> bool:
    """Whether `url` is an address at which a bucket can hold a run."""
    return BUCKET_URL.fullmatch(url) is not None and url.isprintable()


def locate_run_folder(config: RunConfig) -> Path:
    """Returns the local folder to which a run writes.

    It is `out_dir`, or for a run in a bucket a folder in `staging_dir`, named after the address.
    """
    if not is_in_bucket(config.out_dir):
        return Path(config.out_dir)

    return Path(config.staging_dir) / name_local_folder(config.out_dir)


def name_local_folder(url: str) -> str:
    """Names the local folder of a run in a bucket: the end of its address, and a hash."""
    address = url.rstrip("/")
    digest = hashlib.sha256(address.encode()).hexdigest()[:_HASH_LENGTH]
    name = Path(address).name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
    return f"{name}-{digest}"
