"""The batch of launches whose number of processes changes, and the demands on their launcher."""

from __future__ import annotations

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.elastic import find_elastic_problems, scale_accumulation
from bsmeta.config.checks.run import check_launch
from bsmeta.config.data import DataConfig
from bsmeta.config.launch import Launch, read_launch
from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks import TASKS

ELASTIC = Launch(source="the environment", num_processes=2, restarts=True)


@pytest.mark.parametrize(
    ("processes", "accumulation"), [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
)
def test_the_global_batch_is_that_of_the_configured_number_of_processes(
    processes: int, accumulation: int
) -> None:
    data = DataConfig(per_device_train_batch_size=5)
    config = CausalLMConfig(
        data_config=data, gradient_accumulation_steps=3, gradient_accumulation_processes=4
    )
    scaled = scale_accumulation(config, processes)
    assert scaled.gradient_accumulation_steps == accumulation
    assert BatchPlan.of(scaled, processes).global_batch == 60
    assert scale_accumulation(scaled, 4) == config


def test_without_the_key_the_accumulation_is_not_scaled() -> None:
    config = CausalLMConfig(gradient_accumulation_steps=3)
    assert scale_accumulation(config, 4) is config


def test_a_number_of_processes_that_cannot_keep_the_batch_is_refused() -> None:
    config = CausalLMConfig(gradient_accumulation_steps=3, gradient_accumulation_processes=4)
    launch = Launch(source="the environment", num_processes=5)
    (problem,) = find_elastic_problems(config, launch)
    assert (problem.key, problem.found) == ("WORLD_SIZE", "5")
    assert problem.expected == (
        "a divisor of 12 = 3 (gradient_accumulation_steps) x 4 (gradient_accumulation_processes), "
        "the micro-batches of a step"
    )
    assert scale_accumulation(config, 5) is config
    with pytest.raises(ConfigurationError, match="WORLD_SIZE"):
        check_launch(config, launch, TASKS["causal_lm"])


@pytest.mark.parametrize("resume", [None, "/runs/a/checkpoint-5step"])
def test_a_launch_that_restarts_must_resume_from_the_newest_checkpoint(resume: str | None) -> None:
    (problem,) = find_elastic_problems(CausalLMConfig(resume_from_checkpoint_dir=resume), ELASTIC)
    assert problem.key == "resume_from_checkpoint_dir"
    assert problem.fix.startswith("resume_from_checkpoint_dir=latest, or ")
    latest = CausalLMConfig(resume_from_checkpoint_dir="latest")
    assert [*find_elastic_problems(latest, ELASTIC)] == []
    checked = CausalLMConfig(resume_from_checkpoint_dir=resume, check_only=True)
    assert [*find_elastic_problems(checked, ELASTIC)] == []


def test_restarted_processes_must_not_share_the_store_of_the_launcher() -> None:
    config = CausalLMConfig(resume_from_checkpoint_dir="latest")
    launch = Launch(source="the environment", num_processes=2, restarts=True, shares_store=True)
    (problem,) = find_elastic_problems(config, launch)
    assert problem.key == "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    assert problem.fix == (
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, and start torchrun with --rdzv-backend c10d"
    )


@pytest.mark.parametrize(
    ("max_restarts", "uses_agent_store", "restarts", "shares_store"),
    [
        ("0", "True", False, True),
        ("3", "True", True, True),
        ("3", "False", True, False),
        ("0", "False", True, False),  # machines that join restart it, too
    ],
)
def test_restarts_are_read_from_the_environment_of_torchrun(
    max_restarts: str, uses_agent_store: str, restarts: bool, shares_store: bool
) -> None:
    launch = read_launch(
        {
            "TORCHELASTIC_MAX_RESTARTS": max_restarts,
            "TORCHELASTIC_USE_AGENT_STORE": uses_agent_store,
        }
    )
    assert (launch.restarts, launch.shares_store) == (restarts, shares_store)
    assert not read_launch({}).restarts
