"""The DeepSpeed JSON: keys that Hydra owns, and values that DeepSpeed itself would refuse."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.checks.deepspeed import DeepSpeedJson
from bsmeta.config.composing.help_page import list_keys
from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.keys import key
from bsmeta.reference import PROGRAMS
from tests.config.checks.test_run import OWN_ADAM, run_check

TWINS = {
    twin.removesuffix(".0").removesuffix(".1")  # the betas are one value in the JSON
    for _, schema, _ in PROGRAMS
    if issubclass(schema, RunConfig)
    for field in list_keys(schema)
    for twin in (field.declaration.deepspeed or "").split(", ")
    if twin
}
COSINE = {"type": "WarmupCosineLR", "params": {"cos_min_ratio": "other"}}


@pytest.mark.parametrize("twin", sorted(TWINS))
def test_a_differing_value_is_refused(twin: str, tmp_path: Path) -> None:
    hydra: dict[str, Any] = {}
    document: dict[str, Any] = {twin: "other"}
    if twin == "scheduler.params.cos_min_ratio":
        hydra, document = {"lr_scheduler_type": "cosine"}, {"scheduler": COSINE}
    with pytest.raises(ConfigurationError) as refused:
        run_check(tmp_path, hydra, document)
    assert twin in refused.value.keys


@dataclass(frozen=True, kw_only=True)
class Section:
    zero_buckets: int = key(7, "a key in a block", deepspeed="zero_optimization.sub_group_size")


@dataclass(frozen=True, kw_only=True)
class Predivided(RunConfig):
    predivide: float = key(2.0, "a key", deepspeed="gradient_predivide_factor", above=0)
    section: Section = key(Section, "")


@pytest.mark.parametrize("value", ["auto", 2, None])
def test_a_new_twin_needs_only_its_name(value: object) -> None:
    launch = Launch(source="launch.yaml", num_processes=1, distributed_type="DEEPSPEED")
    document = {"gradient_accumulation_steps": 1, "gradient_clipping": 1.0}
    document |= {} if value is None else {"gradient_predivide_factor": value}
    new_keys = ("gradient_predivide_factor", "zero_optimization.sub_group_size")
    config = Predivided()
    assert not [
        problem
        for problem in DeepSpeedJson(document, config, launch).find_disagreements()
        if problem.key in new_keys
    ]
    filled = DeepSpeedJson(document, config, launch).fill_values()
    assert filled["gradient_predivide_factor"] == 2.0
    assert filled["zero_optimization"] == {"sub_group_size": 7}

    document["gradient_predivide_factor"] = 4.0
    (problem,) = [
        problem
        for problem in DeepSpeedJson(document, config, launch).find_disagreements()
        if problem.key in new_keys
    ]
    assert problem.expected == '"auto" or 2.0 (predivide of Hydra)'
    assert problem.fix.endswith(", or pass predivide=4.0")


OFFLOAD = "zero_optimization.offload_optimizer"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fp16": True}, {"fp16": "found true, expected an object with keys"}),
        ({"aio": 1}, {"aio": "found 1, expected an object with keys"}),
        (
            {"fp16.loss_scal": 128},
            {"fp16.loss_scal": "an unknown key, expected .* (did you mean loss_scale?)"},
        ),
        ({"fp16.loss_scale": "high"}, {"fp16.loss_scale": 'found "high", expected'}),
        (
            {"zero_optimization.reduce_bucket_size": "5e8"},
            {"zero_optimization.reduce_bucket_size": 'found "5e8" (text), expected a valid'},
        ),
        (
            {"zero_optimization.overlap_comm": "yes please"},
            {"zero_optimization.overlap_comm": 'found "yes please", expected a valid boolean'},
        ),
        (
            {"zero_optimization.allgather_bucket_size": -1, "comms_logger": {"enabled": "may be"}},
            {
                "zero_optimization.allgather_bucket_size": "found -1, expected greater than",
                "comms_logger.enabled": 'found "may be", expected a valid boolean',
            },
        ),
        (
            {OFFLOAD: {"device": "cpu", "pin_memry": True, "buffer_count": "4.5"}, **OWN_ADAM},
            {
                f"{OFFLOAD}.buffer_count": 'found "4.5" (text), expected a valid integer',
                f"{OFFLOAD}.pin_memry": "an unknown key, expected .* (did you mean pin_memory?)",
            },
        ),
        (
            {"steps_per_print": "10", "wall_clock_breakdown": "no"},
            {
                "wall_clock_breakdown": 'found "no", expected true or false',
                "steps_per_print": 'found "10" (text), expected a number',
            },
        ),
        ({"zero_optimization.stge": 2}, {"zero_optimization.stge": "an unknown key"}),
        (
            {OFFLOAD: {"device": "nvme"}, **OWN_ADAM},
            {f"{OFFLOAD}.device": 'expected "none" or "cpu": a checkpoint is written from memory'},
        ),
        (
            {
                OFFLOAD: {"device": "cpu", "ratio": 0.5, "super_offload": True},
                "zero_optimization.stage": 3,
                "zero_optimization.stage3_gather_16bit_weights_on_model_save": True,
                **OWN_ADAM,
            },
            {
                f"{OFFLOAD}.ratio": "a second optimizer, whose state a checkpoint would lack",
                f"{OFFLOAD}.super_offload": "where no checkpoint can read them",
            },
        ),
    ],
    ids=lambda value: next(iter(value)),
)
def test_values_that_deepspeed_or_a_checkpoint_would_not_stand_are_refused(
    changes: dict[str, Any], expected: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        run_check(tmp_path, document=changes)
    problems = dict(re.findall(r"^\d+\. (\S+) in \S+: (.*)\n   Fix: .+$", str(refusal.value), re.M))
    assert [*problems] == [*expected]
    for name, message in expected.items():
        assert re.search(re.escape(message).replace(r"\.\*", ".*"), problems[name]), problems[name]


@pytest.mark.parametrize(("stage", "gathers"), [(2, False), (3, True)])
def test_auto_gathers_weights_under_stage_3_only(stage: int, gathers: bool, tmp_path: Path) -> None:
    key = "stage3_gather_16bit_weights_on_model_save"
    changes = {"zero_optimization.stage": stage, f"zero_optimization.{key}": "auto"}
    filled = run_check(tmp_path, document=changes)
    assert filled is not None
    assert filled["zero_optimization"] == {"stage": stage, key: gathers}
