"""Pooling, and the layers of an encoder that are trained."""

from __future__ import annotations

import pytest
import torch
from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.classification.classifier import freeze_below, measure_depths, pool_vectors


def test_pooling_leaves_padding_out() -> None:
    hidden = torch.tensor(
        [[[1.0, 8.0], [3.0, 2.0], [9.0, 9.0]], [[9.0, 9.0], [5.0, 1.0], [7.0, 0.0]]]
    )
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])  # padded on the right, and on the left
    expected = {
        "mean": [[2.0, 5.0], [6.0, 0.5]],
        "max": [[3.0, 8.0], [7.0, 1.0]],
        "cls": [[1.0, 8.0], [5.0, 1.0]],
        "last": [[3.0, 2.0], [7.0, 0.0]],
    }
    for pooling, vectors in expected.items():
        assert pool_vectors(hidden, mask, pooling).tolist() == vectors


@pytest.fixture(scope="module")
def deep() -> BertModel:
    shape = BertConfig(
        vocab_size=8, hidden_size=4, num_hidden_layers=3, num_attention_heads=1,
        intermediate_size=4, max_position_embeddings=8,
    )  # fmt: skip
    return BertModel(shape, add_pooling_layer=False)


@pytest.mark.parametrize(
    ("train_layers", "trained_depths"),
    [(None, {0, 1, 2, 3}), (0, set()), (2, {0, 1}), (3, {0, 1, 2})],
)
def test_only_the_last_layers_are_trained(
    deep: BertModel, train_layers: int | None, trained_depths: set[int]
) -> None:
    deep.requires_grad_(True)
    freeze_below(deep, train_layers)
    depths = measure_depths(deep)
    assert depths["embeddings.word_embeddings.weight"] == 3
    assert depths["encoder.layer.0.output.dense.weight"] == 2
    assert depths["encoder.layer.2.output.dense.weight"] == 0
    found = {depths[name] for name, value in deep.named_parameters() if value.requires_grad}
    assert found == trained_depths


def test_more_layers_than_the_encoder_has_are_refused(deep: BertModel) -> None:
    with pytest.raises(ConfigurationError, match="train_layers=4: expected at most 3, the layers"):
        freeze_below(deep, 4)
    shape = AlbertConfig(
        vocab_size=8, embedding_size=4, hidden_size=4, num_hidden_layers=3, num_attention_heads=1,
        intermediate_size=4, max_position_embeddings=8,
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="expected at most 0, the layers of the encoder"):
        freeze_below(AlbertModel(shape), 1)  # its layers share their weights
