"""The report of an evaluation: tables, plots and numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bsmeta.tasks.classification.report import report_results
from tests.tasks.classification.helpers import results


def test_the_report_has_tables_plots_and_numbers(tmp_path: Path) -> None:
    epochs = [
        {"epoch": 1.0, "step": 4, "training_loss": 1.0, "training_accuracy": None,
         "validation_loss": 0.9, "validation_accuracy": 0.5, "validation_balanced_accuracy": 0.5,
         "validation_macro_f1": 0.4, "validation_mcc": 0.1},
    ]  # fmt: skip
    report_results(results(), epochs, tmp_path, {})
    assert {file.name for file in tmp_path.iterdir() if file.stat().st_size} == {
        "evaluation.json", "evaluation.md", "report.html",
        "systems.png", "confusion.png", "labels.png", "curves.png",
    }  # fmt: skip
    page = (tmp_path / "evaluation.md").read_text()
    assert "| right | 0 (0%) | 0 (0%) | 1 (100%) |" in page
    assert "| 1 | 4 | 1.0000 | – | 0.9000 | 0.500 | 0.500 | 0.400 | 0.100 |" in page
    saved = json.loads((tmp_path / "evaluation.json").read_text())
    assert saved["systems"]["model"]["confusion"] == [[0, 0, 1], [1, 0, 1], [2, 2, 1]]
    assert saved["systems"]["TF-IDF + linear SVM"]["accuracy"]["minus_model"] == pytest.approx(
        1 / 3
    )
    assert (saved["texts"], saved["folded_texts"], saved["chunks"]) == (3, 1, 4)
