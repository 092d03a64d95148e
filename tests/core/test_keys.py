"""Keys of schemas: bounds and choices, and paths that are neither addresses nor pipes."""

from __future__ import annotations

import math
import os
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.core.changed_values import replace_values
from bsmeta.core.keys import (
    find_bound_problems,
    find_path_problems,
    get_declaration,
    iterate_leaves,
)
from bsmeta.studies.config import StudyConfig
from tests.core.path_keys import PATH_KEYS, TAKE_ADDRESSES


def test_null_is_accepted_for_an_optional_bounded_key() -> None:
    assert find_bound_problems(EvaluateConfig(max_documents=None)) == []


def test_each_problem_names_key_found_expected_and_fix() -> None:
    config = CausalLMConfig(
        mixed_precision="False",
        on_nonfinite="stpo",
        trackers=["tensorboard", "wandbb"],
        learning_rate=0,
        adam_beta1=1,
        gradient_clipping=math.inf,
        seed=2**32,
    )
    weights = "data_config.metadata_config.random_sample_metadata_weights"
    config = replace_values(config, {weights: {"url": -1.0}})
    assert [
        (problem.key, problem.found, problem.expected, problem.fix)
        for problem in find_bound_problems(config)
    ] == [
        (
            "mixed_precision",
            '"False" (text)',
            "one of no, bf16, fp16 (YAML reads no without quotes as false)",
            'mixed_precision: "no" in YAML, or mixed_precision=no on the command line',
        ),
        ("on_nonfinite", '"stpo"', "one of stop, skip (did you mean stop?)", "on_nonfinite=stop"),
        (
            "trackers",
            '"wandbb"',
            "some of tensorboard, wandb, trackio, aim, clearml, comet_ml, dvclive, mlflow, "
            "swanlab (did you mean wandb?)",
            "trackers=[tensorboard, wandb]",
        ),
        ("learning_rate", "0", "a number above 0", "learning_rate=5e-05, for example"),
        ("adam_beta1", "1", "a number below 1", "adam_beta1=0.9, for example"),
        ("gradient_clipping", "inf", "a finite number", "gradient_clipping=1.0, for example"),
        ("seed", "4294967296", "0 to 4294967295", "seed=42, for example"),
        (
            "data_config.metadata_config.random_sample_metadata_weights.url",
            "-1.0",
            "0 or more",
            "data_config.metadata_config.random_sample_metadata_weights.url=0, for example",
        ),
    ]


def make_config_with_path(schema: type, name: str, path: str) -> Any:
    """Returns the default configuration with `path` as the value of key `name`."""
    config = schema()
    default = attrgetter(name)(config)
    return replace_values(config, {name: [path] if isinstance(default, list) else path})


@pytest.mark.parametrize(
    ("schema", "name"), PATH_KEYS, ids=[f"{schema.__name__}.{name}" for schema, name in PATH_KEYS]
)
def test_every_path_refuses_addresses_unless_it_takes_them(schema: type, name: str) -> None:
    config = make_config_with_path(schema, name, "s3://user:pass@bucket/runs?token=1")
    problems = [problem for problem in find_path_problems(config) if problem.key == name]
    field = next(leaf for key, _, leaf in iterate_leaves(config) if key == name)
    if get_declaration(field).takes_addresses:
        assert name in TAKE_ADDRESSES
        assert problems == []
        return
    (problem,) = problems
    assert problem.expected == f"a path on this machine: {name} takes no address"
    assert "pass" not in problem.found


def test_the_address_of_a_local_file_is_replaced_by_its_path() -> None:
    config = make_config_with_path(StudyConfig, "out_dir", "file:///data/study")
    (problem,) = find_path_problems(config)
    assert problem.fix == "out_dir=/data/study"


def test_paths_with_colons_are_paths(tmp_path: Path) -> None:
    for path in ("a:b", "runs/12:30", str(tmp_path), "C:/runs", "~/runs"):
        assert [*find_path_problems(make_config_with_path(StudyConfig, "out_dir", path))] == []


@pytest.mark.parametrize(
    ("schema", "name"), PATH_KEYS, ids=[f"{schema.__name__}.{name}" for schema, name in PATH_KEYS]
)
def test_every_path_refuses_pipes(schema: type, name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    config = make_config_with_path(schema, name, str(tmp_path / "pipe"))
    problems = [*find_path_problems(config)]
    if (schema, name) in {(GenerateConfig, "output"), (ExplainConfig, "html")}:
        assert problems == []  # written directly
        return
    (problem,) = problems
    assert (problem.key, problem.found, problem.expected, problem.fix) == (
        name,
        f'"{tmp_path}/pipe", which is a pipe, a socket or a device',
        "a file or a folder",
        "write the content of a pipe to a file, and name that",
    )
