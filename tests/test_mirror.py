"""Tests mirror the source: each module has its tests at its path, or a reason not to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "bsmeta"

KEYS = "declares keys with their defaults and bounds, which are all tried"

# Module -> the test in which it is covered, and why there.
EXCEPTIONS = {
    "__main__.py": ("test_cli.py", "calls `cli.main`"),
    "config/causal_lm.py": ("config/test_schema.py", KEYS),
    "config/composition.py": ("config/test_interpolation.py", "needs what Hydra has composed"),
    "config/copying.py": ("config/test_schema.py", KEYS),
    "config/downloading.py": ("config/test_schema.py", KEYS),
    "config/entity_table.py": ("config/test_schema.py", KEYS),
    "config/evaluating.py": ("config/test_schema.py", KEYS),
    "config/explaining.py": ("config/test_schema.py", KEYS),
    "config/filling.py": ("config/test_broken.py", "command lines with their whole messages"),
    "config/generating.py": ("config/test_schema.py", KEYS),
    "config/hydra_errors.py": ("config/test_broken.py", "command lines with their whole messages"),
    "config/hydra_options.py": ("config/test_command_line.py", "the parser of command lines"),
    "config/misfits.py": ("config/test_broken.py", "command lines with their whole messages"),
    "config/precision.py": ("config/test_schema.py", "the choices of a key, which are all tried"),
    "config/predicting.py": ("config/test_schema.py", KEYS),
    "core/loopback.py": ("launching/test_listening.py", "needs processes that listen"),
    "core/rendezvous.py": ("launching/test_machines.py", "needs several machines"),
    "core/version.py": ("core/test_versions.py", "the number that `--version` prints"),
    "data/io/archives.py": ("faults/test_archives.py", "row 17 of the fault matrix"),
    "data/io/shard_reader.py": ("data/io/test_lines.py", "the interface of the readers"),
    "data/stream/fingerprint.py": ("data/test_prepare.py", "refuses other data by it"),
    "data/stream/live.py": (
        "data/stream/test_train_stream.py",
        "the data that it reads",
    ),
    "data/stream/windows.py": ("data/test_bad_documents.py", "tested through the stream"),
    "data/table/text_file.py": ("data/table/test_csv_file.py", "the text of CSV files"),
    "annotate.py": ("annotate/test_executors.py", "run as a program"),
    "entities.py": ("tasks/disambiguation/test_entities_command.py", "run as a program"),
    "evaluate.py": ("tasks/causal_lm/evaluation/test_evaluate.py", "run as a program"),
    "explain.py": ("tasks/causal_lm/explaining/test_explain.py", "run as a program"),
    "generate.py": ("tasks/causal_lm/generation/test_generate.py", "run as a program"),
    "predict.py": ("tasks/classification/test_predict.py", "run as a program"),
    "train.py": ("config/test_refusals.py", "run as a program"),
    "training/engine.py": ("training/test_engine_plain.py", "the interface of the engines"),
    "training/engine_deepspeed.py": ("training/test_equal_losses.py", "needs a launch"),
    "training/engines.py": ("training/test_equal_losses.py", "chooses by the launch"),
    "training/profile.py": ("training/test_equal_losses.py", "needs the steps of a run"),
    "training/saving.py": ("faults/test_saves.py", "needs processes that are killed"),
    "training/step.py": ("training/test_equal_losses.py", "compared with a bare loop"),
}

# Module -> the test that covers it until its tests have moved to its path.
NOT_YET: dict[str, str] = {
    "annotate/__main__.py": "annotate/test_pipeline.py",
    "annotate/about_page.py": "annotate/test_annotators.py",
    "annotate/annotator.py": "annotate/test_pipeline.py",
    "annotate/command.py": "annotate/test_pipeline.py",
    "annotate/config.py": "annotate/test_pipeline.py",
    "annotate/plan.py": "annotate/test_trained.py",
    "annotate/pool.py": "annotate/test_links.py",
    "annotate/shard.py": "annotate/test_pipeline.py",
    "annotate/spans.py": "annotate/test_annotators.py",
    "annotate/tags.py": "annotate/test_published.py",
    "report/drawing.py": "report/test_figures.py",
    "report/page.py": "report/test_pages.py",
    "studies/claim_notes.py": "studies/test_claims.py",
    "studies/claim_report.py": "studies/test_task_claims.py",
    "studies/config.py": "studies/test_declaration.py",
    "studies/measuring.py": "studies/test_known_answers.py",
    "studies/report.py": "studies/test_results.py",
    "studies/runs.py": "studies/test_runner.py",
    "studies/units.py": "studies/test_statistics.py",
    "tasks/causal_lm/arms.py": "tasks/causal_lm/evaluation/test_arms.py",
    "tasks/causal_lm/attribute_mode.py": "tasks/causal_lm/generation/test_attribution.py",
    "tasks/causal_lm/checkpoints.py": "tasks/causal_lm/evaluation/test_checkpoints.py",
    "tasks/causal_lm/checks.py": "config/test_speed_checks.py",
    "tasks/causal_lm/decoding.py": "tasks/causal_lm/generation/test_decoding.py",
    "tasks/causal_lm/documents.py": "tasks/causal_lm/evaluation/test_documents.py",
    "tasks/causal_lm/evaluate.py": "tasks/causal_lm/evaluation/test_evaluate.py",
    "tasks/causal_lm/explaining_views.py": "tasks/causal_lm/explaining/test_views.py",
    "tasks/causal_lm/headline.py": "tasks/causal_lm/evaluation/test_headline.py",
    "tasks/causal_lm/paired.py": "tasks/causal_lm/evaluation/test_paired.py",
    "tasks/causal_lm/report.py": "tasks/causal_lm/evaluation/test_headline.py",
    "tasks/causal_lm/results.py": "tasks/causal_lm/evaluation/test_statistics.py",
    "tasks/causal_lm/scoring.py": "tasks/causal_lm/evaluation/test_scoring.py",
    "tasks/causal_lm/tables.py": "tasks/causal_lm/evaluation/test_hosts.py",
    "tasks/causal_lm/task.py": "tasks/causal_lm/test_causal_lm.py",
    "tasks/causal_lm/text_mode.py": "tasks/causal_lm/generation/test_generate.py",
    "tasks/checkpoints.py": "tasks/causal_lm/evaluation/test_checkpoints.py",
    "tasks/classification/classifier.py": "tasks/classification/test_systems.py",
    "tasks/classification/config.py": "tasks/classification/test_systems.py",
    "tasks/classification/model.py": "tasks/classification/test_systems.py",
    "tasks/classification/report.py": "tasks/classification/test_evaluate.py",
    "tasks/classification/results.py": "tasks/classification/test_scoring.py",
    "tasks/classification/task.py": "tasks/classification/test_training.py",
    "tasks/classification/task_interface.py": "tasks/classification/test_systems.py",
    "tasks/disambiguation/config.py": "tasks/disambiguation/test_task.py",
    "tasks/disambiguation/data.py": "tasks/disambiguation/test_embeddings.py",
    "tasks/disambiguation/profiles.py": "tasks/disambiguation/test_entities.py",
    "tasks/disambiguation/report.py": "tasks/disambiguation/test_results.py",
    "tasks/disambiguation/string_table.py": "tasks/disambiguation/test_entities.py",
    "tasks/spelling/config.py": "tasks/spelling/test_checks.py",
    "tasks/spelling/corrections.py": "tasks/spelling/test_text.py",
    "tasks/spelling/corrector.py": "tasks/spelling/test_correction.py",
    "tasks/spelling/evaluate.py": "tasks/spelling/test_results.py",
    "tasks/spelling/inputs.py": "tasks/spelling/test_encoder_inputs.py",
    "tasks/spelling/lexicon.py": "tasks/spelling/test_candidates.py",
    "tasks/spelling/task.py": "tasks/spelling/test_training.py",
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
    assert EXCEPTIONS.keys().isdisjoint(NOT_YET)
    exceptions = {module: test for module, (test, _) in EXCEPTIONS.items()} | NOT_YET
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
