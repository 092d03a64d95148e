"""The database of a table is built once, and refused for other data or settings."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.classification import store
from bsmeta.tasks.classification.examples import Chunk, Examples, open_examples
from bsmeta.tasks.classification.store import SPLITS, split_rows
from tests.tasks.classification.helpers import (
    TEXT,
    bert_tokenizer,
    byte_tokenizer,
    data_config,
    saved_results,
    write_csv,
    write_leanings,
)

TOKENIZER = bert_tokenizer()


def test_the_example_of_the_seed_document(tmp_path: Path) -> None:
    csv = tmp_path / "leanings.csv"
    rows = [f'"{TEXT}", left', '"Democrats want you to...", right'] * 5
    csv.write_text("\n".join(["text, label", *rows]))
    config = data_config(csv, fold_by="words", max_length=4, split_fractions=[1, 0, 0])
    examples = open_examples(config, TOKENIZER)
    assert examples.database == tmp_path / "leanings.sqlite"
    assert examples.labels == ("left", "right")
    chunks = examples.read(examples.list_chunks("train")[:4])
    assert [(one.text.strip(), one.label, one.source, one.number) for one in chunks] == [
        ("Beat my Republican opponent!", 0, 1, 0),
        ("She will remove stop", 0, 1, 1),
        ("signs from your neighborhood.", 0, 1, 2),
        ("Democrats want you to...", 1, 2, 0),
    ]
    assert next(examples.read_texts("train")) == (1, TEXT, 0)
    assert examples.count_labels("train") == {"left": 5, "right": 5}
    assert len(examples.list_chunks("test")) == 0


def test_chunks_are_read_in_the_order_of_their_ids(tmp_path: Path) -> None:
    examples = open_examples(data_config(write_leanings(tmp_path)), TOKENIZER)
    ids = examples.list_chunks("train")[::-1].tolist()
    found = examples.read([*ids, ids[0]])
    assert [examples.read([number])[0] for number in [*ids, ids[0]]] == found
    assert examples.read([]) == []


def test_texts_and_chunks_hold_the_table(tmp_path: Path) -> None:
    csv = write_leanings(tmp_path)
    examples = open_examples(data_config(csv, split_by="speaker"), TOKENIZER)
    lines = [line.split(",") for line in csv.read_text().splitlines()[1:]]
    found = {}
    for split in ("train", "validation", "test"):
        groups = dict(zip(examples.list_sources(split), examples.list_groups(split), strict=True))
        for row, text, label in examples.read_texts(split):
            found[row] = [text, examples.labels[label], groups[row]]
            assert [[text, label]] == [
                ["".join(one.text for one in examples.read(examples.list_chunks(split))
                         if one.source == row), label]
            ]  # fmt: skip
    assert [found[row] for row in sorted(found)] == lines


def test_a_database_does_not_depend_on_how_many_rows_are_written_at_one_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv = write_leanings(tmp_path)
    whole = open_examples(data_config(csv), TOKENIZER)
    monkeypatch.setattr(store, "MAX_BATCH_ROWS", 7)
    monkeypatch.setattr(store, "MAX_BATCH_CHARS", 300)
    parts = open_examples(data_config(csv, database=str(tmp_path / "b.sqlite")), TOKENIZER)
    for split in SPLITS:
        assert parts.read(parts.list_chunks(split)) == whole.read(whole.list_chunks(split))


def test_numbers_as_labels_are_in_their_order(tmp_path: Path) -> None:
    labels = ("10", "-1", "2", "b", "a", "--5")
    rows = [(f"stop {n}", label) for n in range(9) for label in labels]
    csv = write_csv(tmp_path / "stars.csv", rows, ["text", "label"])
    assert open_examples(data_config(csv), TOKENIZER).labels == ("-1", "2", "10", "--5", "a", "b")


def test_builds_once_and_reads_again_without_the_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv = write_leanings(tmp_path)
    first = open_examples(data_config(csv), TOKENIZER)
    monkeypatch.setattr(store, "build_database", None)
    assert open_examples(data_config(csv), TOKENIZER).key == first.key
    database = tmp_path / "leanings.sqlite"
    csv.unlink()
    again = open_examples(data_config(database), TOKENIZER)
    assert again.read(again.list_chunks("test")) == first.read(first.list_chunks("test"))
    with pytest.raises(DataError, match=r"no such file; data_config.csv=.*leanings.sqlite uses"):
        open_examples(data_config(csv), TOKENIZER)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ({"max_length": 17}, "data_config.max_length: 16 in the database, 17 now"),
        ({"fold_by": "words"}, "data_config.fold_by: tokens in the database, words now"),
        ({"split_by": "speaker"}, "data_config.split_by: None in the database, speaker now"),
        ({"split_seed": 7}, "data_config.split_seed: 42 in the database, 7 now"),
        ({"split_fractions": [0.6, 0.2, 0.2]}, r"split_fractions: \[0.8, 0.1, 0.1\] in the data"),
        ({"label_column": "speaker"}, "data_config.label_column: label in the database, speaker"),
        ({"text_column": "speaker"}, "data_config.text_column: text in the database, speaker now"),
        ({"on_bad_row": "skip"}, "data_config.on_bad_row: refuse in the database, skip now"),
        ({"csv_encoding": "latin-1"}, "data_config.csv_encoding: auto in the database, latin-1"),
    ],
)
def test_other_settings_are_refused_by_name(
    tmp_path: Path, setting: dict[str, Any], line: str
) -> None:
    csv = write_leanings(tmp_path)
    open_examples(data_config(csv), TOKENIZER)
    before = (tmp_path / "leanings.sqlite").read_bytes()
    for path in (csv, tmp_path / "leanings.sqlite"):
        with pytest.raises(ConfigurationError, match=rf"name another database.*\n  .*{line}"):
            open_examples(data_config(path, **setting), TOKENIZER)
    assert (tmp_path / "leanings.sqlite").read_bytes() == before
    other = open_examples(
        data_config(csv, database=str(tmp_path / "b.db"), max_length=9), TOKENIZER
    )
    assert other.database == tmp_path / "b.db"


def test_a_changed_csv_and_another_tokenizer_are_refused(tmp_path: Path) -> None:
    csv = write_leanings(tmp_path)
    open_examples(data_config(csv), TOKENIZER)
    with pytest.raises(ConfigurationError, match=r"\n  tokenizer: \w+ in the database, \w+ now"):
        open_examples(data_config(csv), byte_tokenizer())
    csv.write_text(csv.read_text() + "stop,left,x\n")
    with pytest.raises(
        ConfigurationError,
        match=r"delete it to build it again from .*leanings.csv:\n  content of the CSV file: ",
    ):
        open_examples(data_config(csv), TOKENIZER)


def test_what_the_tokenizer_did_before_does_not_matter(tmp_path: Path) -> None:
    csv = write_leanings(tmp_path)
    built = open_examples(data_config(csv), TOKENIZER).database
    before = built.read_bytes()
    used = bert_tokenizer()
    used([TEXT, "stop"], truncation=True, max_length=4, padding=True)
    assert open_examples(data_config(csv), used).database == built
    assert built.read_bytes() == before


@pytest.mark.parametrize("how", ["cut", "overwritten", "other tables", "no database"])
def test_a_damaged_database_is_named(tmp_path: Path, how: str) -> None:
    csv = write_leanings(tmp_path)
    database = open_examples(data_config(csv), TOKENIZER).database
    content = database.read_bytes()
    if how == "cut":
        database.write_bytes(content[:-4096])
    elif how == "overwritten":
        database.write_bytes(content[:100] + b"\xff" * 8000 + content[8100:])
    elif how == "other tables":
        database.unlink()
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE other (a)")
    else:
        database.write_text("text,label\n")
    message = r"leanings.sqlite is damaged, or not a database .* delete it"
    with pytest.raises(DataError, match=message):
        open_examples(data_config(csv), TOKENIZER)


def test_readers_cannot_write(tmp_path: Path) -> None:
    database = open_examples(data_config(write_leanings(tmp_path)), TOKENIZER).database
    with pytest.raises(DataError, match="attempt to write a readonly database"):
        list(Examples(database)._query("DELETE FROM chunks"))


def test_results_are_kept_and_the_rest_stays(tmp_path: Path) -> None:
    config = data_config(write_leanings(tmp_path))
    examples = open_examples(config, TOKENIZER)
    examples.save_results("runs/a", {"accuracy": 0.5})
    examples.save_results("runs/b", {"accuracy": 0.75})
    found = saved_results(examples.database)
    assert [(one["run"], one["accuracy"]) for one in found] == [("runs/a", 0.5), ("runs/b", 0.75)]


def test_a_write_that_was_killed_is_taken_back(tmp_path: Path) -> None:
    config = data_config(write_leanings(tmp_path))
    examples = open_examples(config, TOKENIZER)
    examples.save_results("runs/a", {"accuracy": 0.5})
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_write_and_die, args=(examples.database,))
    process.start()
    process.join()
    assert (tmp_path / "leanings.sqlite-journal").exists()
    again = open_examples(config, TOKENIZER)
    assert [one["run"] for one in saved_results(again.database)] == ["runs/a"]
    assert again.read(again.list_chunks("train")) == examples.read(examples.list_chunks("train"))


def _write_and_die(database: Path) -> None:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")  # or nothing is written before the end
    connection.execute("BEGIN IMMEDIATE")
    for _ in range(200):
        connection.execute("INSERT INTO results VALUES (NULL, 'b', '', ?)", ("x" * 5000,))
    os._exit(9)


def test_a_table_of_someone_else_deletes_no_other_file(tmp_path: Path) -> None:
    """SQLite deletes the file that a journal of several databases names, when it takes it back."""
    config = data_config(write_leanings(tmp_path))
    examples = open_examples(config, TOKENIZER)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_write_and_die, args=(examples.database,))
    process.start()
    process.join()
    other = tmp_path / "precious"
    other.write_text("not a list of journals\n")
    name = str(other).encode()
    page = 0x4000_0000 // 4096 + 1  # that of SQLite's locks, which no table uses
    record = struct.pack(">I", page) + name + struct.pack(">II", len(name), sum(name))
    with (tmp_path / "leanings.sqlite-journal").open("ab") as journal:
        journal.write(record + bytes.fromhex("d9d505f920a163d7"))
    with pytest.raises(DataError, match=r"leanings\.sqlite-journal names a file of other journals"):
        open_examples(config, TOKENIZER)
    assert other.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    csv = write_leanings(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written.*data_config.database=FILE"):
        open_examples(data_config(csv, database=str(tmp_path / "file/a.sqlite")), TOKENIZER)


@pytest.mark.long
def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    csv = write_leanings(tmp_path)
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from tests.tasks.classification.helpers import *\n"
        "from bsmeta.tasks.classification.examples import open_examples\n"
        "open_examples(data_config(sys.argv[1]), bert_tokenizer())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(csv)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert "DataError" in done.stderr
    assert "leanings.sqlite cannot be written" in done.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "leanings.csv", "leanings.sqlite.lock",
    ]  # fmt: skip


def test_a_killed_build_is_built_again(tmp_path: Path) -> None:
    csv = write_leanings(tmp_path)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_build_and_die, args=(csv,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert (tmp_path / "leanings.sqlite.part").exists()
    examples = open_examples(data_config(csv), TOKENIZER)
    assert sum(examples.count_labels("train").values()) == 48
    assert not (tmp_path / "leanings.sqlite.part").exists()


def test_a_table_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv = write_leanings(tmp_path)

    def change(*arguments: Any) -> Any:
        csv.write_text(csv.read_text() + "stop,left,x\n")
        return split_rows(*arguments)

    monkeypatch.setattr(store, "split_rows", change)
    with pytest.raises(DataError, match=r"leanings.csv has changed while it was read; start again"):
        open_examples(data_config(csv), TOKENIZER)
    assert not list(tmp_path.glob("leanings.sqlite*[!k]"))


def _build_and_die(csv: Path) -> None:
    store.split_rows = lambda *_: os._exit(9)
    open_examples(data_config(csv), TOKENIZER)


def _open_in_process(csv: Path, built: Path) -> None:
    build = store.build_database

    def slow(*arguments: Any) -> None:
        (built / str(os.getpid())).touch()
        time.sleep(0.5)
        build(*arguments)

    store.build_database = slow
    assert len(open_examples(data_config(csv), TOKENIZER).list_sources("train")) == 48


def test_one_process_builds_while_the_others_wait(tmp_path: Path) -> None:
    csv = write_leanings(tmp_path)
    (tmp_path / "built").mkdir()
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_open_in_process, args=(csv, tmp_path / "built")) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(list((tmp_path / "built").iterdir())) == 1


def _read_in_process(examples: Examples, expected: list[Chunk]) -> None:
    assert examples.read(examples.list_chunks("train")) == expected


def test_forked_processes_read_at_the_same_time(tmp_path: Path) -> None:
    examples = open_examples(data_config(write_leanings(tmp_path)), TOKENIZER)
    expected = examples.read(examples.list_chunks("train"))
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_read_in_process, args=(examples, expected)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert examples.read(examples.list_chunks("train")) == expected


def test_a_database_in_a_read_only_folder_is_read(tmp_path: Path) -> None:
    csv = write_leanings(tmp_path)
    open_examples(data_config(csv), TOKENIZER)
    (tmp_path / "leanings.sqlite.lock").unlink()
    before = sorted(tmp_path.iterdir())
    open_examples(data_config(csv), TOKENIZER)
    assert sorted(tmp_path.iterdir()) == before


def test_a_compressed_table_has_the_same_name(tmp_path: Path) -> None:
    import gzip

    csv = write_leanings(tmp_path)
    packed = tmp_path / "leanings.csv.gz"
    packed.write_bytes(gzip.compress(csv.read_bytes()))
    csv.unlink()
    assert open_examples(data_config(packed), TOKENIZER).database == tmp_path / "leanings.sqlite"
    shutil.rmtree(tmp_path)


def test_warnings_about_a_table_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table is opened again for each checkpoint that is evaluated on it."""
    rows = [(TEXT, label) for label in ("left", "right", "Left")] * 10
    config = data_config(
        write_csv(tmp_path / "table.csv", rows, ["text", "label"]), split_fractions=[1, 0, 0]
    )
    for _ in range(2):
        open_examples(config, TOKENIZER)
    repeated = [one for one in caplog.messages if "repeat the text of an earlier row" in one]
    assert len(repeated) == 1
    assert len({*caplog.messages}) == len(caplog.messages) > 1
