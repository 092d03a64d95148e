"""Calls that could run code of a file have one place each: held by reading every call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.conftest import REPOSITORY

SOURCES = [
    path
    for folder in ("bsmeta", "experiments", "examples")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
]

# The last name of a call -> the files that may call it. Each is a gate, or has a reason.
GATES: dict[str, set[str]] = {
    "from_pretrained": {"bsmeta/core/model_files.py"},
    "from_config": {"bsmeta/core/model_files.py"},
    "for_model": {"bsmeta/tasks/disambiguation/model.py"},  # a shape, of classes of transformers
    "load_dataset": {"experiments/benchmarks/stream_arms.py"},  # of the format json
    "load_from_disk": {"bsmeta/data/table/store.py"},  # Arrow and JSON
    # Of installed distributions, never of a folder that a configuration names.
    "entry_points": {"bsmeta/tasks/registry.py"},
    "HFLM": set(),  # of lm-evaluation-harness; studies/downstream.py has a subclass
}  # fmt: skip

# Modules that run code of what they read -> the files that may import them.
MODULES: dict[str, set[str]] = {
    "pickle": {
        "bsmeta/training/checkpoints/shard_metadata.py",  # refuses all but descriptions of tensors
        "bsmeta/training/checkpoints/pickled_enums.py",  # the error of that reader
        "bsmeta/training/ranks/processes.py",  # of an error of this process
        "experiments/benchmarks/startup.py",  # of what it has measured itself
    },
    "marshal": set(),
    "shelve": set(),
    "dill": set(),
    "cloudpickle": set(),
    "joblib": set(),
    "runpy": {  # the programs of the package
        "bsmeta/annotate.py",
        "bsmeta/cli.py",
        "bsmeta/quick.py",
        "experiments/benchmarks/gpu_day.py",
        "experiments/benchmarks/gpu_run.py",
    },
}

# YAML of the user's own files; those of runs and models go through `bsmeta.config.saved`.
YAML = {
    "bsmeta/config/composing/interpolation.py": 1,  # the text of a variable
    "bsmeta/config/launch.py": 1,
    "bsmeta/config/saved.py": 1,
    "bsmeta/config/composing/overrides.py": 1,  # values of the command line
    "bsmeta/config/composing/schema_choice.py": 1,  # the defaults of a file
    "bsmeta/config/composing/yaml_values.py": 1,  # files, as OmegaConf reads them
    "bsmeta/core/parsing.py": 1,
    "bsmeta/studies/config.py": 1,
    "bsmeta/tasks/causal_lm/generation/dialogue.py": 1,
    "bsmeta/tasks/disambiguation/converter.py": 1,
}


# Files that may call `np.load`; all others read through the gate.
ARRAY_READERS = {
    "bsmeta/data/io/array_archives.py",
    "bsmeta/data/io/cache.py",  # the own cache; a damaged file counts as missing
    "bsmeta/studies/runs.py",  # results of a study; any damage is refused
    "bsmeta/tasks/disambiguation/embeddings.py",  # the own cache
    "bsmeta/tasks/disambiguation/entity_files.py",  # the numbers beside tries; damage is refused
    "bsmeta/tasks/spelling/samples.py",  # the own store
}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Yields each file with each node that these tests check."""
    kinds = (ast.Call, ast.Import, ast.ImportFrom, ast.List, ast.Tuple)
    return [
        (str(path.relative_to(REPOSITORY)), node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
    ]


def calls() -> Iterator[tuple[str, ast.Call]]:
    yield from ((file, node) for file, node in nodes() if isinstance(node, ast.Call))


def called(node: ast.Call) -> str:
    """Returns the dotted name of the called function: `torch.load`."""
    return ast.unparse(node.func)


def keyword(node: ast.Call, name: str) -> str | None:
    """Returns the value of an argument, as source."""
    return next(
        (ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == name), None
    )


@pytest.mark.long
@pytest.mark.parametrize("name", GATES)
def test_calls_that_run_code_are_only_in_their_gates(name: str) -> None:
    users = {file for file, node in calls() if called(node).rpartition(".")[2] == name}
    assert users <= GATES[name]


@pytest.mark.parametrize("module", MODULES)
def test_modules_that_run_code_are_only_imported_by_listed_files(module: str) -> None:
    users = set()
    for file, node in nodes():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.partition(".")[0] == module for name in names):
            users.add(file)
    assert users <= MODULES[module]


def test_arrays_beside_models_are_read_through_the_gate() -> None:
    loads = [(file, node) for file, node in calls() if called(node) == "np.load"]
    assert {file for file, _ in loads if file.startswith("bsmeta/")} == ARRAY_READERS
    assert {keyword(node, "allow_pickle") for _, node in loads} <= {None, "False"}


def test_only_one_module_loads_entry_points() -> None:
    loads = {file for file, node in calls() if called(node) == "point.load"}
    (entry_points,) = [node for _, node in calls() if called(node) == "entry_points"]
    assert loads == {"bsmeta/tasks/registry.py"}
    assert keyword(entry_points, "group") == "GROUP"


def test_models_are_never_loaded_with_remote_code() -> None:
    gate = [
        keyword(node, "trust_remote_code")
        for file, node in calls()
        if called(node).rpartition(".")[2] in ("from_pretrained", "from_config", "Conditioned")
    ]
    assert gate == ["False"] * 6
    given = [keyword(node, "trust_remote_code") for _, node in calls()]
    assert {value for value in given if value is not None} == {"False"}


def test_torch_loads_only_values() -> None:
    loads = [node for _, node in calls() if called(node) == "torch.load"]
    assert len(loads) == 1
    assert all(keyword(node, "weights_only") == "True" for node in loads)


def test_numpy_loads_no_objects() -> None:
    assert not [
        file for file, node in calls() if keyword(node, "allow_pickle") not in (None, "False")
    ]


def test_only_one_module_reads_yaml_of_runs_and_models() -> None:
    found: dict[str, int] = {}
    for file, node in calls():
        if called(node) in ("parse_yaml", "parse_yaml_file"):
            found[file] = found.get(file, 0) + 1
    assert {file: count for file, count in found.items() if file.startswith("bsmeta/")} == YAML


def test_interpolations_are_resolved_only_by_hydra() -> None:
    """Or in a study's file and in the path of a part, both written by the user."""
    resolving = {
        file
        for file, node in calls()
        if called(node) in ("OmegaConf.create", "OmegaConf.load", "OmegaConf.to_object")
    }
    assert resolving == {
        "bsmeta/config/composing/from_file.py",
        "bsmeta/config/composing/hydra_files.py",
        "bsmeta/config/composing/interpolation.py",
        "bsmeta/config/saved_runs.py",
        "bsmeta/config/composing/yaml_values.py",
        "bsmeta/studies/config.py",
    }  # fmt: skip


def test_no_text_is_evaluated_as_code() -> None:
    assert not [file for file, node in calls() if called(node) in ("eval", "exec", "__import__")]


def test_python_is_started_without_the_working_folder() -> None:
    """`-m` and `-c` would put it first in the import path."""
    commands = []
    for file, node in nodes():
        parts = [*map(ast.unparse, node.elts)] if isinstance(node, (ast.List, ast.Tuple)) else []
        if "sys.executable" in parts and {"'-m'", "'-c'"} & set(parts):
            commands.append((file, "'-P'" in parts))
    assert len(commands) >= 4
    assert [file for file, is_safe in commands if not is_safe] == []
