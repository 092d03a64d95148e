"""The entity files of the first generation become the same tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.errors import DataError
from bsmeta.tasks.disambiguation.first_generation import build_first_generation
from tests.tasks.disambiguation.test_entities import candidates_of

FILES: dict[str, Any] = {
    "entity_db/entity_mappings/qid2eid.json": {"Q28260": 3, "Q91": 1, "Q94": 2},
    "entity_db/entity_mappings/qid2title.json": {
        "Q91": "Abraham Lincoln",
        "Q94": "Mary Todd",
        "Q28260": "Lincoln",
    },
    "entity_db/entity_mappings/alias2qids.json": {
        "lincoln": [["Q28260", 9.5], ["Q91", 8]],
        "mary": [["Q94", 1]],
    },
    "entity_db/entity_mappings/config.json": {"max_candidates": 2},
    "emb/qid2types.json": {"Q91": [1, 0], "Q94": ["human"]},
    "emb/type_vocab.json": {"human": 0, "politician": 1},
    "emb/qid2relations.json": {"Q91": {"spouse": ["Q94"]}},
    "emb/kg_conn.txt": "Q94\tQ91\nQ91\tQ28260\n",
}


def build(folder: Path, **changed: Any) -> Any:
    for name, content in FILES.items():
        content = changed.get(Path(name).stem, content)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return build_first_generation(folder / "entity_db", folder / "emb", folder / "table")


def test_a_table_has_what_the_files_say(tmp_path: Path) -> None:
    table = build(tmp_path)
    assert [table.entity_id(index) for index in range(4)] == ["NIL", "Q91", "Q94", "Q28260"]
    assert table.title(1) == "Abraham Lincoln"
    assert table.max_candidates == 2
    assert candidates_of(table, "lincoln") == [("Q28260", 9.5), ("Q91", 8.0)]
    assert [table.types(index) for index in (1, 2, 3)] == [["politician", "human"], ["human"], []]
    assert table.relations(1) == [("spouse", 2), ("connected to", 3)]
    assert table.relations(2) == [("connected to", 1)]
    assert table.relations(3) == [("connected to", 1)]


def test_files_of_types_and_relations_may_be_missing(tmp_path: Path) -> None:
    missing = {"qid2types": None, "type_vocab": None, "qid2relations": None, "kg_conn": None}
    table = build(tmp_path, config=None, **missing)
    assert (table.types(1), table.relations(1), table.max_candidates) == ([], [], 30)


@pytest.mark.parametrize(
    ("name", "content", "problems"),
    [
        ("qid2eid", {"Q91": 1, "Q94": 1, "Q28260": 0}, [
            "line 3: 'Q94' has the number 1, as 'Q91' has",
            "line 4: 'Q28260' has the number 0; expected one from 1 on",
        ]),
        ("qid2title", {"Q91": "", "Q94": "", "Q5": ""}, [
            "line 4: there is no entity 'Q5'",
            "line 1: there is no title of 'Q28260'",
        ]),
        ("qid2title", '{"Q91": "a",\n"Q94": "b", "Q28260": "c",\n"Q91": "d"}', [
            "line 3: 'Q91' is there twice",
        ]),
        ("alias2qids", '{"a": [["Q91", 1], ["Q94", 2]],\n"b": [["Q91", 2], ["Q91", 1]],\n'
         '"é": [["Q7", 2], ["Q91", 1], ["Q94", -1]]}', [
            "line 1: the scores of alias 'a' are out of order; expected the highest first",
            "line 2: alias 'b' has a candidate twice",
            "line 3: alias 'é' has 3 candidates; max_candidates is 2",
            "line 3: alias 'é' has a score that is no number from 0",
            "line 3: alias 'é' leads to 'Q7', which is no entity",
        ]),
        ("qid2types", {"Q91": [7], "Q5": []}, [
            "line 5: there is no entity 'Q5'",
            "line 2: 'Q91' has the type 7, which is not in type_vocab.json",
        ]),
        ("qid2relations", {"Q91": {"spouse": ["Q5"]}}, ["line 4: there is no entity 'Q5'"]),
        ("kg_conn", "Q91\tQ94\n\nQ91\nQ5\tQ91\n", [
            "line 3: 1 ids; expected two, separated by a tab",
            "line 4: there is no entity 'Q5'",
        ]),
    ],
)  # fmt: skip
def test_problems_are_listed_with_file_and_line(
    tmp_path: Path, name: str, content: Any, problems: list[str]
) -> None:
    with pytest.raises(DataError) as error:
        build(tmp_path, **{name: content})
    first, *listed = str(error.value).splitlines()
    assert f"/{name}." in first
    assert [line.strip() for line in listed] == problems
    assert not (tmp_path / "table").exists()


def test_a_file_of_another_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"alias2qids.json: .*Expected `array`, got `str`"):
        build(tmp_path, alias2qids={"lincoln": "Q91"})
    with pytest.raises(DataError, match=r"qid2title.json cannot be read"):
        build_first_generation(_without_titles(tmp_path), None, tmp_path / "table")


def _without_titles(folder: Path) -> Path:
    (folder / "entity_db/entity_mappings/qid2title.json").unlink()
    return folder / "entity_db"
