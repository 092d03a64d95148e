"""Tables of entities are built from profiles, validated, and appended to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.disambiguation.entities import EntityTable, TableVersion
from bsmeta.tasks.disambiguation.profiles import add_entities
from tests.tasks.disambiguation.helpers import CITY, LINCOLN, TODD, build, candidates_of, write

SPELLINGS = [
    {"entity_id": "Q1", "mentions": [["paris", 90], ["Straße", 3]], "title": "Paris, France"},
    {"entity_id": "Q2", "mentions": [["Paris", 100], ["PARIS", 5.5]], "title": "Paris Hilton"},
    {"entity_id": "Q3", "mentions": [["Cafe\u0301", 2], ["STRASSE", 1]], "title": "Café"},
]


def test_aliases_that_differ_in_case_or_composition_are_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = build(tmp_path, SPELLINGS)
    assert list(table.aliases) == ["paris", "strasse", "caf\u00e9"]
    for alias in ("Paris", "paris", "PARIS\t", " pArIs"):
        assert candidates_of(table, alias) == [("Q2", 105.5), ("Q1", 90.0)]
    for alias in ("Straße", "straße", "strasse", "STRASSE"):
        assert candidates_of(table, alias) == [("Q1", 3.0), ("Q3", 1.0)]
    assert candidates_of(table, "CAFÉ") == [("Q3", 2.0)]
    assert caplog.messages == [
        f"{tmp_path}/profiles.jsonl: 5 aliases were normalized (lower case, Unicode composition, "
        "single spaces), such as 'Straße' to 'strasse'; merged with another alias: 3"
    ]
    caplog.clear()
    new = {"entity_id": "Q4", "mentions": [["STRAẞE", 9], ["Rome", 1], ["lnk", 1]], "title": ""}
    table = add_entities(write(tmp_path / "new.jsonl", [new]), tmp_path / "table").table
    assert candidates_of(table, "straße") == [("Q4", 9.0), ("Q1", 3.0), ("Q3", 1.0)]
    assert caplog.messages[0].endswith(
        "such as 'STRAẞE' to 'strasse'; merged with another alias: 1"
    )


def test_scores_of_one_alias_do_not_become_infinite(tmp_path: Path) -> None:
    profile = {"entity_id": "Q1", "mentions": [["a", 3e38], ["A", 3e38]], "title": ""}
    (candidate,) = candidates_of(build(tmp_path, [profile]), "a")
    assert candidate == ("Q1", pytest.approx(3.4028235e38))


@pytest.mark.parametrize(
    ("alias", "lookup"),
    [("Paris", "paris"), ("straße", "strasse"), ("a  b", "a b"), ("a ", "a"), (" a", "a")],
)
def test_a_table_with_an_alias_that_is_never_found_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alias: str, lookup: str
) -> None:
    # As an earlier version has built it.
    monkeypatch.setattr(
        "bsmeta.tasks.disambiguation.table_changes.make_caseless", lambda text: text
    )
    others = {"entity_id": "Q2", "mentions": [["caf\u00e9", 1], ["b c", 1]], "title": ""}
    profile = {"entity_id": "Q1", "mentions": [["x", 1], [alias, 2], ["y", 1]], "title": ""}
    with pytest.raises(DataError) as error:
        build(tmp_path, [others, profile])
    assert str(error.value) == (
        f"{tmp_path}/table: its alias {alias!r} is not in the form in which aliases are looked up, "
        f"{lookup!r}: an earlier version of bsmeta has built it; delete the folder and build it "
        "again"
    )


def test_candidates_beyond_the_limit_are_left_out(tmp_path: Path) -> None:
    profiles = [
        {"entity_id": f"Q{number}", "mentions": [["one", number % 4]], "title": ""}
        for number in range(8)
    ]
    table = build(tmp_path, profiles, max_candidates=3)
    assert candidates_of(table, "one") == [("Q3", 3.0), ("Q7", 3.0), ("Q2", 2.0)]


def test_a_misspelled_field_of_a_profile_is_refused(tmp_path: Path) -> None:
    misspelled = {**CITY, "descripton": "capital of Nebraska"}
    message = (
        r"profiles.jsonl: 1 problem; correct the file\n"
        r"  line 2: there is no field 'descripton' \(did you mean description\?\)$"
    )
    with pytest.raises(DataError, match=message):
        build(tmp_path, [LINCOLN, misspelled, {**TODD, "descripton": ""}])
    assert not (tmp_path / "table").exists()

    build(tmp_path, [LINCOLN])
    message = r"line 1: there is no field 'descripton' \(did you mean description\?\)"
    with pytest.raises(DataError, match=message):
        add_entities(write(tmp_path / "new.jsonl", [misspelled]), tmp_path / "table")

    without_title = {"entity_id": "Q1", "mentions": [], "titel": "x"}
    with pytest.raises(DataError, match=r"no field 'titel' \(did you mean title\?\)"):
        add_entities(write(tmp_path / "new.jsonl", [without_title]), tmp_path / "table")


def test_other_fields_of_profiles_are_reported_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = build(tmp_path, [{**LINCOLN, "url": "x", "born": 1809}, {**TODD, "url": "y"}])
    assert len(table) == 3
    assert caplog.messages == [
        f"{tmp_path}/profiles.jsonl: fields that are not used: url (2 lines), born (1 lines)"
    ]


def test_problems_are_listed_together_with_their_lines(tmp_path: Path) -> None:
    bad = [
        LINCOLN,
        "",
        {**TODD, "mentions": [["mary", 1], ["mary", 2], [" ", 3], ["todd", -1]]},
        '{"entity_id": "Q5", "mentions": [',
        {**CITY, "mentions": [["lincoln"]]},
        LINCOLN,
        {"entity_id": "NIL", "mentions": [], "title": ""},
        {"entity_id": "", "mentions": [], "title": ""},
        CITY,
    ]
    with pytest.raises(DataError) as error:
        build(tmp_path, bad)
    assert str(error.value).splitlines() == [
        f"{tmp_path}/profiles.jsonl: 8 problems; correct the file",
        "  line 3: mention 'mary' is there twice",
        "  line 3: a mention is empty",
        "  line 3: mention 'todd' has the score -1.0; expected a number from 0",
        "  line 4: Input data was truncated",
        "  line 5: Expected `array` of length 2 - at `$.mentions[0]`",
        "  line 6: entity_id 'Q91' is that of line 1, too",
        "  line 7: entity_id 'NIL' is reserved for mentions without an entity",
        "  line 8: entity_id is empty",
    ]
    assert not (tmp_path / "table").exists()


def test_a_long_list_of_problems_is_truncated(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the first 20 problems") as error:
        build(tmp_path, ["{"] * 1000)
    assert len(str(error.value).splitlines()) == 21


def test_a_table_is_not_overwritten(tmp_path: Path) -> None:
    build(tmp_path, [TODD])
    with pytest.raises(ConfigurationError, match="exists; name another folder"):
        build(tmp_path, [CITY])


def test_added_entities_change_no_number(tmp_path: Path) -> None:
    before = build(tmp_path, [LINCOLN, TODD])
    new = write(tmp_path / "new.jsonl", [{**CITY, "mentions": [["lincoln", 3], ["lnk", 1]]}])
    after = add_entities(new, tmp_path / "table").table
    assert candidates_of(after, "lincoln") == [("Q91", 8.0), ("Q28260", 3.0), ("Q94", 1.0)]
    assert candidates_of(after, "lnk") == [("Q28260", 1.0)]
    assert list(after.aliases)[:3] == list(before.aliases)
    assert after.list_changes(before.fingerprint) == [
        TableVersion(after.fingerprint, "added", 1, ["Q28260"])
    ]
    assert after.list_changes(after.fingerprint) == []
    assert before.list_changes(after.fingerprint) is None
    # The table that was opened before still has its content.
    assert len(before) == 3
    assert candidates_of(before, "lincoln") == [("Q91", 8.0), ("Q94", 1.0)]


def test_entities_that_cannot_be_added_leave_the_table_as_it_was(tmp_path: Path) -> None:
    before = build(tmp_path, [LINCOLN, TODD])
    new = write(tmp_path / "new.jsonl", [CITY, TODD])
    with pytest.raises(DataError, match="line 2: entity_id 'Q94' is in the table already"):
        add_entities(new, tmp_path / "table")
    assert EntityTable.open(tmp_path / "table").fingerprint == before.fingerprint


def test_values_of_an_interrupted_addition_are_ignored(tmp_path: Path) -> None:
    built = build(tmp_path / "a", [LINCOLN, TODD, CITY])
    build(tmp_path / "b", [LINCOLN, TODD])
    with open(tmp_path / "b/table/titles.bin", "ab") as file:
        file.write(b"Linc")
    (tmp_path / "b/table/candidates.2.bin").write_bytes(b"half")
    table = add_entities(write(tmp_path / "new.jsonl", [CITY]), tmp_path / "b/table").table
    assert table.titles[3] == "Lincoln (Nebraska)"
    assert table.fingerprint == built.fingerprint


NAMES = st.sampled_from(["a", "A", "b", "ß", "SS", "日本", "a b"])
PROFILES = st.lists(
    st.builds(
        dict,
        mentions=st.dictionaries(NAMES, st.integers(0, 3)).map(lambda scores: list(scores.items())),
        title=st.text(max_size=3),
        types=st.dictionaries(NAMES, st.lists(NAMES, max_size=2), max_size=2),
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=15)
@given(PROFILES, st.integers(1, 5), st.integers(1, 3))
def test_adding_equals_building(
    tmp_path_factory: pytest.TempPathFactory,
    profiles: list[dict[str, Any]],
    first: int,
    most: int,
) -> None:
    folder = tmp_path_factory.mktemp("equal")
    first = min(first, len(profiles) - 1)  # a file without profiles is refused
    for number, profile in enumerate(profiles):
        profile["entity_id"] = f"Q{number}"
        profile["relations"] = [{"relation": "to", "object": f"Q{number // 2}"}]
    whole = build(folder / "a", profiles, max_candidates=most)
    table = build(folder / "b", profiles[:first], max_candidates=most)
    new = write(folder / "new.jsonl", profiles[first:])
    table = add_entities(new, folder / "b/table").table
    assert table.fingerprint == whole.fingerprint
    for alias in whole.aliases:
        expected = []
        for profile in profiles:
            scores = [score for name, score in profile["mentions"] if name.casefold() == alias]
            if scores:
                expected.append((sum(scores), profile["entity_id"]))
        best = sorted(expected, key=lambda candidate: -candidate[0])[:most]
        assert candidates_of(table, alias) == [(name, score) for score, name in best]
