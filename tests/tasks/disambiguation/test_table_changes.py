"""Entities of a table are updated, removed, added again and rescored; also by killed processes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation.entities import EntityTable, TableVersion, describe_versions
from bsmeta.tasks.disambiguation.profiles import (
    add_entities,
    remove_entities,
    rescore_entities,
    update_entities,
)
from tests.tasks.disambiguation.helpers import CITY, LINCOLN, TODD, build, candidates_of, write

Launch = Callable[..., subprocess.CompletedProcess[str]]
KILLED = Path(__file__).parent / "killed_entities.py"
ALL = [LINCOLN, TODD, CITY]


def describe(table: EntityTable, entity_id: str) -> tuple[Any, ...]:
    """The content of an entity."""
    entity = table.find_entity(entity_id)
    relations = [(name, table.ids[other]) for name, other in table.list_relations(entity)]
    return (
        table.titles[entity],
        table.descriptions[entity],
        table.list_types(entity),
        relations,
    )


def edit(folder: Path, lines: list[Any]) -> tuple[Path, Path]:
    """The arguments of an edit of the table in a folder."""
    return write(folder / "lines.jsonl", lines), folder / "table"


def test_given_fields_are_replaced_and_others_kept(tmp_path: Path) -> None:
    before = build(tmp_path, ALL)
    lines = [
        {"entity_id": "Q94", "title": "Mary Ann Todd", "mentions": [["Mary", 7], ["lincoln", 9]]},
        {"entity_id": "Q91", "types": {"wiki": ["lawyer", "city"]}, "relations": []},
    ]
    edited = update_entities(*edit(tmp_path, lines))
    table = edited.table
    assert edited.entities.tolist() == [2, 1]
    assert describe(table, "Q94") == ("Mary Ann Todd", "", [], [])
    assert describe(table, "Q91") == ("Abraham Lincoln", "16th president", ["lawyer", "city"], [])
    assert describe(table, "Q28260") == ("Lincoln (Nebraska)", "", ["city"], [])
    assert candidates_of(table, "lincoln") == [("Q28260", 9.5), ("Q94", 9.0), ("Q91", 8.0)]
    assert candidates_of(table, "mary") == [("Q94", 7.0)]
    assert table.find_alias("mary lincoln") == -1
    assert table.aliases.find("mary lincoln") == before.aliases.find("mary lincoln") == 2
    assert table.summary() == (
        "3 entities, 3 aliases (1 of several entities, 3 at most), 5 types, 0 relations"
    )

    # The table that was opened before still has its content.
    assert describe(before, "Q94") == ("Mary Todd", "", [], [])
    assert candidates_of(before, "lincoln") == [("Q28260", 9.5), ("Q91", 8.0), ("Q94", 1.0)]


def test_a_removed_entity_keeps_its_number_and_can_be_added_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = build(tmp_path, ALL)
    table = remove_entities(*edit(tmp_path, [TODD])).table
    assert caplog.messages == [
        f"{tmp_path}/lines.jsonl: relations of other entities to the removed ones, removed with "
        "them: 1"
    ]
    assert (table.find_entity("Q94"), table.removed.tolist(), table.ids[2]) == (-1, [2], "Q94")
    assert (table.titles[2], table.list_types(2), table.list_relations(2)) == ("", [], [])
    assert describe(table, "Q91")[3] == []
    assert candidates_of(table, "lincoln") == [("Q28260", 9.5), ("Q91", 8.0)]
    assert table.find_alias("mary lincoln") == -1
    assert table.has_candidates(np.arange(3)).tolist() == [True, True, False]
    assert table.summary() == (
        "2 entities, 2 aliases (1 of several entities, 2 at most), 4 types, 0 relations"
    )
    assert describe(before, "Q91")[3] == [("spouse", "Q94")]

    with pytest.raises(DataError, match="line 1: entity_id 'Q94' is not in the table"):
        remove_entities(*edit(tmp_path, [TODD]))
    again = add_entities(*edit(tmp_path, [TODD])).table
    assert (again.find_entity("Q94"), again.removed.tolist()) == (2, [])
    assert candidates_of(again, "lincoln") == candidates_of(before, "lincoln")
    changes = again.list_changes(before.fingerprint)
    assert changes == [
        TableVersion(table.fingerprint, "removed", 1, ["Q94"]),
        TableVersion(again.fingerprint, "added", 1, ["Q94"]),
    ]
    assert describe_versions(changes) == "1 removed (Q94), 1 added (Q94)"


def test_scores_of_some_or_of_all_aliases(tmp_path: Path) -> None:
    build(tmp_path, ALL)
    lines = [
        {"entity_id": "Q91", "score": 20},
        {"entity_id": "Q28260", "mentions": [["Lincoln", 0.5], ["mary lincoln", 3]]},
    ]
    table = rescore_entities(*edit(tmp_path, lines)).table
    assert candidates_of(table, "lincoln") == [("Q91", 20.0), ("Q94", 1.0), ("Q28260", 0.5)]
    assert candidates_of(table, "abraham lincoln") == [("Q91", 20.0)]
    assert candidates_of(table, "mary lincoln") == [("Q28260", 3.0), ("Q94", 2.0)]


def test_relations_to_entities_outside_the_table_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    relations = [
        {"relation": "spouse", "object": "Q94"},
        {"relation": "party", "object": "Q29468"},
        {"relation": "born in", "object": "Q0"},
        {"relation": "city", "object": "Q28260"},
    ]
    table = build(tmp_path, [{**LINCOLN, "relations": relations}, CITY, TODD])
    assert describe(table, "Q91")[3] == [("spouse", "Q94"), ("city", "Q28260")]
    assert caplog.messages == [
        f"{tmp_path}/profiles.jsonl: relations to entities outside the table, left out: 2 (to "
        "Q29468, Q0)"
    ]
    update = {"entity_id": "Q94", "relations": relations[:2]}
    table = update_entities(*edit(tmp_path, [update])).table
    assert describe(table, "Q94")[3] == [("spouse", "Q94")]


def test_problems_of_an_edit_leave_the_table_as_it_was(tmp_path: Path) -> None:
    before = build(tmp_path, ALL)
    updates = [
        {"entity_id": "Q94", "titel": "Mary"},
        {"entity_id": "Q7", "title": "x"},
        {"entity_id": "NIL", "title": "x"},
        {"entity_id": "Q91"},
        {"entity_id": "Q91", "mentions": [["a", -1]]},
    ]
    with pytest.raises(DataError) as error:
        update_entities(*edit(tmp_path, updates))
    assert str(error.value).splitlines()[1:] == [
        "  line 1: Object contains unknown field `titel`",
        "  line 2: entity_id 'Q7' is not in the table",
        "  line 3: entity_id 'NIL' is reserved for mentions without an entity",
        "  line 4: nothing to change; expected some of mentions, title, description, types, "
        "relations",
        "  line 5: entity_id 'Q91' is that of line 4, too",
        "  line 5: mention 'a' has the score -1.0; expected a number from 0",
    ]
    scores = [
        {"entity_id": "Q91"},
        {"entity_id": "Q94", "score": -1, "mentions": []},
        {"entity_id": "Q28260", "mentions": [["lnk", 1]]},
    ]
    with pytest.raises(DataError) as error:
        rescore_entities(*edit(tmp_path, scores))
    assert str(error.value).splitlines()[1:] == [
        "  line 1: expected mentions ([[alias, score], …]) or score (of all its aliases)",
        "  line 2: expected mentions ([[alias, score], …]) or score (of all its aliases)",
        "  line 3: mention 'lnk' is not an alias of the table; update=… adds aliases",
    ]
    assert EntityTable.open(tmp_path / "table").fingerprint == before.fingerprint


ALIASES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), unique_by=lambda m: m[0])
CONTENT = st.fixed_dictionaries(
    {
        "mentions": ALIASES,
        "title": st.text(max_size=3),
        "description": st.text(max_size=3),
        "types": st.lists(st.sampled_from("xyz"), max_size=2).map(lambda names: {"s": names}),
        "relations": st.lists(st.sampled_from(["Q0", "Q1", "Q2", "Q9"]), max_size=2).map(
            lambda ids: [{"relation": "to", "object": entity_id} for entity_id in ids]
        ),
    }
)


@settings(max_examples=20, phases=[Phase.generate])
@given(
    st.lists(CONTENT, min_size=3, max_size=3),
    st.lists(
        st.tuples(st.sampled_from(["update", "remove"]), st.integers(0, 2), CONTENT), max_size=5
    ),
)
def test_edits_equal_a_model_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    contents: list[dict[str, Any]],
    actions: list[tuple[str, int, dict[str, Any]]],
) -> None:
    folder = tmp_path_factory.mktemp("edits")
    entities = {f"Q{number}": content for number, content in enumerate(contents)}
    build(folder, [{"entity_id": name, **content} for name, content in entities.items()])

    def drop_relations() -> None:
        """A relation that was left out or removed does not come back when its object is added."""
        for content in entities.values():
            content["relations"] = [
                relation for relation in content["relations"] if relation["object"] in entities
            ]

    drop_relations()
    for action, number, content in actions:
        name = f"Q{number}"
        if action == "update" and name in entities:
            update_entities(*edit(folder, [{"entity_id": name, **content}]))
            entities[name] = content
        elif action == "update":
            add_entities(*edit(folder, [{"entity_id": name, **content}]))
            entities[name] = content
        elif name in entities:
            remove_entities(*edit(folder, [{"entity_id": name}]))
            del entities[name]
        drop_relations()

    table = EntityTable.open(folder / "table")
    for name, content in entities.items():
        relations = [
            (relation["relation"], relation["object"]) for relation in content["relations"]
        ]
        assert describe(table, name) == (
            content["title"], content["description"], content["types"]["s"], relations,
        )  # fmt: skip
    for alias in "abc":
        scores = [
            (name, float(score))
            for name, content in sorted(entities.items())
            for mention, score in content["mentions"]
            if mention == alias
        ]
        if scores:
            assert candidates_of(table, alias) == sorted(scores, key=lambda pair: -pair[1])
        else:
            assert table.find_alias(alias) == -1


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("add", {"entity_id": "Q1", "mentions": [["lnk", 1]], "title": "Lincoln Park"}),
        ("update", {"entity_id": "Q94", "title": "Mary Ann Todd", "mentions": [["mary", 1]]}),
        ("remove", {"entity_id": "Q94"}),
        ("rescore", {"entity_id": "Q94", "score": 50}),
    ],
)
def test_an_edit_that_is_killed_leaves_the_table_before_or_after_it(
    tmp_path: Path, launch: Launch, key: str, line: dict[str, Any]
) -> None:
    """Killed before each change of a file, by processes of their own."""
    build(tmp_path, ALL)
    table = tmp_path / "table"
    lines = write(tmp_path / "lines.jsonl", [line])
    reader = EntityTable.open(table)
    content = [describe(reader, name) for name in ("Q91", "Q94", "Q28260")]
    candidates = candidates_of(reader, "lincoln")

    states = []
    kill_at = 0
    while not states or states[-1] == reader.fingerprint:
        kill_at += 1
        done = launch(KILLED, f"table={table}", f"{key}={lines}", check=False, KILL_AT=str(kill_at))
        assert done.returncode == -signal.SIGKILL, done.stderr
        states.append(EntityTable.open(table).fingerprint)
        assert [describe(reader, name) for name in ("Q91", "Q94", "Q28260")] == content
        assert candidates_of(reader, "lincoln") == candidates

    # The last kill came after the new manifest, before the first deletion of an unused file.
    assert kill_at > 10
    changes = EntityTable.open(table).list_changes(reader.fingerprint)
    assert [(version.count, version.examples) for version in changes or []] == [
        (1, [line["entity_id"]])
    ]

    # The next edit writes the same table as one after an undisturbed edit.
    undisturbed = tmp_path / "undisturbed"
    build(undisturbed, ALL)
    names = {"add": add_entities, "update": update_entities, "remove": remove_entities}
    expected = names.get(key, rescore_entities)(lines, undisturbed / "table").table
    assert states[-1] == expected.fingerprint
    next_line = write(tmp_path / "next.jsonl", [{"entity_id": "Q91", "title": "Abe"}])
    after = update_entities(next_line, table).table
    assert after.fingerprint == update_entities(next_line, undisturbed / "table").table.fingerprint
    files = {entry.name for entry in table.iterdir()}
    assert files == {entry.name for entry in (undisturbed / "table").iterdir()}
