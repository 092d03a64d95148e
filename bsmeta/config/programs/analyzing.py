"""Schema of `analyze.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.schema import MAX_SEED
from bsmeta.core.keys import key


@dataclass(frozen=True, kw_only=True)
class AnalyzeConfig:
    """An analysis of the predictions of classifiers, from their result files alone."""

    predictions: Any = key(None, is_path=True)
    """NAME_testset_predictions.csv of a run, or an output of predict.py (.csv) with the labels; or
    a list of such files of several runs on the same rows, which are compared with the first"""
    stats: Any = key(None, is_path=True)
    """NAME_train_test_stats.json of each run, in the same order; null: the file beside the
    predictions with this name, if there is one"""
    names: list[str] = key([])
    """name of each run in the report; []: the folders, or the files, whichever differ"""
    label_column: str = key("label")
    """column of the true labels"""

    table: str | None = key(None, is_path=True)
    """the table that the runs were tested on (.csv, .jsonl or .parquet), to show the texts of
    mistakes, and to resample equal texts or groups together; null: the report names rows only"""
    text_column: str = key("text")
    """column of the text in the table"""
    group_column: str | None = key(None)
    """column of the table whose values are resampled as a whole (the split_by of the runs); null:
    equal texts are resampled together"""

    mistakes: int = key(10, at_least=0)
    """number of most confident mistakes to list for each run"""
    bins: int = key(10, at_least=1, at_most=100)
    """number of equally wide bins of the probability in the calibration table"""
    bootstrap_resamples: int = key(2000, at_least=1)
    """number of bootstrap resamples for each interval"""
    seed: int = key(42, at_least=0, at_most=MAX_SEED)
    """seed of the resamples"""
    out_dir: str | None = key(None, is_path=True)
    """folder of the report; null: NAME_analysis beside the first file of predictions"""
