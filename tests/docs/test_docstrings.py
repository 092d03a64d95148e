"""Docstrings describe the parameters and attributes that exist; a rename often forgets them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "bsmeta"
CONSTRUCTORS = ("__init__", "__new__")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def list_entries(docstring: str, section: str) -> list[str]:
    """Lists the names that a section (`Args`, `Attributes`) of a docstring describes."""
    body = re.search(rf"^{section}:\n((?: +.*\n|\n)*)", f"{docstring}\n", re.MULTILINE)
    if body is None:
        return []
    entries = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*):", body[1], re.MULTILINE)
    return [name.lstrip("*") for entry in entries for name in entry.split(", ")]


def list_parameters(function: Function) -> set[str]:
    arguments = function.args
    several = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {argument.arg for argument in (*several, arguments.vararg, arguments.kwarg) if argument}


def list_fields(node: ast.ClassDef) -> set[str]:
    """Lists the annotated fields of a class, which are parameters of a dataclass."""
    targets = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def list_attributes(node: ast.ClassDef) -> set[str]:
    """Lists the fields, methods and class attributes of a class, and what is assigned to `self`."""
    attributes = list_fields(node)
    for item in node.body:
        if isinstance(item, Function):
            attributes.add(item.name)
        if isinstance(item, ast.Assign):
            attributes |= {target.id for target in item.targets if isinstance(target, ast.Name)}

    assigned = [child for child in ast.walk(node) if isinstance(child, ast.Attribute)]
    return attributes | {child.attr for child in assigned if isinstance(child.ctx, ast.Store)}


def find_stale_entries(source: str) -> Iterator[str]:
    """Yields each described name that is not a parameter or attribute, with its line.

    Classes that inherit may have the parameters and attributes of a base; only their own
    constructors are looked at.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Function | ast.ClassDef):
            continue

        docstring = ast.get_docstring(node) or ""
        described = list_entries(docstring, "Args")
        if isinstance(node, ast.ClassDef):
            constructors = [
                item
                for item in node.body
                if isinstance(item, Function) and item.name in CONSTRUCTORS
            ]
            existing = list_fields(node).union(*map(list_parameters, constructors))
            if not constructors and node.bases:
                described = []
            if not node.bases:
                described += list_entries(docstring, "Attributes")
                existing |= list_attributes(node)
        else:
            existing = list_parameters(node)

        for name in described:
            if name not in existing:
                yield f"line {node.lineno}: {node.name} describes {name}"


def test_docstrings_describe_only_existing_parameters_and_attributes() -> None:
    stale = [
        f"{file.relative_to(PACKAGE)}, {entry}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for entry in find_stale_entries(file.read_text(encoding="utf-8"))
    ]
    assert stale == []


@pytest.mark.parametrize(
    ("source", "stale"),
    [
        (
            "def f(a, *b, **c):\n    '''F.\n\n    Args:\n        a: A.\n        b, c: B.\n    '''",
            [],
        ),
        (
            "def f(new):\n    '''F.\n\n    Args:\n        old: An earlier name.\n    '''",
            ["line 1: f describes old"],
        ),
        (
            "class C:\n    '''C.\n\n    Args:\n        a: A.\n\n    Attributes:\n        b: B.\n"
            "        gone: G.\n    '''\n    def __init__(self, a): self.b = a",
            ["line 1: C describes gone"],
        ),
        ("class C(B):\n    '''C.\n\n    Args:\n        of_base: A.\n    '''", []),
        (
            "class C:\n    '''C.\n\n    Attributes:\n        old: O.\n    '''\n    new: int",
            ["line 1: C describes old"],
        ),
    ],
)
def test_stale_entries_are_detected(source: str, stale: list[str]) -> None:
    assert list(find_stale_entries(source)) == stale
