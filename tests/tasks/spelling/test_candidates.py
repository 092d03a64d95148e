"""The known words, the candidates of a word, and how they fit in their context."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import OSA

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.spelling import candidates as candidates_module
from bsmeta.tasks.spelling import lexicon as lexicon_module
from bsmeta.tasks.spelling.candidates import FORM_FEATURES, Candidates
from bsmeta.tasks.spelling.inputs import CandidateInputs
from bsmeta.tasks.spelling.lexicon import (
    BOUNDARY,
    Lexicon,
    NearWords,
    build_lexicon,
    hash_words,
    join_hashes,
    parse,
    read_word_list,
)
from tests.tasks.spelling.helpers import lexicon

LETTERS = st.text("abc", min_size=1, max_size=7)


@settings(max_examples=200, deadline=None)
@given(st.lists(LETTERS, min_size=1, max_size=30, unique=True), LETTERS)
def test_all_words_within_two_edits_are_found(words: list[str], word: str) -> None:
    (found,) = NearWords(words, twice=len(words)).find([word])
    near = {n for n, other in enumerate(words) if OSA.distance(other, word) <= 2}
    assert near <= {*found.tolist()}


def test_rare_words_are_found_within_one_edit() -> None:
    index = NearWords(["the", "then", "cats"], twice=2)
    one_edit, two_edits = (numbers.tolist() for numbers in index.find(["cat", "at"]))
    assert 2 in one_edit
    assert 2 not in two_edits


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("“Hello,”", ("“", "Hello", ",”")),
        ("dog's", ("", "dog", "'s")),
        ("I’m.", ("", "I’m", ".")),
        ("(3.5)", ("(3.5)", "", "")),
        ("--", ("--", "", "")),
    ],
)
def test_the_spelled_part_of_a_word(word: str, parts: tuple[str, str, str]) -> None:
    assert parse(word)[:3] == parts


def counts(words: Lexicon, word: str) -> list[float]:
    return words.counts[words.number(word)].tolist()


def test_words_and_sequences_are_counted() -> None:
    words = lexicon()
    assert counts(words, "the") == [10, 0]
    assert counts(words, "berlin") == [4, 4]
    assert counts(words, "we") == [6, 0]  # a capital only at the start of a sentence
    the, cat, mat, end = hash_words(["the", "cat", "mat", BOUNDARY])[:, None]
    assert words.pairs.count(join_hashes(the, cat)).tolist() == [4]
    assert words.triples.count(join_hashes(the, mat, end)).tolist() == [2]
    assert words.pairs.count(join_hashes(cat, the)).tolist() == [0]


def test_of_many_words_the_most_frequent_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon_module, "MOST_WORDS", 2)
    assert build_lexicon(["a a a b b", "c c c c d"], [], {}).words == ["c", "a"]


def test_the_words_are_saved_beside_a_model(tmp_path: Path) -> None:
    words = lexicon()
    words.write(tmp_path)
    again = Lexicon.read(tmp_path)
    texts = [["Teh", "villiage"], ["cat"]]
    assert np.array_equal(
        CandidateInputs(again).rows(texts).features, CandidateInputs(words).rows(texts).features
    )
    (tmp_path / "misspellings.json").write_text("{")
    with pytest.raises(DataError, match="copy the model again"):
        Lexicon.read(tmp_path)


def test_a_list_has_words_with_counts(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("The 20\nthe 1\ncats 3\n")
    assert read_word_list(str(file)) == {"the": 21, "cats": 3}
    words = build_lexicon(["the cat"], [str(file)], {})
    assert (counts(words, "the"), counts(words, "cats")) == ([1, 0, 21], [0, 0, 3])
    file.write_text("the 20\ncat\n")
    with pytest.raises(ConfigurationError, match=r"line 2 is 'cat'; expected a word and its count"):
        read_word_list(str(file))


def texts_of(word: str, *, starts: bool = False, hidden: float = 0.0) -> list[str]:
    candidates = Candidates(lexicon(), hidden)
    part = candidates.spelled_part(word)
    (form,) = candidates.find([(part.core, starts)])
    assert form.features.shape == (len(form.texts), FORM_FEATURES + 2)
    return [part.before + text + part.after for text in form.texts[2:]]


def test_near_words_are_candidates_in_the_case_that_they_may_have() -> None:
    assert "the" in texts_of("teh")
    assert {"The", "the"} <= {*texts_of("Teh")}
    assert "The" not in texts_of("teh")
    assert "The" in texts_of("teh", starts=True)
    assert "Berlin" in texts_of("bwrlin")  # always written with a capital
    assert "Berlin" in texts_of("berlin")
    assert "(Berlin)," in texts_of("(berlin),")
    assert "house-cat" in texts_of("house-caat")


def case_features(word: str, candidate: str) -> list[float]:
    (form,) = Candidates(lexicon()).find([(word, True)])
    return form.features[form.texts.index(candidate), 36:39].tolist()


def test_capitals_that_the_edits_do_not_explain_count_against_a_candidate() -> None:
    # More edits if the case inside counts; if that of the first letter counts, too: in a word
    # with a capital, in one without.
    assert case_features("tXhe", "the") == [0, 0, 0]  # the capital was inserted
    assert case_features("tHe", "the") == [1, 0, 0]
    assert case_features("bErlzn", "Berlin") == [1, 0, 1]
    assert case_features("Mhe", "the") == [0, 0, 0]  # the capital replaced a letter
    assert case_features("Brelin", "berlin") == [0, 1, 0]
    assert case_features("Brelin", "Berlin") == [0, 0, 0]


def test_words_that_explain_the_capitals_are_chosen_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates_module, "MOST_NEAR_OF_SHORT", 1)
    words = build_lexicon(["the the them them them"], [], {})
    for word, expected in (("thm", "them"), ("thM", "the")):
        (form,) = Candidates(words).find([(word, False)])
        assert {text.lower() for text in form.texts[2:]} - {"thm"} == {expected}


def test_known_misspellings_are_candidates_unless_they_are_hidden() -> None:
    words = build_lexicon(["the village because"] * 2, [], {"because": ("cuz",)})
    for hidden, expected in ((0.0, True), (1.0, False)):
        (form,) = Candidates(words, hidden).find([("cuz", False)])
        assert ("because" in form.texts) is expected


def test_words_that_are_written_as_one_are_separated() -> None:
    assert "the cat" in texts_of("thecat")
    assert "The cat" in texts_of("Thecat")


def test_what_is_not_spelled_has_no_candidates() -> None:
    rows = CandidateInputs(lexicon()).rows([["(12)", "foo@bar.org", "--"]])
    assert rows.starts.tolist() == [0, 2, 4, 6]


def test_a_word_fits_better_where_its_neighbors_are_known() -> None:
    rows = CandidateInputs(lexicon()).rows([["the", "caat", "sat"], ["house", "caat", "letters"]])
    score = FORM_FEATURES + 2 + 5  # of the fit on both sides
    (first, second) = (
        rows.features[rows.starts[word] + rows.texts[word].index("cat"), score] for word in (1, 4)
    )
    assert first > second


def test_the_rows_of_a_text_do_not_depend_on_the_others() -> None:
    builder = CandidateInputs(lexicon())
    texts = [["on", "the"], ["We", "saw", "berlin."], ["cat", "sat"]]
    together = builder.rows(texts)
    alone = [builder.rows([text]) for text in texts]
    assert np.array_equal(together.features, np.concatenate([own.features for own in alone]))
    assert together.texts == [word for own in alone for word in own.texts]


def test_words_are_judged_beside_assumed_neighbors() -> None:
    builder = CandidateInputs(lexicon())
    wrong, right = [["teh", "caat", "ast"]], [["the", "cat", "sat"]]
    assumed = builder.rows(wrong, right)
    middle = slice(assumed.starts[1], assumed.starts[2])
    beside = builder.rows([["the", "caat", "sat"]])
    own = slice(beside.starts[1], beside.starts[2])
    assert np.array_equal(assumed.features[middle], beside.features[own])
    assert not np.array_equal(assumed.features[middle], builder.rows(wrong).features[middle])
    assert assumed.texts == builder.rows(wrong).texts
