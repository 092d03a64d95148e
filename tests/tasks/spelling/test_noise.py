"""Noise: exact per (seed, epoch, sample), and only in words."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.tasks.spelling.config import NoiseConfig
from bsmeta.tasks.spelling.noise import (
    Draws,
    Misspellings,
    Noise,
    copy_case,
    make_artificial_edits,
)

MISSPELLINGS = {
    "their": ("thier", "there"),
    "receive": ("recieve", "receeve"),
    "a": ("an",),
    "alot": ("a lot",),
    "London": ("Lonodn",),
    "until": ("untill",),
}
TEXT = "Their London office, at www.bbc.co.uk since 1999, will receive a letter (until May)."


def noise(method: str, known: Misspellings = MISSPELLINGS, **changes: Any) -> Noise:
    settings = {"word_probability": 1.0, **changes}
    return Noise(NoiseConfig(method=method, **settings), known)


def test_known_misspellings_carry_the_case_and_keep_the_punctuation() -> None:
    known = {"their": ("thier",), "until": ("untill",), "may": ("mai",), "london": ("lndon",)}
    corrupted = noise("realistic", known, learned_characters=False).corrupt(
        "Their «London» office, LONDON (May), may.", seed=1, epoch=0, sample=0
    )
    assert corrupted == "Thier «Lndon» office, LNDON (Mai), mai."


def test_misspelled_words_may_lose_their_capitals() -> None:
    lost = noise("realistic", learned_characters=False, lost_case=1.0)
    found = lost.corrupt("Their London RECEIVE Heir", seed=1, epoch=0, sample=0).split()
    assert found[1] == "lonodn"
    assert found[2] in ("recieve", "receeve")
    assert found[3] == "Heir"  # what is not misspelled keeps them
    assert found[0] in ("thier", "there")


def test_accents_and_slips_take_their_shares_of_the_realistic_errors() -> None:
    accents = noise("realistic", {}, accent_share=1.0)
    assert accents.corrupt("Letters, 12 of x!", seed=1, epoch=0, sample=0) == "łetters, 12 øf ẋ!"
    slips = noise("realistic", {}, slip_share=1.0, letters="Xx")
    assert slips.corrupt("The ENDING (of), 12", seed=2, epoch=0, sample=1) == "Xeh NEDING (fo), 12"
    both = noise("realistic", accent_share=0.25, slip_share=0.25, learned_characters=False)
    found = [both.corrupt("until", seed=1, epoch=0, sample=sample) for sample in range(400)]
    assert 0.43 < found.count("untill") / 400 < 0.57
    assert 0.18 < sum(not word.isascii() for word in found) / 400 < 0.32


def test_words_without_a_known_misspelling_get_character_noise() -> None:
    plain = noise("realistic", learned_characters=False).corrupt("Heir", seed=1, epoch=0, sample=0)
    noisy = noise("realistic").corrupt("Heir", seed=1, epoch=0, sample=0)
    assert plain == "Heir" != noisy
    assert noisy[0].isupper()


@pytest.mark.parametrize("method", ["artificial", "realistic", "mixed"])
def test_noise_depends_on_seed_epoch_and_sample_only(method: str) -> None:
    words = noise(method)
    first = words.corrupt(TEXT, seed=1, epoch=0, sample="page 7")
    assert first == noise(method).corrupt(TEXT, seed=1, epoch=0, sample="page 7") != TEXT
    others = {
        words.corrupt(TEXT, seed=seed, epoch=epoch, sample=sample)
        for seed, epoch, sample in ((2, 0, "page 7"), (1, 1, "page 7"), (1, 0, "page 8"))
    }
    assert first not in others
    assert len(others) == 3


def test_the_noise_of_a_sample_is_the_same_with_every_version() -> None:
    literal = [
        noise(method, word_probability=0.6).corrupt(TEXT, seed=22, epoch=3, sample=11)
        for method in ("artificial", "realistic", "mixed")
    ]
    assert literal == [
        "Bheir LoGndon ofice, at www.bbc.co.uk ince 1999, wil recejve Sx letter (until MIy).",
        "Thier Lonodn offece, at www.bbc.co.uk srnce 1999, well receeve an letter (until Many).",
        "There vLondon offnice, at www.bbc.co.uk eince 1999, willll recieve an letter (until Many).",  # noqa: E501
    ]


@pytest.mark.parametrize("method", ["artificial", "realistic", "mixed"])
@pytest.mark.parametrize(
    "word",
    [
        "www.bbc.co.uk",
        "https://a.bc/d",
        "me@example.org",
        "1999,",
        "h2o",
        "--",
        "«»",
        "/usr",
        "Mr.",
        "(e.g.,",
    ],
)
def test_urls_numbers_and_punctuation_stay(method: str, word: str) -> None:
    for sample in range(20):
        assert noise(method).corrupt(word, seed=0, epoch=0, sample=sample) == word


texts = st.text(
    st.one_of(st.sampled_from("aeiourstl'-.,()\"  \n\t"), st.characters()), max_size=60
) | st.lists(st.sampled_from([*MISSPELLINGS, "ALOT", "Alot,", "İß"]), max_size=8).map(" ".join)


@settings(max_examples=150)
@given(texts, st.sampled_from(["artificial", "realistic", "mixed"]), st.integers(0, 99))
def test_words_keep_their_number_whitespace_digits_and_punctuation(
    text: str, method: str, sample: int
) -> None:
    corrupted = noise(method).corrupt(text, seed=0, epoch=0, sample=sample)
    assert list(filter(str.isspace, corrupted)) == list(filter(str.isspace, text))
    pairs = list(zip(text.split(), corrupted.split(), strict=True))
    for word, edited in pairs:
        kept = [character for character in word if not character.isalpha()]
        assert [c for c in edited if not c.isalpha()] == kept
        assert not any(map(str.isdigit, word)) or word == edited


@settings(max_examples=200)
@given(st.text(string.ascii_lowercase + "'é", min_size=1, max_size=9), st.integers(0, 5), st.data())
def test_artificial_edits_touch_no_position_twice(
    word: str, count: int, data: st.DataObject
) -> None:
    """An upper-case letter is new: no edit deletes, replaces or moves it again."""
    draws = Draws(data.draw(st.integers(0, 10**6)))
    edited = make_artificial_edits(word, count, draws, letters=string.ascii_uppercase)
    new = sum(map(str.isupper, edited))
    assert new <= count
    assert len(word) - count <= len(edited) <= len(word) + count
    assert not any(map(str.isalpha, word)) or any(map(str.isalpha, edited))


def test_edits_follow_the_geometric_distribution() -> None:
    counts = [Draws(number).geometric(0.8) for number in range(4000)]
    assert counts.count(1) / 4000 == pytest.approx(0.8, abs=0.02)
    assert counts.count(2) / 4000 == pytest.approx(0.16, abs=0.02)


def test_shares_of_edited_words_and_clean_samples() -> None:
    text = " ".join(["receive"] * 50)
    words = noise("mixed", word_probability=0.2, clean_share=0.5)
    found = [words.corrupt(text, seed=0, epoch=0, sample=sample) for sample in range(400)]
    labels = [[word != "receive" for word in sample.split()] for sample in found]
    clean = [sample for sample in labels if not any(sample)]
    assert len(clean) / 400 == pytest.approx(0.5, abs=0.07)
    assert sum(map(sum, labels)) / 50 / (400 - len(clean)) == pytest.approx(0.2, abs=0.02)


def test_mixed_noise_has_the_wanted_share_of_artificial_edits() -> None:
    words = noise("mixed", artificial_share=0.2, letters="#")
    outcomes = [words.corrupt("receive", seed=0, epoch=0, sample=s) for s in range(2000)]
    realistic = sum(outcome in MISSPELLINGS["receive"] for outcome in outcomes)
    assert realistic / 2000 == pytest.approx(0.8, abs=0.04)


def test_misspellings_of_several_words_are_for_corrections_only() -> None:
    single = noise("realistic", learned_characters=False)
    assert single.corrupt("alot", seed=0, epoch=0, sample=0) == "alot"
    config = NoiseConfig(method="realistic", word_probability=1.0)
    many = Noise(config, MISSPELLINGS, keep_word_count=False)
    assert many.corrupt("Alot, really", seed=0, epoch=0, sample=0).startswith("A lot, ")


def test_a_misspelling_gets_the_case_of_its_word() -> None:
    cases = [("their", "thier"), ("Their", "Thier"), ("THEIR", "THIER"), ("A", "An")]
    assert [copy_case(word, wrong.lower()) for word, wrong in cases] == [w for _, w in cases]
