"""The script that tries the package in a new environment; `make test-environments` runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.environments.try_package import list_checks
from tests.warm import REPOSITORY

SCRIPT = REPOSITORY / "tests/environments/try_environment.sh"


@pytest.mark.parametrize(("arguments", "shown"), [([], "nothing"), (["oldest"], "oldest")])
def test_an_unknown_environment_is_refused(arguments: list[str], shown: str) -> None:
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    expected = f"found {shown}, expected base, locked, lowest or newest\n"
    assert done.stderr == f"try_environment.sh: {expected}"


def test_the_tutorial_is_tried_up_to_its_first_table(tmp_path: Path) -> None:
    titles = [title for title, _ in list_checks(tmp_path)]
    assert titles == [
        "bsmeta init .                # copies the sample, the configurations and the launch files",
        "check_only",
        "four steps",
        "tutorial: cat > split.py <<'END'",
        "tutorial: mkdir -p configs",
        "tutorial: bsmeta train --config-dir configs --config-name mine check_only=true",
        "tutorial: bsmeta explain --config-dir configs --config-name mine limit=2",
        "tutorial: accelerate launch --config_file experiments/accelerate/cpu.yaml -m "
        "bsmeta.train --config-dir configs --config-name mine \\",
        "tutorial: bsmeta evaluate checkpoint=runs/url",
        "Python interface",
    ]
