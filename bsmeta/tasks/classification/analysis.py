"""Analyzes the predictions of runs from their result files: scores, mistakes and calibration.

    prediction_files -> runs on the same rows -> scores (results), calibration -> report_analysis

All runs are scored on the same resamples, so their differences are paired. The resampled units are
the rows; or, if the table of the runs is given, its groups or distinct texts, as at the end of a
run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bsmeta.config.programs.analyzing import AnalyzeConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.table.records import read_record_rows
from bsmeta.data.text.same_text import hash_text
from bsmeta.report.inference import correct_p_values
from bsmeta.tasks.classification.calibration import Calibration, measure_calibration
from bsmeta.tasks.classification.examples import shorten_table_name
from bsmeta.tasks.classification.prediction_files import (
    Predictions,
    Stats,
    align_runs,
    describe_labels,
    find_stats,
    read_predictions,
    read_stats,
)
from bsmeta.tasks.classification.report import select_labels
from bsmeta.tasks.classification.results import (
    Compared,
    LabelIntervals,
    Results,
    TestSet,
    compare_systems,
    resample_label_scores,
)

UNIT_ROWS = "rows"
UNIT_TEXTS = "distinct texts"


@dataclass(frozen=True)
class Units:
    """The resampled units of an analysis, and the texts of the rows."""

    names: list[str]  # unit of each row
    description: str  # plural noun
    texts: list[str] | None  # of each row; None: no table was given


@dataclass(frozen=True)
class Mistake:
    """A text with a wrong prediction.

    Attributes:
        probability: Probability of the wrong prediction: of the predicted label; with several
            labels, the highest that is given to a label that the text lacks, or to the absence of
            one that it has. None: unknown.
        other_mistakes: Number of other runs whose prediction for the text is wrong, too.
    """

    row: int
    text: str | None
    true: str
    predicted: str
    probability: float | None
    other_mistakes: int


@dataclass(frozen=True)
class Pairing:
    """The texts that a run and the first run predict differently.

    Attributes:
        p_value: Of McNemar's exact test that both are right equally often, which takes texts as
            independent; corrected for several runs by Holm's procedure.
    """

    only_first_right: int
    only_this_right: int
    same_predictions: int
    p_value: float


@dataclass(frozen=True)
class AnalyzedRun:
    """A run with everything that is reported about it."""

    name: str
    predictions: Predictions
    stats: Stats | None
    compared: Compared
    results: Results  # of this run alone, for the tables and plots of `report`
    label_intervals: dict[int, LabelIntervals]  # of the labels in tables
    mistakes: list[Mistake]  # the most confident first
    calibration: Calibration | None  # None: the file lacks probabilities
    pairing: Pairing | None  # None: of the first run


@dataclass(frozen=True)
class Analysis:
    """The analysis of runs on the same rows; the first run is the reference of the others."""

    runs: list[AnalyzedRun]
    units: Units
    notes: list[str]

    @property
    def first(self) -> AnalyzedRun:
        """The reference of the comparisons."""
        return self.runs[0]

    @property
    def results(self) -> Results:
        """The scores of all runs."""
        test = self.first.results.test
        return Results(test, [run.compared for run in self.runs], {}, folded=0)


def list_prediction_files(config: AnalyzeConfig) -> list[Path]:
    """Returns the files of predictions.

    Raises:
        ConfigurationError: If none is named.
    """
    files = [Path(name) for name in _list_files("predictions", config.predictions)]
    if not files:
        raise ConfigurationError(
            "predictions is not set; expected the NAME_testset_predictions.csv of a run, or a list "
            "of such files: predictions=[A.csv,B.csv]",
            ["predictions"],
        )
    return files


def _list_files(key: str, value: Any) -> list[str]:
    """Returns the files of a key that takes a file or a list of files."""
    files = [] if value is None else [value] if isinstance(value, str) else value
    if not (isinstance(files, (list, tuple)) and all(isinstance(file, str) for file in files)):
        raise ConfigurationError(f"{key}={value}: expected a file, or a list of files", [key])
    return [*files]


def name_report_folder(predictions: Path) -> Path:
    """Returns the folder `NAME_analysis` beside a file of predictions."""
    name = shorten_table_name(predictions).removesuffix("_testset_predictions")
    return predictions.with_name(f"{name}_analysis")


def analyze_runs(config: AnalyzeConfig, files: Sequence[Path]) -> Analysis:
    """Reads and analyzes the predictions of runs on the same rows.

    Args:
        files: The files of predictions; the first run is the reference of the others.

    Raises:
        UserError: If a file cannot be used, or the runs are not of the same rows.
    """
    stats = _read_all_stats(config, files)
    names = name_runs(files, config.names)
    read = [
        read_predictions(file, run_stats, config.label_column)
        for file, run_stats in zip(files, stats, strict=True)
    ]
    runs = align_runs(read)
    first = runs[0]
    units = read_units(config, first)

    compared = compare_systems(
        first.truth,
        {name: run.predicted for name, run in zip(names, runs, strict=True)},
        np.array(units.names),
        len(first.labels),
        resamples=config.bootstrap_resamples,
        seed=config.seed,
    )
    is_wrong = np.stack([find_mistakes(run) for run in runs])
    pairings = [None, *pair_runs(runs, is_wrong)]
    analyzed = []
    for number, run in enumerate(runs):
        other_mistakes = is_wrong.sum(0) - is_wrong[number]
        analyzed.append(
            _analyze_run(
                config,
                names[number],
                run,
                stats[number],
                compared[number],
                units,
                list_mistakes(run, is_wrong[number], other_mistakes, units.texts, config.mistakes),
                pairings[number],
            )
        )
    return Analysis(analyzed, units, _note_units(analyzed, units))


def _read_all_stats(config: AnalyzeConfig, files: Sequence[Path]) -> list[Stats | None]:
    """Reads the statistics of each run; None for a run without."""
    if config.stats is None:
        stats_files = [find_stats(file) for file in files]
        return [None if file is None else read_stats(file) for file in stats_files]

    named = _list_files("stats", config.stats)
    if len(named) != len(files):
        raise ConfigurationError(
            f"stats names {len(named)} files; expected {len(files)}, one for each of predictions",
            ["stats"],
        )
    return [read_stats(Path(name)) for name in named]


def name_runs(files: Sequence[Path], names: Sequence[str]) -> list[str]:
    """Returns a distinct name of each run: as given, or the folders, file names or paths.

    Raises:
        ConfigurationError: If the given names are not one for each file, or not distinct.
    """
    if names:
        if len(set(names)) != len(files) or len(names) != len(files):
            raise ConfigurationError(
                f"names={[*names]}: expected {len(files)} different names, one for each of "
                "predictions",
                ["names"],
            )
        return [*names]

    if len(files) == 1:
        return [files[0].name]
    candidates = ([file.resolve().parent.name for file in files], [file.name for file in files])
    for candidate in candidates:
        if len(set(candidate)) == len(files):
            return candidate
    paths = [str(file) for file in files]
    if len(set(paths)) < len(files):
        raise ConfigurationError(
            f"predictions={paths}: the same file twice; expected different runs", ["predictions"]
        )
    return paths


def read_units(config: AnalyzeConfig, run: Predictions) -> Units:
    """Reads the resampled unit of each row, and the texts, from the table of the runs.

    Raises:
        DataError: If the table lacks a row of the predictions.
    """
    if config.table is None:
        if config.group_column is not None:
            raise ConfigurationError(
                f"group_column={config.group_column}: expected also table=FILE, which has the "
                "column",
                ["group_column"],
            )
        return Units([str(row) for row in run.rows.tolist()], UNIT_ROWS, None)

    columns = [config.text_column]
    if config.group_column is not None:
        columns.append(config.group_column)
    cells: dict[int, list[str]] = {}
    wanted = set(run.rows.tolist())
    for row, record in read_record_rows(Path(config.table), columns):
        if row.number in wanted:
            cells[row.number] = [str(record.get(column, "")) for column in columns]
    missing = sorted(wanted - cells.keys())
    if missing:
        raise DataError(
            f"table={config.table} has no row {missing[0]:,}, for which {run.file} has a "
            "prediction; expected the table that the run was tested on"
        )

    rows = [cells[row] for row in run.rows.tolist()]
    texts = [row[0] for row in rows]
    if config.group_column is None:
        return Units([str(hash_text(text)) for text in texts], UNIT_TEXTS, texts)
    return Units([row[1].strip() for row in rows], f"values of {config.group_column}", texts)


def _analyze_run(
    config: AnalyzeConfig,
    name: str,
    run: Predictions,
    stats: Stats | None,
    compared: Compared,
    units: Units,
    mistakes: list[Mistake],
    pairing: Pairing | None,
) -> AnalyzedRun:
    """Measures a run by itself."""
    results = _make_results(name, run, compared, units)
    labels = select_labels(results)
    _, unit_numbers = np.unique(np.array(units.names), return_inverse=True)
    intervals = resample_label_scores(
        run.truth,
        run.predicted,
        unit_numbers,
        labels,
        resamples=config.bootstrap_resamples,
        seed=config.seed,
    )

    calibration = None
    if run.probabilities is not None:
        probabilities, is_right = pair_probabilities(run)
        calibration = measure_calibration(
            probabilities,
            is_right,
            unit_numbers,
            bin_count=config.bins,
            resamples=config.bootstrap_resamples,
            seed=config.seed,
        )
    return AnalyzedRun(
        name=name,
        predictions=run,
        stats=stats,
        compared=compared,
        results=results,
        label_intervals=dict(zip(labels, intervals, strict=True)),
        mistakes=mistakes,
        calibration=calibration,
        pairing=pairing,
    )


def _make_results(name: str, run: Predictions, compared: Compared, units: Units) -> Results:
    """Makes the results of a run, as at the end of its training, without chunks."""
    totals = compared.confusion.totals()
    distribution = dict(zip(run.labels, map(int, totals.true), strict=True))
    test = TestSet(
        source=name,
        labels=run.labels,
        chunks=[],
        groups=units.names,
        unit=units.description,
        distribution={"test": distribution},
        notes=[],
        split_sizes={"test": len(run.rows)} if run.has_several else None,
    )
    return Results(test, [compared], {}, folded=0)


def pair_probabilities(run: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Returns probabilities and whether they come true, [texts, n] each; see `calibration`."""
    assert run.probabilities is not None
    if run.has_several:
        return run.probabilities, run.truth
    predicted = read_confidence(run)
    assert predicted is not None
    return predicted[:, None], (run.truth == run.predicted)[:, None]


def read_confidence(run: Predictions) -> np.ndarray | None:
    """Returns the probability of each prediction, float64 [texts]; None if it is unknown.

    With several labels, it is that of the worst mistake; see `Mistake.probability`.
    """
    probabilities = run.probabilities
    if probabilities is None:
        return None
    if run.has_several:
        of_prediction = np.where(run.predicted, probabilities, 1 - probabilities)
        worst: np.ndarray = np.where(run.predicted != run.truth, of_prediction, 0.0).max(1)
        return worst
    if probabilities.shape[1] == 1:
        return probabilities[:, 0]
    return probabilities[np.arange(len(probabilities)), run.predicted]


def find_mistakes(run: Predictions) -> np.ndarray:
    """Returns whether the label, or the set of labels, of each text is wrong, bool [texts]."""
    differs = run.truth != run.predicted
    return differs.any(1) if run.has_several else differs


def list_mistakes(
    run: Predictions,
    is_wrong: np.ndarray,
    other_mistakes: np.ndarray,
    texts: Sequence[str] | None,
    limit: int,
) -> list[Mistake]:
    """Lists the mistakes with the highest probabilities; without probabilities, the first ones.

    Args:
        is_wrong: bool [texts].
        other_mistakes: int [texts], number of other runs with a mistake.
        texts: The text of each row, if it is known.
        limit: Maximum number of mistakes.
    """
    confidence = read_confidence(run)
    wrong = np.flatnonzero(is_wrong)
    if confidence is not None:
        wrong = wrong[np.argsort(-confidence[wrong], kind="stable")]
    return [
        Mistake(
            row=int(run.rows[text]),
            text=None if texts is None else texts[text],
            true=describe_labels(run, text),
            predicted=describe_labels(run, text, predicted=True),
            probability=None if confidence is None else float(confidence[text]),
            other_mistakes=int(other_mistakes[text]),
        )
        for text in wrong[:limit].tolist()
    ]


def pair_runs(runs: Sequence[Predictions], is_wrong: np.ndarray) -> list[Pairing]:
    """Compares the mistakes of each run with those of the first run.

    Args:
        is_wrong: bool [runs, texts].
    """
    # Imported here because scipy.stats takes half a second, and most analyses are of one run.
    from scipy.stats import binomtest

    first = runs[0]
    counts: list[tuple[int, int, int]] = []
    p_values: list[float] = []
    for run, is_run_wrong in zip(runs[1:], is_wrong[1:], strict=True):
        only_first = int((is_run_wrong & ~is_wrong[0]).sum())
        only_this = int((is_wrong[0] & ~is_run_wrong).sum())
        is_same = first.predicted == run.predicted
        same = int((is_same.all(1) if first.has_several else is_same).sum())
        counts.append((only_first, only_this, same))
        discordant = only_first + only_this
        p_values.append(binomtest(only_first, discordant).pvalue if discordant else 1.0)

    return [
        Pairing(*run_counts, p_value)
        for run_counts, p_value in zip(counts, correct_p_values(p_values), strict=True)
    ]


def _note_units(runs: Sequence[AnalyzedRun], units: Units) -> list[str]:
    """Returns a note if the runs resampled fewer units than this analysis."""
    unit_count = len(set(units.names))
    for run in runs:
        test = None if run.stats is None else run.stats.test
        if test is not None and test.resampled is not None and test.resampled.units < unit_count:
            return [
                f"the run resampled {test.resampled.units:,} {test.resampled.of}, and this "
                f"analysis {unit_count:,} {units.description}, so its intervals may be too "
                "narrow; table=FILE (and group_column=NAME) gives the units of the run"
            ]
    return []


def list_run_values(run: AnalyzedRun) -> Mapping[str, Any]:
    """Returns the values of a run for JSON."""
    values: dict[str, Any] = {
        "predictions": str(run.predictions.file),
        "scores": _list_estimates(run.compared.scores),
        "minus_first": _list_estimates(run.compared.differences),
        "per_label": run.results.per_label,
        "mistakes": [vars(mistake) for mistake in run.mistakes],
    }
    if run.pairing is not None:
        values["paired"] = vars(run.pairing)

    if run.calibration is not None:
        calibration = run.calibration
        values["calibration"] = {
            **_list_estimates(
                {
                    "expected_error": calibration.expected_error,
                    "overconfidence": calibration.overconfidence,
                }
            ),
            "bins": [
                {
                    "low": entry.low,
                    "high": entry.high,
                    "count": entry.count,
                    "mean_probability": entry.mean_probability,
                    "share_right": entry.share_right.value,
                }
                for entry in calibration.bins
            ],
        }
    return values


def _list_estimates(estimates: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values and intervals by name."""
    return {
        name: {"value": estimate.value, "interval": [estimate.low, estimate.high]}
        for name, estimate in estimates.items()
    }
