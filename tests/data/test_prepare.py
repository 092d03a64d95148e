"""Prepared data: the same batches as live data, or a refusal with the reason."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import Phase
from bsmeta.config.programs.copying import PrepareConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.prepare import (
    Manifest,
    hash_batch,
    prepare_streams,
    read_manifest,
    summarize_folder,
)
from tests.data.helpers import Run, run, same, small_config, small_tokenizer, write_shards

SIZES = [30, 41, 17, 26, 33, 9]
STEPS = 36


def prepare_data(
    config: DataConfig, out: Path, *, seed: int = 1, **values: Any
) -> tuple[DataConfig, Manifest]:
    """Prepares data; returns the configuration that trains on it, and the manifest."""
    request = PrepareConfig(data_config=config, seed=seed, out=str(out), **values)
    manifest = prepare_streams(request, small_tokenizer(), out)
    return dataclasses.replace(config, prepared=str(out)), manifest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), SIZES)


@pytest.fixture(scope="module")
def live(folder: Path) -> Run:
    return run(small_config(folder), STEPS)


@pytest.fixture(scope="module")
def config(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return prepare_data(small_config(folder), tmp_path_factory.mktemp("out") / "data", epochs=2)[0]


def load_manifest(config: DataConfig) -> Manifest:
    return read_manifest(Path(config.prepared or ""))


@pytest.mark.parametrize(
    ("world_size", "micro_batch", "workers"), [(1, 8, 0), (2, 2, 0), (2, 2, 2), (1, 1, 4)]
)
def test_prepared_batches_equal_live_batches(
    config: DataConfig, live: Run, world_size: int, micro_batch: int, workers: int
) -> None:
    """Tensors, documents and states; live sequences follow the prepared sequences."""
    other = dataclasses.replace(
        config, per_device_train_batch_size=micro_batch, num_workers=workers
    )
    made = run(other, STEPS, world_size=world_size)
    assert same(made, live)
    assert made.state == live.state
    assert min(stream.sequences for stream in load_manifest(config).streams) < STEPS


@pytest.mark.parametrize("stop", [1, 9, 20, 23])
def test_a_run_may_change_between_live_and_prepared(
    config: DataConfig, live: Run, stop: int
) -> None:
    plain = dataclasses.replace(config, prepared=None)
    for first_part, second_part in ((config, config), (plain, config), (config, plain)):
        first = run(first_part, stop)
        rest = run(second_part, STEPS - stop, state=first.state)
        assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), live)
        assert rest.state == live.state


def test_the_manifest_counts_documents_by_epoch(config: DataConfig) -> None:
    streams = load_manifest(config).streams
    assert sum(stream.documents for stream in streams) == 2 * sum(SIZES)


def test_prepared_data_supports_schedules_bad_documents_and_padding(tmp_path: Path) -> None:
    """The phases depend on the global batch, so the number of processes is required."""
    shards = write_shards(tmp_path, [40, 40])
    (shards / "part-02.jsonl").write_text('{"text": 3}\n' * 5 + '{"text": "one two"}\n' * 30)
    phases = [Phase(share=0.5, metadata_probability=0.0), Phase(share=0.5)]
    plain = small_config(
        shards, num_streams=2, packing="pad", bad_documents="skip", schedule=phases
    )
    run_of = {"max_train_steps": 12, "gradient_accumulation_steps": 2, "world_size": 2}
    ready, _ = prepare_data(plain, tmp_path / "data", **run_of)
    assert same(run(ready, 12, world_size=2, total=12), run(plain, 12, total=12))
    with pytest.raises(ConfigurationError) as error:
        run(ready, 12, batch=4, total=12)
    assert "phase_starts: [0, 48] when it was prepared, [0, 24] now" in str(error.value)


def test_preparing_several_streams_at_once_gives_the_same_data(
    folder: Path, config: DataConfig, tmp_path: Path
) -> None:
    workers = small_config(folder, num_workers=3)
    _, manifest = prepare_data(workers, tmp_path / "data", epochs=2)
    assert manifest == load_manifest(config)
    assert {file.name for file in (tmp_path / "data").iterdir()} == {
        *("config.yaml", "manifest.json"),
        *(f"stream-{stream:05}.arrow" for stream in range(8)),
    }


def test_prepared_data_of_other_settings_are_refused(config: DataConfig) -> None:
    metadata = dataclasses.replace(config.metadata_config, metadata_probability=1.0)
    other = dataclasses.replace(config, metadata_config=metadata, window_documents=4)
    with pytest.raises(ConfigurationError) as error:
        run(other, 1, seed=7)
    assert str(error.value).splitlines()[1:] == [
        "  metadata_config.metadata_probability: 0.5 when it was prepared, 1.0 now",
        "  seed: 1 when it was prepared, 7 now",
        "  window_documents: 8 when it was prepared, 4 now",
    ]


def test_another_held_out_file_is_refused(folder: Path, tmp_path: Path) -> None:
    held_out = write_shards(tmp_path, [3]) / "part-00.jsonl.gz"
    ready, _ = prepare_data(small_config(folder, exclude=["part-00.jsonl.gz"]), tmp_path / "data")
    with pytest.raises(ConfigurationError, match="held_out: nothing when it was prepared"):
        run(dataclasses.replace(ready, validation_file=str(held_out)), 1)


def test_a_run_cannot_resume_on_other_prepared_data(config: DataConfig, live: Run) -> None:
    streams = {
        k: v | {"window": v["window"] + 1} for k, v in run(config, 1).state["streams"].items()
    }
    with pytest.raises(ConfigurationError, match="stream 0 is at Position"):
        run(config, 1, state={**live.state, "streams": streams})


def test_prepared_epochs_can_be_trained_on_without_the_shards(
    folder: Path, live: Run, tmp_path: Path
) -> None:
    """The step after the prepared epochs is an error."""
    shards = tmp_path / "shards"
    shutil.copytree(folder, shards)
    ready, manifest = prepare_data(small_config(shards), tmp_path / "data")
    shutil.rmtree(shards)
    steps = min(stream.sequences for stream in manifest.streams)
    assert same(run(ready, steps), Run(live.steps[:steps], live.documents[:steps], {}))
    with pytest.raises(DataError, match=r"has used up the prepared epochs \(1\).*prepare more"):
        run(ready, 20)


def test_an_existing_folder_is_checked_instead_of_prepared_again(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    ready, manifest = prepare_data(small_config(folder), out)
    assert prepare_data(small_config(folder), out)[1] == manifest
    with pytest.raises(ConfigurationError, match="seed: 1 there, 2 now"):
        prepare_data(small_config(folder), out, seed=2)
    damaged = out / "stream-00003.arrow"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(DataError, match="stream-00003.arrow is damaged"):
        prepare_data(small_config(folder), out)
    damaged.write_bytes(data[:-1])
    with pytest.raises(DataError, match=rf"has {len(data) - 1} bytes, expected {len(data)}"):
        run(ready, 1)


def test_a_failed_preparation_leaves_nothing(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    write_shards(shards, [20])
    (shards / "part-01.jsonl").write_text('{"text": 3}\n')
    for workers in (0, 2):
        with pytest.raises(DataError, match=r"part-01.jsonl, line 1: text_not_string"):
            prepare_data(
                small_config(shards, num_streams=2, num_workers=workers), tmp_path / "data"
            )
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_a_folder_without_prepared_data_is_refused(
    folder: Path, config: DataConfig, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"contains no prepared data .*bsmeta.data.prepare"):
        run(small_config(folder, prepared=str(tmp_path)), 1)
    for foreign in ('{"name": "a page"}', "[]"):
        (tmp_path / "manifest.json").write_text(foreign)
        with pytest.raises(DataError, match=r"contains no prepared data .*: (Object|Expected)"):
            run(small_config(folder, prepared=str(tmp_path)), 1)
    manifest = msgspec.structs.replace(load_manifest(config), format=0)
    (tmp_path / "manifest.json").write_text(json.dumps(msgspec.to_builtins(manifest)))
    with pytest.raises(ConfigurationError, match="has format 0; .* format 8: delete the folder"):
        run(small_config(folder, prepared=str(tmp_path)), 1)


def rewrite(config: DataConfig, folder: Path, change: Callable[[pa.Table], pa.Table]) -> DataConfig:
    """Copies prepared data and changes the rows of all streams; returns the configuration.

    The manifest fits the changed files, as in a folder that someone has forged.
    """
    shutil.copytree(Path(config.prepared or ""), folder)
    manifest = read_manifest(folder)
    for number, stream in enumerate(manifest.streams):
        path = folder / f"stream-{number:05}.arrow"
        rows = change(pa.ipc.open_file(path.read_bytes()).read_all())
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        stream.bytes = path.stat().st_size
        batches = pa.ipc.open_file(path.read_bytes()).read_all().to_batches()
        stream.batches = [hash_batch(batch) for batch in batches]
    (folder / "manifest.json").write_text(json.dumps(msgspec.to_builtins(manifest)))
    return dataclasses.replace(config, prepared=str(folder))


def replace_column(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, column)


def fill_column(rows: pa.Table, name: str, value: int) -> pa.Table:
    """Returns the rows with `value` everywhere in the lists of a column."""
    lists = rows[name].combine_chunks()
    values = pa.array(np.full(len(lists.values), value), lists.type.value_type)
    return replace_column(rows, name, pa.ListArray.from_arrays(lists.offsets, values))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: fill_column(rows, "tokens", 65_000), "it has the token 65000"),
        (lambda rows: fill_column(rows, "shards", 6), "it names shard 6"),
        (lambda rows: rows.drop_columns(["counts"]), "its columns are .*or have other types"),
        (
            lambda rows: replace_column(
                rows, "tokens", rows["tokens"].cast(pa.list_(pa.int64())).combine_chunks()
            ),
            "its columns are .*or have other types",
        ),
    ],
)
def test_invalid_rows_are_refused(
    config: DataConfig, tmp_path: Path, change: Callable[[pa.Table], pa.Table], reason: str
) -> None:
    other = rewrite(config, tmp_path / "copy", change)
    with pytest.raises(DataError, match=rf"stream-0000\d.arrow is damaged \(.*{reason}"):
        run(other, 1)


def test_offsets_outside_the_file_are_refused(config: DataConfig, tmp_path: Path) -> None:
    """Arrow would read arbitrary memory there."""
    other = rewrite(config, tmp_path / "copy", lambda rows: rows)
    for path in (tmp_path / "copy").glob("*.arrow"):
        content = path.read_bytes()
        tokens = pa.ipc.open_file(content).read_all()["tokens"].chunk(0)
        offsets = tokens.offsets.to_numpy()
        forged = np.append(offsets[:-1], np.int32(1 << 30))
        assert content.count(offsets.tobytes()) == 2  # of the tokens, and of their marks
        path.write_bytes(content.replace(offsets.tobytes(), forged.tobytes()))
    with pytest.raises(DataError, match=r"stream-0000\d.arrow is damaged \(.*offset"):
        run(other, 1)


@pytest.fixture(scope="module")
def small_batches(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """Data whose files have a record batch for every four sequences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bsmeta.data.prepare.WRITE_BATCH_SIZE", 4)
        out = tmp_path_factory.mktemp("small") / "data"
        return prepare_data(small_config(folder), out, epochs=2)[0]


def edit_value(config: DataConfig, folder: Path, name: str, sequence: int) -> DataConfig:
    """Copies prepared data; changes the lowest bit of the first value of a list of stream 3."""
    shutil.copytree(Path(config.prepared or ""), folder)
    path = folder / "stream-00003.arrow"
    content = bytearray(path.read_bytes())
    values = pa.ipc.open_file(path.read_bytes()).read_all()[name][sequence].values
    data = values.to_numpy().tobytes()
    assert content.count(data) == 1
    content[content.index(data)] ^= 1
    path.write_bytes(content)
    return dataclasses.replace(config, prepared=str(folder))


@pytest.mark.parametrize("name", ["tokens", "position"])
def test_an_edited_first_sequence_is_refused(
    small_batches: DataConfig, tmp_path: Path, name: str
) -> None:
    edited = edit_value(small_batches, tmp_path / "copy", name, 0)
    with pytest.raises(DataError) as error:
        run(edited, 1)
    assert str(error.value) == (
        f"data_config.prepared: {tmp_path}/copy/stream-00003.arrow is damaged (the hash of its "
        "sequences 0 to 3 has changed since it was prepared); delete the folder and prepare it "
        "again"
    )


@pytest.mark.parametrize("name", ["tokens", "position"])
def test_an_edited_sequence_is_refused_when_its_batch_is_read(
    small_batches: DataConfig, live: Run, tmp_path: Path, name: str
) -> None:
    edited = edit_value(small_batches, tmp_path / "copy", name, 10)
    before = run(edited, 8)
    assert same(before, Run(live.steps[:8], live.documents[:8], {}))
    message = r"stream-00003.arrow is damaged \(the hash of its sequences 8 to 11 has changed"
    with pytest.raises(DataError, match=message):
        run(edited, 9)


@pytest.mark.parametrize("stop", [8, 9, 11, 12])
def test_an_edited_sequence_is_refused_after_a_resume(
    small_batches: DataConfig, tmp_path: Path, stop: int
) -> None:
    """After 12 steps, the position of the stream is compared with that of the edited batch."""
    state = run(small_batches, stop).state
    edited = edit_value(small_batches, tmp_path / "copy", "tokens", 11)
    with pytest.raises(DataError, match=r"stream-00003.arrow is damaged \(the hash of its sequenc"):
        run(edited, 1, state=state)


def test_a_resume_does_not_read_the_batches_before_it(
    small_batches: DataConfig, live: Run, tmp_path: Path
) -> None:
    state = run(small_batches, 13).state
    edited = edit_value(small_batches, tmp_path / "copy", "tokens", 11)
    rest = run(edited, STEPS - 13, state=state)
    assert same(rest, Run(live.steps[13:], live.documents[13:], {}))


def test_a_manifest_with_fewer_batches_is_refused(config: DataConfig, tmp_path: Path) -> None:
    other = rewrite(config, tmp_path / "copy", lambda rows: rows)
    manifest = read_manifest(tmp_path / "copy")
    for stream in manifest.streams:
        stream.batches.pop()
    (tmp_path / "copy/manifest.json").write_text(json.dumps(msgspec.to_builtins(manifest)))
    with pytest.raises(DataError, match=r"arrow is damaged \(it has 1 record batches, expected 0"):
        run(other, 1)


def test_a_manifest_without_streams_is_refused(config: DataConfig, tmp_path: Path) -> None:
    other = rewrite(config, tmp_path / "copy", lambda rows: rows)
    manifest = msgspec.structs.replace(read_manifest(tmp_path / "copy"), streams=[])
    (tmp_path / "copy/manifest.json").write_text(json.dumps(msgspec.to_builtins(manifest)))
    with pytest.raises(DataError, match=r"manifest.json is damaged \(it has no stream"):
        run(other, 1)


def test_the_summary_counts_documents_and_streams(config: DataConfig) -> None:
    line = summarize_folder(PrepareConfig(data_config=config, out="data"), load_manifest(config))
    assert line.startswith("data: 312 documents in ")
    assert " of 8 streams, " in line


@pytest.mark.slow
def test_the_program_prepares_once_and_refuses_another_seed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bsmeta.data.prepare", "--config-name", "demo"]
    command += [f"data_config.cache_dir={tmp_path}/cache", f"out={tmp_path}/data"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/data: ")
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == done.stdout
    assert "already exists" in again.stderr
    wrong = subprocess.run([*command, "seed=7"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "seed: 42 there, 7 now" in wrong.stderr
