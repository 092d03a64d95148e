"""`evaluate.py` for `task=classification`: the test split again, or another CSV file.

The baselines learn from the training split in the run's database; without it, the model is scored
alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bsmeta.config.checks.problems import nearest
from bsmeta.config.classification import ClassificationConfig
from bsmeta.config.errors import DataError, UserError
from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.data.table.csv_file import BadRows
from bsmeta.data.table.records import read_records
from bsmeta.data.text.tokenizer import padded_tokenizer_of
from bsmeta.evaluation.checkpoints import Location
from bsmeta.evaluation.ranks import Ranks
from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.classification.examples import Chunk, Examples
from bsmeta.tasks.classification.finish import test_results, training_texts, unit_of
from bsmeta.tasks.classification.folding import Folding
from bsmeta.tasks.classification.model import load_model
from bsmeta.tasks.classification.report import report
from bsmeta.tasks.classification.results import Results, results_of
from bsmeta.tasks.classification.scoring import Scored, score
from bsmeta.tasks.classification.store import open_examples
from bsmeta.tasks.reports import begin, report_folder, training_run

logger = logging.getLogger(__name__)


def run(
    config: EvaluateConfig, locations: Sequence[Location], ranks: Ranks, device: torch.device
) -> None:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    context = begin(config, "task=classification", "per_device_eval_batch_size", ranks, device)
    file = config.validation_file
    other = None if file is None else Path(file).name.partition(".")[0]
    for location in locations:
        results = _evaluate(config, location, context)
        if ranks.is_main:
            report(results, [], report_folder(config, location, other), [])


def _evaluate(config: EvaluateConfig, location: Location, context: EvaluationContext) -> Results:
    train = training_run(config, location, ClassificationConfig)
    model = load_model(Path(location.model)).to(context.device)
    tokenizer = padded_tokenizer_of(location.model)
    labels = tuple(model.config.id2label[number] for number in range(model.config.num_labels))
    examples: Examples | None = None
    try:
        examples = open_examples(train.data_config, tokenizer)
    except UserError as error:
        if config.validation_file is None:
            raise
        logger.warning("no baselines, because the training data cannot be read: %s", error)
    batch_size = config.per_device_eval_batch_size or train.data_config.per_device_eval_batch_size
    if config.validation_file is None:
        assert examples is not None
        chunks = examples.read(examples.chunks("test"))
        if not chunks:
            raise DataError(
                f"checkpoint={location.name}: its table has no test split; name another CSV file: "
                "validation_file=FILE"
            )
        scored = score(model, chunks, tokenizer, batch_size, context)
        return test_results(train, examples, scored, _plain_scores(scored, labels))
    other = Path(config.validation_file)
    texts, groups, chunks = read_table(other, train, Folding(
        tokenizer, train.data_config.fold_by, train.data_config.max_length
    ), labels)  # fmt: skip
    training = None if examples is None else training_texts(train, examples)
    seen = 0 if training is None else len({*texts} & {*training.texts})
    if seen:
        logger.warning("%s: %d of its texts are in the training split, too", other, seen)
    scored = score(model, chunks, tokenizer, batch_size, context)
    return results_of(
        scored,
        texts,
        training,
        source=other.name,
        labels=labels,
        groups=(np.array(groups), unit_of(train)),
        model_scores=_plain_scores(scored, labels),
        distribution={other.name: dict(zip(labels, np.bincount(
            scored.labels, minlength=len(labels)
        ).tolist(), strict=True))},
        resamples=train.bootstrap_resamples,
        seed=train.seed,
    )  # fmt: skip


def _plain_scores(scored: Scored, labels: Sequence[str]) -> dict[str, float]:
    """The scores, with a loss without class weights and label smoothing."""
    return scored.scores([1.0] * len(labels), 0.0)


def read_table(
    path: Path, config: ClassificationConfig, folding: Folding, labels: Sequence[str]
) -> tuple[list[str], list[str], list[Chunk]]:
    """Reads another CSV file (or JSON lines) with the columns of the training table.

    Returns:
        The texts, the group of each (its number without `split_by`), and the chunks of all.

    Raises:
        DataError: If the file cannot be read, is empty, or has a label that the model lacks.
        ConfigurationError: If a column is missing.
    """
    data = config.data_config
    wanted = [data.text_column, data.label_column]
    wanted += [] if data.split_by is None else [data.split_by]
    bad = BadRows(path, data.on_bad_row)
    numbers = {label: number for number, label in enumerate(labels)}
    texts, groups, chunks = [], [], []
    records = read_records(
        path, wanted, bad, separator=data.csv_separator, encoding=data.csv_encoding
    )
    for row, record in enumerate(records, start=1):
        label = record[data.label_column].strip()
        if label not in numbers:
            raise DataError(
                f"{path}: row {row:,} has the label {label!r}, which the model does not know"
                f"{nearest(label, labels)}; its labels are {', '.join(labels)}"
            )
        text = record[data.text_column]
        folds = folding.fold([text])[0]
        if not folds:
            continue
        texts.append(text)
        groups.append(str(row) if data.split_by is None else record[data.split_by].strip())
        chunks += [
            Chunk(fold.ids, numbers[label], row, number, fold.text)
            for number, fold in enumerate(folds)
        ]
    bad.close()
    if not texts:
        raise DataError(f"{path} has no texts")
    return texts, groups, chunks
