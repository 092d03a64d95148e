"""Builds ready-made models: writes their data, trains them, and keeps what a prediction needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bsmeta.api.programs import run_program
from bsmeta.api.runs import open_run
from bsmeta.config.programs.building import CLASSIFICATION, SPELLING, SPELLING_WORDS, BuildConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import build_atomically, delete_path, hold_write_lock, write_json
from bsmeta.core.parsing import parse_json
from bsmeta.core.version import __version__
from bsmeta.ready.models import FORMAT, check_build, list_builds, locate_build
from bsmeta.ready.paragraphs import locate_shard, write_paragraphs
from bsmeta.ready.training import TrainingJob, train_jobs
from bsmeta.report.page import HTML_NAME

MANIFEST = "build.json"
"""The file in a build's folder with the settings of the build."""

_TEST_LINES = 500  # of the held-out pages
_TEST_GROUP = "webdocs"
_SPELLING_EPOCHS = 2
_VALIDATION_SHARE = 0.1  # of the texts of a trial with `max_texts`

_DATA = "data"  # subfolder of a build while its models are trained

_RECORDS = ("*/config.yaml", "*/evaluation/*.html", "*/evaluation/*.md")
"""Files of the runs that name folders."""

_KEPT = ("config.yaml", "evaluation", "metrics.jsonl", "model", "status.json")
"""Files and folders of a run that stay; checkpoints, logs and trackers' files are deleted."""


def build_models(config: BuildConfig) -> Path:
    """Builds the models unless they are built already; returns their folder.

    Two calls at once build them only once: the second waits.

    Raises:
        UserError: If no build is named, or an earlier one has other settings or is damaged.
        RuntimeError: If a training run failed.
    """
    if config.target is None:
        raise ConfigurationError(
            f"target is not set; expected {' or '.join(_BUILDERS)}: bsmeta build {SPELLING}",
            ["target"],
        )

    folder = locate_build(config.target)
    lock = folder.with_name(f".{config.target}.lock")
    with hold_write_lock(folder, f"the build {config.target}", lock):
        if folder.exists():
            check_build(config.target)
            _check_settings(config, folder)
            print(f"built already: {folder}", file=sys.stderr)
            return folder

        with build_atomically(folder) as unfinished:
            (unfinished / _DATA).mkdir(parents=True)
            _BUILDERS[config.target](unfinished, config.max_texts)
            delete_path(unfinished / _DATA)
            settings = {"bsmeta": __version__, "max_texts": config.max_texts}
            write_json(unfinished / MANIFEST, settings)
            _rename_in_records(unfinished, folder)

        for version, build in list_builds(config.target).items():
            if version < FORMAT:
                delete_path(build)
    return folder


def list_results(folder: Path) -> list[str]:
    """Lists the result of each model of a build on held-out texts, and the path of its report."""
    lines = []
    for run_folder in sorted(path.parent for path in folder.glob("*/config.yaml")):
        report = open_run(run_folder).evaluation()
        lines.append(f"{run_folder.name}: {report.answers[0]} ({report.folder / HTML_NAME})")
    return lines


def _check_settings(config: BuildConfig, folder: Path) -> None:
    """Refuses a build that exists with other settings than those asked for."""
    file = folder / MANIFEST
    try:
        built_max_texts = parse_json(file.read_text(encoding="utf-8"))["max_texts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} cannot be read ({error}); expected the settings of the build: delete {folder} "
            "to build it again"
        ) from error

    if built_max_texts != config.max_texts:
        raise ConfigurationError(
            f"max_texts={_format_null(config.max_texts)}: {folder} was built with max_texts="
            f"{_format_null(built_max_texts)}; delete it to build it again",
            ["max_texts"],
        )


def _format_null(value: int | None) -> str:
    """Formats a value as on the command line."""
    return "null" if value is None else str(value)


def _build_spelling(folder: Path, max_texts: int | None) -> None:
    """Trains a detector and a corrector, and tests both on the held-out pages."""
    data = folder / _DATA
    lines = _TEST_LINES if max_texts is None else min(max_texts, _TEST_LINES)
    test_set = [str(locate_shard(0)), "--out", str(data / "tests"), "--group", _TEST_GROUP]
    run_program("spelling-tests", arguments=[*test_set, "--lines", str(lines)], show_output=False)

    overrides: dict[str, Any] = {
        "num_train_epochs": _SPELLING_EPOCHS,
        "store_dir": str(data / "store"),
        "benchmarks": str(data / "tests"),
        "model_card.command": _format_build_command(SPELLING, max_texts),
    }
    if max_texts is not None:
        overrides |= {"dataset_limits": [max_texts], "val_splits": [_VALIDATION_SHARE]}
    jobs = [
        _make_job("detector", "demo_spelling_words", folder / SPELLING_WORDS, overrides),
        _make_job("corrector", "demo_spelling", folder / SPELLING, overrides),
    ]
    _train(SPELLING, jobs)


def _build_classification(folder: Path, max_texts: int | None) -> None:
    """Trains a classifier of paragraphs by project, and tests it on the held-out pages."""
    table = folder / _DATA / "paragraphs.jsonl"
    write_paragraphs(table, max_texts)
    run_folder = folder / CLASSIFICATION
    overrides = {
        "data_config.csv": str(table),
        "results_dir": str(folder / _DATA),
        "model_card.command": _format_build_command(CLASSIFICATION, max_texts),
    }
    job = _make_job("classifier", "build_classification", run_folder, overrides)
    _train(CLASSIFICATION, [job])


def _rename_in_records(unfinished: Path, folder: Path) -> None:
    """Replaces the path of an unfinished build by its later one in configurations and reports."""
    for pattern in _RECORDS:
        for path in unfinished.glob(pattern):
            content = path.read_bytes()
            path.write_bytes(content.replace(bytes(unfinished), bytes(folder)))


def _format_build_command(target: str, max_texts: int | None) -> str:
    """Formats the command of a build, for model cards: its runs name folders that are deleted."""
    trial = "" if max_texts is None else f" max_texts={max_texts}"
    return f"bsmeta build {target}{trial}"


def _make_job(
    name: str, config_name: str, run_folder: Path, overrides: Mapping[str, Any]
) -> TrainingJob:
    """Makes the job of a run."""
    log = run_folder.parent / _DATA / f"{run_folder.name}.log"
    return TrainingJob(name, config_name, log, {**overrides, "out_dir": str(run_folder)})


def _train(title: str, jobs: list[TrainingJob]) -> None:
    """Trains the models of a build, and deletes all that their use does not need."""
    train_jobs(f"building {title}", jobs)
    for job in jobs:
        for path in Path(job.overrides["out_dir"]).iterdir():
            if path.name not in _KEPT:
                delete_path(path)


_BUILDERS: dict[str, Callable[[Path, int | None], None]] = {
    SPELLING: _build_spelling,
    CLASSIFICATION: _build_classification,
}
