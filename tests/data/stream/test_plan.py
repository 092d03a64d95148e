"""Streams and mixtures: exact shares, and the same batches, epochs and guards as on one source."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import compose
from bsmeta.config.copying import PrepareConfig
from bsmeta.config.data import DataConfig, SourceConfig, parts_of
from bsmeta.config.metadata import Phase
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.prepare import prepare
from bsmeta.data.stream.plan import Division, SequenceOrder, period_of
from bsmeta.data.stream.train_stream import TrainStream
from tests.data.helpers import (
    Run,
    page,
    pages,
    run,
    same,
    small_config,
    small_tokenizer,
    write_shard,
)

WEIGHTS = {"web": 0.7, "books": 0.2, "code": 0.1}
SIZES = {"web": [40, 33, 52], "books": [25, 30], "code": [48]}
STEPS, BATCH = 12, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sources, whose files have the same names."""
    folder = tmp_path_factory.mktemp("mixture")
    first = itertools.count(step=1000)
    for name, sizes in SIZES.items():
        (folder / name).mkdir()
        for number, size in enumerate(sizes):
            write_shard(folder / name / f"part-{number}.jsonl.gz", pages(size, first=next(first)))
    return folder


def mixture(folder: Path, weights: dict[str, float] | None = None, **changes: Any) -> DataConfig:
    sources = [
        SourceConfig(name=name, train_file=str(folder / name), weight=weight)
        for name, weight in (weights or WEIGHTS).items()
    ]
    return small_config(folder, **{"train_file": None, "sources": sources} | changes)


def sources_of(whole: Run) -> list[list[int]]:
    """The sources of the sequences of each step, in the order of the run."""
    return [step["sources"].tolist() for step in whole.steps]


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    return run(mixture(folder), STEPS, batch=BATCH)


WEIGHT_LISTS = [
    (1.0,), (1, 1), (1, 1, 1), (0.7, 0.2, 0.1), (0.999, 0.001), (5, 3, 1, 1), (612, 250, 138),
    (1195.5, 456.4, 80.1, 20, 7, 3), (0.31, 0.29, 0.2, 0.1, 0.05, 0.04, 0.01), (1e-3, 2e-3),
]  # fmt: skip


@pytest.mark.parametrize("weights", WEIGHT_LISTS)
def test_any_prefix_is_within_one_sequence_of_its_shares(weights: tuple[float, ...]) -> None:
    order = SequenceOrder(weights, 8)
    exact = [Fraction(repr(float(weight))) for weight in weights]
    counts = [0] * len(weights)
    for number in range(3000):
        counts[order.stream(number) // 8] += 1
        for count, weight in zip(counts, exact, strict=True):
            assert abs(count - (number + 1) * weight / sum(exact)) < 1


@pytest.mark.parametrize("num_streams", [1, 6, 8, 10])
@pytest.mark.parametrize("weights", WEIGHT_LISTS)
def test_numbers_of_sequences(weights: tuple[float, ...], num_streams: int) -> None:
    order = SequenceOrder(weights, num_streams)
    seen: Counter[int] = Counter()
    for number in range(3000):
        stream = order.stream(number)
        assert stream % num_streams == number % num_streams  # so that it has one reader
        assert order.number(stream, seen[stream]) == number
        assert order.before(stream, number) == seen[stream]
        seen[stream] += 1


def test_streams_yield_in_proportion_to_their_portions() -> None:
    """10 parts and 8 streams have a common divisor: only some streams yield the rarest source."""
    order = SequenceOrder([0.7, 0.2, 0.1], 8)
    assert [order.portions(source) for source in range(3)] == [
        [4, 3, 4, 3, 4, 3, 4, 3],
        [1, 1, 1, 1, 1, 1, 1, 1],
        [0, 1, 0, 1, 0, 1, 0, 1],
    ]


def test_weights_are_taken_as_written() -> None:
    assert parts_of([0.7, 0.2, 0.1]) == [7, 2, 1]
    assert parts_of([1, 1.5]) == [2, 3]
    assert period_of((7, 2, 1)).tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 0, 2]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_batches_for_any_processes(
    folder: Path, whole: Run, world_size: int, workers: int
) -> None:
    config = mixture(folder, num_workers=workers)
    other = run(config, STEPS, batch=BATCH, world_size=world_size)
    assert same(other, whole)
    assert other.state == whole.state


def test_shares_over_a_resume_and_a_change_of_world_size(folder: Path, whole: Run) -> None:
    legs = [run(mixture(folder), 5, batch=BATCH)]
    for steps, world_size in ((3, 2), (4, 4)):
        changed = run(
            mixture(folder), steps, batch=BATCH, world_size=world_size, state=legs[-1].state
        )
        legs.append(changed)
    joined = Run(
        [step for leg in legs for step in leg.steps],
        [names for leg in legs for names in leg.documents],
        legs[-1].state,
    )
    assert same(joined, whole)
    assert joined.state == whole.state
    counts = np.zeros(3)
    for number, sources in enumerate(sources_of(joined), 1):
        counts += np.bincount(sources, minlength=3)
        assert (abs(counts - np.array([0.7, 0.2, 0.1]) * number * BATCH) < 1).all()


def test_every_document_of_a_source_once_in_its_epoch(folder: Path) -> None:
    """Each source runs through its own epochs, whatever the others do."""
    config = mixture(folder, max_seq_len=512)
    stream = TrainStream(
        config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
    )
    seen: Counter[str] = Counter()
    for number in stream._order.streams:
        if stream._order.portions(number // 8)[number % 8]:
            epoch = itertools.takewhile(
                lambda one: one.position_after.epoch == 0, stream.sequences(number)
            )
            seen.update(name for one in epoch for name in one.documents)
    assert set(seen.values()) == {1}
    assert Counter(name.rpartition(":")[0] for name in seen) == {
        f"{name}/part-{number}.jsonl.gz": size
        for name, sizes in SIZES.items()
        for number, size in enumerate(sizes)
    }


def test_counts_of_each_source(folder: Path) -> None:
    """Sequences, tokens, and epochs, of which the smaller sources complete more."""
    config = mixture(folder, num_streams=2, window_documents=4)
    config = dataclasses.replace(config, per_device_train_batch_size=10)
    stream = TrainStream(
        config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=10
    )
    total: Counter[str] = Counter()
    for step in itertools.islice(stream, 120):
        (batch,) = step.micro_batches
        total.update(batch.counts)
        assert sum(batch.counts[f"source_tokens/{name}"] for name in WEIGHTS) == batch.tokens
    assert [total[f"source_sequences/{name}"] for name in WEIGHTS] == [840, 240, 120]
    positions = {int(k): v["epoch"] for k, v in step.state["streams"].items()}
    for source, name in enumerate(WEIGHTS):
        portions = stream._order.portions(source)
        epochs = [positions.get(2 * source + place, 0) for place in range(2)]
        expected = sum(p * e for p, e in zip(portions, epochs, strict=True)) / sum(portions)
        assert total[f"source_epochs/{name}"] == pytest.approx(expected)
        assert expected > 0


def test_sources_have_columns_of_their_own(tmp_path: Path) -> None:
    """A source without columns has those of the data; documents carry the name of their source."""
    for name, key in (("web", "body"), ("books", "content")):
        (tmp_path / name).mkdir()
        rows = [{key: page(n, 5)["text"], "link": f"https://{name}.example/{n}"} for n in range(40)]
        write_shard(tmp_path / name / "part.jsonl.gz", rows)
    sources = [
        SourceConfig(name="web", train_file=str(tmp_path / "web")),
        SourceConfig(name="books", train_file=str(tmp_path / "books"), columns={"text": "content"}),
    ]
    config = small_config(
        tmp_path, train_file=None, sources=sources, columns={"text": "body", "url": "link"},
        metadata_list=["url", "source"], metadata_probability=1.0, random_sample_metadata=False,
        max_seq_len=256,
    )  # fmt: skip
    stream = TrainStream(
        config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
    )
    texts = [small_tokenizer().decode(next(stream.sequences(k)).ids) for k in (0, 9)]
    assert texts[0].startswith("url: https://web.example/")
    assert " | source: web ||| " in texts[0]
    assert texts[1].startswith("source: books ||| ")


def test_a_home_folder_is_expanded() -> None:
    sources = 'data_config.sources=[{name: web, train_file: "~/web/*.jsonl"}]'
    data = compose(CausalLMConfig, "demo", ["data_config.train_file=null", sources]).data_config
    assert data.sources[0].train_file == str(Path.home() / "web" / "*.jsonl")


def test_a_schedule_is_exact_in_steps(folder: Path) -> None:
    config = mixture(
        folder, schedule=[Phase(share=0.5), Phase(share=0.5, types=[])], metadata_probability=1.0,
        metadata_list=["title", "url"],
    )  # fmt: skip
    through = run(config, STEPS, batch=BATCH, total=STEPS)
    carried = [bool(step["token_types"].any()) for step in through.steps]
    assert carried == [True] * 6 + [False] * 6
    first = run(config, 5, batch=BATCH, total=STEPS)
    rest = run(config, 7, batch=BATCH, total=STEPS, state=first.state, world_size=2)
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), through)


def test_held_out_documents_are_kept_out_of_every_source(folder: Path, tmp_path: Path) -> None:
    path = write_shard(tmp_path / "test.jsonl.gz", [page(3005, 1 + 3005 * 7 % 40)])
    config = mixture(folder, validation_file=str(path), cache_dir=str(tmp_path))
    with pytest.raises(DataError, match="part-0.jsonl.gz, line 6: the document has the text of"):
        run(config, 60)
    dropped = run(dataclasses.replace(config, on_test_overlap="drop"), 60)
    assert not any("books/part-0.jsonl.gz:5" in names for names in dropped.documents)


def test_prepared_sequences_are_the_same(folder: Path, whole: Run, tmp_path: Path) -> None:
    config = mixture(folder)
    request = PrepareConfig(data_config=config, seed=1, out=str(tmp_path / "out"), epochs=1)
    prepare(request, small_tokenizer(), tmp_path / "out")
    prepared = dataclasses.replace(config, prepared=str(tmp_path / "out"))
    made = run(prepared, STEPS, batch=BATCH, world_size=2)
    assert same(made, whole)
    assert made.state == whole.state


def test_a_changed_mixture_is_refused_on_resume(folder: Path, whole: Run) -> None:
    with pytest.raises(ConfigurationError, match=r"weight': 0.6.* now"):
        run(mixture(folder, {**WEIGHTS, "web": 0.6}), 1, state=whole.state)
    columns = {"columns": {"text": "text", "url": "url"}}
    with pytest.raises(ConfigurationError, match=r"columns: absent in the checkpoint"):
        run(mixture(folder, **columns), 1, state=whole.state)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 50))
def test_ranks_and_workers_share_out_every_sequence_once(
    world_size: int, workers: int, done: int
) -> None:
    streams = 16
    dealt: list[int] = []
    for rank in range(world_size):
        division = Division(rank, world_size, workers)
        for worker in range(workers):
            own = list(islice(division.sequences(done, worker), 64 // workers))
            dealt += own
            assert all(number % streams % world_size == rank for number in own)
            assert len({number % streams for number in own}) == streams // world_size // workers
    assert sorted(dealt) == list(range(done, done + 64 * world_size))
