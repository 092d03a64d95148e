"""Turns raw pages into shards of text with metadata, which train.py streams as they are.

python bsmeta/annotate.py input='crawl/*.warc.gz' output=shards
python bsmeta/annotate.py input='crawl/*.warc.gz' output=shards replace=[title]
python bsmeta/annotate.py input=shards output=more annotators=[language,my.module.Class]
"""

from __future__ import annotations

# This file is only a script: `bsmeta.annotate` is the package of the same name.
from bsmeta.annotate.command import main
from bsmeta.config.annotate import AnnotateConfig
from bsmeta.config.compose import run_entry_point

if __name__ == "__main__":
    run_entry_point(main, AnnotateConfig, "annotate")
