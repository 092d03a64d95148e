"""The inputs of the models: tokens of an encoder, and candidates with their features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import DataError
from bsmeta.tasks.spelling.candidates import FORM_FEATURES
from bsmeta.tasks.spelling.inputs import CandidateInputs, TokenInputs
from bsmeta.tasks.spelling.lexicon import Lexicon
from tests.tasks.spelling.helpers import lexicon


def test_long_texts_are_read_in_windows(tokenizer: PreTrainedTokenizerBase) -> None:
    words = ["unbelievable", "cat"] * 20
    inputs = TokenInputs(tokenizer, 16)
    windows = inputs.divide_windows(words)
    assert [word for window in windows for word in window.words[window.judged]] == words
    assert len(windows) > 1
    for window in windows:
        assert len(tokenizer(window.words, is_split_into_words=True)["input_ids"]) <= 16
    assert inputs.divide_windows([]) == TokenInputs(tokenizer, None).divide_windows([]) == []
    assert inputs.measure_lengths([]).tolist() == []


def test_windows_of_the_small_model_end_with_sentences_or_overlap() -> None:
    inputs = CandidateInputs(lexicon())
    sentence = ["the"] * 39 + ["mat."]
    windows = inputs.divide_windows(sentence * 3)
    assert [len(window.words) for window in windows] == [40, 40, 40]

    words = [f"w{number}" for number in range(150)]
    windows = inputs.divide_windows(words)
    assert [window.words[window.judged][0] for window in windows] == ["w0", "w64", "w128"]
    assert [window.words[0] for window in windows] == ["w0", "w56", "w120"]
    assert [window.words[-1] for window in windows] == ["w71", "w135", "w149"]
    assert [word for window in windows for word in window.words[window.judged]] == words


def test_the_words_are_saved_beside_a_model(tmp_path: Path) -> None:
    words = lexicon()
    words.write(tmp_path)
    again = Lexicon.read(tmp_path)
    texts = [["Teh", "villiage"], ["cat"]]
    assert np.array_equal(
        CandidateInputs(again).build_rows(texts).features,
        CandidateInputs(words).build_rows(texts).features,
    )
    for edited in ("{", "[]", '{"teh": "the"}', '{"teh": [7]}'):
        (tmp_path / "misspellings.json").write_text(edited)
        with pytest.raises(DataError, match="copy the model again"):
            Lexicon.read(tmp_path)


def test_n_grams_in_another_order_are_refused(tmp_path: Path) -> None:
    """They are looked up by a binary search, which would miss them."""
    lexicon().write(tmp_path)
    with np.load(tmp_path / "lexicon.npz") as arrays:
        edited = {name: arrays[name] for name in arrays}
    edited["bigrams_keys"] = edited["bigrams_keys"][::-1]
    np.savez(tmp_path / "lexicon.npz", **edited)
    with pytest.raises(DataError, match="bigrams_keys is not in ascending order"):
        Lexicon.read(tmp_path)


def test_the_words_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    lexicon().write(tmp_path)
    with np.load(tmp_path / "lexicon.npz") as arrays:
        earlier = {name: arrays[name] for name in arrays if not name.startswith("fourgrams")}
    np.savez(tmp_path / "lexicon.npz", **earlier)
    message = (
        "lacks fourgrams_keys, fourgrams_counts, so another version of bsmeta made the model, or "
        "the file is damaged; train or build the model again"
    )
    with pytest.raises(DataError, match=message):
        Lexicon.read(tmp_path)


def test_a_sentence_that_was_counted_scores_higher() -> None:
    rows = CandidateInputs(lexicon()).build_rows(
        [["we", "saw", "Berlin,", "and", "wee", "recieve"]]
    )
    score = FORM_FEATURES + 2 + 17  # of the sentence by n-grams
    we = rows.starts[4] + rows.texts[4].index("we")
    assert rows.features[we, score] > rows.features[rows.starts[4], score]
    assert rows.features[we, score + 2] == 0  # no candidate is better
    assert rows.features[rows.starts[4], score + 1] == 0  # the word itself


def test_what_is_not_spelled_has_no_candidates() -> None:
    rows = CandidateInputs(lexicon()).build_rows([["(12)", "foo@bar.org", "--"]])
    assert rows.starts.tolist() == [0, 2, 4, 6]


def test_a_word_fits_better_where_its_neighbors_are_known() -> None:
    rows = CandidateInputs(lexicon()).build_rows(
        [["the", "caat", "sat"], ["house", "caat", "letters"]]
    )
    score = FORM_FEATURES + 2 + 5  # of the fit on both sides
    (first, second) = (
        rows.features[rows.starts[word] + rows.texts[word].index("cat"), score] for word in (1, 4)
    )
    assert first > second


def test_the_rows_of_a_text_do_not_depend_on_the_others() -> None:
    builder = CandidateInputs(lexicon())
    texts = [["on", "the"], ["We", "saw", "berlin."], ["cat", "sat"]]
    together = builder.build_rows(texts)
    alone = [builder.build_rows([text]) for text in texts]
    assert np.array_equal(together.features, np.concatenate([own.features for own in alone]))
    assert together.texts == [word for own in alone for word in own.texts]


def test_words_are_judged_beside_assumed_neighbors() -> None:
    builder = CandidateInputs(lexicon())
    wrong, right = [["teh", "caat", "ast"]], [["the", "cat", "sat"]]
    assumed = builder.build_rows(wrong, right)
    middle = slice(assumed.starts[1], assumed.starts[2])
    beside = builder.build_rows([["the", "caat", "sat"]])
    own = slice(beside.starts[1], beside.starts[2])
    assert np.array_equal(assumed.features[middle], beside.features[own])
    assert not np.array_equal(assumed.features[middle], builder.build_rows(wrong).features[middle])
    assert assumed.texts == builder.build_rows(wrong).texts
