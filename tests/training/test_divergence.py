"""Steps that are not finite, and spikes: what is judged, and when the run must stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bsmeta.config.errors import TrainingError
from bsmeta.data.batch import MicroBatch
from bsmeta.training.guards import NonFiniteGuard, SpikeGuard, is_finite

NAN, INF = float("nan"), float("inf")
BATCHES = [
    MicroBatch({}, 1.0, 1, documents=["a:1", "a:2"]),
    MicroBatch({}, 1.0, 1, documents=["b:3"]),
]
LOSSES = [torch.tensor(1.5), torch.tensor(NAN)]


@pytest.mark.parametrize(
    ("loss", "norm", "expected"),
    [
        (1.0, 2.0, True),
        (1.0, None, True),
        (NAN, 1.0, False),
        (INF, None, False),
        (1.0, NAN, False),
        (1.0, INF, False),
        (1.0, -1.0, False),
    ],
)
def test_finite(loss: float, norm: float | None, expected: bool) -> None:
    assert is_finite(loss, norm) is expected


def test_the_documents_of_the_step_are_written(tmp_path: Path) -> None:
    steps = NonFiniteGuard("skip", 1, tmp_path, rank=3)
    event = steps.failed(7, NAN, None, BATCHES, LOSSES, weights_changed=False)
    assert event == {"loss": "nan", "grad_norm": "None", "consecutive": 1}
    assert json.loads((tmp_path / "nonfinite-step7-rank3.json").read_text()) == {
        "step": 7,
        "rank": 3,
        "loss": "nan",
        "grad_norm": "None",
        "micro_batches": [
            {"loss_sum": "1.5", "documents": ["a:1", "a:2"]},
            {"loss_sum": "nan", "documents": ["b:3"]},
        ],
    }


def test_a_good_step_ends_a_row_of_skips_and_too_many_end_the_run(tmp_path: Path) -> None:
    steps = NonFiniteGuard("skip", 2, tmp_path, rank=0)
    for step in (1, 2):
        steps.failed(step, NAN, 1.0, BATCHES, LOSSES, weights_changed=False)
    steps.passed()
    for step in (4, 5):
        steps.failed(step, NAN, 1.0, BATCHES, LOSSES, weights_changed=False)
    with pytest.raises(TrainingError, match="3 such steps in a row"):
        steps.failed(6, NAN, 1.0, BATCHES, LOSSES, weights_changed=False)


def test_nothing_is_skipped_once_it_is_in_the_weights(tmp_path: Path) -> None:
    steps = NonFiniteGuard("skip", 9, tmp_path, rank=0)
    with pytest.raises(TrainingError, match="step 2: loss nan"):
        steps.failed(2, NAN, None, BATCHES, LOSSES, weights_changed=True)


def test_a_spike_is_found_by_a_full_window_and_does_not_enter_it() -> None:
    spikes = SpikeGuard(3.0, 4, limit=1)
    assert [spikes.is_spike(loss) for loss in (9.0, 1.0, 1.1, 0.9)] == [False] * 4
    assert [spikes.is_spike(loss) for loss in (1.0, 1.2, 5.0, 1.1)] == [False, False, True, False]
    assert spikes.state() == [0.9, 1.0, 1.2, 1.1]
    again = SpikeGuard(3.0, 4, limit=1)
    again.restore(spikes.state())
    assert again.is_spike(5.0)
    again.rolled_back(10)
    with pytest.raises(TrainingError, match="again after 1 rollbacks"):
        again.rolled_back(10)


def test_no_deviations_no_spikes() -> None:
    spikes = SpikeGuard(0.0, 2, limit=1)
    assert not any(spikes.is_spike(loss) for loss in (1.0, 1.0, 1e9))
