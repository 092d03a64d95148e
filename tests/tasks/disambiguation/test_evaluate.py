"""The report of a trained model, again by `evaluate.py`, beside another model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.tasks.disambiguation.helpers import (
    lines,
    write_encoder,
    write_lines,
    write_world,
)
from tests.tasks.disambiguation.test_training import TRAIN, arguments

EVALUATE = REPOSITORY / "bsmeta" / "evaluate.py"


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_the_report_again_beside_a_model_that_reads_only_titles(
    launch: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, encoder: Path
) -> None:
    write_world(tmp_path)
    run, other = tmp_path / "run", tmp_path / "titles_only"
    launch(TRAIN, *arguments(tmp_path, encoder, other, "data_config.entity_text=[title]"))
    launch(TRAIN, *arguments(tmp_path, encoder, run, f"compare_with={other}"))
    gold = sum(sum(line["gold"]) for line in lines(24, seed=2, weak=7))
    assert len(read_lines(run / "evaluation/mentions.jsonl")) == gold == 42
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
    in_training = json.loads((run / "evaluation-train/evaluation.json").read_text())
    assert in_training["notes"] == ["56 of 56 sentences are in the training data, too"]
    assert first["notes"] == []

    # Another file of the same name, and the gold answers may be several.
    (tmp_path / "y").mkdir()
    rows = lines(8, seed=3)
    for row in rows:
        row["qids"] = [[f"{alias}-river", f"{alias}-money"] for alias in row["aliases"]]
    write_lines(tmp_path / "y/dev.jsonl", rows)
    launch(EVALUATE, f"checkpoint={run}", f"validation_file={tmp_path}/dev.jsonl")
    launch(EVALUATE, f"checkpoint={run}", f"validation_file={tmp_path}/y/dev.jsonl")
    assert json.loads((run / "evaluation-dev/evaluation.json").read_text())["slices"]
    second = json.loads((run / "evaluation-dev-y/evaluation.json").read_text())["slices"][0]
    count = sum(len(row["aliases"]) for row in rows)
    assert second["metrics"]["mentions"] == count
    records = read_lines(run / "evaluation-dev-y/mentions.jsonl")
    assert [(one["sent_idx_unq"], one["mention"], one["alias"]) for one in records] == [
        (row["sent_idx_unq"], place, alias)
        for row in rows for place, alias in enumerate(row["aliases"])
    ]  # fmt: skip
    for record in records:
        word, right = record["alias"], record["right"]
        assert record["gold"] == [f"{word}-river", f"{word}-money"]
        assert right["model"] == (record["answer"] in record["gold"]) == (record["gold_rank"] == 0)
        assert right["most popular candidate"] == (record["most_popular"] in record["gold"])
        assert 0 < record["score"] <= 1
    assert sum(one["right"]["model"] for one in records) / count == pytest.approx(
        second["metrics"]["accuracy"]
    )

    refused = launch(EVALUATE, f"checkpoint={run}", "untrained=true", check=False)
    assert refused.returncode == 2
    assert "no effect with a checkpoint of task=disambiguation" in refused.stderr


@pytest.mark.long
@pytest.mark.parametrize("trained_layers", [0, 1])
def test_a_run_with_a_frozen_entity_encoder_is_evaluated_after_training(
    launch: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, trained_layers: int
) -> None:
    """As the documentation recommends; the encoder that the run began with is gone by then."""
    write_world(tmp_path)
    encoder = write_encoder(tmp_path / "encoder", layers=2)
    run, other = tmp_path / "run", tmp_path / "other"
    layers = f"train_entity_layers={trained_layers}"
    frozen = (
        layers, "num_train_epochs=1", "negatives=own", "temperature=0.05", "hard_negatives=1",
        "data_config.mask_rarest=0", "data_config.mask_most_frequent=0",
    )  # fmt: skip
    launch(TRAIN, *arguments(tmp_path, encoder, other, *frozen))
    launch(TRAIN, *arguments(tmp_path, encoder, run, *frozen, f"compare_with={other}"))
    first = (run / "evaluation/mentions.jsonl").read_text()
    vectors = {path.name for path in (tmp_path / "entities.vectors").iterdir()}
    encoder.rename(tmp_path / "gone")

    launch(EVALUATE, f"checkpoint={run}", f"validation_file={tmp_path}/dev.jsonl")
    assert (run / "evaluation-dev/mentions.jsonl").read_text() == first
    if trained_layers == 0:  # the frozen vectors of both are the same, on disk already
        assert {path.name for path in (tmp_path / "entities.vectors").iterdir()} == vectors
    launch(EVALUATE, f"checkpoint={run}", processes=2)
    assert (run / "evaluation/mentions.jsonl").read_text() == first
