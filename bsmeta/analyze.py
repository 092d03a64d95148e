"""Analyzes the predictions of classifiers from their result files alone, without a checkpoint.

python bsmeta/analyze.py predictions=results/leanings_testset_predictions.csv
python bsmeta/analyze.py predictions=[a/ads_testset_predictions.csv,b/ads_testset_predictions.csv]
python bsmeta/analyze.py predictions=ads_testset_predictions.csv table=ads.csv group_column=page

Reports scores by label with intervals, the confusion matrix, the most confident mistakes and the
calibration of each run, and compares several runs on the same rows.
"""

from __future__ import annotations

from pathlib import Path

from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.analyzing import AnalyzeConfig


def main(config: AnalyzeConfig) -> None:
    """Analyzes the predictions of the configuration, and writes and prints the report.

    Raises:
        UserError: If a file cannot be used, or the runs are not of the same rows.
    """
    # Imported here because they import torch, and the command line is checked first.
    from bsmeta.tasks.classification.analysis import (
        analyze_runs,
        list_prediction_files,
        name_report_folder,
    )
    from bsmeta.tasks.classification.report_analysis import report_analysis

    files = list_prediction_files(config)
    analysis = analyze_runs(config, files)
    folder = Path(config.out_dir) if config.out_dir else name_report_folder(files[0])
    report_analysis(analysis, folder)


if __name__ == "__main__":
    run_entry_point(main, AnalyzeConfig, "analyze")
