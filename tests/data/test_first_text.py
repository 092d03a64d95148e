"""The first text after a prefix is a target, unless it is to be treated alike without a prefix."""

from __future__ import annotations

import json

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.chunks import cut
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.rendering import Renderer
from tests.data.helpers import small_tokenizer

LINE = {
    "text": "8 quick dogs",
    "metadata_title": [{"key": "title", "type": "global", "value": "Dogs"}],
    "metadata_html": [
        {
            "key": "html",
            "type": "local",
            "value": "b",
            "char_start_idx": 0,
            "char_end_idx": 1,
            "html_attrs": {"attrs": [], "values": []},
        }
    ],
}


@pytest.mark.parametrize("types", [(), ("title",), ("html",), ("title", "html")])
@pytest.mark.parametrize("text", ["8 quick dogs", "\n8 dogs", "quick dogs", "😀 dogs"])
@pytest.mark.parametrize("is_target", [True, False])
def test_the_first_character_of_the_text(
    types: tuple[str, ...], text: str, is_target: bool
) -> None:
    metadata = MetadataConfig(
        metadata_list=["title", "html"],
        treat_local_metadata_as_regular_text=False,
        loss_on_first_text=is_target,
    )
    config = DataConfig(metadata_config=metadata)
    document = DocumentDecoder(metadata).decode(json.dumps({**LINE, "text": text}).encode())
    rendered = Renderer(metadata).render(document, types)
    (encoded,) = DocumentEncoder(small_tokenizer(), config).encode([rendered])
    (chunk,) = cut(encoded, config)
    spans = list(zip(chunk.text_starts, chunk.text_ends, chunk.loss_mask, strict=True))
    first = [target for start, end, target in spans if start == 0 and end > 0]
    assert bool(first[0]) == (is_target and bool(types))
    follow = [target for start, end, target in spans if start > 0 and end > start]
    assert all(follow)
    # Nothing else of the body is a target: not what joins it to the prefix, and no tag.
    joins = [target for start, end, target in spans if end == start and start == 0]
    assert not any(joins)
    assert chunk.loss_mask[-1]  # EOS
