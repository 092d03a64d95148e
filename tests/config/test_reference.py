"""docs/configuration.md and `--help`: what the schemas say, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from bsmeta.config import describe
from bsmeta.config.describe import keys, sections
from bsmeta.config.reference import FILE, PROGRAMS, reference
from bsmeta.config.schema import TrainConfig


def test_the_page_is_what_the_schemas_say() -> None:
    assert FILE.read_text() == reference(), "run `make docs`"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one[1].__name__)
def test_help_and_page_have_every_key(program: tuple[str, type, str]) -> None:
    name, schema, config_name = program
    text = describe.describe(schema, name, config_name)
    page = reference()
    for key in keys(schema):
        values = f"  ({key.values})" if key.values else ""
        assert f"\n{key.name}: {key.type} = {key.default}{values}\n    {key.meaning}" in text
        assert key.meaning.strip(), key.name
        assert f"| `{key.name.rpartition('.')[2]}` |" in page


def test_a_row_tells_type_default_meaning_and_owner() -> None:
    row = (
        "| `learning_rate` | `float` | `> 0` | `5e-05` | peak learning rate | Hydra; "
        "`optimizer.params.lr` in the JSON |"
    )
    assert row in reference().splitlines()


def test_every_heading_begins_with_a_key() -> None:
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    assert {name for schema, name in describe.HEADINGS if schema == "TrainConfig"} <= names
    headings = [heading for heading, _ in sections(TrainConfig)]
    assert "Keys" not in headings
    assert len(headings) == len(set(headings))
