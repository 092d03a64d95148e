"""The choice of the store: the run folder itself, or a bucket (`out_dir=s3://…`, `gs://…`)."""

from __future__ import annotations

from bsmeta.config.run_location import is_in_bucket, locate_run_folder
from bsmeta.config.schema import RunConfig
from bsmeta.training.buckets.choice import open_bucket
from bsmeta.training.run_folder.bucket_store import BucketStore
from bsmeta.training.run_folder.store import RunStore


def open_store(config: RunConfig) -> RunStore:
    """Returns the store of a run; a bucket is not accessed yet.

    Raises:
        ConfigurationError: If the configuration of the bucket's store is malformed, or has no
            credentials.
    """
    folder = locate_run_folder(config).resolve()
    if not is_in_bucket(config.out_dir):
        return RunStore(folder)

    limit = config.staging_max_gb
    max_bytes = None if limit is None else int(limit * 1e9)
    return BucketStore(folder, open_bucket(config.out_dir), max_bytes)
