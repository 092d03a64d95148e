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
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.data import DataConfig, SourceConfig, compute_parts
from bsmeta.config.metadata import Phase
from bsmeta.config.programs.copying import PrepareConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.shards import Shard
from bsmeta.data.prepare import prepare_streams
from bsmeta.data.stream.plan import (
    Division,
    SequenceOrder,
    Share,
    assign_period,
    choose_step,
    deal_documents,
    draw_order,
    find_cuts,
    weigh_shard,
)
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


def list_sources(whole: Run) -> list[list[int]]:
    """Returns the source of each sequence, by step, in the order of the run."""
    return [step["sources"].tolist() for step in whole.steps]


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    return run(mixture(folder), STEPS, batch=BATCH)


WEIGHT_LISTS = [
    (1.0,), (1, 1), (1, 1, 1), (0.7, 0.2, 0.1), (0.999, 0.001), (5, 3, 1, 1), (612, 250, 138),
    (1195.5, 456.4, 80.1, 20, 7, 3), (0.31, 0.29, 0.2, 0.1, 0.05, 0.04, 0.01), (1e-3, 2e-3),
]  # fmt: skip


@pytest.mark.parametrize("weights", WEIGHT_LISTS)
def test_every_prefix_has_the_exact_shares_within_one_sequence(weights: tuple[float, ...]) -> None:
    order = SequenceOrder(weights, 8)
    exact = [Fraction(repr(float(weight))) for weight in weights]
    counts = [0] * len(weights)
    for number in range(3000):
        counts[order.find_stream(number) // 8] += 1
        for count, share in zip(counts, exact, strict=True):
            assert abs(count - (number + 1) * share / sum(exact)) < 1


@pytest.mark.parametrize("num_streams", [1, 6, 8, 10])
@pytest.mark.parametrize("weights", WEIGHT_LISTS)
def test_each_sequence_number_has_one_stream_source_and_index(
    weights: tuple[float, ...], num_streams: int
) -> None:
    order = SequenceOrder(weights, num_streams)
    seen: Counter[int] = Counter()
    for number in range(3000):
        stream = order.find_stream(number)
        assert stream % num_streams == number % num_streams  # so that it has one reader
        assert order.find_index(stream, seen[stream]) == number
        assert order.count_before(stream, number) == seen[stream]
        seen[stream] += 1


def test_streams_yield_in_proportion_to_their_portions() -> None:
    """10 parts and 8 streams share a divisor, so only some streams yield the rarest source."""
    order = SequenceOrder([0.7, 0.2, 0.1], 8)
    assert [order.count_portions(source) for source in range(3)] == [
        [4, 3, 4, 3, 4, 3, 4, 3],
        [1, 1, 1, 1, 1, 1, 1, 1],
        [0, 1, 0, 1, 0, 1, 0, 1],
    ]


def test_weights_become_exact_integer_parts() -> None:
    assert compute_parts([0.7, 0.2, 0.1]) == [7, 2, 1]
    assert compute_parts([1, 1.5]) == [2, 3]
    assert assign_period((7, 2, 1)).tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 0, 2]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_for_any_number_of_processes(
    folder: Path, whole: Run, world_size: int, workers: int
) -> None:
    config = mixture(folder, num_workers=workers)
    other = run(config, STEPS, batch=BATCH, world_size=world_size)
    assert same(other, whole)
    assert other.state == whole.state


def test_shares_are_kept_over_a_resume_with_another_world_size(folder: Path, whole: Run) -> None:
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
    for number, sources in enumerate(list_sources(joined), 1):
        counts += np.bincount(sources, minlength=3)
        assert (abs(counts - np.array([0.7, 0.2, 0.1]) * number * BATCH) < 1).all()


def test_each_epoch_of_a_source_has_each_of_its_documents_once(folder: Path) -> None:
    """Each source has independent epochs."""
    config = mixture(folder, max_seq_len=512)
    stream = TrainStream(
        config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
    )
    seen: Counter[str] = Counter()
    for number in stream._order.streams:
        if stream._order.count_portions(number // 8)[number % 8]:
            epoch = itertools.takewhile(
                lambda sequence: sequence.position_after.epoch == 0,
                stream.iterate_sequences(number),
            )
            seen.update(name for sequence in epoch for name in sequence.documents)
    assert set(seen.values()) == {1}
    assert Counter(name.rpartition(":")[0] for name in seen) == {
        f"{name}/part-{number}.jsonl.gz": size
        for name, sizes in SIZES.items()
        for number, size in enumerate(sizes)
    }


def test_sequences_tokens_and_epochs_are_counted_by_source(folder: Path) -> None:
    """Smaller sources complete more epochs."""
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
        portions = stream._order.count_portions(source)
        epochs = [positions.get(2 * source + place, 0) for place in range(2)]
        expected = sum(p * e for p, e in zip(portions, epochs, strict=True)) / sum(portions)
        assert total[f"source_epochs/{name}"] == pytest.approx(expected)
        assert expected > 0


def test_a_source_may_override_the_columns_of_the_data(tmp_path: Path) -> None:
    """Documents carry the name of their source."""
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
    texts = [small_tokenizer().decode(next(stream.iterate_sequences(k)).ids) for k in (0, 9)]
    assert texts[0].startswith("url: https://web.example/")
    assert " | source: web ||| " in texts[0]
    assert texts[1].startswith("source: books ||| ")


def test_a_tilde_is_expanded_in_the_files_of_a_source() -> None:
    sources = 'data_config.sources=[{name: web, train_file: "~/web/*.jsonl"}]'
    data = compose_command_line(
        CausalLMConfig, "demo", ["data_config.train_file=null", sources]
    ).data_config
    assert data.sources[0].train_file == str(Path.home() / "web" / "*.jsonl")


def test_the_phases_of_a_schedule_begin_at_exact_steps(folder: Path) -> None:
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


def test_prepared_sequences_equal_live_sequences(folder: Path, whole: Run, tmp_path: Path) -> None:
    config = mixture(folder)
    request = PrepareConfig(data_config=config, seed=1, out=str(tmp_path / "out"), epochs=1)
    prepare_streams(request, small_tokenizer(), tmp_path / "out")
    prepared = dataclasses.replace(config, prepared=str(tmp_path / "out"))
    prepared_run = run(prepared, STEPS, batch=BATCH, world_size=2)
    assert same(prepared_run, whole)
    assert prepared_run.state == whole.state


def test_a_changed_mixture_is_refused_on_resume(folder: Path, whole: Run) -> None:
    with pytest.raises(ConfigurationError, match=r"weight': 0.6.* now"):
        run(mixture(folder, {**WEIGHTS, "web": 0.6}), 1, state=whole.state)
    columns = {"columns": {"text": "text", "url": "url"}}
    with pytest.raises(ConfigurationError, match=r"columns: absent in the checkpoint"):
        run(mixture(folder, **columns), 1, state=whole.state)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 50))
def test_ranks_and_workers_yield_every_sequence_once(
    world_size: int, workers: int, done: int
) -> None:
    streams = 16
    dealt: list[int] = []
    for rank in range(world_size):
        division = Division(rank, world_size, workers)
        for worker in range(workers):
            worker_numbers = list(
                islice(division.iterate_sequence_indices(done, worker), 64 // workers)
            )
            dealt += worker_numbers
            assert all(number % streams % world_size == rank for number in worker_numbers)
            assert (
                len({number % streams for number in worker_numbers})
                == streams // world_size // workers
            )
    assert sorted(dealt) == list(range(done, done + 64 * world_size))


def make_shards(sizes: list[int]) -> list[Shard]:
    return [Shard(f"{i}.jsonl.gz", f"/{i}.jsonl.gz", size) for i, size in enumerate(sizes)]


SHARDS = make_shards([1000] * 30)
WINDOW = 8


def list_numbers(share: Share, documents: int, window: int = 0) -> list[int]:
    """Returns the numbers of a share's documents, in a shard of `documents` documents."""
    kept_numbers: list[int] = []
    for number in itertools.count(window):
        asked = share.list_documents(number, WINDOW)
        assert len(asked) == WINDOW
        kept_numbers += [number for number in asked if number < documents]
        if asked[-1] >= documents:
            return kept_numbers
    raise AssertionError


@given(
    st.lists(st.integers(0, 3_000_000), min_size=1, max_size=20),
    st.integers(1, 40),
    st.integers(1, 700),
)
def test_every_document_belongs_to_one_stream(
    sizes: list[int], streams: int, documents: int
) -> None:
    owners: Counter[tuple[str, int]] = Counter()
    for shares in deal_documents(make_shards(sizes), [1] * streams):
        for share in shares:
            stream_numbers = list_numbers(share, documents)
            assert stream_numbers == sorted(stream_numbers)
            owners.update((share.shard.name, number) for number in stream_numbers)
    assert set(owners.values()) == {1}
    assert len(owners) == documents * len(sizes)


@pytest.mark.parametrize("count", [1, 2, 5, 15, 30])
@pytest.mark.parametrize("streams", [1, 2, 3, 4, 7, 8, 16, 25, 64])
def test_streams_have_nearly_equal_numbers_of_documents(count: int, streams: int) -> None:
    """The shards have different sizes."""
    sizes = [1_000_000 + 70_000 * (i * 7 % 5) for i in range(count)]
    documents = {shard.name: shard.size // 500 for shard in make_shards(sizes)}
    owned = [
        sum(len(list_numbers(share, documents[share.shard.name])) for share in shares)
        for shares in deal_documents(make_shards(sizes), [1] * streams)
    ]
    assert sum(owned) == sum(documents.values())
    assert max(owned) <= 1.15 * min(owned)


def test_shards_are_dealt_to_streams_whole_or_in_interleaved_parts() -> None:
    first, second, third = SHARDS[:3]
    assert deal_documents([first, second], [1, 1]) == [[Share(first)], [Share(second)]]
    assert deal_documents([first, second, third], [1, 1]) == [
        [Share(first), Share(second, 0, 64, 128)],
        [Share(second, 64, 128, 128), Share(third)],
    ]
    large = Shard("a.jsonl.gz", "/a.jsonl.gz", 450_000_000)
    halves = deal_documents([large], [1, 1])
    assert halves == [[Share(large, 0, 64, 128, 429)], [Share(large, 64, 128, 128, 429)]]
    # In runs of 429 documents, in turn.
    assert list(halves[0][0].list_documents(0, 500))[427:431] == [427, 428, 858, 859]
    assert list(halves[1][0].list_documents(0, 500))[427:431] == [856, 857, 1287, 1288]


def test_a_shard_is_not_divided_if_streams_stay_nearly_equal() -> None:
    assert find_cuts([1000, 2010, 3000], [1, 1, 1]) == [1000, 2010]
    assert find_cuts([1000, 2200, 3000], [1, 1, 1]) == [1000, 2000]


def test_uncompressed_shards_count_less() -> None:
    assert weigh_shard(Shard("a.jsonl", "/a.jsonl", 1000)) == 200
    assert weigh_shard(Shard("a.jsonl.zst", "/a.jsonl.zst", 1000)) == 1000
    assert weigh_shard(Shard("a.jsonl", "/a.jsonl", 0)) == 1


def test_documents_of_a_share_are_spread_evenly_over_a_shard() -> None:
    assert [choose_step(cycle) for cycle in (1, 4, 8, 128, 512)] == [1, 3, 5, 79, 317]
    assert [run * choose_step(8) % 8 for run in range(8)] == [0, 5, 2, 7, 4, 1, 6, 3]
    quarter = Share(SHARDS[0], 6, 8, 8)  # runs 3 and 6 of each 8
    assert list(quarter.list_documents(0, 5)) == [3, 6, 11, 14, 19]
    assert list(quarter.list_documents(2, 5)) == [43, 46, 51, 54, 59]
    third = Share(SHARDS[0], 1, 2, 4, run_length=3)  # run 3 of each 4: 9, 10, 11, 21, 22, 23 ...
    assert list(third.list_documents(0, 5)) == [9, 10, 11, 21, 22]


@given(st.integers(0, 31), st.integers(1, 32), st.integers(1, 5), st.integers(0, 500))
def test_find_window_returns_the_window_with_the_next_document(
    low: int, size: int, run: int, document: int
) -> None:
    share = Share(SHARDS[0], low, min(low + size, 32), 32, run)
    window = share.find_window(document, WINDOW)
    later = [number for number in list_numbers(share, 2000) if number >= document]
    assert later[0] in share.list_documents(window, WINDOW)
    assert document not in list_numbers(share, 2000) or later[0] == document


def test_the_order_differs_by_epoch_and_stream() -> None:
    (shares,) = deal_documents(SHARDS, [1])
    orders = [draw_order(shares, 1, epoch, stream) for epoch in (0, 1) for stream in (0, 1)]
    assert all(sorted(order, key=shares.index) == shares for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert draw_order(shares, 1, 0, 0) == orders[0]
