"""Answers for a file of pages: does their metadata help a language model?

python bsmeta/quick.py pages.jsonl
python bsmeta/quick.py pages.jsonl check_only=true
python bsmeta/quick.py 'crawl/*.jsonl.gz' columns='{text: body, url: link}' minutes=20
"""

from __future__ import annotations

import runpy

import bsmeta  # noqa: F401  (removes this folder from sys.path, where its modules shadow others)

if __name__ == "__main__":
    # `bsmeta.quick` is the package of the same name.
    runpy.run_module("bsmeta.quick", run_name="__main__")
