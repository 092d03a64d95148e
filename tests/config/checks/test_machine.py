"""What a run needs of the machine that it starts on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.config.checks.machine import find_machine_problems, find_precision_problems
from bsmeta.config.checks.run import check_launch
from bsmeta.config.launch import Launch
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import SHARED_MEMORY
from bsmeta.tasks import TASKS
from tests.disks import small_disk

__all__ = ["small_disk"]

LAUNCH = Launch(source="test", num_processes=1)


def list_problems(folder: Path, workers: int = 2) -> list[str]:
    return [*map(str, find_machine_problems(workers, folder))]


def test_loader_processes_need_shared_memory(tmp_path: Path) -> None:
    assert list_problems(tmp_path / "none") == [
        f"data_config.num_workers in Hydra configuration: found 2, but {tmp_path}/none is missing, "
        "expected at least 16.8 MB there: loader processes pass batches through it.\n"
        "   Fix: give the container shared memory (docker run --shm-size=1g), or "
        "data_config.num_workers=0"
    ]
    assert list_problems(tmp_path) == list_problems(SHARED_MEMORY) == []
    assert list_problems(tmp_path / "none", workers=0) == []


def test_too_little_shared_memory_is_refused(small_disk: Path) -> None:
    (problem,) = list_problems(small_disk)
    assert f"found 2, but {small_disk} has 410 kB free" in problem


@pytest.mark.parametrize("task", ["causal_lm", "classification", "disambiguation"])
def test_every_task_needs_shared_memory_unless_only_checked(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bsmeta.config.checks.machine.MIN_SHARED_BYTES", 1 << 60)
    entry = TASKS[task]

    def refused(*, check_only: bool) -> set[str]:
        changes = {"data_config.num_workers": 1, "check_only": check_only}
        with pytest.raises(ConfigurationError) as caught:
            check_launch(replace_values(entry.config(decay_from="x"), changes), LAUNCH, entry)
        return {*caught.value.keys}

    assert "data_config.num_workers" in refused(check_only=False)
    assert "data_config.num_workers" not in refused(check_only=True)


@pytest.mark.parametrize(
    ("precision", "capability", "refused"),
    [
        ("bf16", (7, 0), True),
        ("bf16", (7, 5), True),
        ("bf16", (8, 0), False),
        ("bf16", (12, 0), False),
        ("fp16", (7, 0), False),
        ("no", (6, 1), False),
    ],
)
def test_bf16_is_refused_on_gpus_that_only_emulate_it(
    precision: str, capability: tuple[int, int], refused: bool
) -> None:
    problems = [*map(str, find_precision_problems(precision, "Tesla V100-SXM2-32GB", capability))]
    version = f"{capability[0]}.{capability[1]}"
    expected = (
        'mixed_precision in Hydra configuration: found "bf16", but Tesla V100-SXM2-32GB (compute '
        f'capability {version}) can only emulate it, expected "fp16" or "no" on GPUs below '
        "compute capability 8.0.\n   Fix: mixed_precision=fp16 (not under FSDP2), or "
        "mixed_precision=no"
    )
    assert problems == [expected] * refused
