"""Addresses in place of local paths: `s3://…` would be the name of a folder on this machine."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.compose import compose
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.keys import about, address_problems, leaves
from bsmeta.reference import PROGRAMS
from bsmeta.studies.config import StudyConfig, load_study

TAKE_ADDRESSES = {
    "checkpoint",
    "data_config.exclude",
    "data_config.train_file",
    "data_config.validation_file",
    "measure.validation_file",
    "train_file",
    "validation_file",
}
"""Keys, of whatever program, that may name files in a bucket or on the Hub."""


def path_keys() -> list[tuple[type, str]]:
    """Every key of every program that names files or folders."""
    schemas = [*dict.fromkeys([*(schema for _, schema, _ in PROGRAMS), StudyConfig])]
    return [
        (schema, name)
        for schema in schemas
        for name, _, described in leaves(schema())
        if about(described).is_path
    ]


PATH_KEYS = path_keys()


def with_value(schema: type, name: str, address: str) -> Any:
    """The default configuration, with an address in a key."""
    config = schema()
    default = attrgetter(name)(config)
    return replace_values(config, {name: [address] if isinstance(default, list) else address})


@pytest.mark.parametrize(
    ("schema", "name"), PATH_KEYS, ids=[f"{schema.__name__}.{name}" for schema, name in PATH_KEYS]
)
def test_every_path_refuses_addresses_unless_it_takes_them(schema: type, name: str) -> None:
    config = with_value(schema, name, "s3://user:pass@bucket/runs?token=1")
    problems = [problem for problem in address_problems(config) if problem.key == name]
    field = next(found for key, _, found in leaves(config) if key == name)
    if about(field).takes_addresses:
        assert name in TAKE_ADDRESSES
        assert problems == []
        return
    (problem,) = problems
    assert problem.expected == f"a path on this machine: {name} takes no address"
    assert "pass" not in problem.found


def test_the_address_of_a_local_file_is_replaced_by_its_path() -> None:
    config = with_value(StudyConfig, "out_dir", "file:///data/study")
    (problem,) = address_problems(config)
    assert problem.fix == "out_dir=/data/study"


@pytest.mark.parametrize(
    ("program", "schema", "config_name"), PROGRAMS, ids=[program for program, _, _ in PROGRAMS]
)
def test_every_program_refuses_one(program: str, schema: type, config_name: str) -> None:
    names = [name for owner, name in PATH_KEYS if owner is schema and name not in TAKE_ADDRESSES]
    if not names:
        pytest.skip(f"{program} has no such key")
    with pytest.raises(ConfigurationError) as error:
        compose(schema, config_name, [f"{names[0]}='s3://bucket/x'"])
    assert f'{names[0]} in Hydra configuration: found "s3://bucket/x"' in str(error.value)


def test_paths_with_colons_are_paths(tmp_path: Path) -> None:
    for path in ("a:b", "runs/12:30", str(tmp_path), "C:/runs", "~/runs"):
        assert [*address_problems(with_value(StudyConfig, "out_dir", path))] == []


def test_a_study_refuses_one(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("out_dir: s3://bucket/study\n")
    with pytest.raises(ConfigurationError) as error:
        load_study(tmp_path / "study.yaml")
    expected = 'out_dir="s3://bucket/study": expected a path on this machine: out_dir takes no'
    assert f"{tmp_path}/study.yaml: {expected}" in str(error.value)
