"""Single values of the configuration: each is checked, and the fix of each refusal is accepted."""

from __future__ import annotations

import math
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks import check
from bsmeta.config.compose import compose
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.config.help_page import describe, list_keys
from bsmeta.config.launch import ENVIRONMENT, Launch
from bsmeta.config.saved_runs import changed
from bsmeta.config.schema_types import entry_schema
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.keys import About, about, bound_problems, leaves
from bsmeta.reference import PROGRAMS, reference
from bsmeta.studies.config import StudyConfig, load_study
from bsmeta.tasks import TASKS

LAUNCH = Launch(source=ENVIRONMENT, num_processes=1)
SCHEMAS = [
    *dict.fromkeys(
        [*(schema for _, schema, _ in PROGRAMS), StudyConfig]
        + [entry.config for entry in TASKS.values()]
    )
]


def filled(schema: type) -> Any:
    """The defaults, with an entry in each list and each mapping of sections."""
    types = typing.get_type_hints(schema)
    values: dict[str, Any] = {}
    for field in fields(schema):
        kind = types[field.name]
        entry = entry_schema(kind)
        if is_dataclass(kind):
            assert isinstance(kind, type)
            values[field.name] = filled(kind)
        elif entry is not None:
            held = filled(entry)
            is_list = typing.get_origin(kind) is list
            values[field.name] = [held] if is_list else {"some": held}
    return schema(**values)


def wrong(values: About, kind: str) -> Iterator[Any]:
    """Values just out of bounds, of a key of this type."""
    if values.choices:
        yield "nothing like it"
        return
    if "float" in kind:
        yield math.nan
    if values.at_least is not None:
        yield values.at_least - 1
    if values.at_most is not None:
        yield values.at_most + 1
    if values.above is not None:
        yield values.above
        if "float" in kind:
            yield math.inf
    if values.below is not None:
        yield values.below
    if values.finite:
        yield math.inf


def broken(schema: type) -> Iterator[tuple[str, Any, Any]]:
    """Every key with a bound or choices: its name in a message, a wrong value, and the config."""
    config = filled(schema)
    for name, owner, field in leaves(config):
        values = about(field)
        if not values.values:
            continue
        kind = str(typing.get_type_hints(type(owner))[field.name])
        for value in wrong(values, kind):
            if kind.startswith("dict"):
                yield f"{name}.some", value, replace_values(config, {name: {"some": value}})
            else:
                changed_value = [value] if kind.startswith("list") else value
                yield name, value, replace_values(config, {name: changed_value})


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_bound_and_choice_of_every_schema_is_checked(schema: type) -> None:
    for name, value, config in broken(schema):
        (problem,) = bound_problems(config)
        assert problem.key == name, value
        assert problem.expected
        assert problem.fix


@pytest.mark.parametrize("task", TASKS)
def test_every_bound_and_choice_of_every_task_is_refused_once(task: str) -> None:
    entry, seen = TASKS[task], 0
    for name, value, config in broken(entry.config):
        with pytest.raises(ConfigurationError) as caught:
            check(config, LAUNCH, entry)
        (problem,) = bound_problems(config)
        assert str(caught.value).count(f". {problem}") == 1, value
        assert f". {name} in Hydra configuration: found " in str(caught.value)
        seen += 1
    assert seen > 60


@pytest.mark.parametrize("schema", [CausalLMConfig, EvaluateConfig])
def test_the_fixes_are_accepted(schema: type) -> None:
    config_name = {CausalLMConfig: "demo", EvaluateConfig: "evaluate"}[schema]
    fixes = {}
    for name, _, config in broken(schema):
        (problem,) = bound_problems(config)
        if ".0." not in name:  # the entries of a list are written in a file
            fixes[name] = problem.fix.removesuffix(", for example")
    assert len(fixes) > 5
    fixed = compose(schema, config_name, [*fixes.values()])
    assert bound_problems(fixed) == []


NESTED = {
    "train.py word detection": (
        ["--config-name=sed_words", "noise.word_probability=1.2", "small_model.heads=0"],
        ["noise.word_probability", "small_model.heads"],
    ),
    "train.py noise": (
        ["--config-name=sec", "noise.method=typo", "noise.edit_probability=0"],
        ["noise.method", "noise.edit_probability"],
    ),
    "train.py": (
        ["--config-name=demo", "data_config.metadata_config.metadata_dropout={url: 2}"],
        ["data_config.metadata_config.metadata_dropout.url"],
    ),
    "explain.py": (["data_config.hub_retries=-1"], ["data_config.hub_retries"]),
    "prepare.py": (["data_config.max_bad_documents=-1"], ["data_config.max_bad_documents"]),
    "evaluate.py": (["slices=[{by: size}]", "controls=[form,other]"], ["slices.0.by", "controls"]),
    "generate.py": (["top_p=0"], ["top_p"]),
    "predict.py": (["on_bad_row=drop"], ["on_bad_row"]),
    "annotate.py": (["timestamp_sources=[url,header]"], ["timestamp_sources"]),
    "entities.py": (["max_candidates=0"], ["max_candidates"]),
    "download.py": (["timeout=0"], ["timeout"]),
}


def program(name: str) -> tuple[Callable[..., Any], Any, str, bool]:
    """The arguments with which a program calls `run_entry_point`."""
    from bsmeta import annotate, download, entities, evaluate, explain, generate, predict, train
    from bsmeta.annotate import command
    from bsmeta.annotate.config import AnnotateConfig
    from bsmeta.config.copying import PrepareConfig
    from bsmeta.config.downloading import DownloadConfig
    from bsmeta.config.entity_table import EntitiesConfig
    from bsmeta.config.explaining import ExplainConfig
    from bsmeta.config.generating import GenerateConfig
    from bsmeta.config.predicting import PredictConfig
    from bsmeta.data import prepare

    del annotate
    tasks = [entry.config for entry in TASKS.values()]
    return {
        "train.py": (train.main, tasks, "v2", True),
        "explain.py": (explain.main, [ExplainConfig], "v2", True),
        "prepare.py": (prepare.main, PrepareConfig, "v2", False),
        "evaluate.py": (evaluate.main, EvaluateConfig, "evaluate", False),
        "generate.py": (generate.main, GenerateConfig, "generate", False),
        "predict.py": (predict.main, PredictConfig, "predict", False),
        "annotate.py": (command.main, AnnotateConfig, "annotate", False),
        "entities.py": (entities.main, EntitiesConfig, "entities", False),
        "download.py": (download.main, DownloadConfig, "download", False),
    }[name.split()[0]]


@pytest.mark.parametrize("case", NESTED)
def test_programs_refuse_nested_values(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, named = NESTED[case]
    main, schemas, config_name, takes_composition = program(case)
    monkeypatch.setattr(sys, "argv", [case.split()[0], *arguments])
    with pytest.raises(SystemExit) as caught:
        run_entry_point(main, schemas, config_name, takes_composition=takes_composition)
    assert caught.value.code == 2
    errors = capsys.readouterr().err
    for name in named:
        assert f". {name} in Hydra configuration: found " in errors


def test_a_study_refuses_nested_values(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "out_dir: runs/s\nconfig: v2\nbaseline: a\narms: {a: {}}\nseeds: [1, -1]\n"
        "curve: [0.5, 1.5]\nmeasure: {sites: -1, windows: all}\ndownstream: {limit: 0}\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        load_study(file)
    assert str(caught.value).splitlines() == [
        f'{file}: measure.windows="all": expected one of sliding, all_pieces, first_piece',
        f"{file}: seeds=-1: expected 0 to 4294967295",
        f"{file}: curve=1.5: expected 1 or less",
        f"{file}: measure.sites=-1: expected 0 or more",
        f"{file}: downstream.limit=0: expected 1 or more",
    ]


def test_overrides_of_a_saved_configuration_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"^overrides\.data_config\.num_streams=0: expec"):
        changed(CausalLMConfig(), {"data_config": {"num_streams": 0}})


def test_null_is_a_value_of_its_own() -> None:
    assert bound_problems(EvaluateConfig(max_documents=None)) == []


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_defaults_are_within_bounds(schema: type) -> None:
    assert bound_problems(filled(schema)) == []


def test_messages() -> None:
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
    assert [(one.key, one.found, one.expected, one.fix) for one in bound_problems(config)] == [
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
            "some of tensorboard, wandb, trackio (did you mean wandb?)",
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


def test_help_and_documentation_show_the_bounds() -> None:
    page, text = reference(), describe(CausalLMConfig, "train.py", "v2")
    assert "| `mixed_precision` | `str` | `no \\| bf16 \\| fp16` | `no` |" in page
    assert "| `adam_beta1` | `float` | `>= 0, < 1` | `0.9` |" in page
    assert "packing: str = best_fit  (best_fit | pad)" in text
    assert {one.name for one in list_keys(CausalLMConfig) if one.about.values} == {
        name for name, _, field in leaves(CausalLMConfig()) if about(field).values
    }
