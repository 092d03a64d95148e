"""The entity files of Bootleg become tables: JSON of any name, and tries."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.disambiguation.entity_files import Sources, build_from_files
from tests.tasks.disambiguation.helpers import candidates_of

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


def build(folder: Path, sources: dict[str, Any] | None = None, **changed: Any) -> Any:
    for name, content in FILES.items():
        content = changed.get(Path(name).stem, content)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    given = {"emb_dir": folder / "emb", **(sources or {})}
    return build_from_files(Sources(folder / "entity_db", **given), folder / "table")


def test_a_table_has_what_the_files_say(tmp_path: Path) -> None:
    table = build(tmp_path)
    assert [table.ids[index] for index in range(4)] == ["NIL", "Q91", "Q94", "Q28260"]
    assert table.titles[1] == "Abraham Lincoln"
    assert table.max_candidates == 2
    assert candidates_of(table, "lincoln") == [("Q28260", 9.5), ("Q91", 8.0)]
    types = [table.list_types(index) for index in (1, 2, 3)]
    assert types == [["politician", "human"], ["human"], []]
    assert table.list_relations(1) == [("spouse", 2), ("connected to", 3)]
    assert table.list_relations(2) == [("connected to", 1)]
    assert table.list_relations(3) == [("connected to", 1)]


def test_missing_files_are_named(tmp_path: Path) -> None:
    table = build(tmp_path, {"emb_dir": None}, config=None, qid2eid=None)
    assert (table.list_types(1), table.list_relations(1), table.max_candidates) == ([], [], 30)
    assert [table.ids[index] for index in (1, 2, 3)] == ["Q91", "Q94", "Q28260"]  # of titles
    none = {"types": [], "relations": []}
    assert build(tmp_path / "b", none, qid2types=None).list_types(1) == []


@pytest.mark.parametrize("count", ["x", 0, 2.5, None, [2], True])
def test_a_number_of_candidates_that_is_none_is_refused(count: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        build(tmp_path, config={"max_candidates": count})
    assert str(error.value) == (
        f"{tmp_path}/entity_db/entity_mappings/config.json: max_candidates={json.dumps(count)}; "
        "expected a number of 1 or more"
    )


def test_types_and_relations_have_any_name(tmp_path: Path) -> None:
    emb = tmp_path / "emb"
    emb.mkdir()
    (emb / "coarse_0905.json").write_text('{"Q91": [7]}')
    (emb / "coarse_vocab.json").write_text('{"person": 7}')
    (emb / "kg_relation_types.json").write_text('{"Q91": [0, 1], "Q94": ["P26"]}')
    (emb / "relation_vocab.json").write_text('{"spouse": 0, "sex": 1, "married": "P26"}')
    (emb / "cooccur.json").write_text('{"Q91": {"Q94": 0.5, "Q5": 1.0}}')
    chosen = {
        "types": ["qid2types.json", "coarse_0905.json:coarse_vocab.json"],
        "relations": ["kg_relation_types.json", "cooccur.json"],
    }
    table = build(tmp_path, chosen)
    assert table.list_types(1) == ["politician", "human", "person"]
    assert table.list_relations(1) == [("spouse", 0), ("sex", 0), ("connected to", 2)]
    assert table.list_relations(2) == [("married", 0)]


@pytest.mark.parametrize(
    ("sources", "changed", "error", "message"),
    [
        ({}, {"qid2types": None}, ConfigurationError,
         r"types: .*/emb has no qid2types.json, but kg_conn.txt, .*types=\[NAME\].*types=\[\]"),
        ({}, {"qid2relations": None, "kg_conn": None}, ConfigurationError,
         "relations: .*/emb has no qid2relations.json or kg_conn.txt, but"),
        ({"types": ["qid2type.json"]}, {}, ConfigurationError,
         r"types=\[qid2type.json\]: .* has no qid2type.json \(did you mean qid2types.json\?\)"),
        ({"types": ["qid2types.json:voc.json"]}, {}, ConfigurationError, "has no voc.json"),
        ({}, {"qid2types": {"Q7": [0]}}, DataError, "types: no entity gets any from .*qid2types"),
        ({"relations": ["kg_conn.txt"]}, {"kg_conn": "Q7\tQ8"}, DataError, "relations: no entity"),
    ],
)  # fmt: skip
def test_files_that_give_nothing_are_refused(
    tmp_path: Path, sources: dict[str, Any], changed: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        build(tmp_path, sources, **changed)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("name", "content", "problems"),
    [
        ("qid2eid", {"Q91": 1, "Q94": 1, "Q28260": 0}, [
            "line 3: 'Q94' has the number 1, as 'Q91' has",
            "line 4: 'Q28260' has the number 0; expected one from 1 on",
        ]),
        ("qid2title", {"Q91": "", "Q94": "", "Q5": ""}, [
            "line 4: there is no entity 'Q5' in qid2eid.json",
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
            "line 3: alias 'é' has a score that is not a number from 0",
            "line 3: alias 'é' leads to 'Q7', which is not an entity",
        ]),
        ("qid2types", {"Q91": [7], "Q5": []}, [
            "line 2: 'Q91' has the type 7, which is not in type_vocab.json",
        ]),
        ("qid2relations", {"Q94": [], "Q91": [3]}, [
            "line 3: 'Q91' has the relation 3, which is not in relation_vocab.json",
        ]),
        ("kg_conn", "Q91\tQ94\n\nQ91\nQ5\tQ91\n", [
            "line 3: 1 columns; expected two ids and a tab between",
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


def test_what_is_said_about_unknown_entities_is_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = build(
        tmp_path,
        qid2types={"Q91": [1], "Q5": [7], "Q6": []},
        qid2relations={"Q91": {"spouse": ["Q94", "Q5"]}, "Q6": {}},
        kg_conn="Q94\tQ91\nQ5\tQ91\nQ5\tQ6\n",
    )
    assert table.list_types(1) == ["politician"]
    assert table.list_relations(1) == [("spouse", 2)]
    assert [record.getMessage().rpartition("/")[2] for record in caplog.records] == [
        "qid2types.json: 2 of 3 entities have no title; left out",
        "qid2relations.json: 1 of 2 entities have no title; left out",
        "qid2relations.json: 1 relations lead to entities without a title; left out",
        "kg_conn.txt: 2 of 3 pairs name entities without a title; left out",
    ]


def test_a_file_of_another_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"alias2qids.json: .*Expected `array`, got `str`"):
        build(tmp_path, alias2qids={"lincoln": "Q91"})
    (tmp_path / "entity_db/entity_mappings/qid2title.json").unlink()
    with pytest.raises(DataError, match=r"qid2title.json cannot be read"):
        build_from_files(Sources(tmp_path / "entity_db"), tmp_path / "table")


def write_tries(folder: Path, values: dict[str, list[tuple[str, float]]], most: int) -> None:
    """A mapping as Bootleg 1.1 writes it: numbers of names with scores, filled up with -1."""
    marisa_trie = pytest.importorskip("marisa_trie")
    folder.mkdir(parents=True)
    names = marisa_trie.Trie({name for own in values.values() for name, _ in own})
    rows = []
    for key, own in values.items():
        row = [number for name, score in own for number in (names[name], score)]
        rows.append((key, (*row, *[-1] * (2 * most - len(row)))))
    records = marisa_trie.RecordTrie("<" + "lf" * most, rows)
    (folder / "max_value.json").write_text(str(most))
    names.save(str(folder / "vocabulary_trie.marisa"))
    records.save(str(folder / "record_trie.marisa"))


def test_tries_of_the_second_generation(tmp_path: Path) -> None:
    db = tmp_path / "entity_db"
    write_tries(
        db / "entity_mappings/alias2qids", {"lincoln": [("Q28260", 9.5), ("Q91", 8)]}, most=3
    )
    write_tries(db / "type_mappings/wiki/qid2typenames", {"Q91": [("human", 0)], "Q94": []}, most=2)
    write_tries(db / "type_mappings/coarse/qid2typenames", {"Q91": [("person", 0)]}, most=2)
    kg = db / "kg_mappings"
    kg.mkdir()
    (kg / "qid2relations.json").write_text('{"Q91": {"P26": ["Q94", "Q5"]}, "Q94": {}}')
    (kg / "relation_vocab.json").write_text('{"spouse": "P26"}')
    table = build(tmp_path, {"emb_dir": None}, alias2qids=None)
    assert candidates_of(table, "lincoln") == [("Q28260", 9.5), ("Q91", 8.0)]
    assert (table.list_types(1), table.list_relations(1)) == (["person", "human"], [("spouse", 2)])
    wiki = Sources(db, types=["wiki"], relations=[])
    table = build_from_files(wiki, tmp_path / "wiki")
    assert (table.list_types(1), table.list_relations(1)) == (["human"], [])
    with pytest.raises(ConfigurationError, match="has no wki .did you mean wiki.*coarse, wiki"):
        build_from_files(Sources(db, types=["wki"]), tmp_path / "other")

    max_pairs = db / "entity_mappings/alias2qids/max_value.json"
    saved = max_pairs.read_text()
    for edited in ("1000000000", "0", "null", "{"):
        max_pairs.write_text(edited)
        with pytest.raises(DataError, match="alias2qids: its tries cannot be read"):
            build_from_files(wiki, tmp_path / "other")
    max_pairs.write_text(saved)

    trie = db / "entity_mappings/alias2qids/record_trie.marisa"
    trie.write_bytes(trie.read_bytes()[:40])
    with pytest.raises(DataError, match="alias2qids: its tries cannot be read"):
        build_from_files(wiki, tmp_path / "other")


def test_relations_as_tries_with_two_vocabularies(tmp_path: Path) -> None:
    marisa_trie = pytest.importorskip("marisa_trie")
    folder = tmp_path / "entity_db/kg_mappings/qid2relations"
    folder.mkdir(parents=True)
    names, objects = marisa_trie.Trie(["spouse", "city"]), marisa_trie.Trie(["Q94", "Q28260"])
    row = (names["spouse"], objects["Q94"], names["city"], objects["Q28260"], -1, -1)
    marisa_trie.RecordTrie("<llllll", [("Q91", row)]).save(str(folder / "record_trie.marisa"))
    names.save(str(folder / "key_vocabulary_trie.marisa"))
    objects.save(str(folder / "value_vocabulary_trie.marisa"))
    (folder / "max_value.json").write_text("3")
    table = build(tmp_path, {"emb_dir": None})
    assert table.list_relations(1) == [("spouse", 2), ("city", 3)]


def test_the_library_that_reads_tries_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "marisa_trie", None)
    (tmp_path / "entity_db/entity_mappings/alias2qids").mkdir(parents=True)
    with pytest.raises(DataError, match=r"alias2qids holds marisa tries.*install -e .\[bootleg"):
        build(tmp_path, {"emb_dir": None}, alias2qids=None)
