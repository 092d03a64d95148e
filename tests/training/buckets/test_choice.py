"""The choice of a store by the scheme of an address."""

from __future__ import annotations

from bsmeta.config.run_location import BUCKET_LIBRARIES
from bsmeta.training.buckets.choice import BUCKETS, open_bucket
from bsmeta.training.buckets.gcs import GCSBucket
from bsmeta.training.buckets.s3 import S3Bucket
from tests.data.cloud_storage_server import Storage
from tests.data.s3_server import S3Server


def test_every_address_of_a_run_has_a_store() -> None:
    assert BUCKETS.keys() == BUCKET_LIBRARIES.keys()


def test_the_scheme_chooses_the_store(s3: S3Server, gcs: Storage) -> None:
    assert type(open_bucket("s3://corpus/runs/first//")) is S3Bucket
    bucket = open_bucket("gs://corpus/runs/first//")
    assert (type(bucket), bucket.url) == (GCSBucket, "gs://corpus/runs/first")
