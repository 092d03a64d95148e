"""The report of a trained model, again by `evaluate.py`, beside another model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.tasks.disambiguation.helpers import write_world
from tests.tasks.disambiguation.test_training import TRAIN, arguments

EVALUATE = REPOSITORY / "bsmeta" / "evaluate.py"


@pytest.mark.slow
def test_the_report_again_beside_a_model_that_reads_only_titles(
    launch: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, encoder: Path
) -> None:
    write_world(tmp_path)
    run, other = tmp_path / "run", tmp_path / "titles_only"
    launch(TRAIN, *arguments(tmp_path, encoder, other, "data_config.entity_text=[title]"))
    launch(TRAIN, *arguments(tmp_path, encoder, run, f"compare_with={other}"))
    first = json.loads((run / "evaluation" / "evaluation.json").read_text())
    assert first["systems"] == ["model", "most popular candidate", "titles only"]
    names = [one["name"] for one in first["slices"]]
    assert names[0] == "final_loss"
    assert "unif_NS_TL" in names
    popular = [
        one["accuracy"]["most popular candidate"]["value"]
        for one in first["slices"] if one["name"].startswith("not_most_popular")
    ]  # fmt: skip
    assert {*popular} == {0.0}
    assert (run / "evaluation" / "accuracy_by_count.png").stat().st_size > 10_000

    done = launch(EVALUATE, f"checkpoint={run}", "bootstrap_resamples=50", processes=2)
    assert "The model is right about" in done.stdout
    assert json.loads((run / "evaluation" / "evaluation.json").read_text()) == first

    launch(EVALUATE, f"checkpoint={run}", f"validation_file={tmp_path}/train.jsonl")
    assert (run / "evaluation-train" / "evaluation.md").exists()
    refused = launch(EVALUATE, f"checkpoint={run}", "untrained=true", check=False)
    assert refused.returncode == 2
    assert "without a meaning for a checkpoint of task=disambiguation" in refused.stderr
