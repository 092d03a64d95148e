"""A table of entities has what its profiles say; a damaged one is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation.entities import EntityTable
from tests.tasks.disambiguation.helpers import CITY, LINCOLN, TODD, build, candidates_of


def test_a_table_has_what_the_profiles_say(tmp_path: Path) -> None:
    table = build(tmp_path, [LINCOLN, TODD, CITY])
    assert len(table) == 4  # with NIL
    assert [table.ids[index] for index in range(4)] == ["NIL", "Q91", "Q94", "Q28260"]
    assert candidates_of(table, "lincoln") == [("Q28260", 9.5), ("Q91", 8.0), ("Q94", 1.0)]
    assert candidates_of(table, "mary lincoln") == [("Q94", 2.0)]
    assert table.aliases.find(" LINCOLN\n") == table.aliases.find("lincoln") == 0
    assert table.aliases.find("lnk") == -1
    assert list(table.aliases) == ["lincoln", "abraham lincoln", "mary lincoln"]
    lincoln = table.ids.find("Q91")
    assert table.titles[lincoln] == "Abraham Lincoln"
    assert table.descriptions[lincoln] == "16th president"
    assert table.list_types(lincoln) == ["human", "politician", "person"]
    assert table.list_relations(lincoln) == [("spouse", table.ids.find("Q94"))]
    assert (table.titles[0], table.list_types(0), table.list_relations(0)) == ("", [], [])
    assert table.list_types(table.ids.find("Q94")) == []
    assert table.ids.find("Q7") == -1
    assert candidates_of(pickle.loads(pickle.dumps(table)), "lincoln")[0] == ("Q28260", 9.5)


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder of entities"):
        EntityTable.open(tmp_path)
    build(tmp_path, [LINCOLN, TODD])
    file = tmp_path / "table/titles.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged .titles.bin has 23 bytes instead of 24"):
        EntityTable.open(tmp_path / "table")


@pytest.mark.parametrize("name", ["candidates", "candidate_scores", "titles", "types"])
def test_a_flipped_byte_is_found(tmp_path: Path, name: str) -> None:
    build(tmp_path, [LINCOLN, TODD, CITY])
    manifest = json.loads((tmp_path / "table/manifest.json").read_text())
    file = tmp_path / "table" / manifest["arrays"][name]["file"]
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=rf"table is damaged \({name}.*does not match its checksum"):
        EntityTable.open(tmp_path / "table")


def test_a_manifest_that_lacks_something_is_refused(tmp_path: Path) -> None:
    build(tmp_path, [LINCOLN, TODD])
    file = tmp_path / "table/manifest.json"
    whole = json.loads(file.read_text())
    for name in ("candidates", "titles_ends", "ids_order"):
        arrays = {key: value for key, value in whole["arrays"].items() if key != name}
        file.write_text(json.dumps({**whole, "arrays": arrays}))
        with pytest.raises(DataError, match=f"damaged .manifest.json has no array '{name}'"):
            EntityTable.open(tmp_path / "table")
    file.write_text(json.dumps({**whole, "facts": {}}))
    with pytest.raises(DataError, match="facts: Object missing required field `max_candid"):
        EntityTable.open(tmp_path / "table")
    file.write_text(json.dumps({key: whole[key] for key in ("format", "facts", "arrays")}))
    with pytest.raises(DataError, match="manifest.json: Object missing required field `version`"):
        EntityTable.open(tmp_path / "table")
    file.write_text(json.dumps({**whole, "format": 1}))
    with pytest.raises(DataError, match="is not of this version of bsmeta"):
        EntityTable.open(tmp_path / "table")
    file.write_text(json.dumps(whole))
    (tmp_path / "table/titles.bin").unlink()
    with pytest.raises(DataError, match=r"damaged .*titles.bin is missing"):
        EntityTable.open(tmp_path / "table")
