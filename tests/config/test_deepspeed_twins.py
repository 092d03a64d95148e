"""A key of the schema that names a key of the DeepSpeed JSON is compared with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.checks.deepspeed import deepspeed_problems, fill
from bsmeta.config.describe import keys
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.keys import key
from bsmeta.config.launch import Launch
from bsmeta.config.reference import PROGRAMS
from bsmeta.config.schema import RunConfig
from tests.config.test_checks import run_check

TWINS = {
    twin.removesuffix(".0").removesuffix(".1")  # the betas are one value in the JSON
    for _, schema, _ in PROGRAMS
    if issubclass(schema, RunConfig)
    for field in keys(schema)
    for twin in (field.deepspeed or "").split(", ")
    if twin
}
COSINE = {"type": "WarmupCosineLR", "params": {"cos_min_ratio": "other"}}


@pytest.mark.parametrize("twin", sorted(TWINS))
def test_another_value_is_refused(twin: str, tmp_path: Path) -> None:
    hydra: dict[str, Any] = {}
    document: dict[str, Any] = {twin: "other"}
    if twin == "scheduler.params.cos_min_ratio":
        hydra, document = {"lr_scheduler_type": "cosine"}, {"scheduler": COSINE}
    with pytest.raises(ConfigurationError) as refused:
        run_check(tmp_path, hydra, document)
    assert twin in refused.value.keys


@dataclass(kw_only=True)
class Section:
    zero_buckets: int = key(7, "a key in a block", deepspeed="zero_optimization.sub_group_size")


@dataclass(kw_only=True)
class Predivided(RunConfig):
    predivide: float = key(2.0, "a key", deepspeed="gradient_predivide_factor", above=0)
    section: Section = key(Section, "")


@pytest.mark.parametrize("found", ["auto", 2, None])
def test_a_new_twin_needs_nothing_but_its_name(found: object) -> None:
    launch = Launch(source="launch.yaml", num_processes=1, distributed_type="DEEPSPEED")
    document = {"gradient_accumulation_steps": 1, "gradient_clipping": 1.0}
    document |= {} if found is None else {"gradient_predivide_factor": found}
    own = ("gradient_predivide_factor", "zero_optimization.sub_group_size")
    config = Predivided()
    assert not [one for one in deepspeed_problems(document, config, launch) if one.key in own]
    filled = fill(document, config, launch)
    assert filled["gradient_predivide_factor"] == 2.0
    assert filled["zero_optimization"] == {"sub_group_size": 7}

    document["gradient_predivide_factor"] = 4.0
    (problem,) = [one for one in deepspeed_problems(document, config, launch) if one.key in own]
    assert problem.expected == '"auto" or 2.0 (predivide of Hydra)'
    assert problem.fix.endswith(", or pass predivide=4.0")
