"""Where a run writes its files: its run folder, or the staging folder of a run in a bucket."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from bsmeta.config.schema import RunConfig

BUCKET_SCHEME = "s3://"
"""The scheme of the buckets that can hold a run; `gs://` and `az://` can only be read."""
BUCKET_URL = re.compile(r"s3://([a-z0-9][a-z0-9.\-]+)/([^/?#=][^?#=]*)")
"""Its second group is the prefix, which may end with slashes."""
_HASH_LENGTH = 8
_MAX_NAME_BYTES = 200  # of the end of an address in a local name; file systems allow 255


def is_in_bucket(out_dir: str) -> bool:
    """Whether `out_dir` is the address of a bucket."""
    return out_dir.startswith(BUCKET_SCHEME)


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
