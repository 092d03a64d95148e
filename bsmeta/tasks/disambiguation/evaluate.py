"""A trained model on a split, beside the baselines: after the last step, and by `evaluate.py`.

`evaluate.py` scores the test split again, or another file of sentences. Bands follow from the
training data of the run, which must still be there. Another model is scored beside with
`+overrides.compare_with=RUN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bsmeta.config.disambiguation import DisambiguationConfig
from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.config.evaluation import EvaluateConfig, saved_config
from bsmeta.evaluation.checkpoints import Location, locate
from bsmeta.evaluation.ranks import Ranks
from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.disambiguation.data import Data
from bsmeta.tasks.disambiguation.model import BiEncoder, load_model
from bsmeta.tasks.disambiguation.report import report
from bsmeta.tasks.disambiguation.results import Scored, results_of
from bsmeta.tasks.disambiguation.scoring import Evaluator
from bsmeta.tasks.reports import begin, report_folder, training_run


def run(
    config: EvaluateConfig, locations: Sequence[Location], ranks: Ranks, device: torch.device
) -> None:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    key = "per_device_eval_batch_size"
    context = begin(config, "task=disambiguation", key, ranks, device)
    for location in locations:
        train = training_run(config, location, DisambiguationConfig)
        train.tokenizer_name = location.model
        own, other = train.data_config, None
        if config.per_device_eval_batch_size is not None:
            own.per_device_eval_batch_size = config.per_device_eval_batch_size
        split = "dev" if own.test_file is None else "test"
        if config.validation_file is not None:
            own.test_file = config.validation_file
            other = Path(config.validation_file).name.partition(".")[0]
            split = f"other-{other}"
        model = load_model(Path(location.model)).to(device)
        folder = report_folder(config, location, other)
        if score_and_report(train, Data(train), model, split, context, folder) is None:
            raise DataError(
                f"checkpoint={location.name}: its run has neither a dev_file nor a test_file; name "
                "sentences: validation_file=FILE"
            )


def score_and_report(
    config: DisambiguationConfig,
    data: Data,
    model: BiEncoder,
    split: str,
    context: EvaluationContext,
    folder: Path,
) -> Scored | None:
    """Scores a split with a trained model and writes the report (rank 0).

    Every process calls it and gets the same; None if there is no such split.

    Args:
        config: The run.
        data: Its data.
        model: The model.
        split: `dev` or `test`; anything else names another file, which is then `test_file`.
        context: The processes.
        folder: Where the report goes.
    """
    file = config.data_config.dev_file if split == "dev" else config.data_config.test_file
    sentences = data.split(split, file)
    if sentences is None:
        return None
    rows = sentences.gold()
    if not rows:
        raise DataError(f"{file} has no gold mention to score")
    scored = Evaluator(config, data).score(model, rows, data.frozen, context)
    others = {}
    if config.compare_with is not None:
        others[label_of(config.compare_with)] = other_model(config, split, context).is_right
    if context.rank == 0:
        results = results_of(
            scored,
            others,
            source=Path(str(file)).name,
            chosen=config.eval_slices,
            resamples=config.bootstrap_resamples,
            seed=config.seed,
        )
        report(results, folder)
    return scored


def other_model(config: DisambiguationConfig, split: str, context: EvaluationContext) -> Scored:
    """Scores the same mentions with the model of `compare_with`, its texts and its encoding.

    Raises:
        ConfigurationError: If it is no model of this task, or disambiguates other entities.
    """
    location = locate(str(config.compare_with))
    where = f"compare_with={config.compare_with}"
    if location.config is None:
        raise ConfigurationError(f"{where}: there is no config.yaml beside the model")
    other = saved_config(location.config, {"disambiguation": DisambiguationConfig}, {})
    assert isinstance(other, DisambiguationConfig)
    own = config.data_config
    other.data_config = replace(
        other.data_config, train_file=own.train_file, dev_file=own.dev_file,
        test_file=own.test_file, entity_table=own.entity_table, prep_dir=own.prep_dir,
        max_mentions=own.max_mentions, max_words=own.max_words,
    )  # fmt: skip
    other.tokenizer_name = location.model
    data = Data(other)
    model = load_model(Path(location.model)).to(context.device)
    file = own.dev_file if split == "dev" else own.test_file
    sentences = data.split(split, file)
    assert sentences is not None  # this run has it
    return Evaluator(other, data).score(model, sentences.gold(), data.frozen, context)


def label_of(folder: str) -> str:
    """What the report calls the other model: the name of its run folder."""
    return Path(folder).resolve().name.replace("_", " ")
