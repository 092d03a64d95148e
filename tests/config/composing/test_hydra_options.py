"""Hydra's own options, whose help argparse would refuse from Python 3.14 on."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta.config.composing.hydra_options import accept_any_help_text, make_option_parser
from tests.waiting import STUCK_S
from tests.warm import REPOSITORY


def run_as_3_14(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a module of the repository or of a folder."""
    return subprocess.run(
        [sys.executable, "-m", "tests.python_3_14", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


def test_blocks_that_accept_any_help_may_be_nested() -> None:
    class Late:
        """Becomes a text when it is shown."""

    with accept_any_help_text():
        make_option_parser()
        argparse.ArgumentParser().add_argument("--late", help=Late())  # type: ignore[arg-type]
    assert "_check_help" not in vars(argparse.ArgumentParser)


def test_hydra_alone_is_refused_by_python_3_14(tmp_path: Path) -> None:
    """If this fails, Hydra has a release without the fault, and our remedy may go."""
    (tmp_path / "alone.py").write_text(
        "from hydra._internal.utils import get_args_parser\nget_args_parser()\n"
    )
    done = run_as_3_14(tmp_path, "alone")
    assert "ValueError: badly formed help string" in done.stderr


@pytest.mark.parametrize(
    ("options", "printed"),
    [(["check_only=true"], "600 x 1,024 tokens"), (["--cfg", "job"], "max_train_steps: 600")],
)
def test_programs_run_under_python_3_14(tmp_path: Path, options: list[str], printed: str) -> None:
    done = run_as_3_14(tmp_path, "bsmeta.train", "--config-name", "demo", *options)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
