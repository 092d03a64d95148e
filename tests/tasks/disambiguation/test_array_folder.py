"""Folders of arrays that someone else has written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder, ArrayWriter
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.profiles import build_entities
from tests.core.hostile_names import HOSTILE_NAMES

LAYOUT = {"numbers": "<i4", "text": "|u1"}
NUMBERS = np.array([7, -1, 3], np.int32)


class Facts(msgspec.Struct):
    author: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "arrays"
    path.mkdir()
    writer = ArrayWriter(path, LAYOUT)
    writer.append("numbers", NUMBERS)
    writer.replace("text", np.frombuffer(b"abc", np.uint8))
    writer.commit(Facts("someone"))
    return path


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edits a manifest."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    edit(manifest)
    file.write_text(json.dumps(manifest))


def open_folder(folder: Path) -> ArrayFolder[Facts]:
    return ArrayFolder(folder, LAYOUT, Facts)


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as error:
        open_folder(folder)
    message = str(error.value)
    assert message.startswith(f"{folder} is damaged (")
    assert message.endswith("); delete the folder and build it again")
    return message


def test_what_is_written_is_read(folder: Path) -> None:
    arrays = open_folder(folder)
    assert arrays["numbers"].tolist() == [7, -1, 3]
    assert arrays["text"].tobytes() == b"abc"
    assert arrays.facts == Facts("someone")


def test_an_array_of_objects_is_never_mapped(folder: Path) -> None:
    """Their addresses would be followed: with this manifest, the first access was a crash."""
    addresses = np.array([1, 2, 3], np.int64)
    (folder / "numbers.bin").write_bytes(addresses.tobytes())
    entry = {
        "file": "numbers.bin", "dtype": "O", "length": 3,
        "xxh3": xxhash.xxh3_128_hexdigest(addresses.data),
    }  # fmt: skip
    change(folder, lambda manifest: manifest["arrays"].update(numbers=entry))
    assert "'numbers' is of type 'O', expected '<i4'" in refusal(folder)


@pytest.mark.parametrize("dtype", ["O", "|O", "<i8", ">i4", "V4", "f4", "i4", "<M8[s]", "", "x"])
def test_another_type_than_that_of_the_layout(folder: Path, dtype: str) -> None:
    change(folder, lambda manifest: manifest["arrays"]["numbers"].update(dtype=dtype))
    assert f"'numbers' is of type {dtype!r}, expected '<i4'" in refusal(folder)


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "text.bin", "manifest.json", "numbers.1.bin/x"])
def test_an_array_in_a_file_of_another_name_is_refused(folder: Path, name: str) -> None:
    change(folder, lambda manifest: manifest["arrays"]["numbers"].update(file=name))
    refusal(folder)


def test_a_file_that_is_a_link_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(NUMBERS.tobytes())
    (folder / "numbers.bin").unlink()
    (folder / "numbers.bin").symlink_to(tmp_path / "secret")
    assert "a symbolic link leads out of" in refusal(folder)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda entry: entry.update(length=4), "numbers.bin has 12 bytes instead of 16"),
        (lambda entry: entry.update(length=1 << 62), "has 12 bytes instead of 18,446,744,073"),
        (lambda entry: entry.update(length=-1), "Expected `int` >= 0"),
        (lambda entry: entry.update(length=3.5), "Expected `int`, got `float`"),
        (lambda entry: entry.update(length="3"), "Expected `int`, got `str`"),
        (lambda entry: entry.update(file=7), "Expected `str`, got `int`"),
        (lambda entry: entry.clear(), "missing required field `file`"),
        (lambda entry: entry.update(length=2), "numbers.bin does not match its checksum"),
        (lambda entry: entry.update(xxh3=None), "numbers.bin does not match its checksum"),
    ],
)
def test_entries_that_do_not_fit(
    folder: Path, edit: Callable[[dict[str, Any]], object], reason: str
) -> None:
    change(folder, lambda manifest: edit(manifest["arrays"]["numbers"]))
    assert reason in refusal(folder)


def test_arrays_are_those_of_the_layout(folder: Path) -> None:
    change(folder, lambda manifest: manifest["arrays"].update(more=manifest["arrays"]["text"]))
    assert "has an unknown array 'more'" in refusal(folder)
    change(folder, lambda manifest: manifest["arrays"].pop("more"))
    change(folder, lambda manifest: manifest["arrays"].pop("text"))
    assert "has no array 'text'" in refusal(folder)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'"x"', b"null", b"\xff", b"[" * 100_000, b'{"format": 3}']
)
def test_files_that_are_no_manifest_are_refused(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    refusal(folder)


def forge(folder: Path, name: str, values: np.ndarray) -> None:
    """Replaces an array, with its checksum and length, as someone with bad intent would."""
    (folder / f"{name}.bin").write_bytes(values.tobytes())
    entry = {
        "file": f"{name}.bin", "dtype": values.dtype.str, "length": len(values),
        "xxh3": xxhash.xxh3_128_hexdigest(np.ascontiguousarray(values).data),
    }  # fmt: skip
    change(folder, lambda manifest: manifest["arrays"].update({name: entry}))


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("candidates", [0, 99], "candidates has values from 0 to 99, expected 0 to 2"),
        ("candidates", [0, -1], "candidates has values from -1 to 0, expected 0 to 2"),
        ("candidates_ends", [2, 1], "candidates_ends does not increase"),
        ("candidates_ends", [1, 1 << 60], "candidates_ends ends at 1,152,921,504,606,846,976, but"),
        ("candidates_ends", [-1, 2], "candidates_ends does not increase"),
        ("candidates_ends", [2], "candidates_ends has 1 values, expected 2"),
        ("candidate_scores", [1.0], "candidate_scores has 1 values, expected 2"),
        ("ids_order", [0, 1, 3], "ids_order has values from 0 to 3, expected 0 to 2"),
        ("ids_order", [0, 1], "ids_order has 2 values, expected 3"),
        ("ids_hashes", [0, 1], "ids_hashes has 2 values, expected 3"),
        ("relation_objects", [3], "relation_objects has values from 3 to 3, expected 0 to 2"),
        ("relation_objects", [], "relation_objects has 0 values, expected 1"),
        ("types", [5], "types has values from 5 to 5, expected 0 to 0"),
        ("titles", [0xFF] * 6, "titles is not UTF-8"),
        ("titles_ends", [0, 4, 6], "titles_ends divides a character of titles"),
        ("titles_ends", [0, 6], "titles_ends has 2 values, expected 3"),
    ],
)
def test_numbers_of_a_table_lead_somewhere(
    tmp_path: Path, name: str, values: list[float], reason: str
) -> None:
    lines = [
        {"entity_id": "a", "mentions": [["x", 1]], "title": "Ähé", "types": {"t": ["kind"]},
         "relations": [{"relation": "to", "object": "b"}]},
        {"entity_id": "b", "mentions": [["y", 1]], "title": "b"},
    ]  # fmt: skip
    profiles = tmp_path / "profiles.jsonl"
    profiles.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    table = tmp_path / "table"
    build_entities(profiles, table)
    dtype = json.loads((table / "manifest.json").read_text())["arrays"][name]["dtype"]

    forge(table, name, np.array(values, dtype))
    with pytest.raises(DataError) as error:
        EntityTable.open(table)
    assert f"{table} is damaged ({reason}" in str(error.value)
