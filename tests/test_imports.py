"""Imports run one way, and each large library has its room: held by reading every import."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "bsmeta"

# Part of the package -> the parts (or modules) that it may import, from the ground up. Entry points
# (files right below bsmeta/) may import every part, and no part imports an entry point. The trainer
# knows what a task is, but no task.
ALLOWED = {
    "core": {"core"},
    "config": {"config", "core"},
    "metadata": {"metadata", "config", "core"},
    "data": {"data", "metadata", "config", "core"},
    "models": {"models", "config", "core"},
    "training": {
        "training", "data.batch", "models.manifest", "models.pretrained", "config", "core",
    },
    "report": {"report", "config", "core"},
    "tasks": {
        "tasks", "training", "models", "report", "data", "metadata", "config", "core",
    },
    "annotate": {
        "annotate", "tasks.checkpoints",
        "report", "data", "metadata", "config", "core",
    },
    "studies": {
        "studies", "tasks.causal_lm", "tasks.checkpoints", "training.checkpoints", "training.task",
        "training.run_folder.events", "training.run_folder.status",
        "report", "data", "metadata", "config", "core",
    },
    "quick": {
        "quick", "api", "annotate", "studies.config", "studies.power", "tasks", "training",
        "report", "data", "metadata", "config", "core",
    },
    "ready": {
        "ready", "api", "tasks.spelling", "report", "config", "core",
    },
    "api": {
        "api", "tasks", "training", "models", "report", "data", "metadata", "config", "core",
    },
}  # fmt: skip

# Folder with packages -> each package -> the packages and files beside it that it may import, from
# the ground up. The files beside the packages may import all of them.
PACKAGES = {
    "annotate": {
        "html": {"html"},
        "inputs": {"inputs", "html"},
        "duplicates": {
            "duplicates", "inputs", "html", "annotator", "config", "decisions", "pool", "shard",
        },
    },
    "data/io": {
        "remote": {"remote", "cache", "compression", "file_ref", "samples"},
    },
    "tasks/causal_lm": {
        "evaluation": {"evaluation", "checkpoints", "metrics", "shown_tokens"},
        "generation": {"generation", "evaluation", "checkpoints"},
        "explaining": {"explaining", "shown_tokens"},
    },
    "config": {
        "composing": {"composing", "launch", "saved"},
        "programs": {"programs", "causal_lm", "schema"},
        "checks": {
            "checks", "composing", "checked_run", "launch", "learning_rate", "metric_table",
            "run_location", "schema", "steps", "task_entry",
        },
    },
    "training": {
        "ranks": {"ranks"},
        "buckets": {"buckets"},
        "checkpoints": {"checkpoints", "ranks"},
        "engines": {"engines", "checkpoints", "ranks", "task"},
        "run_folder": {"run_folder", "buckets", "checkpoints", "ranks"},
        "reporting": {"reporting", "run_folder", "ranks", "guards", "step_stats"},
        "memory": {"memory", "reporting.throughput", "optimization", "task"},
    },
}  # fmt: skip

# Library -> the files or folders (patterns below bsmeta/) that may import it.
DISTRIBUTED = [
    "training/trainer*",
    "training/step*",
    "training/engines/*",
    "training/ranks/distributed*",
]
ROOMS = {
    "accelerate": DISTRIBUTED,
    "deepspeed": [*DISTRIBUTED, "config/checks/deepspeed*"],
    "hydra": ["*.py", "config/*"],
    "omegaconf": ["*.py", "config/*", "studies/config*"],
    "tensorboard": ["training/reporting/trackers*"],
    "wandb": ["training/reporting/trackers*"],
    "trackio": ["training/reporting/trackers*"],
    "aim": ["training/reporting/trackers*"],
    "clearml": ["training/reporting/trackers*"],
    "comet_ml": ["training/reporting/trackers*"],
    "dvclive": ["training/reporting/trackers*"],
    "mlflow": ["training/reporting/trackers*"],
    "swanlab": ["training/reporting/trackers*"],
    "botocore": ["training/buckets/s3*", "data/io/remote/objects*"],
    "google": ["core/cloud_storage*", "training/buckets/gcs*", "data/io/remote/objects*"],
    "requests": ["training/buckets/gcs*"],
    "gguf": ["tasks/causal_lm/gguf_file*"],
    "tensorflow": ["data/*"],
    "dateutil": ["core/dates*"],
    "htmldate": ["annotate/dates*"],
    "matplotlib": [
        "report/figures*",
        "report/drawing*",
        "*/report*",
        "tasks/*/report*",
        "tasks/causal_lm/evaluation/report*",
    ],
}

# Imported where it is used, never at the top of a module: slow to load, or not needed by every run.
NEVER_AT_TOP = {"tensorflow", "wandb", "trackio", "matplotlib", "datasets", "datatrove"}


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def list_imports_of(path: Path) -> list[str]:
    return list_imported(ast.parse(path.read_text()))


def list_imported(tree: ast.AST) -> list[str]:
    """Returns dotted names of the modules imported in `tree` (`from a import b` gives a.b, too)."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports within the package are absolute"
            names.append(node.module or "")
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def find_part(path: Path) -> str | None:
    """`data` for bsmeta/data/batch.py; None for an entry point and bsmeta/__init__.py."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def is_in_room(path: Path, room: str) -> bool:
    """Whether `path` is the file, or lies in the folder, that the pattern `room` names."""
    parts, patterns = path.relative_to(PACKAGE).parts, room.split("/")
    return len(parts) >= len(patterns) and all(map(fnmatch, parts, patterns))


def name_module(path: Path) -> str:
    """`bsmeta.data.batch` for bsmeta/data/batch.py; `bsmeta` for bsmeta/__init__.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def list_imported_modules(source: str, modules: Collection[str]) -> set[str]:
    """Returns the modules imported anywhere in a source; of a package, the named module in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in modules else str(node.module))
    return names & set(modules)


def find_circle(sources: Mapping[str, str]) -> list[str]:
    """Returns modules that each import the next, ending with the first; [] if there are none.

    Args:
        sources: The source of each module.
    """
    graph = {name: list_imported_modules(source, sources) for name, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]  # each is imported by the next
        return circle[::-1]
    return []


def test_no_files_import_each_other() -> None:
    paths = {name_module(path): path for path in files()}
    circle = find_circle({module: path.read_text() for module, path in paths.items()})
    names = [str(paths[module].relative_to(PACKAGE.parent)) for module in circle]
    assert not circle, (
        f"a circle of imports: {' imports '.join(names)}; also one in a function or under "
        "TYPE_CHECKING counts: move the part that both need into a file of its own"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "import p.b",
        "from p import b",
        "from p.b import function",
        "def function():\n    from p.b import function",
        "if TYPE_CHECKING:\n    from p.b import Type",
    ],
)
def test_circular_imports_of_every_kind_are_detected(statement: str) -> None:
    sources = {"p": "from p.a import f", "p.a": statement, "p.b": "import p.c", "p.c": ""}
    assert find_circle(sources) == []
    circle = find_circle({**sources, "p.c": "from p import a"})
    assert circle[0] == circle[-1]
    assert {*circle} == {"p.a", "p.b", "p.c"}


def test_imports_follow_the_table_of_parts() -> None:
    upward = []
    for path in files():
        part = find_part(path)
        if part is None:
            continue
        assert part in ALLOWED, f"bsmeta/{part}: list its imports in ALLOWED"
        allowed = tuple(f"bsmeta.{name}." for name in ALLOWED[part])
        names = list_imports_of(path)
        upward += [
            f"{path.relative_to(PACKAGE)}: {name}"
            for name in names
            if name.startswith("bsmeta.") and not f"{name}.".startswith(allowed)
        ]
    assert upward == []


@pytest.mark.parametrize("library", sorted(ROOMS))
def test_each_large_library_is_imported_only_in_its_room(library: str) -> None:
    users = [
        path
        for path in files()
        if library in {name.split(".")[0] for name in list_imports_of(path)}
    ]
    outside = [path for path in users if not any(is_in_room(path, room) for room in ROOMS[library])]
    assert outside == []


def test_tasks_do_not_import_each_other() -> None:
    shared = {"__init__", "checkpoints", "model_card", "registry"}
    tasks = {p.name.partition(".")[0] for p in (PACKAGE / "tasks").glob("*")} - shared
    for path in (PACKAGE / "tasks").rglob("*.py"):
        task = path.relative_to(PACKAGE / "tasks").parts[0].removesuffix(".py")
        others = {f"bsmeta.tasks.{name}" for name in tasks - {task}}
        if task in tasks:
            assert not others & {*list_imports_of(path)}, path


@pytest.mark.parametrize(
    ("folder", "package"), [(folder, name) for folder in PACKAGES for name in PACKAGES[folder]]
)
def test_packages_of_a_folder_import_downward(folder: str, package: str) -> None:
    root = name_module(PACKAGE / folder)
    allowed = tuple(f"{root}.{name}." for name in PACKAGES[folder][package])
    paths = sorted((PACKAGE / folder / package).rglob("*.py"))
    upward = []
    for path in paths:
        for name in list_imports_of(path):
            if name.startswith(f"{root}.") and not f"{name}.".startswith(allowed):
                upward.append(f"{path.relative_to(PACKAGE)}: {name}")
    assert len(paths) > 1
    assert upward == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_every_package_of_a_folder_declares_its_imports(folder: str) -> None:
    packages = {path.parent.name for path in (PACKAGE / folder).glob("*/__init__.py")}
    assert packages == {*PACKAGES[folder]}


def test_slow_libraries_are_imported_inside_functions() -> None:
    for path in files():
        body = ast.parse(path.read_text()).body
        top = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
        top_level = {name.split(".")[0] for node in top for name in list_imported(node)}
        assert not top_level & NEVER_AT_TOP, path


def test_no_test_imports_a_private_name() -> None:
    private = [
        f"{path.name}: {name}"
        for path in sorted(Path(__file__).parent.rglob("*.py"))
        for name in list_imports_of(path)
        if name.startswith("bsmeta.") and name.rpartition(".")[2].startswith("_")
    ]
    assert [name for name in private if not name.endswith("__version__")] == []
