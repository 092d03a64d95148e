"""The command bsmeta: its programs, and copies of the packaged configurations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta import cli
from bsmeta.core.errors import ConfigurationError
from tests.conftest import REPOSITORY, run_warm


def test_init_copies_the_files_and_overwrites_none(tmp_path: Path) -> None:
    assert cli.copy_files(tmp_path).startswith("copied hydra_configs, deepspeed_configs, ")
    for file in ("hydra_configs/demo.yaml", "experiments/train.sh"):
        assert (tmp_path / file).read_bytes() == (REPOSITORY / file).read_bytes()
    with pytest.raises(ConfigurationError, match="hydra_configs, .* exist already"):
        cli.copy_files(tmp_path)
    with pytest.raises(ConfigurationError, match="is in the folder that it would copy"):
        cli.copy_files(REPOSITORY / "examples" / "new")


@pytest.mark.parametrize(("option", "code"), [("--help", 0), ("--overwrite", 2)])
def test_an_option_of_init_is_not_taken_as_a_folder(tmp_path: Path, option: str, code: int) -> None:
    command = [sys.executable, "-m", "bsmeta.cli", "init", option]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == code
    assert "usage: bsmeta PROGRAM" in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_program_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bsmeta.cli", "trian"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "bsmeta trian: there is no program trian; meant: bsmeta train\n" in done.stderr


def test_a_misspelled_program_is_suggested() -> None:
    done = run_warm([sys.executable, "-m", "bsmeta", "trian", "--config-name", "demo"])
    assert done.returncode == 2
    assert done.stderr == (
        "configuration error: bsmeta trian --config-name demo: there is no program trian; meant: "
        "bsmeta train --config-name demo\n"
    )
