"""The stores whose buckets can hold a run, chosen by the scheme of the address."""

from __future__ import annotations

from bsmeta.training.buckets.bucket import PART_BYTES, RunBucket
from bsmeta.training.buckets.gcs import GCSBucket
from bsmeta.training.buckets.s3 import S3Bucket

BUCKETS: dict[str, type[RunBucket]] = {"s3://": S3Bucket, "gs://": GCSBucket}
"""The client of each scheme in `bsmeta.config.run_location.BUCKET_LIBRARIES`."""


def open_bucket(url: str, *, part_bytes: int = PART_BYTES) -> RunBucket:
    """Opens the bucket of a run; sends no request to the store.

    Args:
        part_bytes: Size of the parts of an upload.

    Raises:
        ConfigurationError: If the store's configuration is malformed, or there are no credentials.
    """
    scheme = url[: url.index("://") + len("://")]
    return BUCKETS[scheme](url, part_bytes=part_bytes)
