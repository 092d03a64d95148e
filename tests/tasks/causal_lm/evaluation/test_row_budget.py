"""Evaluation of models of `row_budget=text`: both readings have the same tokens of text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig, row_length
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.rendering import Renderer
from bsmeta.tasks.causal_lm.evaluation.windows import WINDOWS
from tests.tasks.causal_lm.evaluation.conftest import documents


@pytest.mark.parametrize("windows", ["first_piece", "all_pieces"])
def test_windows_have_the_same_text_with_and_without_metadata(
    tokenizer: PreTrainedTokenizerBase, data_config: DataConfig, windows: str
) -> None:
    import msgspec

    config = replace(data_config, row_budget="text")
    metadata = config.metadata_config
    encoder, renderer = DocumentEncoder(tokenizer, config), Renderer(metadata)
    decoder = DocumentDecoder(metadata)
    with_metadata = 0
    for line in documents():
        document = decoder.decode(msgspec.json.encode(line))
        readings = []
        for types in (metadata.metadata_list, ()):
            (encoded,) = encoder.encode([renderer.render(document, types)])
            made = WINDOWS[windows](encoded, config)
            assert all(len(window.ids) <= row_length(config) for window in made)
            readings.append(
                [(window.ids[window.scored], window.starts[window.scored]) for window in made]
            )
            with_metadata += sum(len(window.ids) - window.scored.sum() > 1 for window in made)
        for one, other in zip(*readings, strict=True):
            assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))
    assert with_metadata
