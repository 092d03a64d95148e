"""Addresses in place of local paths: `s3://…` would be the name of a folder on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.config.composing.compose import compose_command_line
from bsmeta.core.errors import ConfigurationError
from bsmeta.reference import PROGRAMS
from bsmeta.studies.config import load_study
from tests.core.path_keys import PATH_KEYS, TAKE_ADDRESSES

"""Keys, of whatever program, that may name files in a bucket or on the Hub."""


@pytest.mark.parametrize(
    ("program", "schema", "config_name"), PROGRAMS, ids=[program for program, _, _ in PROGRAMS]
)
def test_every_program_refuses_an_address_for_a_local_path(
    program: str, schema: type, config_name: str
) -> None:
    names = [name for owner, name in PATH_KEYS if owner is schema and name not in TAKE_ADDRESSES]
    if not names:
        pytest.skip(f"{program} has no such key")
    with pytest.raises(ConfigurationError) as error:
        compose_command_line(schema, config_name, [f"{names[0]}='s3://bucket/x'"])
    assert f'{names[0]} in Hydra configuration: found "s3://bucket/x"' in str(error.value)


def test_a_study_refuses_an_address_for_a_local_path(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("out_dir: s3://bucket/study\n")
    with pytest.raises(ConfigurationError) as error:
        load_study(tmp_path / "study.yaml")
    expected = 'out_dir="s3://bucket/study": expected a path on this machine: out_dir takes no'
    assert f"{tmp_path}/study.yaml: {expected}" in str(error.value)
