"""Maps of misspellings, and the character noise that is learned from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.core.errors import DataError
from bsmeta.tasks.spelling.noise import (
    CharacterNoise,
    Draws,
    Edit,
    align_misspelling,
    invert_dictionary,
    load_misspellings,
    select_single_words,
)


def test_the_dictionary_is_inverted() -> None:
    lines = [
        "aache->cache, ache,",
        "abandonin->abandoning, abandon in,",
        "teh->the",
        "hte->the",
        "clas->class, disabled because of name clash in c++",
        "",
    ]
    assert invert_dictionary(lines) == {
        "cache": ("aache",),
        "ache": ("aache",),
        "abandoning": ("abandonin",),
        "the": ("teh", "hte"),
        "class": ("clas",),
    }


def test_a_line_without_an_arrow_is_named() -> None:
    with pytest.raises(DataError, match=r"line 2 .*'no arrow'; expected `wrong->right`"):
        invert_dictionary(["teh->the", "no arrow"])


def test_codespell_is_read_from_the_installed_package() -> None:
    pytest.importorskip("codespell_lib")
    found = load_misspellings("codespell")
    assert "thier" in found["their"]
    assert len(found) > 10_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('["the"]', "holds a list; expected"),
        ('{"the": "teh"}', "'the' has 'teh'; expected"),
        ("{", "is not JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "map.json"
    file.write_text(content)
    with pytest.raises(DataError, match=message):
        load_misspellings(str(file))


def test_a_json_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text(json.dumps({"alot": ["a lot", "alott", ""], "und": []}))
    known = load_misspellings(str(file))
    assert known == {"alot": ("a lot", "alott"), "und": ()}
    assert select_single_words(known) == {"alot": ("alott",)}
    with pytest.raises(DataError, match="cannot be read"):
        load_misspellings(str(tmp_path / "absent.json"))


@pytest.mark.parametrize(
    ("word", "misspelling", "edits"),
    [
        ("their", "thier", [Edit(2, "swap")]),
        ("the", "teh", [Edit(1, "swap")]),
        ("the", "hte", [Edit(0, "swap")]),
        ("cat", "xcat", [Edit(-1, "insert", "x")]),
        ("cat", "catt", [Edit(2, "insert", "t")]),
        ("cat", "ct", [Edit(1, "delete")]),
        ("cat", "cut", [Edit(1, "replace", "u")]),
        ("cat", "cat", []),
    ],
)
def test_a_misspelling_is_aligned_with_its_word(
    word: str, misspelling: str, edits: list[Edit]
) -> None:
    assert align_misspelling(word, misspelling) == edits


def test_the_edits_of_a_character_are_estimated() -> None:
    learned = CharacterNoise.estimate({"tab": ("tob", "teb", "tab"), "bat": ("bot",)})
    assert learned is not None
    # Only `a` is ever edited, by o twice and by e once; other characters are edited like any.
    outcomes = [learned.edit("zabaz", Draws(number)) for number in range(900)]
    only_a = [word for word in outcomes if word[0] == word[4] == "z" and word[2] == "b"]
    counts = {word: only_a.count(word) for word in ("zobaz", "zaboz", "zebaz", "zabez")}
    assert sum(counts.values()) == len(only_a)
    share = (counts["zobaz"] + counts["zaboz"]) / len(only_a)
    assert share == pytest.approx(2 / 3, abs=0.06)


def test_nothing_is_learned_from_no_misspellings() -> None:
    assert CharacterNoise.estimate({}) is None
    assert CharacterNoise.estimate({"the": ("the",)}) is None


@settings(max_examples=150)
@given(st.text(st.characters(categories=["L", "P"]), min_size=1, max_size=12), st.integers(0, 999))
def test_punctuation_stays_and_a_letter_remains(word: str, seed: int) -> None:
    learned = CharacterNoise.estimate({"their": ("thier", "thr", "theirr"), "an": ("a", "aan")})
    assert learned is not None
    edited = learned.edit(word, Draws(seed))
    assert [c for c in edited if not c.isalpha()] == [c for c in word if not c.isalpha()]
    assert any(map(str.isalpha, edited)) == any(map(str.isalpha, word))
