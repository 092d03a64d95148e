"""The model that scores words between their neighbors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bsmeta.core.errors import DataError
from bsmeta.tasks.spelling.context import (
    CONTEXT_FILE,
    OTHER,
    ContextModel,
    find_neighbors,
    train_context_model,
)
from bsmeta.tasks.spelling.lexicon import BOUNDARY

TEXTS = ["the cat sat on the mat. a dog ran to the house."] * 200


@pytest.fixture(scope="module")
def model() -> ContextModel:
    return train_context_model(TEXTS, 16)


def score_words(model: ContextModel, text: str, position: int, words: list[str]) -> list[float]:
    """Scores of words at a position of a text, whose own word there is not read."""
    sequence = model.find_numbers([BOUNDARY, *text.split(), BOUNDARY])
    predictions = model.predict(sequence, np.array([position + 1]))
    rows = np.zeros(len(words), np.int64)
    return model.score(predictions, rows, model.find_numbers(words)).tolist()


def test_the_likeliest_word_between_neighbors(model: ContextModel) -> None:
    words = ["cat", "dog", "mat", "house", "the", "sat", "ran"]
    for text, position, best in (
        ("the xxx sat on", 1, "cat"),
        ("a xxx ran to", 1, "dog"),
        ("sat on xxx mat", 2, "the"),
        ("to the xxx", 2, "house"),
    ):
        scores = score_words(model, text, position, words)
        assert words[int(np.argmax(scores))] == best


def test_words_without_an_embedding_share_a_number(model: ContextModel) -> None:
    assert model.find_numbers(["zebra", "quark"]).tolist() == [OTHER, OTHER]
    assert OTHER not in model.find_numbers(["the", BOUNDARY, "0"])


def test_a_model_without_texts_knows_no_word() -> None:
    model = train_context_model([], 8)
    assert model.find_numbers(["the"]).tolist() == [OTHER]
    assert np.isfinite(score_words(model, "the cat", 0, ["the", "dog"])).all()


def test_neighbors_end_with_the_sentence() -> None:
    sequence = np.array([0, 5, 6, 7, 0, 8, 9, 0])
    assert find_neighbors(sequence, np.array([2, 5]), 0).tolist() == [
        [5, 0, 0, 0, 7, 0, 0, 0],
        [0, 0, 0, 0, 9, 0, 0, 0],
    ]


def test_training_is_repeatable_and_the_model_is_saved(model: ContextModel, tmp_path: Path) -> None:
    model.write(tmp_path)
    words = ["cat", "dog", "zebra"]
    expected = score_words(model, "the xxx sat on", 1, words)
    for other in (ContextModel.read(tmp_path), train_context_model(TEXTS, 16)):
        assert score_words(other, "the xxx sat on", 1, words) == expected
    (tmp_path / CONTEXT_FILE).write_bytes(b"PK")
    with pytest.raises(DataError, match="copy the model again"):
        ContextModel.read(tmp_path)
