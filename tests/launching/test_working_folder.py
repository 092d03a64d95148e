"""The scripts import nothing from the working folder, where other people's files may lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching.helpers import SMALL, end, run, start

MODULES = ("bsmeta", "torch", "yaml", "omegaconf", "accelerate", "psutil", "msgspec")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with modules named like imports of the programs."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(f"open('{tmp_path}/was_run', 'a').write('{name} ')\n")
    return tmp_path


def test_a_dry_run_imports_nothing_from_the_working_folder(folder: Path) -> None:
    """It composes the configuration, and reads the launch file."""
    code, output = run(folder, "train.sh", "--dry-run", BSMETA_CONFIG="demo")
    assert code == 0, output
    assert not (folder / "was_run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("launch_file", ["cpu.yaml", "cpu_zero2.yaml"])
def test_a_run_imports_nothing_from_the_working_folder(folder: Path, launch_file: str) -> None:
    code, output = run(
        folder, "train.sh", *SMALL, "max_train_steps=3", "out_dir=run",
        BSMETA_CONFIG="demo", BSMETA_LAUNCH_FILE=launch_file,
    )  # fmt: skip
    assert code == 0, output
    assert not (folder / "was_run").exists()


@pytest.mark.slow
def test_the_main_job_imports_nothing_from_the_working_folder(folder: Path) -> None:
    """The job is refused because its model is missing."""
    process = start(
        folder, "hpsearch/test.sh", "check_only=true", prefix=["bash"], MODEL=f"{folder}/none"
    )
    code, output = end(process)
    assert code != 0
    assert "none" in output
    assert not (folder / "was_run").exists()
