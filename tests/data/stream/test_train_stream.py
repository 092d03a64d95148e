"""The training stream: its batches, its state, and what it refuses (see also `test_elastic`)."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io import compression
from bsmeta.data.io import lines as lines_module
from bsmeta.data.io.zstandard import zstd
from bsmeta.data.stream.plan import Position
from bsmeta.data.stream.train_stream import (
    SequenceBlocks,
    TrainStream,
    merge_blocks,
    stack_sequences,
)
from tests.data.helpers import (
    Run,
    pages,
    run,
    same,
    small_config,
    small_tokenizer,
    write_shard,
    write_shards,
)
from tests.data.sequences import sequence
from tests.waiting import STUCK_S

STEPS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), [30, 41, 17, 26, 33, 9])


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    """The reference run: one process, no loader processes, no resume."""
    return run(small_config(folder), STEPS)


@pytest.mark.parametrize("stop", [1, 2, 5, 11])
@pytest.mark.parametrize("packing", ["best_fit", "pad"])
def test_a_run_resumed_at_any_step_equals_an_uninterrupted_run(
    folder: Path, stop: int, packing: str
) -> None:
    config = small_config(folder, packing=packing)
    through = run(config, STEPS)
    first = run(config, stop)
    rest = run(config, STEPS - stop, state=first.state)
    joined = Run(first.steps + rest.steps, first.documents + rest.documents, rest.state)
    assert same(joined, through)
    assert rest.state == through.state


def test_a_resume_with_another_global_batch_continues_the_sequences(
    folder: Path, whole: Run
) -> None:
    first = run(small_config(folder), 2, batch=8)
    rest = run(small_config(folder), 4, batch=4, state=first.state)
    assert rest.state == run(small_config(folder), 4, batch=8).state
    rows = [row for step in rest.steps for row in step["input_ids"].tolist()]
    assert rows == [row for step in whole.steps[2:4] for row in step["input_ids"].tolist()]


@pytest.mark.parametrize("streams", [1, 2, 4, 6, 12])
def test_each_epoch_has_every_document_once(folder: Path, streams: int) -> None:
    """With fewer streams than shards, equally many, and more."""
    config = small_config(folder, num_streams=streams, window_documents=4)
    stream = TrainStream(
        config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
    )
    owners: Counter[str] = Counter()
    for number in range(streams):
        epoch = itertools.takewhile(
            lambda sequence: sequence.position_after.epoch == 0, stream.iterate_sequences(number)
        )
        owners.update({name for sequence in epoch for name in sequence.documents})
    assert set(owners.values()) == {1}  # each document in one stream only
    assert len(owners) == 30 + 41 + 17 + 26 + 33 + 9


def test_the_order_differs_by_epoch_and_seed(folder: Path, whole: Run) -> None:
    assert not same(run(small_config(folder), STEPS, seed=2), whole)
    epochs = run(small_config(folder, num_streams=1), 60)
    flat = [step["input_ids"] for step in epochs.steps]
    assert not any((flat[0] == later).all() for later in flat[1:])


def test_positions_restart_in_each_chunk_and_padding_is_no_target(whole: Run) -> None:
    for step in whole.steps:
        starts = step["position_ids"] == 0
        assert starts[:, 0].all()
        assert not (step["loss_mask"] & starts).any()
        steps = step["position_ids"].diff(dim=1)
        assert ((steps == 1) | starts[:, 1:]).all()


def test_eos_ends_every_document_and_is_trained_on(folder: Path) -> None:
    """If documents fit, every chunk except padding ends in EOS, which is a target."""
    config = small_config(folder, metadata_probability=0.0, max_seq_len=512)
    eos = small_tokenizer().eos_token_id
    for step in run(config, 2).steps:
        for ids, positions, mask in zip(
            step["input_ids"], step["position_ids"], step["loss_mask"], strict=True
        ):
            starts = [*torch.nonzero(positions == 0).flatten().tolist(), len(ids)]
            chunks = [slice(*pair) for pair in itertools.pairwise(starts)]
            texts = [chunk for chunk in chunks if mask[chunk].any()]
            assert len(chunks) - len(texts) <= 1  # the padding
            assert all(ids[chunk].tolist().count(eos) == 1 for chunk in texts)
            assert all(ids[chunk][-1] == eos and mask[chunk][-1] for chunk in texts)
            assert all(mask[chunk].tolist().count(False) == 1 for chunk in texts)


def test_padded_sequences_hold_one_chunk_each(folder: Path) -> None:
    padded = run(small_config(folder, packing="pad"), 2)
    assert ((padded.steps[0]["position_ids"] == 0).sum(dim=1) <= 2).all()
    assert all(len(names) <= 8 for names in padded.documents)


def test_without_metadata_chunks_have_the_same_text(folder: Path) -> None:
    """Documents and chunks are the same; only the metadata is missing."""
    settings = {"packing": "pad", "metadata_list": ["title", "url"], "metadata_probability": 1.0}
    with_metadata = run(small_config(folder, **settings), STEPS)
    without = run(small_config(folder, without_metadata_same_context=True, **settings), STEPS)
    assert without.documents == with_metadata.documents
    for step, other in zip(without.steps, with_metadata.steps, strict=True):
        assert other["token_types"].any(dim=1).all()
        assert not step["token_types"].any()
        assert not step["document_types"].any()
        rows = zip(step["input_ids"], other["input_ids"], other["token_types"], strict=True)
        for plain, ids, kinds in rows:
            text = ids[kinds == 0]
            assert torch.equal(plain[: len(text)], text)


def test_indivisible_numbers_are_refused_together(folder: Path) -> None:
    config = small_config(folder, num_streams=6, num_workers=2)
    with pytest.raises(ConfigurationError) as error:
        run(config, 1, world_size=2, batch=9)
    message = str(error.value)
    assert "data_config.num_streams=6" in message
    assert "2 x 2 (data_config.num_workers) = 4" in message
    assert "global batch of 9" in message
    with pytest.raises(
        ConfigurationError, match=r"3 sequences, is not a multiple of data_config.p"
    ):
        run(small_config(folder), 1, world_size=2, batch=6)


def test_too_many_streams_are_refused(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, [2, 3])
    with pytest.raises(ConfigurationError) as error:
        run(small_config(folder, num_streams=24), 1)
    assert "data_config.num_streams=24 is too many: no document is left for" in str(error.value)
    assert "lower num_streams, or add shards" in str(error.value)


def test_streams_have_similar_numbers_of_documents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For any division of the shards, no stream has many more documents than another."""
    caplog.set_level("WARNING")
    folder = write_shards(tmp_path, [300, 410, 170, 260, 330, 90])
    for streams in (4, 7):
        config = small_config(folder, num_streams=streams)
        stream = TrainStream(
            config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
        )
        sizes = []
        for number in range(streams):
            epoch = itertools.takewhile(
                lambda sequence: sequence.position_after.epoch == 0,
                stream.iterate_sequences(number),
            )
            sizes.append(len({name for sequence in epoch for name in sequence.documents}))
        assert sum(sizes) == 1560
        assert max(sizes) <= 1.15 * min(sizes)
    assert not caplog.text


@pytest.mark.parametrize("frames", [1, 2, 20])
def test_long_zst_frames_are_warned_about(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    frames: int,
) -> None:
    monkeypatch.setattr(lines_module, "LONG_FRAME_BYTES", 2000)
    monkeypatch.setattr(compression, "COMPRESSED_BLOCK_BYTES", 500)
    lines = [f"{json.dumps(page)}\n".encode() for page in pages(200)]
    parts = [b"".join(lines[place::frames]) for place in range(frames)]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(map(zstd.compress, parts)))
    write_shard(tmp_path / "b.jsonl.gz", pages(20, first=100))
    run(small_config(tmp_path, num_streams=2), 1)
    warned = "a.jsonl.zst: the first Zstandard frame is longer than" in caplog.text
    assert warned == (frames < 20)
    assert "b.jsonl.gz" not in caplog.text


def test_unknown_values_are_refused_with_the_choices(folder: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        run(small_config(folder, packing="first_fit", bad_documents="no", window_documents=0), 1)
    lines = [line for line in str(error.value).splitlines() if "found" in line]
    where = "in Hydra configuration: found"
    assert lines == [
        f'1. data_config.packing {where} "first_fit", expected one of best_fit, pad '
        "(did you mean best_fit?).",
        f'2. data_config.bad_documents {where} "no", expected one of strict, skip.',
        f"3. data_config.window_documents {where} 0, expected 1 or more.",
    ]


def test_a_state_of_other_data_is_refused_with_the_differences(folder: Path, whole: Run) -> None:
    config = small_config(folder, window_documents=4, metadata_probability=1.0)
    with pytest.raises(ConfigurationError) as error:
        run(config, 1, state=whole.state, seed=7)
    lines = str(error.value).splitlines()[1:]
    assert lines == [
        "  metadata_config.metadata_probability: 0.5 in the checkpoint, 1.0 now",
        "  seed: 1 in the checkpoint, 7 now",
        "  window_documents: 8 in the checkpoint, 4 now",
    ]


def test_an_older_state_without_a_setting_continues_with_its_default(
    folder: Path, whole: Run
) -> None:
    config = small_config(folder)
    before = run(config, 5).state
    settings = dict(before["fingerprint"]["metadata_config"])
    assert settings.pop("metadata_dropout") == {}
    older = {**before, "fingerprint": {**before["fingerprint"], "metadata_config": settings}}
    assert run(config, STEPS - 5, state=older).documents == whole.documents[5:]
    with pytest.raises(ConfigurationError, match=r"metadata_dropout\.url: absent in the"):
        run(small_config(folder, metadata_dropout={"url": 0.5}), 1, state=older)


def test_a_shard_replaced_by_another_of_the_same_size_is_refused(tmp_path: Path) -> None:
    documents = [{"text": f"page number {number}"} for number in range(10, 60)]
    (tmp_path / "a.jsonl").write_text(
        "".join(f"{json.dumps(document)}\n" for document in documents)
    )
    config = small_config(tmp_path, num_streams=1)
    state = run(config, 1, batch=2).state
    os.utime(tmp_path / "a.jsonl", (1, 1))  # a copy is the same shard
    run(config, 1, batch=2, state=state)
    (tmp_path / "a.jsonl").write_text(
        "".join(f"{json.dumps(document)}\n" for document in documents[::-1])
    )
    with pytest.raises(ConfigurationError, match=r"shards\.a\.jsonl\.sampled_xxh3: \w+ in the"):
        run(config, 1, batch=2, state=state)


def test_a_state_of_other_data_is_accepted_if_the_configuration_allows_it(
    folder: Path, whole: Run, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(folder, metadata_probability=1.0, on_changed_data="warn")
    run(config, 1, state=whole.state)
    assert "metadata_config.metadata_probability: 0.5 in the checkpoint, 1.0 now" in caplog.text


def test_a_state_without_some_streams_is_refused(folder: Path, whole: Run) -> None:
    streams = {k: v for k, v in whole.state["streams"].items() if k != "2"}
    with pytest.raises(ConfigurationError, match="incomplete"):
        run(small_config(folder), 1, state={**whole.state, "streams": streams})


def test_a_malformed_position_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected the keys"):
        Position.from_state({"version": 2, "epoch": 1, "shard": 0})
    with pytest.raises(ConfigurationError, match="whole numbers"):
        Position.from_state(Position().state() | {"epoch": 1.5})


def test_positions_of_an_older_division_are_refused(folder: Path, whole: Run) -> None:
    """Even if other data is allowed, since they would refer to other documents."""
    streams = {number: dict(saved) for number, saved in whole.state["streams"].items()}
    for saved in streams.values():
        assert saved.pop("version") == 2
    state = {**whole.state, "streams": streams}
    with pytest.raises(ConfigurationError, match=r"is of version 1, expected 2: documents are now"):
        run(small_config(folder, on_changed_data="warn"), 1, state=state)


def test_an_error_in_a_loader_process_is_raised_unchanged(folder: Path, tmp_path: Path) -> None:
    config = small_config(write_shards(tmp_path, [20, 20]), num_streams=2, num_workers=2)
    with (tmp_path / "part-02.jsonl").open("w") as file:
        file.write('{"text": 3}\n')
    with pytest.raises(DataError, match=r"^\S+part-02.jsonl, line 1: text_not_string"):
        run(config, 30)


def test_loader_processes_ignore_signals_to_the_job(folder: Path) -> None:
    """A scheduler signals every process of a job; the trainer must still get its batches."""
    before = set(psutil.Process().children())
    stream = TrainStream(
        small_config(folder, num_workers=2),
        small_tokenizer(),
        seed=1,
        rank=0,
        world_size=1,
        global_batch_size=8,
    )
    batches = iter(stream)
    next(batches)
    workers = set(psutil.Process().children()) - before
    assert len(workers) == 2
    kill = "import os, sys; [os.kill(int(pid), int(sys.argv[1])) for pid in sys.argv[2:]]"
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        pids = [str(worker.pid) for worker in workers]
        subprocess.run([sys.executable, "-c", kill, str(number.value), *pids], check=True)
    assert len(list(itertools.islice(batches, 20))) == 20
    batches.close()
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.long
def test_a_script_that_fails_does_not_wait_for_its_loader_processes(folder: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.data.helpers import *\n"
        "stream = TrainStream(small_config(Path(sys.argv[1]), num_workers=2), small_tokenizer(),"
        " seed=1, rank=0, world_size=1, global_batch_size=8)\n"
        "cycle = {'batches': iter(stream)}\n"
        "cycle['itself'] = cycle\n"
        "next(cycle['batches'])\n"
        "raise ValueError('as expected')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        check=False,
        text=True,
        timeout=STUCK_S,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: as expected\n")


def test_positions_restart_in_each_chunk_and_in_the_padding() -> None:
    block = stack_sequences(
        [sequence(10, 2, 1, types=[1, 2]), sequence(20, 3, types=[4])], 5, pad_id=7
    )
    values = {name: tensor.tolist() for name, tensor in block.tensors.items()}
    assert values["input_ids"] == [[10, 11, 12, 7, 7], [20, 21, 22, 7, 7]]
    assert values["position_ids"] == [[0, 1, 0, 0, 1], [0, 1, 2, 0, 1]]
    assert values["document_types"] == [[1, 1, 2, 0, 0], [4, 4, 4, 0, 0]]
    assert values["loss_mask"] == [[True, True, True, False, False]] * 2
    assert block.tensors["position_ids"].dtype == torch.int32


def test_positions_run_through_a_sequence_with_cross_document_attention() -> None:
    sequences = [sequence(10, 2, 1, types=[1, 2]), sequence(20, 3, types=[4])]
    block = stack_sequences(sequences, 5, pad_id=7, is_joined=True)
    assert block.tensors["position_ids"].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert block.tensors["document_types"].tolist() == [[1, 1, 2, 0, 0], [4, 4, 4, 0, 0]]


def test_blocks_of_several_processes_are_interleaved() -> None:
    blocks = [
        stack_sequences(
            [sequence(first, 1, types=[0]), sequence(first + 1, 1, types=[0])], 1, pad_id=0
        )
        for first in (10, 20)
    ]
    for some, expected in ((blocks, [[10, 20], [11, 21]]), (blocks[:1], [[10, 11]])):
        batches = [batch for batch, _ in merge_blocks(some, 2, ["documents"])]
        assert [batch.tensors["input_ids"][:, 0].tolist() for batch in batches] == expected
        assert all(batch.tensors["input_ids"].dtype == torch.int64 for batch in batches)
        assert [batch.documents for batch in batches] == [[f"a:{n}" for n in e] for e in expected]
        assert [batch.weight for batch in batches] == [2.0] * len(batches)


def test_objects_created_before_the_loader_are_frozen_only_once() -> None:
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)  # as in a process that has had no loader
    blocks = SequenceBlocks(
        lambda _: iter([sequence(0, 1, types=[0])]), block_size=1, row_length=1, pad_id=0
    )
    next(iter(blocks))
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    next(iter(blocks))
    assert gc.get_freeze_count() <= frozen
