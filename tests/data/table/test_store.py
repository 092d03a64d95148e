"""A store is built once, and refused for other settings."""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import time
from pathlib import Path

import pyarrow as pa
import pytest
from datasets import Dataset

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import hash_file
from bsmeta.data.table import store as stores
from bsmeta.data.table.store import hash_files, open_store
from tests.core.hostile_names import HOSTILE_NAMES

KEY = {"source": "9f3a", "max_length": 16, "labels": ["no", "yes"]}


def build_dataset() -> Dataset:
    return Dataset.from_dict({"ids": [[1, 2], [3], [4, 5, 6]], "label": [0, 1, 0]})


def refuse_to_build() -> Dataset:
    raise AssertionError("built again")


def test_a_store_is_built_once_and_then_read(tmp_path: Path) -> None:
    first = open_store(tmp_path / "prep/store", KEY, build_dataset)
    again = open_store(tmp_path / "prep/store", KEY, refuse_to_build)
    assert first[:] == again[:] == {"ids": [[1, 2], [3], [4, 5, 6]], "label": [0, 1, 0]}
    assert not list(tmp_path.rglob("*.part"))


def test_batches_are_written_incrementally(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.string()), ("number", pa.int64())])
    parts = [[{"text": "ä", "number": 1}], [{"text": None, "number": 2}], []]
    batches = (pa.RecordBatch.from_pylist(rows, schema) for rows in parts)
    rows = open_store(tmp_path / "store", KEY, lambda: batches)
    assert rows[:] == {"text": ["ä", None], "number": [1, 2]}
    assert open_store(tmp_path / "store", KEY, refuse_to_build)[[1, 0]]["number"] == [2, 1]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("source", "0000", "source: 9f3a in the store, 0000 now"),
        ("max_length", 32, "max_length: 16 in the store, 32 now"),
        ("labels", ["a"], r"labels: \['no', 'yes'\] in the store, \['a'\] now"),
    ],
)
def test_a_stale_store_is_refused_with_the_changed_setting(
    tmp_path: Path, name: str, value: object, line: str
) -> None:
    open_store(tmp_path / "store", KEY, build_dataset)
    with pytest.raises(ConfigurationError, match=line):
        open_store(tmp_path / "store", {**KEY, name: value}, refuse_to_build)
    assert len(open_store(tmp_path / "store", KEY, refuse_to_build)) == 3


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        open_store(tmp_path / "store", KEY, refuse_to_build)
    assert len(open_store(tmp_path / "store", KEY, build_dataset)) == 3


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    open_store(store, KEY, build_dataset)
    arrow = next(store.glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[: arrow.stat().st_size // 2])
    with pytest.raises(DataError, match=r"store is damaged.*delete the folder"):
        open_store(store, KEY, refuse_to_build)
    (store / "key.json").write_text("{")
    with pytest.raises(DataError, match=r"store is damaged \(key.json"):
        open_store(store, KEY, refuse_to_build)


@pytest.mark.parametrize("at", [0.3, 0.5, 0.9])
def test_a_flipped_bit_is_damage(tmp_path: Path, at: float) -> None:
    """Arrow itself reads it as another value."""
    store = tmp_path / "store"
    open_store(store, KEY, build_dataset)
    arrow = next(store.glob("*.arrow"))
    data = bytearray(arrow.read_bytes())
    data[int(at * len(data))] ^= 4
    arrow.write_bytes(data)
    with pytest.raises(
        DataError, match=rf"damaged \({arrow.name} was changed after it was written\)"
    ):
        open_store(store, KEY, refuse_to_build)


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    store = tmp_path / "store"
    open_store(store, KEY, build_dataset)
    (store / "state.json").unlink()
    with pytest.raises(DataError, match=r"store is damaged \(.*state.json"):
        open_store(store, KEY, refuse_to_build)


def test_a_row_count_that_disagrees_is_damage(tmp_path: Path) -> None:
    open_store(tmp_path / "store", KEY, build_dataset)
    file = tmp_path / "store/key.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({**saved, "rows": 4}))
    with pytest.raises(DataError, match="3 rows instead of 4"):
        open_store(tmp_path / "store", KEY, refuse_to_build)


def seal(store: Path) -> None:
    """Updates the hashes in a store to match its files, as an attacker would."""
    file = store / "key.json"
    saved = json.loads(file.read_text())
    saved["files"] = {name: hash_file(store / name) for name in saved["files"]}
    file.write_text(json.dumps(saved))


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_store_reads_no_file_outside_its_folder(tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    open_store(store, KEY, build_dataset)
    saved = json.loads((store / "key.json").read_text())

    (store / "key.json").write_text(
        json.dumps({**saved, "files": {**saved["files"], name: "0" * 16}})
    )
    with pytest.raises(DataError, match=r"store is damaged \(.*key\.json"):
        open_store(store, KEY, refuse_to_build)

    state = json.loads((store / "state.json").read_text())
    state["_data_files"].append({"filename": name})
    (store / "state.json").write_text(json.dumps(state))
    (store / "key.json").write_text(json.dumps(saved))
    seal(store)
    with pytest.raises(DataError, match=r"store is damaged \(state\.json"):
        open_store(store, KEY, refuse_to_build)


def test_offsets_outside_an_array_are_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    texts = pa.RecordBatch.from_pydict({"text": pa.array(["one", "two"], pa.string())})
    open_store(store, KEY, lambda: iter([texts]))
    (arrow,) = store.glob("*.arrow")
    offsets = struct.pack("<3i", 0, 3, 6)
    content = arrow.read_bytes()
    assert content.count(offsets) == 1
    arrow.write_bytes(content.replace(offsets, struct.pack("<3i", 0, 3, 1 << 30)))
    seal(store)
    with pytest.raises(DataError, match="store is damaged .*offset"):
        open_store(store, KEY, refuse_to_build)


def test_a_column_that_opens_files_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = pa.RecordBatch.from_pydict(
        {"image": pa.array([{"bytes": None, "path": "http://host/x.png"}], image)}
    )
    with pytest.raises(DataError, match="store is damaged .column 'image' is of type"):
        open_store(store, KEY, lambda: iter([rows]))

    info = json.loads((store / "dataset_info.json").read_text())
    info["features"]["image"] = {"_type": "Image"}
    (store / "dataset_info.json").write_text(json.dumps(info))
    seal(store)
    with pytest.raises(DataError, match="store is damaged .column 'image' is of type Image"):
        open_store(store, KEY, refuse_to_build)

    info["features"]["image"] = {"_type": "Image", "decode": 1, "mode": [[]]}
    (store / "dataset_info.json").write_text(json.dumps(info))
    seal(store)
    with pytest.raises(DataError, match="store is damaged"):
        open_store(store, KEY, refuse_to_build)


def _open_in_process(folder: Path, built: Path) -> None:
    def slow() -> Dataset:
        (built / str(os.getpid())).touch()
        time.sleep(0.5)
        return build_dataset()

    assert len(open_store(folder, KEY, slow)) == 3


def test_one_process_builds_while_the_others_wait(tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_open_in_process, args=(tmp_path / "store", built)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(list(built.iterdir())) == 1


def test_a_file_is_read_again_only_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    read: list[Path] = []

    def noted(file: Path) -> str:
        read.append(file)
        return hash_file(file)

    monkeypatch.setattr(stores, "hash_file", noted)
    for file in files:
        file.write_text(file.name)
    first = hash_files(files, tmp_path / "store")
    assert first == {file: hash_file(file) for file in files}
    assert hash_files(files, tmp_path / "store") == first
    assert read == files
    files[1].write_text("other")
    changed = hash_files(files, tmp_path / "store")
    assert changed == {file: hash_file(file) for file in files} != first
    assert read == [*files, files[1]]
    name = json.dumps(str(files[0].resolve()))
    for damaged in ("{", "[]", "[1]", f"{{{name}: []}}", f"{{{name}: {{}}}}", "[" * 5000, "\xff"):
        (tmp_path / "store" / stores.HASHES_FILE).write_text(damaged, encoding="latin-1")
        assert hash_files(files, tmp_path / "store") == changed
