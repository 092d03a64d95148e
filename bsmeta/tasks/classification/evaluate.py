"""The test set: after the last step, and again (or another CSV file) by `evaluate.py`.

After the last step, beside the CSV file or in `results_dir`: `NAME_testset_predictions.csv`,
`NAME_train_test_stats.json`, `NAME_trained_model.sav`. In `evaluation/` of the run folder: the
report. The baselines learn from the training split in the run's database; where `evaluate.py` does
not find it, the model is scored alone.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.core.errors import ConfigurationError, DataError, UserError, nearest
from bsmeta.core.files import replacing
from bsmeta.data.table.csv_file import BadRows
from bsmeta.data.table.records import JSON_LINES, flattened, read_records
from bsmeta.data.table.text_file import AUTO
from bsmeta.data.text.tokenizer import padded_tokenizer_of
from bsmeta.tasks.checkpoints import Location, check_keys, report_folder, training_run
from bsmeta.tasks.classification.classifier import Classifier
from bsmeta.tasks.classification.config import ClassificationConfig, ClassificationDataConfig
from bsmeta.tasks.classification.examples import Chunk, Examples, Folding
from bsmeta.tasks.classification.model import labels_of, listed, load_model
from bsmeta.tasks.classification.predictions import Scored, predictions, score
from bsmeta.tasks.classification.report import report
from bsmeta.tasks.classification.results import (
    Choice,
    Results,
    results_of,
    test_results,
    training_texts,
    unit_of,
)
from bsmeta.tasks.classification.splits import text_key
from bsmeta.tasks.classification.store import open_examples
from bsmeta.training.run_folder import steps_and_evaluations
from bsmeta.training.task import EvaluationContext, FinishContext

logger = logging.getLogger(__name__)

PREDICTIONS, STATS, MODEL = "testset_predictions.csv", "train_test_stats.json", "trained_model.sav"


def run(config: EvaluateConfig, locations: Sequence[Location], context: EvaluationContext) -> None:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    check_keys(config, "task=classification", "per_device_eval_batch_size")
    other = config.validation_file is not None
    for location in locations:
        results = _evaluate(config, location, context)
        if context.is_main:
            report(
                results, [], report_folder(config, location, has_other_data=other),
                {"checkpoint": location.name},
            )  # fmt: skip


def _evaluate(config: EvaluateConfig, location: Location, context: EvaluationContext) -> Results:
    train = training_run(config, location, ClassificationConfig)
    model = load_model(Path(location.model)).to(context.device)
    tokenizer = padded_tokenizer_of(location.model)
    labels = labels_of(model)
    examples: Examples | None = None
    training_data = _training_data(config, location, train)
    try:
        examples = open_examples(training_data, tokenizer)
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
        scored = score(model, chunks, len(labels), tokenizer, batch_size, context)
        return test_results(train, examples, scored, _plain_scores(scored, labels), {}, None)
    other = Path(config.validation_file)
    data = train.data_config
    if other.name.endswith(JSON_LINES) and data.csv_encoding == training_data.csv_encoding:
        data = dataclasses.replace(data, csv_encoding=AUTO)  # the training table's says nothing
    folding = Folding(tokenizer, data.fold_by, data.max_length)
    own = dataclasses.replace(train, data_config=data)
    texts, groups, chunks, notes = read_table(other, own, folding, labels)
    training = None if examples is None else training_texts(train, examples)
    known = set() if training is None else {text_key(text) for text in training.texts}
    seen = sum(text_key(text) in known for text in texts)
    if seen:
        notes.append(f"{seen:,} of {len(texts):,} texts are in the training split, too")
        logger.warning("%s: %s", other, notes[-1])
    scored = score(model, chunks, len(labels), tokenizer, batch_size, context)
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
        notes=notes,
        resamples=train.bootstrap_resamples,
        seed=train.seed,
    )  # fmt: skip


def _training_data(
    config: EvaluateConfig, location: Location, train: ClassificationConfig
) -> ClassificationDataConfig:
    """How the run's own table was read: overrides say how `validation_file` is read, if it is set.

    Those of the places of the table apply in any case, since it may have been moved.
    """
    if config.validation_file is None:
        return train.data_config
    saved = training_run(dataclasses.replace(config, overrides={}), location, ClassificationConfig)
    return dataclasses.replace(
        saved.data_config, csv=train.data_config.csv, database=train.data_config.database
    )


def _plain_scores(scored: Scored, labels: Sequence[str]) -> dict[str, float]:
    """The scores, with a loss without class weights."""
    return scored.scores([1.0] * len(labels))


def read_table(
    path: Path, config: ClassificationConfig, folding: Folding, labels: Sequence[str]
) -> tuple[list[str], list[str], list[Chunk], list[str]]:
    """Reads another CSV file (or JSON lines) with the columns of the training table.

    Returns:
        The texts, the group of each (a hash of the text without `split_by`), the chunks of all, and
        notes on the rows that were left out.

    Raises:
        DataError: If the file cannot be read, is empty, or has a label that the model lacks.
        ConfigurationError: If a column is missing.
    """
    data = config.data_config
    wanted = [data.text_column, data.label_column]
    wanted += [] if data.split_by is None else [data.split_by]
    bad = BadRows(path, data.on_bad_row, "+overrides.data_config.on_bad_row")
    numbers = {label: number for number, label in enumerate(labels)}
    texts, groups, chunks, without_tokens = [], [], [], 0
    records = read_records(
        path, wanted, bad, separator=data.csv_separator, encoding=data.csv_encoding
    )
    for good, record in enumerate(records, start=1):
        row = good + bad.count
        label = record[data.label_column].strip()
        if label not in numbers:
            raise DataError(
                f"{path}: row {row:,} has the label {label!r}, which the model does not know"
                f"{nearest(label, labels)}; its labels are {listed(labels)}"
            )
        text = record[data.text_column]
        folds = folding.fold([text])[0]
        if not folds:
            without_tokens += 1
            continue
        texts.append(text)
        groups.append(
            str(text_key(text)) if data.split_by is None else record[data.split_by].strip()
        )
        chunks += [
            Chunk(fold.ids, numbers[label], row, number, fold.text)
            for number, fold in enumerate(folds)
        ]
    bad.close()
    if not texts:
        raise DataError(f"{path} has no texts")
    notes = bad.notes()
    if without_tokens:
        rows = "1 row was" if without_tokens == 1 else f"{without_tokens:,} rows were"
        notes.append(f"{rows} left out: no token in column {data.text_column!r}")
        logger.warning("%s: %s", path, notes[-1])
    return texts, groups, chunks, notes


@dataclass(frozen=True)
class Competition:
    """The systems of `method=auto`.

    Attributes:
        systems: The models by method.
        choice: How one of them was chosen.
        notes: Which systems are missing, and why.
    """

    systems: dict[str, nn.Module]
    choice: Choice
    notes: list[str]


def finish(
    config: ClassificationConfig,
    model: nn.Module,
    competition: Competition | None,
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    weights: Sequence[float],
    steps_per_epoch: int,
    context: FinishContext,
) -> dict[str, float]:
    """Scores the test split and writes the results (rank 0).

    The model and its predictions come first: they are kept if the baselines or the report fail.
    Every rank calls it and gets the same scores; {} if the split is empty.
    """
    chunks = examples.read(examples.chunks("test"))
    scored, scores = None, {}
    others: dict[str, np.ndarray] = {}

    def scored_by(system: nn.Module) -> Scored:
        return score(
            system, chunks, len(examples.labels), tokenizer,
            config.data_config.per_device_eval_batch_size, context, config.label_smoothing,
        )  # fmt: skip

    if chunks:
        scored = scored_by(model)
        scores = scored.scores(weights)
        if competition is not None:
            others = {
                name: scored_by(system).predicted
                for name, system in competition.systems.items()
                if system is not model
            }
    if context.rank != 0:
        return scores
    epochs = epochs_of(context.folder / "metrics.jsonl", steps_per_epoch)
    files = [result_file(config, name) for name in (STATS, MODEL)]
    save_model(files[1], model, config)
    write_stats(files[0], {"epochs": epochs, "test": {"scores": scores} if scores else None})
    if scored is not None:
        files.append(result_file(config, PREDICTIONS))
        write_predictions(files[-1], scored, examples.labels)
    results = None
    if scored is not None:
        choice = None if competition is None else competition.choice
        results = test_results(config, examples, scored, scores, others, choice)
        results.notes.extend([] if competition is None else competition.notes)
    stats = {"epochs": epochs, "test": None if results is None else results.as_dict()}
    write_stats(files[0], stats)
    examples.save_results(str(context.folder.resolve()), stats)
    if results is not None:
        facts = {"checkpoint": str(context.exported)}
        report(results, epochs, context.folder / "evaluation", facts, files)
    return scores


def write_stats(file: Path, stats: Mapping[str, Any]) -> None:
    """Writes losses and scores as JSON."""
    text = json.dumps(stats, indent=1, ensure_ascii=False) + "\n"
    replace(file, lambda part: part.write_text(text, encoding="utf-8"))


def result_file(config: ClassificationConfig, ending: str) -> Path:
    """A result file: `leanings_ENDING` for `leanings.csv`, `leanings.csv.gz` or `leanings.sqlite`.

    It is in `results_dir`; by default in the folder of the CSV file.
    """
    table = Path(str(config.data_config.csv))
    name = table.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".sqlite")
    folder = table.parent if config.results_dir is None else Path(config.results_dir)
    return folder / f"{name}_{ending}"


def epochs_of(metrics: Path, steps_per_epoch: int) -> list[dict[str, float]]:
    """Losses and accuracies up to each evaluation (each epoch without any), from `metrics.jsonl`.

    There are none in a run without steps.

    Those of the training are means over the logged steps since the evaluation before, each weighted
    with the chunks since the line before it, with dropout and while the weights changed; those of
    the validation are of the model after them.
    """
    if steps_per_epoch == 0:
        return []
    steps, evaluations = steps_and_evaluations(metrics)
    measured = {event["step"]: event for event in evaluations if event["split"] == "validation"}
    last = max((line["step"] for line in steps), default=0)
    found, begin = [], 0
    for step in sorted(measured) or range(steps_per_epoch, last + 1, steps_per_epoch):
        logged = [line for line in steps if begin < line["step"] <= step]
        weight = [line["counts"]["weight"] for line in logged]
        chunks = [line["counts"]["chunks"] for line in logged]
        found.append({
            "epoch": step / steps_per_epoch,
            "step": step,
            "training_loss": _mean([line["loss"] for line in logged], weight),
            "training_accuracy": _mean([line["parts"]["accuracy"] for line in logged], chunks),
            **{
                f"validation_{name}": value
                for name, value in measured.get(step, {}).items()
                if name not in ("event", "step", "split")
            },
        })  # fmt: skip
        begin = step
    return found


def _mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    total = sum(weights)
    pairs = zip(values, weights, strict=True)
    return sum(value * weight for value, weight in pairs) / total if total else None


def write_predictions(file: Path, scored: Scored, labels: Sequence[str]) -> None:
    """Writes a line for each source text: its row in the CSV file, label, and what is predicted."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as output:
            writer = csv.writer(output, lineterminator="\n")
            found = map(flattened, predictions(scored, labels))
            for number, (source, label, prediction) in enumerate(
                zip(scored.sources, scored.labels, found, strict=True)
            ):
                row = {"row": source, "label": labels[label], **prediction}
                if number == 0:
                    writer.writerow(row)
                writer.writerow(f"{v:.6f}" if isinstance(v, float) else v for v in row.values())

    replace(file, write)


def save_model(file: Path, model: nn.Module, config: ClassificationConfig) -> None:
    """Writes the weights, the labels and the model's shape for `torch.load(weights_only=True)`."""
    data, shape = config.data_config, cast(Any, model.config)
    content: dict[str, Any] = {
        "state_dict": {name: value.cpu() for name, value in model.state_dict().items()},
        "labels": [*labels_of(model)],
        "config": None if shape is None else json.loads(shape.to_json_string(use_diff=False)),
        "max_length": data.max_length,
        "fold_by": data.fold_by,
    }
    if isinstance(model, Classifier):
        content["classifier"] = msgspec.to_builtins(model.description)
        content["ngrams"] = [] if model.words is None else model.words.ngrams
    replace(file, lambda part: torch.save(content, part))


def replace(file: Path, write: Callable[[Path], object]) -> None:
    """Writes a file under another name and renames it, so that it is never partial.

    Raises:
        ConfigurationError: If it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part:
            write(part)
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error}. Set results_dir=FOLDER and resume the run "
            "(resume_from_checkpoint_dir=latest): it ends with the test set again"
        ) from error
