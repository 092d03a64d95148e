"""What DeepSpeed would refuse in the blocks of its JSON is refused before anything loads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.errors import ConfigurationError
from tests.config.test_checks import OWN_ADAM, run_check

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
    ],
    ids=lambda value: next(iter(value)),
)
def test_what_deepspeed_would_refuse(
    changes: dict[str, Any], expected: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        run_check(tmp_path, document=changes)
    problems = dict(re.findall(r"^\d+\. (\S+) in \S+: (.*)\n   Fix: .+$", str(refusal.value), re.M))
    assert [*problems] == [*expected]
    for key, message in expected.items():
        assert re.search(re.escape(message).replace(r"\.\*", ".*"), problems[key]), problems[key]


@pytest.mark.parametrize(("stage", "gathers"), [(2, False), (3, True)])
def test_auto_gathers_weights_under_stage_3_only(stage: int, gathers: bool, tmp_path: Path) -> None:
    key = "stage3_gather_16bit_weights_on_model_save"
    changes = {"zero_optimization.stage": stage, f"zero_optimization.{key}": "auto"}
    filled = run_check(tmp_path, document=changes)
    assert filled is not None
    assert filled["zero_optimization"] == {"stage": stage, key: gathers}
