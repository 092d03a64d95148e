"""Every page of the shipped sample is rendered with all of its metadata."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.rendering import Renderer
from tests.metadata.helpers import config

SHARDS = sorted((Path(__file__).resolve().parents[2] / "examples/webdocs").rglob("*.jsonl.gz"))
KEYS = [
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


@pytest.mark.skipif(not SHARDS, reason="the sample (examples/) is not there")
@pytest.mark.parametrize("shard", SHARDS, ids=lambda path: path.name)
def test_every_page_renders(shard: Path) -> None:
    settings = config(
        KEYS,
        local_metadata_special_token_start={"html": "<HTML>", "entity_paragraph": "<ENTITY_CHAIN>"},
        local_metadata_special_token_end={"html": "</HTML>"},
    )
    decoder, renderer = DocumentDecoder(settings), Renderer(settings)
    types = Counter[str]()
    for line in gzip.decompress(shard.read_bytes()).splitlines():
        rendered = renderer.render(decoder.decode(line), KEYS)
        page = json.loads(line)
        bounds = rendered.spans.reshape(-1).tolist()
        kept = zip([0, *bounds[1::2]], [*bounds[::2], None], strict=True)
        assert "".join(rendered.body[start:end] for start, end in kept) == page["text"]
        assert np.all(rendered.spans[:, 0] < rendered.spans[:, 1])
        types.update(rendered.types)
        present = {
            record["key"]
            for name, records in page.items()
            if name.startswith("metadata_")
            for record in records or ()
        }
        assert set(rendered.types) == present
    assert {"html", "url", "title"} <= set(types)
