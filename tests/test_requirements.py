"""The environment that the tests run in is the one that is pinned."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[1]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
THIS_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
LINES = [
    line
    for name in ("requirements.txt", "requirements-dev.txt")
    for line in (REPOSITORY / name).read_text().splitlines()
    if line and not line.startswith(("#", "-r"))
]

NOT_INSTALLED = {
    "liger_kernel": "GPUs only; liger_kernel=true suggests pip install liger-kernel",
    "ray": "executor=ray suggests pip install",
    "compression": "in the standard library of Python 3.14, the only one that imports it",
}
"""Imported only where a key asks for them, which is refused where they are missing."""


def list_imported(folder: str) -> dict[str, Path]:
    """The outermost modules that the files of a folder import and that are not in the repository.

    Each with one of the files.
    """
    versions_in_lock: dict[str, Path] = {}
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
                    versions_in_lock.setdefault(name, path)
    return versions_in_lock


def normalized(name: str) -> str:
    """Normalizes the name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=\[;~! ]", name)[0]).lower()


def is_for(line: str, python: str) -> bool:
    """Whether a requirement applies to this machine with a version of Python."""
    marker = Requirement(line).marker
    return marker is None or marker.evaluate({"python_version": python})


def pinned_version(line: str) -> str:
    (pin,) = Requirement(line).specifier
    assert pin.operator == "=="
    return pin.version


def read_setup_constant(name: str) -> Any:
    """Returns the value of a constant of setup.py."""
    tree = ast.parse((REPOSITORY / "setup.py").read_text())
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name
    ]
    return ast.literal_eval(value)


PINNED = {normalized(line) for line in LINES}
DECLARED_LINES = sorted(
    {
        line
        for lines in [read_setup_constant("BASE"), *read_setup_constant("EXTRAS").values()]
        for line in lines
    }
)
DECLARED = {normalized(line) for line in DECLARED_LINES}


@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "declared"),
    [("bsmeta", PINNED), ("bsmeta", DECLARED), ("experiments", PINNED), ("examples", PINNED)],
)
def test_every_import_is_declared(folder: str, declared: set[str]) -> None:
    """A package installed only as a dependency of another may disappear."""
    distributions = packages_distributions()
    missing = {
        name: str(path)
        for name, path in list_imported(folder).items()
        if name not in NOT_INSTALLED
        and not declared
        & {normalized(distribution) for distribution in distributions.get(name, [name])}
    }
    assert missing == {}


@pytest.mark.parametrize(
    "line",
    [
        "filelock>=3.24",  # the first with acquire(cancel_check=...)
        "tldextract>=5.3",  # the first with top_domain_under_public_suffix
    ],
)
def test_the_lower_bound_has_the_used_features(line: str) -> None:
    assert line in read_setup_constant("BASE")


@pytest.mark.parametrize("line", [line for line in LINES if is_for(line, THIS_PYTHON)])
def test_the_installed_version_is_the_pinned_version(line: str) -> None:
    # torch adds its build: 2.13.0+cpu
    assert version(Requirement(line).name).split("+")[0] == pinned_version(line)


def read_lock(file: str) -> dict[str, dict[str, int]]:
    """Returns the packages of a lock file: the hashes of each version with its marker."""
    packages: dict[str, dict[str, int]] = {}
    for entry in re.split(r"\n(?=\S)", (REPOSITORY / file).read_text()):
        name, _, rest = entry.partition("==")
        versions = packages.setdefault(normalized(name), {})
        versions[re.split(r" *[\\\n]", rest)[0]] = entry.count("--hash=sha256:")
    return packages


@pytest.mark.parametrize("file", ["requirements.lock", "requirements-base.lock"])
def test_all_locked_packages_have_hashes(file: str) -> None:
    packages = read_lock(file)
    assert [name for name, versions in packages.items() if 0 in versions.values()] == []
    assert not {"torch", "triton"} & packages.keys()  # its builds differ, see the Makefile
    assert [name for name in packages if name.startswith("nvidia-")] == []


def test_every_pinned_package_is_locked() -> None:
    pinned = {normalized(line): pinned_version(line) for line in LINES}
    assert pinned.pop("torch")
    packages = {name: [*versions] for name, versions in read_lock("requirements.lock").items()}
    versions_in_lock = {
        name: [line.split(" ")[0] for line in packages.get(name, [])] for name in pinned
    }
    assert versions_in_lock == {name: [pin] for name, pin in pinned.items()}, (
        "requirements.lock is older than requirements*.txt: make lock"
    )


def test_the_base_lock_has_exactly_the_requirements_of_the_base_install() -> None:
    base = read_lock("requirements-base.lock")
    needed = {normalized(line) for line in read_setup_constant("BASE")} - {"torch"}
    extras = {
        normalized(line) for lines in read_setup_constant("EXTRAS").values() for line in lines
    }
    assert needed <= base.keys(), "requirements-base.lock is older than setup.py: make lock"
    assert base.keys() & (extras - needed) == {"requests", "urllib3"}  # of tiktoken and tldextract


def test_both_locks_have_the_same_versions() -> None:
    """`make test` adds packages to the environment of `make demo`, and changes none."""

    def versions(packages: dict[str, dict[str, int]]) -> set[tuple[str, str, int]]:
        return {
            (name, line.split(" ")[0], hashes)
            for name, lines in packages.items()
            for line, hashes in lines.items()
            if "emscripten" not in line
        }

    base = versions(read_lock("requirements-base.lock"))
    assert base - versions(read_lock("requirements.lock")) == set(), "make lock"


@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_are_the_lower_bounds(python: str) -> None:
    """With them, the oldest versions that setup.py allows are installed, all at once."""
    lines = (REPOSITORY / f"constraints/lowest-{python}.txt").read_text().splitlines()
    constraints = {normalized(line): Version(pinned_version(line)) for line in lines}
    declared = [Requirement(line) for line in DECLARED_LINES if is_for(line, python)]
    disagreeing = {}
    for requirement in declared:
        name = normalized(requirement.name)
        (bound,) = [Version(part.version) for part in requirement.specifier if ">" in part.operator]
        if name == "torch":  # named by its version alone
            continue
        # For a newer Python, the oldest version that has a build for it may be a later one.
        is_oldest = constraints.get(name) == bound
        if not is_oldest and (python == PYTHONS[0] or constraints.get(name, bound) <= bound):
            disagreeing[str(requirement)] = constraints.get(name)
    assert disagreeing == {}, "constraints/ is older than setup.py: make lock"


def test_every_supported_python_is_named_everywhere() -> None:
    setup = (REPOSITORY / "setup.py").read_text()
    assert re.findall(r"Programming Language :: Python :: (3\.\d+)", setup) == PYTHONS
    assert 'python_requires=">=3.11,<3.15"' in setup
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.findall(r"^PYTHONS := (.*)$", makefile, re.M) == [" ".join(PYTHONS)]
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text())
    assert workflow["jobs"]["environments"]["strategy"]["matrix"]["python"] == PYTHONS
