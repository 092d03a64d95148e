"""Single values of the configuration: each is checked, and the fix of each refusal is accepted."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.run import check_launch
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.composing.schema_types import find_entry_schema
from bsmeta.config.launch import ENVIRONMENT, Launch
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.keys import Declaration, find_bound_problems, get_declaration, iterate_leaves
from bsmeta.reference import PROGRAMS
from bsmeta.studies.config import StudyConfig, load_study
from bsmeta.tasks import TASKS

LAUNCH = Launch(source=ENVIRONMENT, num_processes=1)
SCHEMAS = [
    *dict.fromkeys(
        [*(schema for _, schema, _ in PROGRAMS), StudyConfig]
        + [entry.config for entry in TASKS.values()]
    )
]


def fill_defaults(schema: type) -> Any:
    """Returns the defaults, with an entry in each list and each mapping of sections."""
    types = typing.get_type_hints(schema)
    values: dict[str, Any] = {}
    for field in fields(schema):
        kind = types[field.name]
        entry = find_entry_schema(kind)
        if is_dataclass(kind):
            assert isinstance(kind, type)
            values[field.name] = fill_defaults(kind)
        elif entry is not None:
            held = fill_defaults(entry)
            is_list = typing.get_origin(kind) is list
            values[field.name] = [held] if is_list else {"some": held}
    return schema(**values)


def list_wrong_values(values: Declaration, kind: str) -> Iterator[Any]:
    """Yields values just out of bounds, for a key of type `kind`."""
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


def list_broken_configs(schema: type) -> Iterator[tuple[str, Any, Any]]:
    """Yields name, wrong value and configuration for each key with bounds or choices."""
    config = fill_defaults(schema)
    for name, owner, field in iterate_leaves(config):
        values = get_declaration(field)
        if not values.values:
            continue
        kind = str(typing.get_type_hints(type(owner))[field.name])
        for value in list_wrong_values(values, kind):
            if kind.startswith("dict"):
                yield f"{name}.some", value, replace_values(config, {name: {"some": value}})
            else:
                changed_value = [value] if kind.startswith("list") else value
                yield name, value, replace_values(config, {name: changed_value})


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_bound_and_choice_of_every_schema_is_checked(schema: type) -> None:
    for name, value, config in list_broken_configs(schema):
        (problem,) = find_bound_problems(config)
        assert problem.key == name, value
        assert problem.expected
        assert problem.fix


@pytest.mark.parametrize("task", TASKS)
def test_every_bound_and_choice_of_every_task_is_refused_once(task: str) -> None:
    entry, seen = TASKS[task], 0
    for name, value, config in list_broken_configs(entry.config):
        with pytest.raises(ConfigurationError) as caught:
            check_launch(config, LAUNCH, entry)
        (problem,) = find_bound_problems(config)
        assert str(caught.value).count(f". {problem}") == 1, value
        assert f". {name} in Hydra configuration: found " in str(caught.value)
        seen += 1
    assert seen > 60


@pytest.mark.parametrize("schema", [CausalLMConfig, EvaluateConfig])
def test_the_suggested_fixes_are_accepted(schema: type) -> None:
    config_name = {CausalLMConfig: "demo", EvaluateConfig: "evaluate"}[schema]
    fixes = {}
    for name, _, config in list_broken_configs(schema):
        (problem,) = find_bound_problems(config)
        if ".0." not in name:  # the entries of a list are written in a file
            fixes[name] = problem.fix.removesuffix(", for example")
    assert len(fixes) > 5
    fixed = compose_command_line(schema, config_name, [*fixes.values()])
    assert find_bound_problems(fixed) == []


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


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_defaults_are_within_bounds(schema: type) -> None:
    assert find_bound_problems(fill_defaults(schema)) == []
