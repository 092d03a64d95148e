"""The registry knows the tasks; no other module lists them by name."""

from __future__ import annotations

import ast
from typing import get_args

import pytest

from bsmeta.api.models import LanguageModelTask, PredictorTask
from bsmeta.tasks import BUILT_IN
from bsmeta.tasks.checkpoints import list_tasks
from tests.conftest import REPOSITORY

# Files that name a task -> why.
NAMING = {
    "bsmeta/tasks/__init__.py",  # the registry
    "bsmeta/api/models.py",  # types for type checkers, compared with the registry below
    "bsmeta/config/programs/building.py",  # a target of `bsmeta build`
    "bsmeta/config/schema.py",  # the task of files that name none
}


def find_names(tree: ast.AST) -> set[str]:
    """Returns the names of tasks among the texts of a module."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {name for name in BUILT_IN if name in texts}


def test_only_the_registry_and_the_package_of_a_task_name_it() -> None:
    naming = set()
    for path in sorted((REPOSITORY / "bsmeta").rglob("*.py")):
        file = path.relative_to(REPOSITORY).as_posix()
        in_package = len(path.relative_to(REPOSITORY / "bsmeta").parts) > 2
        is_of_a_task = file.startswith("bsmeta/tasks/") and in_package
        if not is_of_a_task and find_names(ast.parse(path.read_text(encoding="utf-8"))):
            naming.add(file)
    assert naming == NAMING


@pytest.mark.parametrize("package", ["causal_lm", "classification", "disambiguation", "spelling"])
def test_the_package_of_a_task_names_no_task_of_another_package(package: str) -> None:
    package_tasks = {"sed_words", "sed_sequence", "sec"} if package == "spelling" else {package}
    for path in sorted((REPOSITORY / "bsmeta" / "tasks" / package).rglob("*.py")):
        assert find_names(ast.parse(path.read_text(encoding="utf-8"))) <= package_tasks, path


def test_the_types_of_the_api_have_the_tasks_of_the_registry() -> None:
    predicting = {name for name, entry in BUILT_IN.items() if "predict.py" in entry.programs}
    assert {*get_args(PredictorTask)} == predicting
    generating = {name for name, entry in BUILT_IN.items() if entry.is_language_model}
    assert {*get_args(LanguageModelTask)} == generating


def test_tasks_are_listed_by_the_capabilities_of_their_models() -> None:
    assert list_tasks("flag_words") == ["sed_words", "sed_sequence", "sec"]
    assert list_tasks("predict_label") == ["classification"]
    assert list_tasks("detect_entities") == ["disambiguation"]
    assert list_tasks("encode_entities") == ["disambiguation"]
