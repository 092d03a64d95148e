"""The schedule of the metadata: switches between steps, exact in every resume and world size."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.metadata import MetadataConfig, Phase, compute_phase_starts
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.stream.plan import Phases, SequenceOrder
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.metadata.checks import find_metadata_problems
from tests.data.helpers import Run, run, same, small_config, small_tokenizer, write_shards

STEPS = 12
PHASES = [
    Phase(share=0.5, metadata_probability=1.0, types=["title"]),
    Phase(share=0.25, types=["url", "html"], random_sample_metadata=False),
    Phase(share=0.25, metadata_probability=0.0),
]
HTML, TITLE, URL = 1, 2, 4  # bits of document_types


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), [30, 41, 17, 26, 33, 9])


def scheduled(folder: Path, **changes: object) -> dict[str, object]:
    config = small_config(folder, metadata_probability=1.0, schedule=PHASES, **changes)
    return {"config": config, "total": STEPS}


def list_types(run: Run) -> list[set[int]]:
    """Returns the metadata types of each step's documents, without padding."""
    return [set(step["document_types"][step["loss_mask"]].unique().tolist()) for step in run.steps]


@given(
    starts=st.lists(st.integers(1, 60), max_size=3, unique=True),
    num_streams=st.integers(1, 8),
    stream=st.integers(0, 7),
    emitted=st.integers(0, 20),
)
def test_the_phase_of_a_sequence_follows_from_its_number(
    starts: list[int], num_streams: int, stream: int, emitted: int
) -> None:
    stream %= num_streams
    phases = Phases((0, *sorted(starts)), SequenceOrder([1.0], num_streams))

    def slowly(n: int) -> int:
        number = stream + n * num_streams
        return max(i for i, start in enumerate(phases.starts) if start <= number)

    assert phases.find_phase(stream, emitted) == slowly(emitted)
    left = phases.count_left(stream, emitted)
    if left is None:
        assert slowly(emitted) == len(starts)
    else:
        assert slowly(emitted + left - 1) == slowly(emitted)
        assert slowly(emitted + left) > slowly(emitted)


def test_each_step_has_the_metadata_of_its_phase(folder: Path) -> None:
    types = list_types(run(steps=STEPS, **scheduled(folder)))
    assert types[:6] == [{TITLE}] * 6
    assert types[6:9] == [{URL | HTML}] * 3
    assert types[9:] == [{0}] * 3


@pytest.mark.parametrize("stop", [2, 6, 7, 9, 10])
def test_a_resume_inside_or_at_the_edge_of_a_phase_continues_the_run(
    folder: Path, stop: int
) -> None:
    arguments = scheduled(folder)
    through = run(steps=STEPS, **arguments)
    first = run(steps=stop, **arguments)
    rest = run(steps=STEPS - stop, state=first.state, **arguments)
    joined = Run(first.steps + rest.steps, first.documents + rest.documents, rest.state)
    assert same(joined, through)
    assert rest.state == through.state


@pytest.mark.parametrize(("world_size", "workers"), [(2, 0), (1, 2), (2, 2)])
def test_world_size_and_loader_processes_do_not_change_the_run(
    folder: Path, world_size: int, workers: int
) -> None:
    whole = run(steps=STEPS, **scheduled(folder))
    split = run(steps=STEPS, world_size=world_size, **scheduled(folder, num_workers=workers))
    assert same(split, whole)


def test_no_document_repeats_in_an_epoch_and_half_used_documents_are_counted(folder: Path) -> None:
    """With large windows, every switch falls inside a window."""
    arguments = scheduled(folder, window_documents=64, num_streams=1)
    stream = TrainStream(
        arguments["config"],
        small_tokenizer(),
        seed=1,
        rank=0,
        world_size=1,
        global_batch_size=2,
        max_train_steps=STEPS,
    )
    steps = list(itertools.islice(stream, STEPS))
    batches = [batch for step in steps for batch in step.micro_batches]
    by_phase = [
        {name for batch in batches[first:last] for name in batch.documents}
        for first, last in ((0, 6), (6, 9), (9, 12))
    ]
    for one, other in itertools.combinations(by_phase, 2):
        assert not one & other
    assert all(step.state["streams"][0]["epoch"] == 0 for step in steps)
    assert sum(batch.counts["half_used_at_phase_switch"] for batch in batches) > 0
    assert [step.phase for step in steps] == [0] * 6 + [1] * 3 + [2] * 3


AT_DECAY = [
    Phase(share=1.0, metadata_probability=1.0),
    Phase(at_decay=True, metadata_probability=0.0),
]


@pytest.mark.parametrize("row_budget", ["sequence", "text"])
def test_a_branch_equals_the_run_that_decays_at_the_same_step(
    folder: Path, row_budget: str
) -> None:
    """A run of 30 steps without a decay, and one that decays from step 5 on, share five steps."""
    own = small_config(
        folder, schedule=AT_DECAY, row_budget=row_budget, metadata_list=["title", "url"]
    )
    whole = run(own, STEPS, total=STEPS, decay_start=5)
    assert {0} not in list_types(whole)[:5]
    assert list_types(whole)[5:] == [{0}] * 7
    stable = run(own, 5, total=30)
    rest = run(own, 7, state=stable.state, total=STEPS, decay_start=5, is_branch=True)
    joined = Run(stable.steps + rest.steps, stable.documents + rest.documents, rest.state)
    assert same(joined, whole)
    assert rest.state == whole.state
    with pytest.raises(ConfigurationError, match=r"phase_starts: \[0, 240\] in the .* \[0, 40\] n"):
        run(own, 1, state=stable.state, total=STEPS, decay_start=5)
    later = run(own, 6, total=STEPS, decay_start=5).state
    with pytest.raises(ConfigurationError, match="phase_starts"):
        run(own, 1, state=later, total=STEPS, decay_start=7, is_branch=True)


def test_a_phase_at_the_decay_must_be_the_last(folder: Path) -> None:
    assert compute_phase_starts(MetadataConfig(schedule=AT_DECAY), 100, 80) == [0, 80]
    assert compute_phase_starts(MetadataConfig(schedule=AT_DECAY), 100) == [0, 100]
    for schedule in (AT_DECAY[::-1], AT_DECAY[1:]):
        (problem, *_) = find_metadata_problems(MetadataConfig(schedule=schedule))
        assert problem.key.endswith("schedule.0.at_decay")
    thirds = [Phase(share=0.5), Phase(share=0.5), AT_DECAY[1]]
    assert find_metadata_problems(MetadataConfig(schedule=thirds)) == []
    with pytest.raises(ConfigurationError, match="at_decay would begin after step 5, before the"):
        run(small_config(folder, schedule=thirds), 1, total=STEPS, decay_start=5)


def test_a_changed_schedule_or_length_is_refused(folder: Path) -> None:
    arguments = scheduled(folder)
    state = run(steps=2, **arguments).state
    with pytest.raises(ConfigurationError, match="phase_starts"):
        run(steps=1, state=state, **{**arguments, "total": 2 * STEPS})
    other = [dataclasses.replace(PHASES[0], share=0.5), dataclasses.replace(PHASES[2], share=0.5)]
    changed = small_config(folder, metadata_probability=1.0, schedule=other)
    with pytest.raises(ConfigurationError, match=r"metadata_config\.schedule"):
        run(changed, 1, state=state, total=STEPS)
