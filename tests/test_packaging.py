"""What a wheel holds, and that its programs run from an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from bsmeta import cli
from bsmeta.core.errors import EXTRA_BY_MODULE
from tests.conftest import REPOSITORY

STEPS = ["max_train_steps=4", "eval_steps=0", "save_steps=0", "logging_steps=1"]


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Runs a command to its end; returns its standard output."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, check=False, cwd=folder, env=environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def repository_files(*folders: str) -> list[str]:
    """The files of the repository below some folders (none: all), without those git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    lines = subprocess.check_output(command, cwd=REPOSITORY, text=True).splitlines()
    return [line for line in lines if (REPOSITORY / line).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the repository, built by pip from a copy (a build leaves files in its folder).

    `make release` names the folder of the wheel that it has built, in $BSMETA_DIST.
    """
    if built := os.environ.get("BSMETA_DIST"):
        (file,) = Path(built).resolve().glob("bsmeta-*.whl")
        return Path(shutil.copy2(file, tmp_path_factory.mktemp("wheel")))
    folder = tmp_path_factory.mktemp("wheel")
    for file in repository_files():
        (folder / "source" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / file, folder / "source" / file)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    run([*build, "--wheel-dir", str(folder), str(folder / "source")], folder)
    (file,) = folder.glob("bsmeta-*.whl")
    return file


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    """The wheel, unpacked."""
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def metadata(unpacked: Path) -> Distribution:
    (folder,) = unpacked.glob("*.dist-info")
    return PathDistribution(folder)


@pytest.mark.long
def test_a_wheel_holds_the_files_of_the_project(unpacked: Path) -> None:
    for name in cli.FOLDERS:
        files = repository_files(name)
        assert files, name
        absent = [file for file in files if not (unpacked / "bsmeta" / "resources" / file).exists()]
        assert absent == []
    assert (unpacked / "bsmeta" / "py.typed").exists()
    programs = [target for target, _ in cli.PROGRAMS.values() if target.endswith(".py")]
    assert all((unpacked / "bsmeta" / "resources" / file).exists() for file in programs)
    (command,) = metadata(unpacked).entry_points
    assert (command.name, command.value) == ("bsmeta", "bsmeta.cli:main")


@pytest.mark.long
def test_the_programs_of_a_wheel_use_its_own_files(unpacked: Path, tmp_path: Path) -> None:
    python = [sys.executable, "-m", "bsmeta"]
    where = {"PYTHONPATH": str(unpacked)}
    assert run([*python, "configs"], tmp_path, **where).startswith(f"{unpacked}/bsmeta/resources:")
    check = [*python, "train", "--config-name", "demo", "check_only=true"]
    launch_file = "accelerate_config_file=experiments/accelerate/cpu_zero2.yaml"
    assert "DeepSpeed" in run([*check, launch_file], tmp_path, **where)
    for program in ("descriptions", "sweep"):  # a module, and a script with others beside it
        assert run([*python, program, "--help"], tmp_path, **where).startswith("usage: ")
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_provides_the_extras_that_errors_name(unpacked: Path) -> None:
    assert set(EXTRA_BY_MODULE.values()) <= set(
        metadata(unpacked).metadata.get_all("Provides-Extra")
    )


@pytest.mark.slow
def test_a_bare_environment_runs_the_demo_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment, folder = tmp_path / "environment", tmp_path / "empty"
    folder.mkdir()
    venv.create(environment, with_pip=True)
    programs = environment / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
    lock = (REPOSITORY / "requirements.txt").read_text().splitlines()
    run([*pip, next(line for line in lock if line.startswith("torch=="))], folder)
    run([*pip, str(wheel)], folder)
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    command = str(programs / "bsmeta")

    run([command, "init"], folder, **path)
    launch = [str(programs / "accelerate"), "launch", "--config_file"]
    launch += ["experiments/accelerate/cpu_zero2.yaml", "-m", "bsmeta.train"]
    run([*launch, "--config-name", "demo", *STEPS], folder, **path)
    table = run([command, "evaluate", "checkpoint=runs/demo", "max_documents=4"], folder, **path)
    assert "all together" in table
    annotate = [command, "annotate", "input=examples/rawpages", "output=shards"]
    done = subprocess.run(annotate, check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'bsmeta[annotate]'" in done.stderr
