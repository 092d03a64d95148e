"""Reads the result files of runs: predictions (CSV) and statistics (JSON).

The files are those that `evaluate` writes at the end of a run, or predictions of `predict.py` for a
table with labels. Everything is checked: columns, labels, probabilities, whether a file is cut, and
whether the two files are of the same run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np

from bsmeta.core.errors import ConfigurationError, DataError, suggest_nearest
from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.core.parsing import decode_json
from bsmeta.data.table.records import Record, is_record_file, read_record_rows
from bsmeta.data.table.text_file import open_bytes
from bsmeta.tasks.classification.evaluate import PREDICTIONS_SUFFIX, STATS_SUFFIX
from bsmeta.tasks.classification.label_sets import Labels, make_truth
from bsmeta.tasks.classification.results import compute_text_scores

ROW_COLUMN = "row"
PREDICTION_COLUMN = "prediction"
PROBABILITY_COLUMN = "probability"
PROBABILITY_PREFIX = "probabilities."

_MAX_LISTED_ROWS = 5  # in a message
_READ_BYTES = 1 << 20
_SUM_TOLERANCE = 1e-3  # probabilities have six decimals, and up to a hundred of them are summed
_ROUNDING_TOLERANCE = 1.5e-6  # of two probabilities of six decimals that are almost equal
_SCORE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Predictions:
    """The predictions of a run for labeled texts, sorted by row.

    If a text may have several labels, `truth` and `predicted` are bool [texts, labels].
    """

    file: Path
    rows: np.ndarray  # int64 [texts], numbers of the rows in the table, ascending
    labels: tuple[str, ...]
    truth: np.ndarray  # int64 [texts], indexes of the true labels
    predicted: np.ndarray  # int64 [texts]
    probabilities: np.ndarray | None
    """float64 [texts, labels]; [texts, 1] if the file has only those of the predicted labels; None
    if it has none, or those of several predicted labels only"""

    @property
    def has_several(self) -> bool:
        """Whether a text may have several labels."""
        return self.truth.ndim == 2

    def reorder_labels(self, labels: Sequence[str]) -> Predictions:
        """Returns the predictions with indexes into other labels, which include all of these."""
        columns = np.array([labels.index(label) for label in self.labels])

        def widen(values: np.ndarray) -> np.ndarray:
            """Moves the columns of labels, and adds empty ones."""
            wide = np.zeros((len(values), len(labels)), values.dtype)
            wide[:, columns] = values
            return wide

        probabilities = self.probabilities
        if probabilities is not None and probabilities.shape[1] == len(self.labels):
            probabilities = widen(probabilities)
        renumber = widen if self.has_several else columns.__getitem__
        return replace(
            self,
            labels=tuple(labels),
            truth=renumber(self.truth),
            predicted=renumber(self.predicted),
            probabilities=probabilities,
        )


class _Resampled(msgspec.Struct):
    """The units over which the run computed its intervals."""

    units: int
    of: str


class _TestStats(msgspec.Struct):
    """The scores of the test split; a run whose report failed wrote the first field only."""

    scores: dict[str, float | None]
    labels: list[str] = []
    texts: int | None = None
    resampled: _Resampled | None = None
    per_label: dict[str, dict[str, float | None]] = {}


class Stats(msgspec.Struct):
    """The content of `NAME_train_test_stats.json` that an analysis needs."""

    epochs: list[dict[str, float | None]]
    test: _TestStats | None


_STATS = ForeignDecoder(Stats)  # a loss may be NaN


def read_stats(path: Path) -> Stats:
    """Reads the statistics of a run.

    Raises:
        DataError: If the file cannot be read, is cut, or is no such file.
    """
    try:
        return _STATS.decode(path.read_bytes())
    except OSError as error:
        raise DataError(f"stats={path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise DataError(
            f"stats={path} is damaged, cut, or no file of statistics ({error}); expected the "
            f"NAME_{STATS_SUFFIX} of a run; copy it again"
        ) from error


def find_stats(predictions: Path) -> Path | None:
    """Returns the file of statistics beside a run's predictions, if there is one."""
    if not predictions.name.endswith(PREDICTIONS_SUFFIX):
        return None
    file = predictions.with_name(predictions.name.removesuffix(PREDICTIONS_SUFFIX) + STATS_SUFFIX)
    return file if file.exists() else None


@dataclass(frozen=True)
class _Line:
    """A line of a file of predictions."""

    number: int  # row of the table
    position: str  # for messages
    cells: Record


def read_predictions(path: Path, stats: Stats | None, label_column: str = "label") -> Predictions:
    """Reads the predictions of a run.

    Args:
        stats: The statistics of the same run, which have all labels in their order.
        label_column: The column of the true labels.

    Raises:
        ConfigurationError: If a column is missing.
        DataError: If the file cannot be used, is cut, or does not agree with `stats`.
    """
    lines = _read_lines(path, label_column)
    true_cells = [line.cells[label_column] for line in lines]
    predicted_cells = [line.cells[PREDICTION_COLUMN] for line in lines]

    has_several = _find_form(stats, [*true_cells, *predicted_cells])
    if has_several:
        true_names = _parse_label_lists(lines, true_cells)
        predicted_names = _parse_label_lists(lines, predicted_cells)
    else:
        true_names = [[cell] for cell in true_cells]
        predicted_names = [[cell] for cell in predicted_cells]

    names = [*true_names, *predicted_names]
    labels = _list_labels(stats, lines[0].cells, names)
    _unescape_labels(true_names, labels)
    _unescape_labels(predicted_names, labels)
    predictions = Predictions(
        file=path,
        rows=np.array([line.number for line in lines], np.int64),
        labels=labels,
        truth=_number_labels(lines, true_names, labels, has_several=has_several),
        predicted=_number_labels(lines, predicted_names, labels, has_several=has_several),
        probabilities=_read_probabilities(path, lines, labels, has_several=has_several),
    )
    if stats is not None:
        _check_stats(predictions, stats)
    if not has_several:
        _refuse_improbable_predictions(lines, predictions)
    return predictions


def _read_lines(path: Path, label_column: str) -> list[_Line]:
    """Reads the lines of a file of predictions, sorted by row.

    Without a column `row`, as in outputs of `predict.py`, the rows are numbered in their order.
    """
    if is_record_file(path):
        raise ConfigurationError(
            f"predictions={path}: expected a CSV file, such as the NAME_{PREDICTIONS_SUFFIX} of a "
            "run; with predict.py, output=FILE.csv writes one",
            ["predictions"],
        )

    lines: list[_Line] = []
    for row, cells in read_record_rows(path, [label_column, PREDICTION_COLUMN]):
        position = f"{path}: line {row.line:,}"
        if row.problem is not None:
            raise DataError(f"{position}: {row.problem}; is the file cut? Copy it again")
        number = _parse_row_number(position, cells, default=row.number)
        lines.append(_Line(number, position, cells))
    _refuse_cut_file(path)
    if not lines:
        raise DataError(f"{path} has a header and no predictions")

    counts = Counter(line.number for line in lines)
    repeated = sorted(number for number, count in counts.items() if count > 1)
    if repeated:
        raise DataError(
            f"{path}: several predictions for row {_list_rows(repeated)}; expected one for each"
        )
    return sorted(lines, key=attrgetter("number"))


def _refuse_cut_file(path: Path) -> None:
    """Refuses a file that does not end with a line end: a prediction's last digits may be lost."""
    source, file = open_bytes(path)
    end = b""
    with file, source:
        while content := source.read(_READ_BYTES):
            end = content[-1:]
    if end != b"\n":
        raise DataError(f"{path} ends within a line: it is cut, or still being written")


def _parse_row_number(position: str, cells: Record, default: int) -> int:
    """Returns the number in the column `row`, or the default without such a column."""
    cell = cells.get(ROW_COLUMN, str(default))
    if not (cell.isascii() and cell.isdecimal()):
        raise DataError(f"{position}: {cell!r} in column {ROW_COLUMN!r}; expected a number")
    return int(cell)


def _find_form(stats: Stats | None, cells: Sequence[str]) -> bool:
    """Returns whether texts may have several labels, which are lists in JSON."""
    if stats is not None and stats.test is not None and stats.test.per_label:
        return all("threshold" in values for values in stats.test.per_label.values())
    return all(cell.startswith("[") and cell.endswith("]") for cell in cells)


def _parse_label_lists(lines: Sequence[_Line], cells: Sequence[str]) -> list[list[str]]:
    """Parses cells that have several labels, as lists in JSON."""
    lists: list[list[str]] = []
    for line, cell in zip(lines, cells, strict=True):
        try:
            lists.append(decode_json(cell, list[str]))
        except msgspec.DecodeError as error:
            raise DataError(
                f"{line.position}: {cell!r} is not a list of labels; expected JSON such as "
                f'["farm", "water"]'
            ) from error
    return lists


def _list_labels(
    stats: Stats | None, columns: Iterable[str], names: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """Returns the labels: of the statistics, of the columns of probabilities, or of the rows."""
    if stats is not None and stats.test is not None and stats.test.labels:
        return tuple(stats.test.labels)
    of_columns = tuple(
        column.removeprefix(PROBABILITY_PREFIX)
        for column in columns
        if column.startswith(PROBABILITY_PREFIX)
    )
    return of_columns or tuple(sorted({name for row_names in names for name in row_names}))


def _unescape_labels(names: Sequence[list[str]], labels: Sequence[str]) -> None:
    """Removes the quote that `spreadsheet_safe` has put before labels such as `=1`, in place."""
    known_labels = set(labels)
    for row_names in names:
        for position, name in enumerate(row_names):
            if name not in known_labels and name.startswith("'") and name[1:] in known_labels:
                row_names[position] = name[1:]


def _number_labels(
    lines: Sequence[_Line],
    names: Sequence[Sequence[str]],
    labels: Sequence[str],
    *,
    has_several: bool,
) -> np.ndarray:
    """Replaces the names of labels by their indexes; see `Predictions` for the form."""
    numbers = {label: number for number, label in enumerate(labels)}
    indexes: list[Labels] = []
    for line, row_names in zip(lines, names, strict=True):
        for name in row_names:
            if name not in numbers:
                raise DataError(
                    f"{line.position}: the label {name!r} is none of the run's "
                    f"{len(labels):,} labels{suggest_nearest(name, labels)}"
                )
        row_indexes = tuple(sorted(numbers[name] for name in row_names))
        indexes.append(row_indexes if has_several else row_indexes[0])
    return make_truth(indexes, len(labels), has_several=has_several)


def _read_probabilities(
    path: Path, lines: Sequence[_Line], labels: Sequence[str], *, has_several: bool
) -> np.ndarray | None:
    """Reads the probabilities; see `Predictions.probabilities`."""
    columns = [f"{PROBABILITY_PREFIX}{label}" for label in labels]
    present = [column for column in columns if column in lines[0].cells]
    if not present:
        if has_several or PROBABILITY_COLUMN not in lines[0].cells:
            return None
        columns = [PROBABILITY_COLUMN]
    elif len(present) < len(columns):
        missing = next(column for column in columns if column not in lines[0].cells)
        raise ConfigurationError(
            f"{path} has no column {missing!r}; expected the probability of each label"
        )

    rows: list[list[float]] = []
    for line in lines:
        values = [_parse_probability(line, column) for column in columns]
        if not has_several and present and abs(sum(values) - 1) > _SUM_TOLERANCE:
            raise DataError(f"{line.position}: the probabilities sum to {sum(values):g}, not to 1")
        rows.append(values)
    return np.array(rows)


def _parse_probability(line: _Line, column: str) -> float:
    """Returns a probability of a line."""
    cell = line.cells[column]
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise DataError(
            f"{line.position}: {cell!r} in column {column!r}; expected a probability from 0 to 1"
        )
    return value


def _refuse_improbable_predictions(lines: Sequence[_Line], predictions: Predictions) -> None:
    """Refuses a prediction of one label that is less probable than another label.

    The columns of its probabilities are then those of other labels, or of another model, and a
    calibration of them would mean nothing.
    """
    probabilities = predictions.probabilities
    labels = predictions.labels
    if probabilities is None or probabilities.shape[1] < len(labels):
        return

    texts = np.arange(len(lines))
    predicted = probabilities[texts, predictions.predicted]
    improbable = np.flatnonzero(probabilities.max(1) - predicted > _ROUNDING_TOLERANCE)
    if len(improbable):
        text = improbable[0]
        best = probabilities[text].argmax()
        raise DataError(
            f"{lines[text].position}: the prediction is {labels[predictions.predicted[text]]!r} "
            f"with a probability of {predicted[text]:g}, but {labels[best]!r} has "
            f"{probabilities[text, best]:g} (such rows: {len(improbable):,}); expected the most "
            f"probable label, in columns {PROBABILITY_PREFIX}LABEL of the same model"
        )


def _check_stats(predictions: Predictions, stats: Stats) -> None:
    """Refuses predictions that are not of the run whose statistics are given."""
    test = stats.test
    if test is None:
        raise DataError(
            f"{predictions.file}: the statistics of this run have no scores on the test split; "
            "expected those of the run that wrote the predictions"
        )

    count = len(predictions.rows)
    if test.texts is not None and test.texts != count:
        raise DataError(
            f"{predictions.file} has {count:,} rows, but the statistics of the run are of "
            f"{test.texts:,} texts: it is cut, or of another run"
        )
    scores = compute_text_scores(predictions.truth, predictions.predicted, len(predictions.labels))
    for name in scores.keys() & test.scores.keys():
        saved = test.scores[name]
        if saved is not None and abs(saved - scores[name]) > _SCORE_TOLERANCE:
            raise DataError(
                f"{predictions.file}: {name} of its rows is {scores[name]:.6f}, but "
                f"{saved:.6f} in the statistics; expected files of the same run"
            )


def align_runs(runs: Sequence[Predictions]) -> list[Predictions]:
    """Returns the predictions of several runs for the same rows, with the same indexes of labels.

    Raises:
        DataError: If the rows, their labels, or the numbers of labels of a text differ.
    """
    first = runs[0]
    labels = [*first.labels]
    for run in runs[1:]:
        _check_same_rows(first, run)
        labels += [label for label in run.labels if label not in labels]

    aligned = [run.reorder_labels(labels) for run in runs]
    for run in aligned[1:]:
        differs = aligned[0].truth != run.truth
        different = np.flatnonzero(differs.any(1) if differs.ndim == 2 else differs)
        if len(different):
            text = different[0]
            raise DataError(
                f"row {run.rows[text]:,} has the label {describe_labels(aligned[0], text)} in "
                f"{first.file}, and {describe_labels(run, text)} in {run.file}; expected "
                "predictions for the same table"
            )
    return aligned


def _check_same_rows(first: Predictions, run: Predictions) -> None:
    """Refuses runs with other rows than the first, or another form of labels."""
    if run.has_several != first.has_several:
        forms = ("one label", "several labels")
        raise DataError(
            f"{first.file} has {forms[first.has_several]} a text, and {run.file} has "
            f"{forms[run.has_several]}; expected the same form"
        )

    added = np.setdiff1d(run.rows, first.rows)
    missing = np.setdiff1d(first.rows, run.rows)
    if len(added) or len(missing):
        raise DataError(
            f"{run.file} does not have the rows of {first.file}: {len(added):,} are only in it"
            f"{_list_rows_in_brackets(added)}, and {len(missing):,} are missing"
            f"{_list_rows_in_brackets(missing)}; expected predictions for the same test split "
            "(data_config.split_seed, split_fractions, split_by, split_column)"
        )


def describe_labels(predictions: Predictions, text: int, *, predicted: bool = False) -> str:
    """Names the true labels, or the predicted ones, of a text by its index."""
    values = predictions.predicted if predicted else predictions.truth
    if not predictions.has_several:
        return predictions.labels[values[text]]
    names = [predictions.labels[number] for number in np.flatnonzero(values[text])]
    return ", ".join(names) or "none"


def _list_rows_in_brackets(numbers: np.ndarray) -> str:
    return f" (row {_list_rows(numbers.tolist())})" if len(numbers) else ""


def _list_rows(numbers: Sequence[int]) -> str:
    """Lists numbers of rows for a message; of many, the first ones."""
    shown = ", ".join(f"{number:,}" for number in numbers[:_MAX_LISTED_ROWS])
    omitted = len(numbers) - _MAX_LISTED_ROWS
    return f"{shown}, and {omitted:,} more" if omitted > 0 else shown
