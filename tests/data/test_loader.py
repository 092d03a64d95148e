"""Loaders of torch whose processes are forked, whatever the default of Python is."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests.conftest import REPOSITORY
from tests.waiting import STUCK_S

FORKSERVER = """
import multiprocessing, os
multiprocessing.set_start_method("forkserver")  # the default from Python 3.14 on
from torch.utils.data import IterableDataset
from bsmeta.data.loader import make_loader

class Parents(IterableDataset):
    def __iter__(self):
        yield os.getppid() == parent

parent = os.getpid()
print([*make_loader(Parents(), 2)], [*make_loader(Parents(), 0)])
"""

# Modules that start processes, by the method that Python prefers if none is named.
STARTERS = {
    "multiprocessing",
    "concurrent.futures.ProcessPoolExecutor",
    "torch.utils.data.DataLoader",
}
FORKED = {
    "data/loader.py": 'multiprocessing_context="fork"',
    "annotate/pool.py": 'multiprocessing.get_context("fork")',
}


def list_imports(node: ast.AST) -> set[str]:
    """Lists the dotted names that an import statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


def test_loader_processes_are_forked_under_the_default_of_python_3_14() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", FORKSERVER],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert done.stdout == "[True, True] [False]\n", done.stderr


def test_every_module_that_starts_processes_names_the_start_method() -> None:
    package = REPOSITORY / "bsmeta"
    starters = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if list_imports(node) & STARTERS
    }
    assert starters == FORKED.keys()
    for file, method in FORKED.items():
        assert method in (package / file).read_text()
