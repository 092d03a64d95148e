"""Likelihoods against the plainest way to compute them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.tasks.causal_lm.generation.candidates import Labels
from bsmeta.tasks.causal_lm.generation.likelihoods import Likelihoods
from tests.tasks.causal_lm.generation.plain import compute_next_scores

CPU = torch.device("cpu")
HOSTS = ("a.org", "a.much.longer.name.org", "b.org")


def likelihoods(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, config: DataConfig, **settings: Any
) -> Likelihoods:
    labels = Labels("url", config.metadata_config)
    records = [labels.make_record(host) for host in HOSTS]
    settings = {"all_pieces": True, "rows": 2, "device": CPU, **settings}
    return Likelihoods(model, tokenizer, config, records, **settings)


@pytest.mark.parametrize("all_pieces", [True, False])
def test_scores_equal_the_plain_computation_over_the_same_tokens(
    all_pieces: bool,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    data_config: DataConfig,
) -> None:
    made = likelihoods(model, tokenizer, data_config, all_pieces=all_pieces)
    assert made.prefixes[0] == "url: https://a.org/ |||"
    texts = ["A set is été. " * 12, "B", "Two tokens"]
    scores, tokens = made.score(texts)
    encoder = DocumentEncoder(tokenizer, data_config)
    renderer, labels = Renderer(data_config.metadata_config), Labels("url", MetadataConfig())
    heads = [
        renderer.render(Document("", None, {"url": [labels.make_record(host)]}), ("url",))
        for host in HOSTS
    ]
    prefixes = [document.prefix_ids for document in encoder.encode(heads)]
    room = 64 - max(map(len, prefixes))
    for row, text in enumerate(texts):
        (encoded,) = encoder.encode([Rendered(text, lead=" ", body=text)])
        ids = encoded.ids[:-1]
        chunks = [ids[start : start + room] for start in range(0, len(ids), room)]
        chunks = chunks if all_pieces else chunks[:1]
        assert tokens[row] == sum(len(chunk) - 1 for chunk in chunks)
        for column, prefix in enumerate(prefixes):
            expected = sum(
                float(compute_next_scores(model, [*prefix, *chunk[:place]], 4104)[chunk[place]])
                for chunk in chunks
                for place in range(1, len(chunk))
            )
            assert scores[row, column] == pytest.approx(expected, abs=1e-3)
