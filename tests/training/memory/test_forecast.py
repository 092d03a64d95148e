"""The forecast of a launch: what each device holds, what saves and exports take."""

from __future__ import annotations

import pytest
from torch import nn

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.launch import Launch
from bsmeta.tasks import TASKS
from bsmeta.training.memory.forecast import Forecast
from bsmeta.training.task import Shape


@pytest.mark.parametrize(("shard_processes", "shards"), [(None, 8), (2, 2)])
def test_each_copy_of_a_sharded_model_is_divided_among_its_processes(
    shard_processes: int | None, shards: int
) -> None:
    model = nn.Linear(10, 100, bias=False)
    shape = Shape(model, model, [], rows=1, length=1, outputs=2)
    config = CausalLMConfig(fsdp_shard_processes=shard_processes)
    launch = Launch(source="fsdp2.yaml", num_processes=8, distributed_type="FSDP", fsdp={})
    run = CheckedRun(config=config, entry=TASKS["causal_lm"], launch=launch, deepspeed_config=None)
    states = Forecast(run, shape, None, saves_frozen=True).states
    assert states["FSDP2"].weights == 4000 / shards
    assert states[3].weights == 4000 / 8


@pytest.mark.parametrize(
    ("engine", "saves_frozen", "export_steps", "expected"),
    [
        # 8 MiB of weights, 2 MiB of them trained, with two moments of AdamW.
        (None, True, None, ["weights and optimizer in main memory: 12.0 MiB on rank 0"]),
        (None, False, None, ["trained weights and optimizer in main memory: 6.0 MiB on rank 0"]),
        (
            "FSDP2",
            False,
            None,
            [
                "trained weights and optimizer in main memory: 3.0 MiB on each rank",
                "rank 0 also keeps the frozen weights there, for model/ in checkpoints: 6.0 MiB "
                "(export_steps=0 does without)",
            ],
        ),
        (
            "FSDP2",
            False,
            0,
            ["trained weights and optimizer in main memory: 3.0 MiB on each rank"],
        ),
        (0, True, None, ["weights and optimizer in main memory: 12.0 MiB on rank 0"]),
        # Every rank copies all frozen weights, and half of the others with their moments.
        (2, True, None, ["weights and optimizer in main memory: 9.0 MiB on each rank"]),
        (2, False, None, ["trained weights and optimizer in main memory: 3.0 MiB on each rank"]),
        (3, True, None, ["weights and optimizer in main memory: 6.0 MiB on each rank"]),
        (
            3,
            False,
            None,
            [
                "trained weights and optimizer in main memory: 3.0 MiB on each rank",
                "rank 0 also keeps the frozen weights there, for model/ in checkpoints: 6.0 MiB "
                "(export_steps=0 does without)",
            ],
        ),
    ],
)
def test_copies_of_checkpoints_are_counted_without_the_weights_that_they_lack(
    engine: str | int | None, saves_frozen: bool, export_steps: int | None, expected: list[str]
) -> None:
    frozen = nn.Linear(1024, 1536, bias=False, device="meta").requires_grad_(False)
    trained = nn.Linear(1024, 512, bias=False, device="meta")
    model = nn.Sequential(frozen, trained)
    shape = Shape(model, model, [], rows=1, length=1, outputs=2)
    config = CausalLMConfig(async_save=True, export_steps=export_steps)
    launch = Launch(source="a file", num_processes=2, fsdp={} if engine == "FSDP2" else None)
    deepspeed = {"zero_optimization": {"stage": engine}} if isinstance(engine, int) else None
    run = CheckedRun(
        config=config, entry=TASKS["causal_lm"], launch=launch, deepspeed_config=deepspeed
    )
    lines = Forecast(run, shape, None, saves_frozen=saves_frozen).describe_staging()
    assert [line.removeprefix("async_save keeps a copy of ") for line in lines] == expected


@pytest.mark.parametrize(
    ("export_dtype", "stage", "expected"),
    [
        (None, None, "model/ takes 8.0 MiB on the disk, as trained (export_dtype)"),
        (None, 2, "model/ takes 4.0 MiB on the disk, as trained (export_dtype)"),
        (
            "float16",
            None,
            "model/ takes 4.0 MiB on the disk, in float16 (export_dtype); while it is written, "
            "rank 0 also keeps 4.0 MiB in main memory",
        ),
        ("bfloat16", 2, "model/ takes 4.0 MiB on the disk, in bfloat16 (export_dtype)"),
    ],
)
def test_the_size_of_the_exported_model_follows_from_its_dtype(
    export_dtype: str | None, stage: int | None, expected: str
) -> None:
    model = nn.Linear(1024, 2048, bias=False, device="meta")
    shape = Shape(model, model, [], rows=1, length=1, outputs=2)
    config = CausalLMConfig(export_dtype=export_dtype, mixed_precision="bf16")
    launch = Launch(source="a file", num_processes=1)
    deepspeed = None if stage is None else {"zero_optimization": {"stage": stage}}
    run = CheckedRun(
        config=config, entry=TASKS["causal_lm"], launch=launch, deepspeed_config=deepspeed
    )
    assert Forecast(run, shape, None, saves_frozen=True).describe_export() == [expected]
