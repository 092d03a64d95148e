"""Single values of the configuration: each is checked, and the fix of each refusal is accepted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig, ExplainConfig, PrepareConfig
from bsmeta.config.checks.causal_lm import data_problems
from bsmeta.config.checks.problems import bound_lines, bound_problems
from bsmeta.config.checks.run import value_problems
from bsmeta.config.compose import compose
from bsmeta.config.data import DataConfig
from bsmeta.config.describe import describe, keys
from bsmeta.config.evaluation import EvaluateConfig, SliceConfig
from bsmeta.config.keys import Values, values_of
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.reference import reference
from bsmeta.config.tools import GenerateConfig
from bsmeta.tasks import TASKS


def bounded(schema: type) -> dict[str, Values]:
    return {one.name: values_of(one) for one in fields(schema) if str(values_of(one))}


def wrong(values: Values) -> Iterator[Any]:
    """Values just out of bounds."""
    if values.choices:
        yield "nothing like it"
        return
    yield math.nan
    if values.at_least is not None:
        yield values.at_least - 1
    if values.at_most is not None:
        yield values.at_most + 1
    if values.above is not None:
        yield from (values.above, math.inf)
    if values.below is not None:
        yield values.below
    if values.finite:
        yield math.inf


def run_problems(config: CausalLMConfig) -> list[str]:
    own = TASKS["causal_lm"].value_problems(config, ())
    return [problem.key for problem in [*value_problems(config), *own]]


RUN = [(prefix, name) for prefix, schema in (
    ("", CausalLMConfig), ("data_config.", DataConfig),
    ("data_config.metadata_config.", MetadataConfig),
) for name in bounded(schema)]  # fmt: skip


@pytest.mark.parametrize(("prefix", "name"), RUN)
def test_a_value_out_of_bounds_is_refused_once_and_its_fix_is_accepted(
    prefix: str, name: str
) -> None:
    sections = {"": lambda c: c, "data_config.": lambda c: c.data_config}
    section_of = sections.get(prefix, lambda c: c.data_config.metadata_config)
    values = bounded(type(section_of(CausalLMConfig())))[name]
    for value in wrong(values):
        config = compose(CausalLMConfig, "demo")
        setattr(section_of(config), name, value)
        assert run_problems(config) == [f"{prefix}{name}"], value
        (problem,) = bound_problems(section_of(config), prefix)
        fixed = compose(CausalLMConfig, "demo", [problem.fix.removesuffix(", for example")])
        assert run_problems(fixed) == []


@pytest.mark.parametrize(
    "schema", [EvaluateConfig, SliceConfig, GenerateConfig, ExplainConfig, PrepareConfig]
)
def test_other_programs_have_their_bounds_from_their_keys(schema: type) -> None:
    described = bounded(schema)
    assert described
    for name, values in described.items():
        for value in wrong(values):
            config = schema()
            setattr(config, name, value)
            (line,) = bound_lines(config)
            assert line.startswith(f"{name}={value}: expected ")


def test_null_is_a_value_of_its_own() -> None:
    assert bound_lines(EvaluateConfig(max_documents=None)) == []


def test_the_defaults_are_within_bounds() -> None:
    for schema in (CausalLMConfig, DataConfig, MetadataConfig, EvaluateConfig, GenerateConfig):
        assert bound_lines(schema()) == []
    assert [*data_problems(DataConfig(train_file="x"))] == []


def test_messages() -> None:
    config = CausalLMConfig(
        mixed_precision="False",
        on_nonfinite="stpo",
        learning_rate=0,
        adam_beta1=1,
        gradient_clipping=math.inf,
        seed=2**32,
    )
    assert [(one.key, one.found, one.expected, one.fix) for one in bound_problems(config)] == [
        (
            "mixed_precision",
            '"False" (text)',
            "one of no, bf16, fp16 (YAML reads no without quotes as false)",
            'mixed_precision: "no" in YAML, or mixed_precision=no on the command line',
        ),
        ("on_nonfinite", '"stpo"', "one of stop, skip (did you mean stop?)", "on_nonfinite=stop"),
        ("learning_rate", "0", "a number above 0", "learning_rate=5e-05, for example"),
        ("adam_beta1", "1", "a number below 1", "adam_beta1=0.9, for example"),
        ("gradient_clipping", "inf", "a number (0 switches it off)", "gradient_clipping=0"),
        ("seed", "4294967296", "4294967295 or less", "seed=42, for example"),
    ]


def test_help_and_documentation_show_the_bounds() -> None:
    page, text = reference(), describe(CausalLMConfig, "train.py", "v2")
    assert "| `mixed_precision` | `str` | `no \\| bf16 \\| fp16` | `no` |" in page
    assert "| `adam_beta1` | `float` | `>= 0, < 1` | `0.9` |" in page
    assert "packing: str = best_fit  (best_fit | pad)" in text
    assert {one.name for one in keys(CausalLMConfig) if one.values} == {
        f"{prefix}{name}" for prefix, name in RUN
    }
    assert not any(
        is_dataclass(getattr(CausalLMConfig(), name)) for name in bounded(CausalLMConfig)
    )
