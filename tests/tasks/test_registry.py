"""Tasks of other distributions: a real one trains; broken ones are refused by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta.tasks import BUILT_IN
from tests.conftest import REPOSITORY
from tests.tasks.training import TRAIN, events

DISTRIBUTION = Path(__file__).with_name("toy_distribution")
LOADED_AT_EXIT = """\
import atexit, sys
names = {"bsmeta_toy", "bsmeta.tasks.classification", "bsmeta.tasks.spelling", "torch"}
atexit.register(lambda: print("LOADED", sorted(names & set(sys.modules))))
"""


def run(
    *arguments: str, distributions: list[Path] | None = None, code: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `train.py` in a new interpreter, with folders of distributions on its path."""
    folders = [REPOSITORY, *([DISTRIBUTION] if distributions is None else distributions)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, *(code or [str(TRAIN)]), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=REPOSITORY, check=False
    )


def train(out_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = ["--config-dir", str(DISTRIBUTION), "--config-name", "toy_line"]
    return run(*options, f"out_dir={out_dir}", *arguments)


def write_distribution(folder: Path, name: str, tasks: str, module: str = "") -> Path:
    """Writes a distribution with the lines of its entry points, and a module `broken`."""
    information = folder / f"{name}-3.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.0\n")
    (information / "entry_points.txt").write_text(f"[bsmeta.tasks]\n{tasks}\n")
    (folder / "broken.py").write_text(module)
    return folder


@pytest.mark.long
def test_a_task_of_another_distribution_trains_and_resumes(tmp_path: Path) -> None:
    started = train(tmp_path / "run")
    assert started.returncode == 0, started.stderr[-3000:]
    evaluations = events(tmp_path / "run", "eval")
    assert [event["step"] for event in evaluations] == [2, 4, 6]
    assert all(event["numbers"] == 1 and event["nearness"] < 0 for event in evaluations)
    assert "task: toy_line" in (tmp_path / "run" / "config.yaml").read_text()

    resumed = train(tmp_path / "run", "max_train_steps=8", "resume_from_checkpoint_dir=latest")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert [event["step"] for event in events(tmp_path / "run", "step")][-1] == 8


def test_the_best_checkpoint_is_checked_by_the_table_of_the_distribution(tmp_path: Path) -> None:
    refused = train(tmp_path / "run", "keep_best_by=numbers")
    assert refused.returncode == 2
    assert 'keep_best_by in Hydra configuration: found "numbers", expected one of nearness' in (
        refused.stderr
    )


@pytest.mark.long
def test_unsupported_programs_name_the_tasks_that_support_them(tmp_path: Path) -> None:
    assert train(tmp_path / "run").returncode == 0
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    refused = run(
        f"checkpoint={tmp_path / 'run'}", code=[str(REPOSITORY / "bsmeta" / "evaluate.py")]
    )
    assert refused.returncode == 2
    assert "task=toy_line: evaluate.py works with task=causal_lm or classification" in (
        refused.stderr
    )


def test_the_help_of_a_task_imports_no_other_task() -> None:
    script = f"{LOADED_AT_EXIT}\nimport runpy\nsys.argv[0] = {str(TRAIN)!r}\n"
    script += f"runpy.run_path({str(TRAIN)!r}, run_name='__main__')\n"

    def list_loaded(*arguments: str) -> str:
        done = run(*arguments, "--help", code=["-c", script])
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip().rpartition("\n")[2]

    assert list_loaded("--config-name", "v2") == "LOADED []"
    toy = ["--config-dir", str(DISTRIBUTION), "--config-name", "toy_line"]
    assert list_loaded(*toy) == "LOADED ['bsmeta_toy']"


@pytest.mark.parametrize(
    ("tasks", "module", "message"),
    [
        pytest.param(
            "causal_lm = broken:ENTRY", "",
            "task=causal_lm is defined twice: by bsmeta itself and by the distribution other 3.0 "
            "(entry point broken:ENTRY); expected one task of a name. Fix: uninstall other, or "
            "rename its task",
            id="a name of this package",
        ),
        pytest.param(
            "toy_line = broken:ENTRY", "",
            "task=toy_line is defined twice: by the distribution",
            id="a name of a third",
        ),
        pytest.param(
            "line = broken:ENTRY", "raise RuntimeError('no license')",
            "task=line: the entry point broken:ENTRY of the distribution other 3.0 cannot be "
            "loaded: RuntimeError: no license. Fix: install another version of other, or "
            "uninstall it",
            id="an error",
        ),
        pytest.param(
            "line = broken:ENTRY", "",
            "cannot be loaded: AttributeError: module 'broken' has no attribute 'ENTRY'.",
            id="no such attribute",
        ),
        pytest.param(
            "line = absent:ENTRY", "",
            "cannot be loaded: ModuleNotFoundError: No module named 'absent'.",
            id="no such module",
        ),
        pytest.param(
            "line = broken:ENTRY", "ENTRY = {}",
            "task=line: the entry point broken:ENTRY of the distribution other 3.0 is of type "
            "dict; expected a bsmeta.config.task_entry.TaskEntry. Fix: install another version of "
            "other, or uninstall it",
            id="another type",
        ),
    ],
)  # fmt: skip
def test_a_broken_distribution_is_refused_by_name(
    tmp_path: Path, tasks: str, module: str, message: str
) -> None:
    other = write_distribution(tmp_path / "packages", "other", tasks, module)
    (tmp_path / "line.yaml").write_text("defaults: [line_config, _self_]\n")
    options = ["--config-dir", str(tmp_path), "--config-name", "line"]
    refused = run(*options, f"out_dir={tmp_path / 'run'}", distributions=[other, DISTRIBUTION])
    assert refused.returncode == 2, refused.stderr
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_taken_name_is_refused_even_if_the_task_of_this_package_runs(tmp_path: Path) -> None:
    other = write_distribution(tmp_path / "packages", "other", "causal_lm = broken:ENTRY")
    options = ["--config-name", "demo", "check_only=true", f"out_dir={tmp_path / 'run'}"]
    refused = run(*options, distributions=[other])
    assert refused.returncode == 2, refused.stderr
    assert "task=causal_lm is defined twice" in refused.stderr


@pytest.mark.long
def test_opening_a_folder_adds_no_task(tmp_path: Path) -> None:
    """Only the import path counts: a distribution inside a run or model is data."""
    assert train(tmp_path / "run").returncode == 0
    shutil.copytree(DISTRIBUTION, tmp_path / "run", dirs_exist_ok=True)
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    refused = run(
        f"checkpoint={tmp_path / 'run'}",
        code=[str(REPOSITORY / "bsmeta" / "evaluate.py")],
        distributions=[],
    )
    assert refused.returncode == 2
    assert "task=toy_line: evaluate.py works with" in refused.stderr


def test_the_tasks_of_this_package_come_first(tmp_path: Path) -> None:
    code = "from bsmeta.tasks import TASKS; import sys\n"
    code += "print(list(TASKS), len(TASKS), 'toy_line' in TASKS, 'bsmeta_toy' in sys.modules)"
    listed = run(code=["-c", code])
    expected = [*BUILT_IN, "toy_line"]
    assert listed.stdout == f"{expected} {len(expected)} True False\n"
