"""The environment that the tests run in is the one that is pinned."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
LINES = [
    line
    for name in ("requirements.txt", "requirements-dev.txt")
    for line in (REPOSITORY / name).read_text().splitlines()
    if line and not line.startswith(("#", "-r"))
]

NOT_INSTALLED = {
    "liger_kernel": "GPUs only; liger_kernel=true says pip install liger-kernel",
    "ray": "executor=ray says pip install",
    "compression": "in the standard library of Python 3.14, the only one that imports it",
}
"""Imported only where a key asks for them, which is refused where they are missing."""


def imported(folder: str) -> dict[str, Path]:
    """The outermost modules that the files of a folder import and that are not in the repository.

    Each with one of the files.
    """
    found: dict[str, Path] = {}
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str | None] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in (str(name).partition(".")[0] for name in names):
                beside = (path.with_name(f"{name}.py"), REPOSITORY / name)
                if name not in sys.stdlib_module_names and not any(map(Path.exists, beside)):
                    found.setdefault(name, path)
    return found


def normalized(name: str) -> str:
    """The name of a distribution in the form in which equal ones are equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=\[;~! ]", name)[0]).lower()


def of_setup(name: str) -> Any:
    """The value of a constant of setup.py."""
    tree = ast.parse((REPOSITORY / "setup.py").read_text())
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name
    ]
    return ast.literal_eval(value)


PINNED = {normalized(line) for line in LINES}
DECLARED = {
    normalized(line) for lines in [of_setup("BASE"), *of_setup("EXTRAS").values()] for line in lines
}


@pytest.mark.parametrize(
    ("folder", "declared"),
    [("bsmeta", PINNED), ("bsmeta", DECLARED), ("experiments", PINNED), ("examples", PINNED)],
)
def test_every_import_is_declared(folder: str, declared: set[str]) -> None:
    """What only comes along with another package is missing as soon as that drops it."""
    distributions = packages_distributions()
    missing = {
        name: str(path)
        for name, path in imported(folder).items()
        if name not in NOT_INSTALLED
        and not declared & {normalized(one) for one in distributions.get(name, [name])}
    }
    assert missing == {}


@pytest.mark.parametrize(
    "line",
    [
        "filelock>=3.24",  # the first with acquire(cancel_check=...)
        "tldextract>=5.3",  # the first with top_domain_under_public_suffix
    ],
)
def test_lower_bound_has_what_is_used(line: str) -> None:
    assert line in of_setup("BASE")


@pytest.mark.parametrize("line", LINES)
def test_installed_version_is_the_pinned_one(line: str) -> None:
    name, pinned = line.split("==")
    assert version(name).split("+")[0] == pinned  # torch adds its build: 2.13.0+cpu


def locked() -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package in the lock file."""
    packages: dict[str, tuple[str, int]] = {}
    for entry in re.split(r"\n(?=\S)", (REPOSITORY / "requirements.lock").read_text()):
        name, _, rest = entry.partition("==")
        packages[normalized(name)] = re.split(r"[ ;\\\n]", rest)[0], entry.count("--hash=sha256:")
    return packages


def test_every_pinned_package_is_locked_with_its_hashes() -> None:
    packages = locked()
    pinned = {normalized(line): line.split("==")[1] for line in LINES}
    assert pinned.pop("torch")  # its builds differ, see the Makefile
    assert {name: packages[name][0] for name in pinned if name in packages} == pinned, (
        "requirements.lock is older than requirements*.txt: make lock"
    )
    assert [name for name, (_, hashes) in packages.items() if hashes == 0] == []
    assert not {"torch", "triton"} & packages.keys()
    assert [name for name in packages if name.startswith("nvidia-")] == []
