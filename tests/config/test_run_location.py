"""Where runs write, and which addresses can hold a run."""

from __future__ import annotations

import ast
from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.paths import find_folder_problems
from bsmeta.config.run_location import locate_run_folder
from tests.warm import REPOSITORY

READERS = {
    "bsmeta/analyze.py": "reports of analyze",
    "bsmeta/api/programs.py": "open_run, which takes addresses",
    "bsmeta/config/checks/loop.py": "checks of the value",
    "bsmeta/config/checks/paths.py": "checks of the value",
    "bsmeta/config/run_location.py": "the gate",
    "bsmeta/config/startup_table.py": "shows the value",
    "bsmeta/config/checks/values.py": "checks of the value",
    "bsmeta/quick/folder.py": "the folder of quick",
    "bsmeta/tasks/checkpoints.py": "reports of evaluate and generate",
    "bsmeta/tasks/model_card.py": "the name of the run",
    "bsmeta/training/run.py": "the key of a message",
    "bsmeta/training/run_folder/choice.py": "the choice of the store",
}
"""Files that read `out_dir` of a configuration, and why they may; all others are given a folder."""


def test_a_run_in_a_bucket_writes_to_a_folder_of_its_own() -> None:
    def locate(out_dir: str) -> str:
        return str(locate_run_folder(CausalLMConfig(out_dir=out_dir, staging_dir="/scratch")))

    assert locate("runs/first") == "runs/first"
    assert locate("s3://bucket/runs/first") == "/scratch/first-3ecffbec"
    assert locate("s3://bucket/runs/first/") == "/scratch/first-3ecffbec"
    assert locate("s3://other/runs/first") != "/scratch/first-3ecffbec"
    assert locate(f"s3://bucket/{'x' * 300}").startswith(f"/scratch/{'x' * 200}-")
    assert locate(f"s3://bucket/x{'é' * 300}").startswith(f"/scratch/x{'é' * 99}-")


def test_every_reader_of_out_dir_is_known() -> None:
    """A path made of the value itself would be a local folder named `s3:`."""
    readers = set()
    for file in (REPOSITORY / "bsmeta").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            is_value = isinstance(node, ast.Attribute) and node.attr == "out_dir"
            if is_value and "config" in ast.unparse(node.value):
                readers.add(str(file.relative_to(REPOSITORY)))
    assert readers == {*READERS}


def test_a_staging_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = CausalLMConfig(out_dir="s3://bucket/runs/first", staging_dir=str(tmp_path / "file"))
    problems = [*find_folder_problems(config)]
    assert [(problem.key, problem.found) for problem in problems] == [
        ("staging_dir", f"below {tmp_path}/file, which is a file")
    ]
