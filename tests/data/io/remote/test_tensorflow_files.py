"""Files that TensorFlow reads: the same batches as from a local disk."""

from __future__ import annotations

import dataclasses
import gzip
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io.files import measure_file
from bsmeta.data.io.remote.tensorflow_files import import_tensorflow
from bsmeta.data.io.shard_lines import read_first_lines
from bsmeta.data.io.shards import list_shards
from bsmeta.data.stream.corpora import open_corpora
from bsmeta.data.stream.plan import Share
from tests.data.helpers import Run, pages, run, same, small_config, write_shard, write_shards

pytestmark = [
    pytest.mark.slow,  # importing TensorFlow alone takes long on a busy machine
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow"),
]

STEPS = 24


def read_by_tensorflow(config: DataConfig, pattern: str, **changes: object) -> DataConfig:
    return dataclasses.replace(config, reader="tf", train_file=pattern, **changes)


def list_windows(config: DataConfig) -> list[tuple[object, ...]]:
    """Returns the windows of an epoch that have lines or are damaged."""
    (corpus,) = open_corpora(config)
    windows = corpus.iterate_windows(2, [Share(shard) for shard in corpus.shards], 0, 0)
    listed = [(w.shard.name, w.numbers, list(map(bytes, w.lines)), w.damage) for _, _, w in windows]
    return [window for window in listed if window[2] or window[3]]


def test_tensorflow_sees_no_gpu() -> None:
    assert import_tensorflow().config.get_visible_devices("GPU") == []


@pytest.mark.parametrize(("streams", "workers"), [(2, 0), (2, 2), (8, 0)])
def test_tensorflow_gives_the_same_batches_for_an_epoch_and_after_a_resume(
    tmp_path: Path, streams: int, workers: int
) -> None:
    """Streams with whole shards, through loader processes, and streams that share shards."""
    config = small_config(write_shards(tmp_path, [30, 41, 16, 26]), num_streams=streams)
    native = run(config, STEPS)
    assert max(position["epoch"] for position in native.state["streams"].values()) >= 1
    other = read_by_tensorflow(config, f"file://{tmp_path}", num_workers=workers)
    assert same(run(other, STEPS), native)
    first = run(other, 4)
    rest = run(other, STEPS - 4, state=first.state)
    assert rest.state["streams"] == native.state["streams"]
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), native)


def test_files_of_every_form_are_read(tmp_path: Path) -> None:
    """One member, several members, plain lines without a final newline, and bad lines."""
    write_shard(tmp_path / "a.jsonl.gz", pages(24))
    lines = [b'{"text": "one two"}', b"", b"[]", b"\xff", b'{"text": 3}', b"last"] * 5
    whole = b"\n".join(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(whole[:99]) + gzip.compress(whole[99:]))
    (tmp_path / "c.jsonl").write_bytes(whole)
    config = small_config(tmp_path)
    other = read_by_tensorflow(config, f"file://{tmp_path}/*")
    assert list_windows(other) == list_windows(config)
    assert len(list_windows(other)) > 9
    shards = list_shards(other)
    assert [shard.name for shard in shards] == ["a.jsonl.gz", "b.jsonl.gz", "c.jsonl"]
    assert read_first_lines(shards[1].path, 2) == lines[:2]
    deep = list_shards(
        read_by_tensorflow(config, f"file://{tmp_path.parent}/**/{tmp_path.name}/*.gz")
    )
    assert [shard.name for shard in deep] == ["a.jsonl.gz", "b.jsonl.gz"]


@pytest.mark.parametrize("left", [0, 0.5, 0.9, 0.999])
def test_a_truncated_shard_is_named(tmp_path: Path, left: float) -> None:
    write_shards(tmp_path, [12, 60, 12])
    cut = tmp_path / "part-01.jsonl.gz"
    data = cut.read_bytes()
    cut.write_bytes(data[: int(len(data) * left)])
    config = small_config(tmp_path, num_streams=1)
    other = read_by_tensorflow(config, f"file://{tmp_path}")
    found = list_windows(other)
    assert found == list_windows(config)
    assert [window[3] != "" for window in found].count(True) == 1
    with pytest.raises(DataError, match=r"part-01.jsonl.gz, line \d+: damaged_file"):
        run(other, 40)


def test_damage_ends_a_shard_but_not_the_epoch(tmp_path: Path) -> None:
    write_shards(tmp_path, [12, 400, 12])
    damaged = tmp_path / "part-01.jsonl.gz"
    data = bytearray(damaged.read_bytes())
    data[-8:-4] = b"\0\0\0\0"  # the checksum
    damaged.write_bytes(data)
    found = list_windows(read_by_tensorflow(small_config(tmp_path), f"file://{tmp_path}"))
    assert [window[0] for window in found if window[3]] == ["part-01.jsonl.gz"]
    assert [window[1][0] for window in found if window[0] == "part-02.jsonl.gz"] == [0, 8]


def test_bad_lines_are_counted_as_by_the_native_reader(tmp_path: Path) -> None:
    lines = [b'{"text": "one two"}', b"", b"[]", b"\xff", b'{"text": 3}', b'{"text": "three"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines * 9))
    config = small_config(tmp_path, bad_documents="skip", num_streams=1, metadata_list=["url"])
    other = read_by_tensorflow(config, f"file://{tmp_path}")
    assert same(run(other, 1, batch=2), run(config, 1, batch=2))
    with pytest.raises(DataError, match="line 2: blank_line"):
        run(dataclasses.replace(other, bad_documents="strict"), 1)


def test_shards_may_be_on_a_file_system_of_tensorflow(tmp_path: Path) -> None:
    gfile = import_tensorflow().io.gfile
    local = write_shards(tmp_path, [20, 20])
    for path in sorted(local.iterdir()):
        with gfile.GFile(f"ram://shards/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    config = small_config(local, num_streams=2)
    there = read_by_tensorflow(config, "ram://shards/*.jsonl.gz")
    assert same(run(there, 3), run(config, 3))
    left_out = dataclasses.replace(there, validation_file="part-00.jsonl.gz")
    assert [shard.name for shard in list_shards(left_out)] == ["part-01.jsonl.gz"]
    with pytest.raises(DataError, match=r"ram://shards: nothing matches none\*"):
        list_shards(dataclasses.replace(there, train_file="ram://shards/none*"))


def test_a_shard_that_vanishes_or_changes_is_named(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.jsonl.gz", pages(20))
    config = read_by_tensorflow(small_config(tmp_path), f"file://{tmp_path}", hub_cache_gb=0)
    (shard,) = list_shards(config)
    assert measure_file(shard.path) == path.stat().st_size
    path.unlink()
    with pytest.raises(DataError, match="a.jsonl.gz cannot be read"):
        read_first_lines(shard.path, 1)
    path.write_bytes(b"x" * shard.size)
    with pytest.raises(DataError, match="the file has changed since it was listed"):
        read_first_lines(shard.path, 1)


def test_the_native_reader_does_not_import_tensorflow(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.data.helpers import run, small_config\n"
        "run(small_config(Path(sys.argv[1]), num_streams=1), 1)\n"
        "sys.exit('tensorflow' in sys.modules)\n"
    )
    write_shards(tmp_path, [20])
    repository = Path(__file__).resolve().parents[4]
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=repository, check=True)
