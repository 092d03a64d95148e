"""Scores a trained model and the baselines on a split: after the last step, and by `evaluate.py`.

`evaluate.py` scores the test split again, or another file of sentences. Bands follow from the
training data of the run, which must still be there. Another model is scored beside with
`+overrides.compare_with=RUN`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bsmeta.config.tools import EvaluateConfig, saved_config
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.checkpoints import check_keys, report_folder, training_run
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.data import Data, Sentences
from bsmeta.tasks.disambiguation.model import BiEncoder, load_model
from bsmeta.tasks.disambiguation.report import mention_records, report
from bsmeta.tasks.disambiguation.results import BUILT_IN, Scored, results_of
from bsmeta.tasks.disambiguation.scoring import Evaluator
from bsmeta.training.locations import Location, locate
from bsmeta.training.task import EvaluationContext

log = logging.getLogger(__name__)


def run(config: EvaluateConfig, locations: Sequence[Location], context: EvaluationContext) -> None:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    key = "per_device_eval_batch_size"
    check_keys(config, "task=disambiguation", key)
    for location in locations:
        train = training_run(config, location, DisambiguationConfig)
        train.tokenizer_name = location.model
        if config.per_device_eval_batch_size is not None:
            train.data_config.per_device_eval_batch_size = config.per_device_eval_batch_size
        data = Data(train)
        if config.validation_file is not None:
            sentences: Sentences | None = data.other(Path(config.validation_file))
        else:
            sentences = last_split(data)
        if sentences is None:
            raise DataError(
                f"checkpoint={location.name}: its run has neither a dev_file nor a test_file; name "
                "sentences: validation_file=FILE"
            )
        model = load_model(Path(location.model)).to(context.device)
        folder = Path()  # only rank 0 writes
        if context.is_main:
            has_other_data = config.validation_file is not None
            folder = report_folder(config, location, has_other_data=has_other_data)
        score_and_report(train, data, model, sentences, context, location.name, folder)


def last_split(data: Data) -> Sentences | None:
    """The split of the last evaluation: test, or without one dev."""
    return data.split("test") or data.split("dev")


def score_and_report(
    config: DisambiguationConfig,
    data: Data,
    model: BiEncoder,
    sentences: Sentences,
    context: EvaluationContext,
    checkpoint: str,
    folder: Path,
) -> Scored:
    """Scores sentences with a trained model and writes the report (rank 0).

    Every process calls it and gets the same.

    Args:
        config: The run.
        data: Its data.
        model: The model.
        sentences: The sentences.
        context: The processes.
        checkpoint: What the report calls the model.
        folder: Where the report goes.
    """
    missing = [name for name in config.eval_slices or [] if name not in
               {*BUILT_IN, *sentences.slices}]  # fmt: skip
    if missing and context.rank == 0:
        log.warning("%s: its lines define no slice %s", sentences.path, ", ".join(missing))
    scored = Evaluator(config, data).score(model, sentences.gold(), data.frozen, context)
    others = {}
    if config.compare_with is not None:
        others[label_of(config.compare_with)] = _other_model(
            config, data, sentences, scored, context
        ).is_right
    if context.rank == 0:
        results = results_of(
            scored,
            others,
            source=sentences.path.name,
            chosen=config.eval_slices,
            resamples=config.bootstrap_resamples,
            seed=config.seed,
        )
        facts = {
            "checkpoint": checkpoint,
            "intervals": f"bootstrap over documents, {config.bootstrap_resamples:,} resamples, "
            f"seed {config.seed}",
        }
        report(results, mention_records(scored, data.table, others), folder, facts)
    return scored


def _other_model(
    config: DisambiguationConfig,
    data: Data,
    sentences: Sentences,
    scored: Scored,
    context: EvaluationContext,
) -> Scored:
    """Scores the same mentions with the model of `compare_with`, its texts and its encoding.

    Raises:
        DataError: If its tokens are such that its rows cannot hold the same mentions.
    """
    location, other_data = compared_data(config)
    model = load_model(Path(location.model)).to(context.device)
    rows = other_data.other(sentences.path).gold()
    evaluator = Evaluator(other_data.config, other_data, data.counts)
    other = evaluator.score(model, rows, other_data.frozen, context)
    for name in ("sentences", "positions"):
        if not np.array_equal(getattr(other.answers, name), getattr(scored.answers, name)):
            raise DataError(
                f"compare_with={config.compare_with}: the rows of its model do not hold the same "
                f"mentions of {sentences.path}; raise data_config.max_words, or leave out the "
                "mentions that prep reports"
            )
    return other


def compared_data(config: DisambiguationConfig) -> tuple[Location, Data]:
    """The model of `compare_with`, and the entities of this run as that model reads them.

    Raises:
        ConfigurationError: If it is no model of this task.
    """
    location = locate(str(config.compare_with))
    where = f"compare_with={config.compare_with}"
    if location.config is None:
        raise ConfigurationError(f"{where}: there is no config.yaml beside the model")
    other = saved_config(location.config, {"disambiguation": DisambiguationConfig}, {})
    assert isinstance(other, DisambiguationConfig)
    own = config.data_config
    other.data_config = replace(
        other.data_config, train_file=own.train_file, entity_table=own.entity_table,
        prep_dir=own.prep_dir, max_mentions=own.max_mentions, max_words=own.max_words,
    )  # fmt: skip
    other.tokenizer_name = location.model
    return location, Data(other)


def label_of(folder: str) -> str:
    """The other model's name in the report: the name of its run folder."""
    return Path(folder).resolve().name.replace("_", " ")
