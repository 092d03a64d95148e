"""Scores the test split at the end of a run, and that split or another table for `evaluate.py`.

After the last step, `NAME_testset_predictions.csv`, `NAME_train_test_stats.json` and
`NAME_trained_model.sav` are written beside the CSV file or to `results_dir`, and the report to
`evaluation/` of the run folder.

The baselines are fitted on the training split in the run's database; if `evaluate.py` cannot read
it, the model is scored alone. They are the most frequent label, and the system of `method=linear`:
a linear SVM on TF-IDF features of the whole text with fixed settings (word unigrams and bigrams,
sublinear term frequency, C = 1, as in Wang and Manning 2012). If a text may have several labels,
there are two constant baselines: the most frequent set of labels, and the n most frequent labels,
for the n with the highest micro F1 on the training texts. The thresholds of the SVM are chosen on
the validation split, as for the model.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import torch
from torch import nn

from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError, DataError, UserError, suggest_nearest
from bsmeta.core.files import replace_atomically
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import report_opaque_work
from bsmeta.data.table.csv_file import BadRows, Row
from bsmeta.data.table.records import (
    Record,
    describe_missing_texts,
    escape_spreadsheet_cell,
    flatten_record,
    is_record_file,
    read_record_rows,
    write_csv_row,
)
from bsmeta.data.table.text_file import AUTO
from bsmeta.data.text.same_text import hash_text
from bsmeta.data.text.tokenizer import load_padded_tokenizer
from bsmeta.tasks.checkpoints import (
    Location,
    announce_data,
    check_evaluation_keys,
    choose_report_folder,
    read_training_config,
)
from bsmeta.tasks.classification.classifier import Classifier
from bsmeta.tasks.classification.config import (
    LINEAR,
    ClassificationConfig,
    ClassificationDataConfig,
)
from bsmeta.tasks.classification.examples import (
    Chunk,
    Examples,
    Folding,
    make_chunks,
    open_examples,
    shorten_table_name,
)
from bsmeta.tasks.classification.label_cells import BadLabelsError, LabelCells, RowLabels
from bsmeta.tasks.classification.label_sets import Labels
from bsmeta.tasks.classification.model import (
    AnyScored,
    Scorer,
    compute_label_weights,
    iterate_predictions,
    join_texts,
    list_labels,
    load_model,
    read_labels,
    read_thresholds,
)
from bsmeta.tasks.classification.report import (
    MAJORITY,
    MAJORITY_LABELS,
    MAJORITY_SET,
    METHOD_NAMES,
    report_results,
)
from bsmeta.tasks.classification.results import (
    Choice,
    Results,
    TestSet,
    compute_results,
    compute_scores,
)
from bsmeta.tasks.classification.store import SPLITS, count_training_texts
from bsmeta.tasks.classification.systems import (
    Split,
    find_most_frequent_labels,
    find_most_frequent_set,
    fit_word_system,
    predict_by_words,
    read_split,
)
from bsmeta.tasks.classification.task_interface import ClassifierTask
from bsmeta.training.ranks.processes import FinishContext, Processes
from bsmeta.training.run_folder.events import read_steps_and_evaluations

logger = logging.getLogger(__name__)

# Names of the training accuracy in `metrics.jsonl`, for texts with one label and with several.
ACCURACY = "accuracy"
SUBSET_ACCURACY = "subset_accuracy"

# Name suffixes of the result files.
PREDICTIONS_SUFFIX = "testset_predictions.csv"
STATS_SUFFIX = "train_test_stats.json"
MODEL_SUFFIX = "trained_model.sav"


def run_evaluation(
    config: EvaluateConfig, locations: Sequence[Location], context: Processes
) -> list[Path]:
    """Scores checkpoints on all processes; rank 0 writes and prints a report on each.

    Returns:
        The folders of the reports that this process wrote; none except on rank 0.

    Raises:
        UserError: If a key has no effect for this task, or a model or the data cannot be used.
    """
    check_evaluation_keys(config, "task=classification", "per_device_eval_batch_size")
    has_other_data = config.validation_file is not None
    folders = []
    for location in locations:
        results = _evaluate_checkpoint(config, location, context)
        if context.is_main:
            folder = choose_report_folder(config, location, has_other_data=has_other_data)
            report_results(results, [], folder, {"checkpoint": location.name})
            folders.append(folder)
    return folders


def _evaluate_checkpoint(config: EvaluateConfig, location: Location, context: Processes) -> Results:
    """Scores a checkpoint and, if the training table can be read, the baselines."""
    train = read_training_config(config, location, ClassificationConfig)
    data = train.data_config
    training_table = _configure_training_table(config, location, data)
    if context.is_main:
        announce_data(config, location, "data_config.csv", config.validation_file or data.csv)

    model = load_model(Path(location.model)).to(context.device)
    tokenizer = load_padded_tokenizer(location.model)
    labels = read_labels(model)
    has_several = read_thresholds(model) is not None

    examples: Examples | None = None
    try:
        examples = open_examples(training_table, tokenizer)
        refuse_other_labels(examples, location.name, labels, has_several=has_several)
    except UserError as error:
        if config.validation_file is None:
            raise
        examples = None
        logger.warning("no baselines, because the training data cannot be read: %s", error)

    if config.validation_file is None:
        assert examples is not None
        test = read_test_split(train, examples)
        if not test.chunks:
            raise DataError(
                f"checkpoint={location.name}: its table has no test split; name another CSV file: "
                "validation_file=FILE"
            )
    else:
        file = Path(config.validation_file)
        if is_record_file(file) and data.csv_encoding == training_table.csv_encoding:
            # The encoding of the training table does not apply.
            train = replace_values(train, {"data_config.csv_encoding": AUTO})
        folding = Folding(tokenizer, data.fold_by, data.max_length)
        test = read_table(file, train, folding, labels, has_several=has_several)
        if examples is None:
            test.notes.append("not compared with the training texts, which cannot be read")

    batch_size = config.per_device_eval_batch_size or data.per_device_eval_batch_size
    scored = Scorer(len(labels), tokenizer, batch_size, context).score(model, test.chunks)
    baselines: dict[str, np.ndarray] = {}
    if examples is not None:
        systems = _name_linear_predictions(model, scored)
        baselines = _fit_baselines(config, train, examples, test, systems)
    unweighted = [1.0] * len(labels)
    return compute_results(
        test,
        scored,
        compute_scores(scored, unweighted),
        baselines,
        resamples=train.bootstrap_resamples,
        seed=train.seed,
    )


def _name_linear_predictions(model: nn.Module, scored: AnyScored) -> dict[str, np.ndarray]:
    """Returns a model's predictions by the name of its system if it is linear; otherwise {}.

    A linear model is its own baseline, which need not be fitted again.
    """
    if isinstance(model, Classifier) and model.description.method == LINEAR:
        return {METHOD_NAMES[LINEAR]: scored.predicted}
    return {}


def _fit_baselines(
    config: EvaluateConfig,
    train: ClassificationConfig,
    examples: Examples,
    test: TestSet,
    others: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Fits baselines on the training table, and predicts the test set; notes go to the test set.

    Args:
        train: The configuration of the run.
        examples: The training table.
        others: See `predict_baselines`.
    """
    training = read_split(examples, "train")
    if config.validation_file is not None:
        _note_training_texts(test, training.texts)
    weights = compute_weights(train, examples)
    validation = read_split(examples, "validation") if examples.has_several else None
    predicted, notes = predict_baselines(test, training, weights, others, validation)
    test.notes.extend(notes)
    return predicted


def _configure_training_table(
    config: EvaluateConfig, location: Location, data: ClassificationDataConfig
) -> ClassificationDataConfig:
    """Returns the configuration with which to open the training table.

    Args:
        data: The run's configuration of the table, with the overrides of the evaluation.
    """
    if config.validation_file is None:
        return data

    # Overrides describe how `validation_file` is read; for the training table, only those of its
    # location apply.
    as_saved = dataclasses.replace(config, overrides={})
    saved = read_training_config(as_saved, location, ClassificationConfig).data_config
    return dataclasses.replace(saved, csv=data.csv, database=data.database)


def refuse_other_labels(
    examples: Examples, model: str, labels: Sequence[str], *, has_several: bool
) -> None:
    """Refuses a table whose labels are not those of the model, in the same order.

    Scores compare the indexes of labels.

    Args:
        examples: The table.
        model: The name of the model, for messages.
        labels: The labels of the model.
        has_several: Whether the model predicts several labels.

    Raises:
        ConfigurationError: If the table has other labels, or the model predicts one label a text
            and the table has several, or the reverse.
    """
    table = examples.facts["csv"]
    if examples.has_several != has_several:
        forms = ("one label", "several labels")
        raise ConfigurationError(
            f"checkpoint={model}: the model predicts {forms[has_several]} a text, and the table "
            f"{table} has {forms[examples.has_several]}; expected a table of the model's form "
            "(data_config.labels, data_config.label_separator)",
            ["data_config.labels"],
        )
    if tuple(labels) != examples.labels:
        raise ConfigurationError(
            f"checkpoint={model}: the model has the labels {list_labels(labels)}, and the table "
            f"{table} has {list_labels(examples.labels)}; expected the same labels in the same "
            "order: restore the table that the model was trained on, or name another table: "
            "validation_file=FILE"
        )


def compute_weights(config: ClassificationConfig, examples: Examples) -> list[float]:
    """Computes the weight of each label in the loss; see `compute_label_weights`."""
    rows = len(examples.list_sources("train")) if examples.has_several else None
    counts = examples.count_labels("train")
    return compute_label_weights(config.class_weights, examples.labels, counts, rows)


def read_test_split(config: ClassificationConfig, examples: Examples) -> TestSet:
    """Reads the test split of a table."""
    return TestSet(
        source=f"{Path(str(config.data_config.csv)).name}, test split",
        labels=examples.labels,
        chunks=examples.read(examples.list_chunks("test")),
        groups=examples.list_groups("test"),
        unit=_name_unit(config),
        distribution={split: examples.count_labels(split) for split in SPLITS},
        notes=[*examples.facts["warnings"]],
        split_sizes=_count_split_texts(examples) if examples.has_several else None,
    )


def _count_split_texts(examples: Examples) -> dict[str, int]:
    """Counts the source rows of each split."""
    return {split: len(examples.list_sources(split)) for split in SPLITS}


def read_table(
    path: Path,
    config: ClassificationConfig,
    folding: Folding,
    labels: tuple[str, ...],
    *,
    has_several: bool = False,
) -> TestSet:
    """Reads another table with the columns of the training table.

    Args:
        path: A CSV file, JSON lines or Parquet.
        config: The configuration of the run.
        folding: Cuts the texts into chunks.
        labels: The labels of the model.
        has_several: Whether the model predicts several labels a text.

    Raises:
        DataError: If the file cannot be read, is empty, or has a label that the model lacks.
        ConfigurationError: If a column is missing, or rows have several labels and the model
            predicts one, or the reverse.
    """
    data = config.data_config
    bad_rows = BadRows(path, data.on_bad_row, "+overrides.data_config.on_bad_row")
    cells = LabelCells(path, data, has_several=has_several)
    label_numbers = {label: number for number, label in enumerate(labels)}
    counts = dict.fromkeys(labels, 0)
    groups: list[str] = []
    chunks: list[Chunk] = []
    without_tokens = 0
    for row, record, names in _iterate_labeled_rows(path, data, cells, bad_rows):
        _check_known_labels(path, row.number, names, labels, label_numbers)
        text = record[data.text_column]
        (folds,) = folding.fold([text])
        if not folds:
            without_tokens += 1
            continue

        for name in names:
            counts[name] += 1
        group = str(hash_text(text)) if data.split_by is None else record[data.split_by].strip()
        groups.append(group)
        numbers = tuple(sorted(label_numbers[name] for name in names))
        label: Labels = numbers if has_several else numbers[0]
        chunks += make_chunks(folds, label, row.number)

    bad_rows.close()
    if not chunks:
        raise DataError(f"{path} has no texts")

    notes = bad_rows.list_notes()
    if without_tokens:
        omitted = "1 row was" if without_tokens == 1 else f"{without_tokens:,} rows were"
        notes.append(f"{omitted} left out: no token in column {data.text_column!r}")
        logger.warning("%s: %s", path, notes[-1])
    return TestSet(
        source=path.name,
        labels=labels,
        chunks=chunks,
        groups=groups,
        unit=_name_unit(config),
        distribution={path.name: counts},
        notes=notes,
        split_sizes={path.name: len(groups)} if has_several else None,
    )


class _LabeledRow(NamedTuple):
    """A row of a table, with its record and the names of its labels."""

    row: Row
    record: Record
    names: tuple[str, ...]


def _iterate_labeled_rows(
    path: Path, data: ClassificationDataConfig, cells: LabelCells, bad_rows: BadRows
) -> Iterator[_LabeledRow]:
    """Yields the rows that have a text and labels; adds the others to `bad_rows`."""
    text_columns = [data.text_column]
    if data.split_by is not None:
        text_columns.append(data.split_by)
    # A single label must be a text; several may be a list, or an empty cell.
    columns = [data.text_column, data.label_column, *text_columns[1:]]
    rows = read_record_rows(path, columns, separator=data.csv_separator, encoding=data.csv_encoding)

    for row, record in rows:
        cell = record.get(data.label_column)
        required = text_columns if cells.has_several or isinstance(cell, list) else columns
        problem = row.problem or describe_missing_texts(record, required)
        row_labels: RowLabels = ()
        if problem is None:
            try:
                row_labels = cells.read(cell, row)
            except BadLabelsError as error:
                problem = str(error)

        if problem is not None:
            bad_rows.add(row, problem)
            continue
        names = (row_labels,) if isinstance(row_labels, str) else row_labels
        yield _LabeledRow(row, record, names)


def _check_known_labels(
    path: Path,
    row: int,
    names: Sequence[str],
    labels: Sequence[str],
    label_numbers: Mapping[str, int],
) -> None:
    """Refuses a row with a label that the model lacks.

    Args:
        row: The number of the row.
        names: The labels of the row.
        labels: The labels of the model.
        label_numbers: Index of each label of the model.
    """
    for name in names:
        if name not in label_numbers:
            raise DataError(
                f"{path}: row {row:,} has the label {name!r}, which the model does not know"
                f"{suggest_nearest(name, labels)}; its labels are {list_labels(labels)}"
            )


def _name_unit(config: ClassificationConfig) -> str:
    """Describes the resampled units of the bootstrap, for reports."""
    group = config.data_config.split_by
    return "distinct texts" if group is None else f"values of {group}"


def _note_training_texts(test: TestSet, training_texts: Sequence[str]) -> None:
    """Adds a note with the number of texts of a test set that are also in the training split."""
    test_hashes = _hash_texts(join_texts(test.chunks))
    num_shared = count_training_texts(test_hashes, _hash_texts(training_texts))
    if num_shared:
        count = len(test_hashes)
        test.notes.append(f"{num_shared:,} of {count:,} texts are in the training split, too")
        logger.warning("%s: %s", test.source, test.notes[-1])


def _hash_texts(texts: Iterable[str]) -> np.ndarray:
    """Hashes texts, uint64 [texts]; see `hash_text`."""
    return np.fromiter(map(hash_text, texts), np.uint64)


def predict_baselines(
    test: TestSet,
    training: Split,
    weights: Sequence[float],
    others: Mapping[str, np.ndarray] | None = None,
    validation: Split | None = None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Predicts the labels of a test set with the baselines.

    Args:
        test: The test set.
        training: The training split.
        weights: The weight of each label in training.
        others: Predictions of other systems by name, which are added to the result. If the linear
            system is among them, it is not fitted again.
        validation: The validation split, on which thresholds are chosen if texts have several
            labels.

    Returns:
        The predictions of the baselines, then of the others, by name: int64 [texts] or bool
        [texts, labels]; and notes on missing baselines.
    """
    others = others or {}
    notes: list[str] = []
    predicted = _predict_constants(training.truth, len(test.groups))
    if METHOD_NAMES[LINEAR] not in others:
        with report_opaque_work():
            model, notes = fit_word_system(test.labels, weights, training, validation)
            if model is not None:
                predicted[METHOD_NAMES[LINEAR]] = predict_by_words(model, join_texts(test.chunks))
    return {**predicted, **others}, notes


def _predict_constants(truth: np.ndarray, texts: int) -> dict[str, np.ndarray]:
    """Predicts the test set with each constant baseline.

    Args:
        truth: The training labels, int64 [texts] or bool [texts, labels].
        texts: Number of texts of the test set.
    """
    if truth.ndim == 1:
        return {MAJORITY: np.full(texts, np.bincount(truth).argmax())}

    constants = {
        MAJORITY_SET: find_most_frequent_set(truth),
        MAJORITY_LABELS: find_most_frequent_labels(truth),
    }
    return {name: np.tile(labels, (texts, 1)) for name, labels in constants.items()}


def finish_run(
    task: ClassifierTask,
    model: nn.Module,
    others: Mapping[str, nn.Module],
    choice: Choice | None,
    context: FinishContext,
) -> dict[str, float]:
    """Scores the test split on all ranks; rank 0 writes the results.

    Args:
        model: The exported model.
        others: The other systems of `method=auto`, by method.
        choice: How `method=auto` chose the model; None for other methods.

    Returns:
        The scores of the model, the same on every rank; {} if the split is empty.
    """
    scorer = task.make_scorer(context)
    test = read_test_split(task.config, task.examples)
    if not test.chunks:
        if context.rank == 0:
            _write_run_results(task, model, None, context)
        return {}

    scored = scorer.score(model, test.chunks)
    other_predictions = _name_linear_predictions(model, scored)
    for method, system in others.items():
        other_predictions[METHOD_NAMES[method]] = scorer.score(system, test.chunks).predicted
    scores = compute_scores(scored, task.weights)
    if context.rank == 0:
        scored_test = _ScoredTest(test, scored, scores, other_predictions, choice)
        _write_run_results(task, model, scored_test, context)
    return scores


@dataclasses.dataclass(frozen=True)
class _ScoredTest:
    """A test split with the predictions of the model and of other systems."""

    test: TestSet
    scored: AnyScored  # the predictions of the model
    scores: dict[str, float]
    other_predictions: dict[str, np.ndarray]  # by the name of the system
    choice: Choice | None


def _write_run_results(
    task: ClassifierTask,
    model: nn.Module,
    scored_test: _ScoredTest | None,
    context: FinishContext,
) -> None:
    """Writes the result files and the report of a run.

    The model and its predictions are written first, so they are kept if the baselines or the report
    fail.

    Args:
        scored_test: None: the test split is empty.
    """
    config = task.config
    examples = task.examples
    epochs = read_epochs(
        context.folder / "metrics.jsonl",
        task.steps_per_epoch(context.size),
        SUBSET_ACCURACY if examples.has_several else ACCURACY,
    )
    stats: dict[str, Any] = {"epochs": epochs, "test": None}
    if scored_test is not None:
        stats["test"] = {"scores": scored_test.scores}

    run_name = str(context.folder.resolve())
    stats_file = name_result_file(config, STATS_SUFFIX)
    model_file = name_result_file(config, MODEL_SUFFIX)
    save_model(model_file, model, config)
    write_stats(stats_file, stats)
    if scored_test is None:
        examples.save_results(run_name, stats)
        return

    predictions_file = name_result_file(config, PREDICTIONS_SUFFIX)
    write_predictions(
        predictions_file,
        scored_test.scored,
        examples.labels,
        spreadsheet_safe=config.spreadsheet_safe,
    )
    results = _compare_with_baselines(task, scored_test)
    stats["test"] = results.as_dict()
    write_stats(stats_file, stats)
    examples.save_results(run_name, stats)

    facts = {"checkpoint": str(context.exported)}
    files = [stats_file, model_file, predictions_file]
    folder = context.folder / "evaluation"
    command = task.config.model_card.command
    report_results(results, epochs, folder, facts, files, command)


def _compare_with_baselines(task: ClassifierTask, scored_test: _ScoredTest) -> Results:
    """Fits the baselines, and compares the model with them and with the other systems."""
    test = scored_test.test
    choice = scored_test.choice
    predicted = _predict_other_systems(task, test, scored_test.other_predictions)
    if choice is not None:
        test.notes.extend(choice.notes)
    return compute_results(
        test,
        scored_test.scored,
        scored_test.scores,
        predicted,
        resamples=task.config.bootstrap_resamples,
        seed=task.config.seed,
        choice=choice,
    )


def _predict_other_systems(
    task: ClassifierTask, test: TestSet, other_predictions: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Fits the baselines, and returns their and other predictions by name; adds notes to `test`."""
    examples = task.examples
    training = read_split(examples, "train")
    validation = read_split(examples, "validation") if examples.has_several else None
    predicted, notes = predict_baselines(
        test, training, task.weights, other_predictions, validation
    )
    if validation is not None and not validation.texts:
        notes.append("no validation split: the threshold of every label is 0.5")
    test.notes.extend(notes)
    return predicted


def write_stats(file: Path, stats: Mapping[str, Any]) -> None:
    """Writes the training curves and the test scores as JSON."""
    with _replace_when_complete(file) as part:
        text = json.dumps(stats, indent=1, ensure_ascii=False)
        part.write_text(f"{text}\n", encoding="utf-8")


def name_result_file(config: ClassificationConfig, ending: str) -> Path:
    """Returns the path of a result file: `leanings_ENDING` for the table `leanings.csv.gz`."""
    table = Path(str(config.data_config.csv))
    name = shorten_table_name(table)
    folder = table.parent if config.results_dir is None else Path(config.results_dir)
    return folder / f"{name}_{ending}"


def read_epochs(
    metrics: Path, steps_per_epoch: int, accuracy: str = ACCURACY
) -> list[dict[str, float | None]]:
    """Reads the training curves of a run from its `metrics.jsonl`.

    There is a point for each evaluation, or for each epoch if there are none. Training losses and
    accuracies are means over the logged steps since the previous point (with dropout, while the
    weights change), weighted by the loss weights and by the numbers of chunks. Validation scores
    are of the model after these steps.

    Args:
        metrics: The file.
        steps_per_epoch: 0 for a run without steps, which has no curves.
        accuracy: Name of the training accuracy.
    """
    if steps_per_epoch == 0:
        return []

    steps, evaluations = read_steps_and_evaluations(metrics)
    validations = {event["step"]: event for event in evaluations if event["split"] == "validation"}
    last_step = max((line["step"] for line in steps), default=0)
    points = sorted(validations) or range(steps_per_epoch, last_step + 1, steps_per_epoch)

    epochs: list[dict[str, float | None]] = []
    previous = 0
    for step in points:
        lines = [line for line in steps if previous < line["step"] <= step]
        losses = [line["loss"] for line in lines]
        weights = [line["counts"]["weight"] for line in lines]
        accuracies = [line["parts"][accuracy] for line in lines]
        chunk_counts = [line["counts"]["chunks"] for line in lines]

        epoch: dict[str, float | None] = {
            "epoch": step / steps_per_epoch,
            "step": step,
            "training_loss": _compute_weighted_mean(losses, weights),
            f"training_{accuracy}": _compute_weighted_mean(accuracies, chunk_counts),
        }
        for name, value in validations.get(step, {}).items():
            if name not in ("event", "step", "split"):
                epoch[f"validation_{name}"] = value

        epochs.append(epoch)
        previous = step
    return epochs


def _compute_weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Computes a weighted mean; None if the weights sum to 0."""
    return sum(map(mul, values, weights)) / sum(weights) if sum(weights) else None


def write_predictions(
    file: Path, scored: AnyScored, labels: Sequence[str], *, spreadsheet_safe: bool = False
) -> None:
    """Writes a CSV line for each source text: its row in the table, its label, and the prediction.

    Several labels are written as a list in JSON.

    Args:
        spreadsheet_safe: Whether cells that a spreadsheet would compute are escaped.
    """

    def escape_cells(cells: Iterable[Any]) -> list[Any]:
        return [escape_spreadsheet_cell(cell) if spreadsheet_safe else cell for cell in cells]

    with (
        _replace_when_complete(file) as part,
        part.open("w", encoding="utf-8", newline="") as output,
    ):
        texts = zip(scored.sources, scored.labels, iterate_predictions(scored, labels), strict=True)
        for position, (source, label, prediction) in enumerate(texts):
            true_labels: Any = (
                labels[label]
                if label.ndim == 0
                else [labels[number] for number in np.flatnonzero(label).tolist()]
            )
            row = {"row": source, **flatten_record({"label": true_labels, **prediction})}
            if position == 0:
                write_csv_row(output, escape_cells(row))  # the header
            cells = (
                f"{value:.6f}" if isinstance(value, float) else value for value in row.values()
            )
            write_csv_row(output, escape_cells(cells))


def save_model(file: Path, model: nn.Module, config: ClassificationConfig) -> None:
    """Writes weights, labels and model configuration for `torch.load(weights_only=True)`."""
    data = config.data_config
    model_config = cast(Any, model.config)
    config_values = None
    if model_config is not None:
        config_values = parse_json(model_config.to_json_string(use_diff=False))
    content: dict[str, Any] = {
        "state_dict": {name: value.cpu() for name, value in model.state_dict().items()},
        "labels": [*read_labels(model)],
        "config": config_values,
        "max_length": data.max_length,
        "fold_by": data.fold_by,
    }
    if isinstance(model, Classifier):
        content["classifier"] = msgspec.to_builtins(model.description)
        content["ngrams"] = [] if model.words is None else model.words.ngrams

    with _replace_when_complete(file) as part:
        torch.save(content, part)


@contextmanager
def _replace_when_complete(file: Path) -> Iterator[Path]:
    """Yields a temporary path, which replaces the file when the block ends without an error.

    Raises:
        ConfigurationError: If the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(file) as part:
            yield part
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error}. Set results_dir=FOLDER and resume the run "
            "(resume_from_checkpoint_dir=latest): it ends with the test set again"
        ) from error
