"""Mistakes in the configuration are found before anything is loaded, with the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.launch import Launch
from bsmeta.core.changed_values import replace_values
from bsmeta.tasks.disambiguation.config import (
    DisambiguationConfig,
    DisambiguationDataConfig,
    find_start_problems,
    find_value_problems,
)
from tests.tasks.disambiguation.helpers import full_names


def problems(folder: Path, **more: Any) -> dict[str, tuple[str, str]]:
    data = DisambiguationDataConfig(
        train_file=str(folder / "train.jsonl"),
        dev_file=str(folder / "train.jsonl"),
        entity_table=str(folder / "entities"),
    )
    config = replace_values(DisambiguationConfig(data_config=data), full_names(more))
    return {problem.key: (problem.found, problem.fix) for problem in find_value_problems(config)}


@pytest.mark.parametrize(
    ("more", "key", "found", "fix"),
    [
        ({"train_file": None}, "data_config.train_file", "null", "data_config.train_file=PATH"),
        (
            {"entity_table": "/nowhere"}, "data_config.entity_table", "/nowhere",
            "correct data_config.entity_table",
        ),
        (
            {"dev_file": None, "keep_best_by": "accuracy"}, "keep_best_by", "accuracy",
            "keep_best_by=null export_best=false early_stopping_patience=null, or a dev_file",
        ),
        (
            {"share_encoders": True, "train_entity_layers": 0}, "train_entity_layers", "0",
            "train_entity_layers=null, or share_encoders=false",
        ),
        (
            {"share_encoders": True, "train_layers": 2}, "train_layers", "2",
            "train_layers=null, or share_encoders=false",
        ),
        (
            {"mask_rarest": 0.9, "mask_most_frequent": 0.5}, "data_config.mask_rarest", "0.9",
            "exchange them, or set both to 0 to mask nothing",
        ),
        (
            {"entity_text": ["title", "title"]}, "data_config.entity_text",
            "['title', 'title']",
            "data_config.entity_text=[title, types, relations, description]",
        ),
        (
            {"model_config_file": __file__, "train_entity_layers": 0}, "model_config_file",
            "test_config.py", "model_name=FOLDER without model_config_file, or without "
            "train_entity_layers",
        ),
        (
            {"mention_detection": "both", "mention_encoding": "window"}, "mention_detection",
            "both", "mention_detection=dictionary, or data_config.mention_encoding=sentence",
        ),
        ({"compare_with": "/nowhere"}, "compare_with", "/nowhere", "correct compare_with"),
    ],
)  # fmt: skip
def test_each_mistake_is_reported_with_its_fix(
    world: Path, more: dict[str, Any], key: str, found: str, fix: str
) -> None:
    reported = problems(world, **more)
    assert [*reported] == [key]
    assert reported[key][1] == fix
    assert found in reported[key][0]


def test_the_default_configuration_needs_only_its_data(world: Path) -> None:
    assert problems(world) == {}


@pytest.mark.parametrize(("stage", "layers", "expected"), [(3, 2, 1), (3, 0, 0), (2, 2, 0)])
def test_entity_layers_are_not_trained_under_zero_3(stage: int, layers: int, expected: int) -> None:
    config = DisambiguationConfig(train_entity_layers=layers)
    launch = Launch(source="the environment", num_processes=2, distributed_type="DEEPSPEED")
    document = {"zero_optimization": {"stage": stage}}
    found = [problem.key for problem in find_start_problems(config, launch, document)]
    assert found == ["train_entity_layers"] * expected
