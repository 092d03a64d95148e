"""Tests mirror the source: each module has its tests at its path, or a reason not to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "bsmeta"

KEYS = "declares keys with their defaults and bounds, which are all tried"
METRICS = "the tables of all tasks are compared"

# Module -> the test in which it is covered, and why there.
EXCEPTIONS = {
    "__main__.py": ("test_cli.py", "calls `cli.main`"),
    "config/checks/values.py": (
        "config/checks/test_run.py",
        "a row for each problem, with all others",
    ),
    "config/programs/analyzing.py": ("config/test_schema.py", KEYS),
    "config/programs/building.py": ("config/test_schema.py", KEYS),
    "config/causal_lm.py": ("config/test_schema.py", KEYS),
    "config/checked_run.py": ("config/checks/test_run.py", "the value that the checks return"),
    "config/composing/composition.py": (
        "config/composing/test_interpolation.py",
        "needs what Hydra has composed",
    ),
    "config/programs/copying.py": ("config/test_schema.py", KEYS),
    "config/programs/downloading.py": ("config/test_schema.py", KEYS),
    "config/programs/entity_table.py": ("config/test_schema.py", KEYS),
    "config/programs/evaluating.py": ("config/test_schema.py", KEYS),
    "config/programs/explaining.py": ("config/test_schema.py", KEYS),
    "config/composing/filling.py": (
        "config/test_broken.py",
        "command lines with their whole messages",
    ),
    "config/programs/generating.py": ("config/test_schema.py", KEYS),
    "config/composing/hydra_errors.py": (
        "config/test_broken.py",
        "command lines with their whole messages",
    ),
    "config/composing/misfits.py": (
        "config/test_broken.py",
        "command lines with their whole messages",
    ),
    "config/programs/precision.py": (
        "config/test_schema.py",
        "the choices of a key, which are all tried",
    ),
    "config/programs/predicting.py": ("config/test_schema.py", KEYS),
    "core/loopback.py": ("launching/test_listening.py", "needs processes that listen"),
    "core/rendezvous.py": ("launching/test_machines.py", "needs several machines"),
    "core/version.py": ("core/test_versions.py", "the number that `--version` prints"),
    "data/io/archives.py": ("faults/test_archives.py", "row 17 of the fault matrix"),
    "data/io/shard_reader.py": ("data/io/test_lines.py", "the interface of the readers"),
    "data/io/zstandard.py": ("data/io/test_compression.py", "the module that decompresses"),
    "data/stream/fingerprint.py": ("data/test_prepare.py", "refuses other data by it"),
    "data/stream/live.py": (
        "data/stream/test_train_stream.py",
        "the data that it reads",
    ),
    "data/table/text_file.py": ("data/table/test_csv_file.py", "the text of CSV files"),
    "analyze.py": ("tasks/classification/test_analysis.py", "run as a program"),
    "annotate.py": ("annotate/test_executors.py", "run as a program"),
    "build.py": ("ready/test_building.py", "run as a program"),
    "entities.py": ("tasks/disambiguation/test_entities_command.py", "run as a program"),
    "evaluate.py": ("tasks/causal_lm/evaluation/test_evaluate.py", "run as a program"),
    "explain.py": ("tasks/causal_lm/explaining/test_explain.py", "run as a program"),
    "generate.py": ("tasks/causal_lm/generation/test_text_mode.py", "run as a program"),
    "predict.py": ("tasks/classification/test_predict.py", "run as a program"),
    "train.py": ("config/test_refusals.py", "run as a program"),
    "training/engines/engine.py": (
        "training/engines/test_plain.py",
        "the interface of the engines",
    ),
    "training/engines/training_engine.py": (
        "training/engines/test_plain.py",
        "the base of the engines",
    ),
    "training/checkpoints/trainer_state.py": (
        "training/checkpoints/test_checkpoint.py",
        "the types of a file that is read there",
    ),
    "training/run_folder/choice.py": (
        "training/run_folder/test_bucket_store.py",
        "chooses by the address",
    ),
    "training/run_folder/run_objects.py": (
        "training/run_folder/test_bucket_store.py",
        "the names that the store gives",
    ),
    "training/run_folder/store.py": (
        "training/run_folder/test_bucket_store.py",
        "the interface of the stores",
    ),
    "training/engines/choice.py": ("training/test_equal_losses.py", "chooses by the launch"),
    "training/engines/fsdp.py": ("training/test_equal_losses.py", "needs a launch"),
    "training/profile.py": ("training/test_equal_losses.py", "needs the steps of a run"),
    "training/saving.py": ("faults/test_saves.py", "needs processes that are killed"),
    "training/engines/zero_partitions.py": ("training/engines/test_deepspeed.py", "needs a launch"),
    "training/step.py": ("training/test_equal_losses.py", "compared with a bare loop"),
    "annotate/__main__.py": ("annotate/test_executors.py", "run as a program"),
    "annotate/config.py": ("config/test_schema.py", KEYS),
    "annotate/html/tags.py": (
        "annotate/html/test_page.py",
        "tags are written while a page is parsed",
    ),
    "quick/__main__.py": ("test_quick.py", "run as a program"),
    "quick/command.py": ("test_quick.py", "the whole command"),
    "quick/config.py": ("config/test_schema.py", KEYS),
    "studies/claim_notes.py": ("studies/test_hosts.py", "sentences of a report on claims"),
    "studies/measuring.py": ("studies/test_known_answers.py", "measures trained runs"),
    "tasks/causal_lm/metrics.py": ("config/test_metric_table.py", METRICS),
    "tasks/classification/report_analysis.py": (
        "tasks/classification/test_analysis.py",
        "the report of an analysis",
    ),
    "tasks/classification/metrics.py": ("config/test_metric_table.py", METRICS),
    "tasks/classification/task_interface.py": (
        "tasks/classification/test_systems.py",
        "a protocol without code",
    ),
    "tasks/disambiguation/detection_evaluation.py": (
        "tasks/disambiguation/test_mention_detection.py",
        "measures the systems of that test",
    ),
    "tasks/disambiguation/metrics.py": ("config/test_metric_table.py", METRICS),
    "tasks/spelling/corrector.py": (
        "tasks/spelling/test_correction.py",
        "the base of both correctors",
    ),
    "tasks/spelling/metrics.py": ("config/test_metric_table.py", METRICS),
    "training/metric_values.py": ("config/test_metric_table.py", METRICS),
}


def has_mirror(module: str, package: Path, tests: Path) -> bool:
    """Whether a module has a test, or a folder of tests, at its path.

    A folder belongs to the package of the same name if there is one.
    """
    path = tests / module
    if path.with_name(f"test_{path.stem}.py").is_file():
        return True
    has_folder = any(path.with_suffix("").glob("test_*.py"))
    return has_folder and not (package / module).with_suffix("").is_dir()


def list_modules(package: Path = PACKAGE) -> list[str]:
    paths = (path for path in package.rglob("*.py") if path.name != "__init__.py")
    return sorted(path.relative_to(package).as_posix() for path in paths)


def list_problems(
    exceptions: Mapping[str, str], package: Path = PACKAGE, tests: Path = TESTS
) -> list[str]:
    """Compares modules and their tests with the exceptions: module -> test."""
    problems = [
        f"{module}: has no test at its path"
        for module in list_modules(package)
        if not has_mirror(module, package, tests) and module not in exceptions
    ]
    for module, test in exceptions.items():
        if not (package / module).is_file():
            problems.append(f"{module}: there is no such module")
        elif has_mirror(module, package, tests):
            problems.append(f"{module}: has a test at its path; remove the exception")
        if not (tests / test).is_file():
            problems.append(f"{module}: there is no test {test}")
    return problems


def test_each_module_has_a_test_at_its_path_or_a_reason() -> None:
    exceptions = {module: test for module, (test, _) in EXCEPTIONS.items()}
    assert list_problems(exceptions) == []


def test_missing_tests_and_outdated_exceptions_are_reported(tmp_path: Path) -> None:
    package, tests = tmp_path / "package", tmp_path / "tests"
    for path in ("__init__.py", "bare.py", "a.py", "a/mirrored.py", "a/many.py", "covered.py"):
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).touch()
    for path in ("a/test_mirrored.py", "a/many/test_parts.py", "test_runs.py"):
        (tests / path).parent.mkdir(parents=True, exist_ok=True)
        (tests / path).touch()

    exceptions = {
        "a/many.py": "test_runs.py",
        "covered.py": "test_gone.py",
        "deleted.py": "test_runs.py",
    }
    assert list_problems(exceptions, package, tests) == [
        "a.py: has no test at its path",
        "bare.py: has no test at its path",
        "a/many.py: has a test at its path; remove the exception",
        "covered.py: there is no test test_gone.py",
        "deleted.py: there is no such module",
    ]
    exceptions = {"a.py": "test_runs.py", "bare.py": "test_runs.py", "covered.py": "test_runs.py"}
    assert list_problems(exceptions, package, tests) == []
