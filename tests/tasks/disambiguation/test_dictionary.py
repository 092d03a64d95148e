"""Mentions are found where they stand in the text, as whole words, the longest first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.core.errors import DataError
from bsmeta.data.text.caseless import make_caseless
from bsmeta.tasks.disambiguation import dictionary as dictionaries
from bsmeta.tasks.disambiguation.array_folder import MANIFEST
from bsmeta.tasks.disambiguation.config import DisambiguationDataConfig
from bsmeta.tasks.disambiguation.dictionary import AliasDictionary, open_dictionary
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.profiles import add_entities, build_entities
from tests.tasks.disambiguation.helpers import write


def table_of(folder: Path, *aliases: str) -> EntityTable:
    """A table of one entity for each alias; the first has the highest score."""
    folder.mkdir(exist_ok=True)
    profiles = [
        {"entity_id": f"Q{number}", "mentions": [[alias, 99 - number]], "title": alias}
        for number, alias in enumerate(aliases)
    ]
    return build_entities(write(folder / "profiles.jsonl", profiles), folder / "table")


def found(detector: AliasDictionary, table: EntityTable, text: str) -> list[tuple[str, str]]:
    return [(text[start:end], table.aliases[alias]) for start, end, alias in detector(text)]


def test_the_longest_whole_words_are_found(tmp_path: Path) -> None:
    table = table_of(tmp_path, "new york", "new", "york", "new york city", "asp", ".net", "c++")
    detector = AliasDictionary(table)
    text = "New Yorkers left NEW\nYork for new york city, York; ASP.NET (C++) in İyork York."
    assert found(detector, table, text) == [
        ("New", "new"),
        ("NEW\nYork", "new york"),
        ("new york city", "new york city"),
        ("York", "york"),
        ("ASP", "asp"),
        (".NET", ".net"),
        ("C++", "c++"),
        ("York", "york"),
    ]
    assert detector("") == []


def test_signs_alone_are_no_mentions(tmp_path: Path) -> None:
    table = table_of(tmp_path, "one", "|", "--")
    assert found(AliasDictionary(table), table, "| one -- two |") == [("one", "one")]


def test_lemmas_are_written_without_their_part_of_speech(tmp_path: Path) -> None:
    table = table_of(tmp_path, "vice_president.n", "man.n", "man.v", "st._louis.n")
    detector = AliasDictionary(table, "lemma_pos")
    assert found(detector, table, "The vice president man of St. Louis") == [
        ("vice president", "vice_president.n"),
        ("man", "man.n"),
        ("St. Louis", "st._louis.n"),
    ]


LINES: list[dict[str, Any]] = [
    {
        "sentence": f"In{number} it is in, and the men are in.",
        "sent_idx_unq": number,
        "aliases": ["be.v", "man.n", "be.v"],
        "qids": ["Q1", "Q2", "Q1"],
        "char_spans": [[7, 9], [22, 25], [26, 29]],
        "gold": [True, True, True],
    }
    for number in range(10)
]


def config_of(folder: Path, lines: list[dict[str, Any]]) -> DisambiguationDataConfig:
    path = write(folder / "train.jsonl", lines)
    return DisambiguationDataConfig(train_file=str(path), alias_form="lemma_pos")


def test_forms_are_learned_from_training_lines(tmp_path: Path) -> None:
    table = table_of(tmp_path, "in.n", "be.v", "man.n", "the_men.n")
    config = config_of(tmp_path, LINES)
    detector = open_dictionary(config, table, tmp_path / "prep/forms")
    assert found(detector, table, "Men in the house IS man; the men") == [
        ("Men", "man.n"),
        ("IS", "be.v"),
        ("man", "man.n"),
        ("the men", "the_men.n"),
    ]


def test_counts_are_made_once_and_again_for_other_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(tmp_path, "in.n", "be.v", "man.n")
    config = config_of(tmp_path, LINES)
    open_dictionary(config, table, tmp_path / "forms")
    monkeypatch.setattr(dictionaries, "count_forms", None)
    detector = open_dictionary(config, table, tmp_path / "forms")
    assert found(detector, table, "in is") == [("is", "be.v")]
    new = json.dumps({"entity_id": "Q9", "mentions": [["isle.n", 1]], "title": "isle"})
    table = add_entities(write(tmp_path / "new.jsonl", [new]), table.folder).table
    detector = open_dictionary(config, table, tmp_path / "forms")
    assert found(detector, table, "in is isle") == [("is", "be.v"), ("isle", "isle.n")]
    monkeypatch.undo()
    config_of(tmp_path, LINES[:1])  # one occurrence says little
    detector = open_dictionary(config, table, tmp_path / "forms")
    assert found(detector, table, "in is") == [("in", "in.n"), ("is", "be.v")]
    (tmp_path / "train.jsonl").unlink()
    detector = open_dictionary(config, table, tmp_path / "forms")
    assert found(detector, table, "in is") == [("in", "in.n"), ("is", "be.v")]


def test_counts_of_an_earlier_version_are_made_again_or_refused(tmp_path: Path) -> None:
    table = table_of(tmp_path, "in.n", "be.v", "man.n")
    config = config_of(tmp_path, LINES)
    open_dictionary(config, table, tmp_path / "forms")
    manifest = tmp_path / "forms" / MANIFEST

    def age() -> None:
        content = json.loads(manifest.read_text())
        del content["facts"]["detection"]
        content["facts"]["is_caseless"] = True  # as before words were found by script
        manifest.write_text(json.dumps(content))

    age()
    open_dictionary(config, table, tmp_path / "forms")
    assert json.loads(manifest.read_text())["facts"]["detection"] == 2
    age()
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"forms was written by another version .* delete it"):
        open_dictionary(config, table, tmp_path / "forms")


def test_aliases_are_detected_in_any_case_composition_and_white_space(tmp_path: Path) -> None:
    table = table_of(tmp_path, "Straße", "Cafe\u0301", "New  York", "ΣΊΣΥΦΟΣ", "한국")
    text = "STRASSE straße Straẞe CAFÉ cafe\u0301\u2026 new\n\n york Σίσυφος \u1112\u1161\u11ab국"
    assert found(AliasDictionary(table), table, text) == [
        ("STRASSE", "strasse"), ("straße", "strasse"), ("Straẞe", "strasse"),
        ("CAFÉ", "caf\u00e9"), ("cafe\u0301", "caf\u00e9"), ("new\n\n york", "new york"),
        ("Σίσυφος", "σίσυφοσ"), ("\u1112\u1161\u11ab국", "한국"),
    ]  # fmt: skip


@settings(max_examples=200)
@given(st.text(alphabet="ab. İ\n\u0301", max_size=30))
def test_every_match_is_a_form_between_word_edges(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    table, detector = _small(tmp_path_factory)
    end = 0
    for start, stop, alias in detector(text):
        assert make_caseless(text[start:stop]) == table.aliases[alias]
        for place in (start, stop):  # not within a word
            around = text[max(place - 1, 0) : place + 1]
            assert len(around) < 2 or not around.isalnum()
        assert start >= end
        end = stop


_SMALL: list[tuple[EntityTable, AliasDictionary]] = []


def _small(factory: pytest.TempPathFactory) -> tuple[EntityTable, AliasDictionary]:
    if not _SMALL:
        table = table_of(factory.mktemp("small"), "a", "ab", "a b", "b.", ".a", "aa bb")
        _SMALL.append((table, AliasDictionary(table)))
    return _SMALL[0]
