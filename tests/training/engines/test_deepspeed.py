"""Every stage of ZeRO continues to the last digit, and reads what other stages have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bsmeta.training.checkpoints.shards import read_full_tensors
from bsmeta.training.engines.state import write_state
from bsmeta.training.engines.values import EngineValues
from bsmeta.training.ranks.processes import ALONE
from tests.conftest import command, run_warm
from tests.training.engines.saved_engines import SmallModel

SCRIPT = Path(__file__).with_name("saved_engines.py")
KEYS = ("trackers=[]", "gradient_accumulation_steps=1")

FROZEN = ["frozen.weight", "frozen.bias"]
WEIGHTS = ["embedding.weight", "middle.weight", "mixture", "shift"]
ENTRIES = {
    "model/offset",
    *(f"model/{name}" for name in WEIGHTS),
    *(f"optimizer/{key}/{name}" for key in ("exp_avg", "exp_avg_sq", "step") for name in WEIGHTS),
}


def run_engines(processes: int, precision: str, engines: list[dict[str, Any]]) -> list[Any]:
    """Runs engines; returns the losses of each."""
    keys = (*KEYS, f"mixed_precision={precision}")
    started = command(SCRIPT, *keys, processes=processes, launcher=True)
    done = run_warm(started, ENGINES=json.dumps(engines))
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    results = [json.loads(line.removeprefix("RESULT ")) for line in lines]
    assert [result["failures"] for result in results] == [[]] * len(engines)
    return [result["losses"] for result in results]


def assert_equal_states(folder: Path, other_folder: Path) -> None:
    """Compares all tensors of two folders to the last digit."""
    tensors, other_tensors = read_full_tensors(folder, ""), read_full_tensors(other_folder, "")
    assert set(tensors) == set(other_tensors)
    differing = [name for name in tensors if not torch.equal(tensors[name], other_tensors[name])]
    assert differing == []


@pytest.mark.long
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_each_stage_continues_and_reads_the_others(tmp_path: Path, precision: str) -> None:
    """Two ranks save and resume; one rank reads each state with the next engine.

    A copy of the state that is written during the next step is equal to a state saved before it. In
    bf16, frozen weights are left out; otherwise they would be rounded.
    """
    engines: dict[str, dict[str, Any]] = {str(stage): {"stage": stage} for stage in range(4)}
    if precision == "bf16":
        engines["1 float32"] = {"stage": 1, "accumulation": "fp32"}
        engines["2 offload"] = {"stage": 2, "offload": True}
        engines["3 offload"] = {"stage": 3, "offload": True}
        engines = {name: {**engine, "unsaved": FROZEN} for name, engine in engines.items()}

    runs = []
    for name, engine in engines.items():
        whole, half, resumed, copy = (
            str(tmp_path / f"{part} {name}") for part in ("whole", "half", "resumed", "copy")
        )
        runs += [
            {**engine, "steps": [1, 3], "save": whole, "copy": copy},
            {**engine, "steps": [1, 2], "save": half},
            # Twice, as after a rollback.
            {**engine, "steps": [3, 3], "rounds": 2, "save": resumed, "load": half},
        ]
    losses = run_engines(2, precision, runs)
    for number in range(len(engines)):
        uninterrupted, begun, continued = losses[3 * number : 3 * number + 3]
        assert [*begun, *continued] == [*uninterrupted, uninterrupted[-1]]

    for name in engines:
        assert_equal_states(tmp_path / f"whole {name}", tmp_path / f"resumed {name}")
        assert_equal_states(tmp_path / f"half {name}", tmp_path / f"copy {name}")
    unsaved = {} if precision == "bf16" else {f"model/{name}" for name in FROZEN}
    assert set(read_full_tensors(tmp_path / "whole 3", "")) == ENTRIES.union(unsaved)

    targets = [*list(engines)[1:], "0"]
    moves = [
        {
            **engines[target],
            "load": str(tmp_path / f"half {name}"),
            "save": str(tmp_path / f"moved {name}"),
        }
        for name, target in zip(engines, targets, strict=True)
    ]
    run_engines(1, precision, moves)
    for name in engines:
        assert_equal_states(tmp_path / f"half {name}", tmp_path / f"moved {name}")


@pytest.mark.long
def test_weights_of_a_partition_with_different_steps_are_refused(tmp_path: Path) -> None:
    """One step counter for both would give one of them another bias correction."""
    weights = SmallModel().state_dict()
    del weights["output.weight"]  # another name of the embedding
    state = {f"model/{name}": weight for name, weight in weights.items()}
    for name, steps in zip(WEIGHTS, (2.0, 2.0, 3.0, 2.0), strict=True):
        state[f"optimizer/step/{name}"] = torch.tensor(steps)
        state[f"optimizer/exp_avg/{name}"] = torch.zeros_like(weights[name])
    write_state(state, EngineValues(has_optimizer=True), tmp_path / "state", ALONE)

    engine = {"stage": 2, "load": str(tmp_path / "state"), "save": str(tmp_path / "saved")}
    started = command(SCRIPT, *KEYS, processes=1, launcher=True)
    done = run_warm(started, ENGINES=json.dumps([engine]))
    assert done.returncode != 0
    assert (
        f"{tmp_path / 'state'}: weights that ZeRO updates together have had different numbers of "
        "steps ([2.0, 3.0]); resume with the engine that saved it"
    ) in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_rollback_forgets_optimizer_values_that_the_checkpoint_lacks(
    tmp_path: Path, precision: str
) -> None:
    """A checkpoint has none for a weight that has had no gradient before it."""
    weights = SmallModel().state_dict()
    del weights["output.weight"]  # another name of the embedding
    state = {f"model/{name}": weight for name, weight in weights.items()}
    write_state(state, EngineValues(has_optimizer=True), tmp_path / "state", ALONE)

    engines = [
        {
            "stage": stage,
            "load": str(tmp_path / "state"),
            "steps": [1, 3],
            "rounds": 2,
            "save": str(tmp_path / str(stage)),
        }
        for stage in range(4)
    ]
    for losses in run_engines(1, precision, engines):
        assert losses[:3] == losses[3:]
