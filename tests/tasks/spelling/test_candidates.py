"""The candidates of a word."""

from __future__ import annotations

import pytest

from bsmeta.tasks.spelling import candidates as candidates_module
from bsmeta.tasks.spelling.candidates import FORM_FEATURES, Candidates
from bsmeta.tasks.spelling.lexicon import build_lexicon
from tests.tasks.spelling.helpers import lexicon


def texts_of(word: str, *, starts: bool = False, hidden: float = 0.0) -> list[str]:
    candidates = Candidates(lexicon(), hidden)
    part = candidates.find_spelled_part(word)
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
    assert case_features("brelin", "Berlin") == [0, 0, 1]
    assert case_features("Mhe", "the") == [0, 0, 0]  # the capital replaced a letter
    assert case_features("Brelin", "berlin") == [0, 1, 0]
    assert case_features("Brelin", "Berlin") == [0, 0, 0]


def test_words_that_explain_the_capitals_are_chosen_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates_module, "MAX_NEAR_OF_SHORT", 1)
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


LETTERS = "abcdefghijk"
WORDS_WITH_ACCENTS = ["the cafe find fond found resume house Gomez McDonald Dewitt cat mat"] * 4


def list_candidates(word: str, texts: list[str] = WORDS_WITH_ACCENTS) -> list[str]:
    """Candidates of a word, without the word itself."""
    (form,) = Candidates(build_lexicon(texts, [], {})).find([(word, False)])
    return form.texts[2:]


# One of more than a hundred words has an accent, as in English.
ENGLISH = [
    *WORDS_WITH_ACCENTS,
    *["café " + " ".join(f"filler{first}{second}" for first in LETTERS for second in LETTERS)] * 2,
]
GERMAN = ["der große Hof und die Straße über der Größe"] * 4


def test_words_with_foreign_letters_only_lose_accents() -> None:
    assert list_candidates("fóund") == ["Fóund", "found", "Found"]
    assert "Gomez" in list_candidates("gómez")
    assert list_candidates("Gómez") == []  # mostly a name
    assert "found" not in list_candidates("fónd")  # another edit
    assert "größe" in list_candidates("grösse", GERMAN)  # its words have accents


def test_known_words_with_foreign_letters_have_no_candidates_in_english() -> None:
    assert list_candidates("café", ENGLISH) == []
    assert {"cafe", "café"} <= {*list_candidates("cáfe", ENGLISH)}
    assert "Straße" in list_candidates("Strasse", GERMAN)
    assert "große" in list_candidates("größe", GERMAN)


def test_words_with_foreign_letters_are_not_divided_in_english() -> None:
    assert "house mat" in list_candidates("housemat", ENGLISH)
    assert "café house" not in list_candidates("caféhouse", ENGLISH)
    assert "große straße" in list_candidates("großestraße", GERMAN)


def test_words_with_inner_capitals_only_lose_them() -> None:
    assert "the" in list_candidates("tHe")
    assert "cat" in list_candidates("caTt")
    assert "found" in list_candidates("foundL")
    assert list_candidates("kW") == []
    assert list_candidates("mCT") == []
    assert list_candidates("DeWitt") == []
    assert list_candidates("hoUsEsX") == []  # three capitals
    assert "resume" in list_candidates("reHsumme")  # a second edit of a longer word
    assert list_candidates("caX") == ["cat", "Cat"]
    assert "house" not in list_candidates("hoX")
    assert "The" in list_candidates("hTe")
    assert list_candidates("CaX") == []
