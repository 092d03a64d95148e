"""What a run needs of the machine that it starts on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.machine_checks import machine_problems, precision_problems
from bsmeta.core.changed_values import replace_values
from bsmeta.core.files import SHARED_MEMORY
from tests.disks import small_disk

__all__ = ["small_disk"]


def problems(folder: Path, workers: int = 2, *, check_only: bool = False) -> list[str]:
    config = CausalLMConfig(data_config=DataConfig(num_workers=workers), check_only=check_only)
    return [*map(str, machine_problems(config, folder))]


def test_loader_processes_need_shared_memory(tmp_path: Path) -> None:
    assert problems(tmp_path / "none") == [
        f"data_config.num_workers in Hydra configuration: found 2, but {tmp_path}/none is missing, "
        "expected at least 16.8 MB there: loader processes pass batches through it.\n"
        "   Fix: give the container shared memory (docker run --shm-size=1g), or "
        "data_config.num_workers=0"
    ]
    assert problems(tmp_path) == problems(SHARED_MEMORY) == []
    assert problems(tmp_path / "none", workers=0) == []
    assert problems(tmp_path / "none", check_only=True) == []


def test_shared_memory_that_is_too_small(small_disk: Path) -> None:
    (problem,) = problems(small_disk)
    assert f"found 2, but {small_disk} has 410 kB free" in problem


@pytest.mark.faults
def test_shared_memory_of_other_tasks(tmp_path: Path) -> None:
    from bsmeta.tasks.classification.config import ClassificationConfig

    config = replace_values(ClassificationConfig(), {"data_config.num_workers": 1})
    (problem,) = machine_problems(config, tmp_path / "none")
    assert problem.key == "data_config.num_workers"


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
def test_bf16_that_a_gpu_would_emulate(
    precision: str, capability: tuple[int, int], refused: bool
) -> None:
    config = CausalLMConfig(mixed_precision=precision)
    found = [*map(str, precision_problems(config, "Tesla V100-SXM2-32GB", capability))]
    version = f"{capability[0]}.{capability[1]}"
    expected = (
        'mixed_precision in Hydra configuration: found "bf16", but Tesla V100-SXM2-32GB (compute '
        f'capability {version}) can only emulate it, expected "fp16" or "no" on GPUs below '
        "compute capability 8.0.\n   Fix: mixed_precision=fp16 (not under FSDP2), or "
        "mixed_precision=no"
    )
    assert found == [expected] * refused
