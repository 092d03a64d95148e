"""Row 17 of the fault matrix: archives with `../`, links, devices, or a bomb inside.

Nothing in the package unpacks an archive: data are shards that are read as streams, checkpoints and
models are folders. So there is nothing that could be led out of its folder, and this keeps it so.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.faults

MODULES = {"tarfile", "zipfile", "py7zr", "rarfile", "patoolib"}
CALLS = {"extractall", "unpack_archive"}


def files() -> list[Path]:
    folders = ("bsmeta", "examples", "experiments")
    return [file for name in folders for file in sorted((REPOSITORY / name).rglob("*.py"))]


def unpacking(tree: ast.AST) -> set[str]:
    """The archive modules that a file imports, and the unpacking functions that it calls."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0]} & MODULES
            found |= {alias.name for alias in node.names} & CALLS
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & CALLS
    return found


def test_row_17_nothing_unpacks_archives() -> None:
    for file in files():
        name = str(file.relative_to(REPOSITORY))
        found = unpacking(ast.parse(file.read_text()))
        assert not found, name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import tarfile", {"tarfile"}),
        ("from zipfile import ZipFile", {"zipfile"}),
        ("import shutil\nshutil.unpack_archive(name)", {"unpack_archive"}),
        ("from shutil import unpack_archive", {"unpack_archive"}),
        ("archive.extractall(folder)", {"extractall"}),
        ("import gzip\ngzip.open(name)", set()),
    ],
)
def test_row_17_unpacking_is_found(source: str, found: set[str]) -> None:
    assert unpacking(ast.parse(source)) == found
