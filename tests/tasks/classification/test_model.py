"""The classifier with its head, and the weights of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.classification.config import ClassificationConfig, ClassificationDataConfig
from bsmeta.tasks.classification.model import (
    build_untouched_encoder,
    build_with_head,
    compute_label_weights,
)
from tests.conftest import REPOSITORY
from tests.tasks.classification.helpers import LABELS, bert_tokenizer

COUNTS = {"left": 6, "neutral": 1, "right": 3}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("none", [1.0, 1.0, 1.0]),
        ("balanced", [10 / 18, 10 / 3, 10 / 9]),
        ({"right": 2.5}, [1.0, 1.0, 2.5]),
        ({"left": 1, "neutral": 4, "right": 2}, [1.0, 4.0, 2.0]),
    ],
)
def test_weights_of_labels_are_given_or_balanced_by_their_counts(
    key: Any, expected: list[float]
) -> None:
    assert compute_label_weights(key, LABELS, COUNTS) == expected


def test_a_weight_for_an_unknown_label_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no label rigth \(did you mean right\?\)"):
        compute_label_weights({"rigth": 2}, LABELS, COUNTS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"max_length": 65}, "data_config.max_length=65: expected at most 64, the tokens of a row"),
        ({"fold_by": "words"}, "fold_by=words: chunks may have 512 tokens, but a row of the model"),
    ],
)
def test_chunks_that_the_model_cannot_read_are_refused(
    encoder: Path, data: dict[str, Any], message: str
) -> None:
    data_keys = ClassificationDataConfig(**data)
    config = ClassificationConfig(data_config=data_keys, model_name=str(encoder))
    with pytest.raises(ConfigurationError, match=message):
        build_with_head(config, bert_tokenizer(), LABELS)


def test_chunks_of_words_are_limited_by_tokens_alone(encoder: Path) -> None:
    tokenizer = bert_tokenizer()
    tokenizer.model_max_length = 64
    data = ClassificationDataConfig(fold_by="words", max_length=600)
    config = ClassificationConfig(data_config=data, model_name=str(encoder))
    assert build_with_head(config, tokenizer, LABELS).config.num_labels == len(LABELS)


def test_random_weights_are_those_that_the_run_begins_with(tmp_path: Path) -> None:
    shape = tmp_path / "shape.json"
    shape.write_text((REPOSITORY / "examples/leanings/config.json").read_text())
    config = ClassificationConfig(model_config_file=str(shape), seed=5)
    tokenizer = bert_tokenizer()
    state = torch.random.get_rng_state()
    one = build_untouched_encoder(config, tokenizer, "ab").state_dict()
    assert torch.equal(state, torch.random.get_rng_state())
    two = build_untouched_encoder(config, tokenizer, "ab").state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
