"""`evaluate.py` for the spelling tasks: the test sets of a folder, beside the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bsmeta.config.checks.problems import refuse_out_of_bounds
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.evaluation import EvaluateConfig, refuse_unused, saved_config
from bsmeta.config.spelling import SecConfig, SedSequenceConfig, SedWordsConfig, SpellingConfig
from bsmeta.evaluation.checkpoints import Location
from bsmeta.evaluation.ranks import Ranks
from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.spelling.benchmarks import TestResult, judge_test_sets, read_test_sets
from bsmeta.tasks.spelling.correction import Correction
from bsmeta.tasks.spelling.detection import Detection, SequenceDetection, WordDetection
from bsmeta.tasks.spelling.report import print_report, write_report

SCHEMAS: dict[str, type] = {
    "sed_words": SedWordsConfig,
    "sed_sequence": SedSequenceConfig,
    "sec": SecConfig,
}

USED = (
    "checkpoint", "training_config", "overrides", "out_dir", "validation_file", "max_documents",
    "bootstrap_resamples", "seed",
)  # fmt: skip
"""The keys of `EvaluateConfig` that have a meaning for these tasks."""


def run(
    config: EvaluateConfig, locations: Sequence[Location], ranks: Ranks, device: torch.device
) -> None:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    `validation_file` names the folder of the test sets; by default that of the training run.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    refuse_out_of_bounds(config)
    refuse_unused(config, USED, "a spelling task")
    context = EvaluationContext(ranks.rank, ranks.world_size, device, ranks.gather)
    for location in locations:
        task, results = _evaluate(config, location, context)
        if ranks.is_main:
            print_report(task, results, write_report(task, results, _folder(config, location)))


def _evaluate(
    config: EvaluateConfig, location: Location, context: EvaluationContext
) -> tuple[str, list[TestResult]]:
    file = location.config if config.training_config is None else Path(config.training_config)
    assert file is not None  # the task is known from it
    train = saved_config(file, SCHEMAS, config.overrides)
    assert isinstance(train, SpellingConfig)
    folder = config.validation_file or train.benchmarks
    if folder is None:
        raise ConfigurationError(
            f"checkpoint={location.name}: its run has no test sets; name a folder of "
            "TASK/GROUP/SPLIT/{corrupt,correct}.txt: validation_file=FOLDER"
        )
    test_sets = read_test_sets(Path(folder), train.task, config.max_documents)
    make = {"sed_words": WordDetection, "sed_sequence": SequenceDetection, "sec": Correction}
    task: Detection | Correction = make[train.task](train)
    model = task.load(Path(location.model)).to(context.device)

    def judge(lines: Sequence[str]) -> list[Any]:
        return task.judge(model, lines, context)

    return train.task, judge_test_sets(
        train.task, test_sets, judge, context,
        word_list=train.word_list, resamples=config.bootstrap_resamples, seed=config.seed,
    )  # fmt: skip


def _folder(config: EvaluateConfig, location: Location) -> Path:
    """`out_dir`; by default in the run folder, or next to the model.

    Another checkpoint than the run's model, and another folder of test sets, have their names in
    that of the report.
    """
    if config.out_dir is not None:
        return Path(config.out_dir)
    parts = ["evaluation"]
    folder = Path(location.name)
    if location.run_folder is not None and folder.resolve() != location.run_folder:
        parts.append(folder.resolve().name)
        folder = location.run_folder
    if config.validation_file is not None:
        parts.append(Path(config.validation_file).name)
    return folder / "-".join(parts)
