"""Reading with tf.data: the same windows as the native reader gives."""

from __future__ import annotations

import dataclasses
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.stream.live import Source, source_of
from bsmeta.data.stream.plan import Share
from bsmeta.data.stream.tf_source import TensorFlowSource, tensorflow
from tests.data.helpers import Run, pages, run, same, small_config, write_shard, write_shards

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow  # importing TensorFlow alone takes long on a busy machine

STEPS = 24


def listed(source: Source, order: list[Share], place: int = 0, number: int = 0) -> list[tuple]:
    """The windows of an epoch that have lines or are damaged."""
    windows = source.windows(2, order, place, number)
    return [one for one in windows if one[2].lines or one[2].damage]


def pair(config: DataConfig) -> tuple[Source, TensorFlowSource]:
    source = source_of(dataclasses.replace(config, reader="tf"))
    assert isinstance(source, TensorFlowSource)
    return Source(config), source


def test_no_gpu_is_seen() -> None:
    assert tensorflow().config.get_visible_devices("GPU") == []


@pytest.mark.parametrize(("streams", "workers"), [(2, 0), (2, 2), (8, 0)])
def test_the_same_batches_for_an_epoch_and_after_a_resume(
    tmp_path: Path, streams: int, workers: int
) -> None:
    """Streams with whole shards, through loader processes, and streams that share shards."""
    config = small_config(write_shards(tmp_path, [30, 41, 16, 26]), num_streams=streams)
    native = run(config, STEPS)
    assert max(position["epoch"] for position in native.state["streams"].values()) >= 1
    other = dataclasses.replace(config, reader="tf", num_workers=workers)
    assert same(run(other, STEPS), native)
    first = run(other, 4)
    rest = run(other, STEPS - 4, state=first.state)
    assert rest.state == native.state
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), native)


@pytest.mark.parametrize(("place", "number"), [(0, 0), (0, 3), (1, 1), (2, 0)])
def test_the_same_windows_from_anywhere(tmp_path: Path, place: int, number: int) -> None:
    """A shard that ends with a window, one of several members, one without a last line end."""
    write_shard(tmp_path / "a.jsonl.gz", pages(24))
    lines = [f"line {number}".encode() for number in range(30)]
    whole = b"\n".join(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(whole[:99]) + gzip.compress(whole[99:]))
    (tmp_path / "c.jsonl").write_bytes(whole)
    native, other = pair(small_config(tmp_path))
    shards = native.shards()
    assert other.shards() == shards
    for shares in ([Share(one) for one in shards], [Share(one, 1, 4, 4, 3) for one in shards]):
        expected = listed(native, shares, place, number)
        assert expected == listed(other, shares, place, number)
        assert len(expected) > 1
    assert other.first_lines(shards[1], 2) == [b"line 0", b"line 1"]
    assert other.has_line(shards[2], 29)
    assert not other.has_line(shards[2], 30)


@pytest.mark.parametrize("left", [0, 0.5, 0.9, 0.999])
def test_a_cut_shard_is_noticed_and_named(tmp_path: Path, left: float) -> None:
    write_shards(tmp_path, [12, 60, 12])
    cut = tmp_path / "part-01.jsonl.gz"
    data = cut.read_bytes()
    cut.write_bytes(data[: int(len(data) * left)])
    config = small_config(tmp_path, num_streams=1)
    native, other = pair(config)
    order = [Share(one) for one in native.shards()]
    expected = listed(native, order)
    assert expected == listed(other, order)
    assert [one[2].damage != "" for one in expected].count(True) == 1
    strict = dataclasses.replace(config, reader="tf")
    with pytest.raises(DataError, match=r"part-01.jsonl.gz, line \d+: damaged_file"):
        run(strict, 40)


def test_damage_ends_a_shard_but_not_the_epoch(tmp_path: Path) -> None:
    write_shards(tmp_path, [12, 400, 12])
    damaged = tmp_path / "part-01.jsonl.gz"
    data = bytearray(damaged.read_bytes())
    data[-8:-4] = b"\0\0\0\0"  # the checksum
    damaged.write_bytes(data)
    native, other = pair(small_config(tmp_path))
    windows = [one[2] for one in listed(other, [Share(one) for one in native.shards()])]
    assert [one.shard.name for one in windows if one.damage] == ["part-01.jsonl.gz"]
    assert [one.numbers[0] for one in windows if one.shard.name == "part-02.jsonl.gz"] == [0, 8]


def test_bad_lines_are_counted_alike(tmp_path: Path) -> None:
    lines = [b'{"text": "one two"}', b"", b"[]", b"\xff", b'{"text": 3}', b'{"text": "three"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines * 9))
    config = small_config(tmp_path, bad_documents="skip", num_streams=1, metadata_list=["url"])
    native = run(config, 1, batch=2)
    assert same(run(dataclasses.replace(config, reader="tf"), 1, batch=2), native)
    with pytest.raises(DataError, match="line 2: blank_line"):
        run(dataclasses.replace(config, reader="tf", bad_documents="strict"), 1)


def test_another_file_system(tmp_path: Path) -> None:
    gfile = tensorflow().io.gfile
    local = write_shards(tmp_path, [20, 20])
    for path in sorted(local.iterdir()):
        with gfile.GFile(f"ram://shards/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    config = small_config(local, num_streams=2)
    there = dataclasses.replace(config, train_file="ram://shards/*.jsonl.gz", reader="tf")
    assert same(run(there, 3), run(config, 3))
    left_out = dataclasses.replace(there, validation_file="part-00.jsonl.gz")
    assert [one.name for one in TensorFlowSource(left_out).shards()] == ["part-01.jsonl.gz"]
    with pytest.raises(DataError, match="matches no file"):
        TensorFlowSource(dataclasses.replace(there, train_file="ram://shards/none*")).shards()


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_what_it_cannot_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigurationError, match=rf"cannot read .*{name}.*reader=native"):
        TensorFlowSource(DataConfig(train_file=str(tmp_path), reader="tf")).shards()


def test_a_shard_that_vanishes_is_named(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.jsonl.gz", pages(20))
    native, other = pair(small_config(tmp_path))
    order = [Share(one) for one in native.shards()]
    path.unlink()
    for source in (native, other):
        with pytest.raises(DataError, match="a.jsonl.gz cannot be read"):
            listed(source, order)
    shard = order[0].shard
    with pytest.raises(DataError, match="a.jsonl.gz cannot be read"):
        other.first_lines(shard, 1)
    with pytest.raises(DataError, match="a.jsonl.gz cannot be read"):
        other.has_line(shard, 1)
    with pytest.raises(DataError, match="a.jsonl.gz cannot be read"):
        other.with_samples([shard])


def test_the_native_reader_does_not_import_tensorflow(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.data.helpers import run, small_config\n"
        "run(small_config(Path(sys.argv[1]), num_streams=1), 1)\n"
        "sys.exit('tensorflow' in sys.modules)\n"
    )
    write_shards(tmp_path, [20])
    repository = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=repository, check=True)
