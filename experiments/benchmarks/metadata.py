"""Measures the time per page of each metadata step, and of tokenizing the same pages.

    python experiments/benchmarks/metadata.py --data 'examples/**/*.jsonl.gz' --tokenizer gpt2

Prints one JSON line: microseconds of CPU time per page to decode a line, choose its types, render
it, mask its tokens, and tokenize the rendered text (`tokenizers`, one thread), and `ratio`, the
time of rendering and masking relative to tokenizing. Every page is rendered with all of its types,
and rendering includes the lazy decoding of the html and entity columns.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import DataError
from bsmeta.core.model_files import read_tokenizer
from bsmeta.core.process import run_and_report
from bsmeta.data.text.tokens import mark_spans
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.rendering import Renderer
from bsmeta.metadata.sampling import TypeSampler

METADATA_LIST = [
    "html",
    "timestamp",
    "website_description",
    "title",
    "url",
    "datasource",
    "length",
    "entity",
    "entity_paragraph",
]

Result = TypeVar("Result")


class Stopwatch:
    """CPU seconds by step; for repeated actions, the fastest time counts."""

    def __init__(self) -> None:
        self.total: dict[str, float] = defaultdict(float)
        self._fastest: dict[str, float] = {}

    def time(self, step: str, action: Callable[..., Result], *arguments: Any) -> Result:
        """Run an action once, and keep its time if it is the fastest so far."""
        start = time.process_time()
        result = action(*arguments)
        spent = time.process_time() - start
        self._fastest[step] = min(spent, self._fastest.get(step, spent))
        return result

    def next(self) -> None:
        """Add the fastest times to the totals, and reset them."""
        for step, spent in self._fastest.items():
            self.total[step] += spent
        self._fastest = {}


def pages(pattern: str, limit: int) -> list[bytes]:
    """The first lines of the shards that match a glob."""
    lines: list[bytes] = []
    for path in sorted(glob.glob(pattern, recursive=True)):
        lines += gzip.decompress(Path(path).read_bytes()).splitlines()
        if len(lines) >= limit:
            break
    if not lines:
        raise DataError(f"--data {pattern!r} matches no shard with a page; give a glob of them")
    return lines[:limit]


def measure(
    lines: list[bytes], tokenizer: Any, config: MetadataConfig, repeats: int
) -> dict[str, float]:
    """Microseconds per page by step, and mean numbers of tokens and insertions per page."""
    decoder, renderer, rng = DocumentDecoder(config), Renderer(config), random.Random(0)
    sampler = TypeSampler(config)
    watch, tokens, tags = Stopwatch(), 0, 0
    for line in lines:
        for _ in range(repeats):
            document = watch.time("decode", decoder.decode, line)
            types = watch.time("sample", sampler.draw, document, rng)
            rendered = watch.time("render", renderer.render, document, types)
            strings = [rendered.prefix, rendered.lead + rendered.body]
            _, body = watch.time("tokenize", tokenizer.encode_batch, strings)
        offsets = np.array(body.offsets, np.int32).reshape(-1, 2) - len(rendered.lead)
        starts, ends = np.ascontiguousarray(np.maximum(offsets, 0).T)
        for _ in range(repeats):
            kinds, run = np.zeros(len(starts), np.uint8), np.full(len(starts), -1, np.int32)
            spans = (rendered.spans, rendered.span_token_types)
            watch.time("mask", mark_spans, kinds, run, starts, ends, *spans)
        watch.next()
        tokens += len(starts)
        tags += len(rendered.spans)
    result = {f"{step}_us": total / len(lines) * 1e6 for step, total in watch.total.items()}
    result["ratio"] = (result["render_us"] + result["mask_us"]) / result["tokenize_us"]
    result |= {"tokens": tokens / len(lines), "inserted": tags / len(lines)}
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="glob of .jsonl.gz shards")
    parser.add_argument("--tokenizer", required=True, help="a folder or a name on the Hub")
    parser.add_argument("--pages", type=int, default=500, help="pages to measure")
    parser.add_argument("--repeats", type=int, default=3, help="times that each step is done")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = read_tokenizer(arguments.tokenizer).backend_tokenizer
    config = MetadataConfig(
        metadata_list=METADATA_LIST, metadata_probability=1.0, random_sample_metadata=False
    )
    lines = pages(arguments.data, arguments.pages)
    result = measure(lines, tokenizer, config, arguments.repeats)
    print(json.dumps({"pages": len(lines)} | {key: round(at, 3) for key, at in result.items()}))


if __name__ == "__main__":
    sys.exit(run_and_report(main))
