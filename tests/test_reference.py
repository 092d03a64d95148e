"""docs/configuration.md and `--help` follow from the schemas."""

from __future__ import annotations

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.help_page import format_help, list_keys, list_sections
from bsmeta.reference import FILE, PROGRAMS, format_reference


def test_the_page_is_generated_from_the_schemas() -> None:
    assert FILE.read_text() == format_reference(), "run `make docs`"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[1].__name__)
def test_help_and_page_have_every_key(program: tuple[str, type, str]) -> None:
    name, schema, config_name = program
    text = format_help(schema, name, config_name)
    page = format_reference()
    for key in list_keys(schema):
        values = f"  ({key.declaration.values})" if key.declaration.values else ""
        assert f"\n{key.name}: {key.type} = {key.default}{values}\n    {key.meaning}" in text
        assert key.meaning.strip(), key.name
        assert f"| `{key.name.rpartition('.')[2]}` |" in page


def test_a_row_has_type_default_meaning_and_owner() -> None:
    row = (
        "| `learning_rate` | `float` | `> 0` | `5e-05` | peak learning rate | Hydra; "
        "`optimizer.params.lr` in the JSON |"
    )
    assert row in format_reference().splitlines()


def test_headings_follow_the_keys() -> None:
    headings = [heading for heading, _ in list_sections(CausalLMConfig)]
    assert headings[:4] == [
        "Task", "Optimizer, schedule and batch", "Run folder and resuming",
        "Logging, evaluation and checkpoints",
    ]  # fmt: skip
    assert "Model" in headings
