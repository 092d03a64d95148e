"""Converts raw pages into shards of text with metadata, which train.py can stream.

python bsmeta/annotate.py input='crawl/*.warc.gz' output=shards
python bsmeta/annotate.py input='crawl/*.warc.gz' output=shards replace=[title]
python bsmeta/annotate.py input=shards output=more annotators=[language,my.module.Class]
"""

from __future__ import annotations

import runpy

import bsmeta  # noqa: F401  (removes this folder from sys.path, where its modules shadow others)

if __name__ == "__main__":
    # `bsmeta.annotate` is the package of the same name.
    runpy.run_module("bsmeta.annotate", run_name="__main__")
