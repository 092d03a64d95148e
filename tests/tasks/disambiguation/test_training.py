"""The disambiguator through the trainer: real processes, killed and resumed, one, two and four."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bsmeta.tasks.disambiguation.profiles import update_entities
from tests.tasks.disambiguation.helpers import lines, write_encoder, write_lines, write_world
from tests.tasks.training import (
    KILLED,
    TRAIN,
    Documents,
    Launch,
    Steps,
    assert_same_runs,
    events,
    train_killed_and_resumed,
    train_with_deepspeed,
)


def arguments(folder: Path, encoder: Path, out_dir: Path, *more: str) -> list[str]:
    return [
        "--config-name", "disambiguation", *(
            f"data_config.{name}={folder}/{value}" for name, value in
            (("train_file", "train.jsonl"), ("dev_file", "dev.jsonl"), ("entity_table", "entities"))
        ),
        f"model_name={encoder}", f"out_dir={out_dir}", "trackers=[]", "learning_rate=0.003",
        "data_config.max_entity_length=48", "data_config.window_length=32", "num_train_epochs=3",
        "data_config.batch_size=8", "evals_per_epoch=1", "saves_per_epoch=1",
        "log_documents=true", "log_prior=leave_one_out", "bootstrap_resamples=50", *more,
    ]  # fmt: skip


def mentions(rows: list[dict[str, Any]]) -> set[str]:
    return {f"{row['sent_idx_unq']}:{n}" for row in rows for n in range(len(row["aliases"]))}


@pytest.mark.long
def test_two_processes_killed_and_resumed_repeat_the_undisturbed_run(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, encoder: Path
) -> None:
    write_world(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    launch(TRAIN, *arguments(tmp_path, encoder, whole), processes=2)
    train_killed_and_resumed(launch, arguments(tmp_path, encoder, killed), 13, processes=2)

    assert [event["step"] for event in events(killed, "resume")] == [8]
    assert_same_runs(killed, whole, steps, documents)
    first, second = (run / "evaluation/evaluation.json" for run in (whole, killed))
    assert first.read_text() == second.read_text()

    # Each mention once an epoch, weak labels included.
    for epoch in (0, 8, 16):
        seen = [name for step in range(1, 9) for name in documents(whole)[epoch + step]]
        assert sorted(seen) == sorted(mentions(lines(60, seed=1)))

    # Gold mentions only are scored.
    gold = sum(sum(line["gold"]) for line in lines(24, seed=2, weak=7))
    everyone = len(mentions(lines(24, seed=2)))
    assert (gold, everyone) == (42, 48)
    assert {event["mentions"] for event in events(whole, "eval")} == {42.0}


@pytest.mark.long
def test_a_run_does_not_resume_with_an_edited_table(
    launch: Launch, tmp_path: Path, encoder: Path
) -> None:
    write_world(tmp_path)
    keys = arguments(tmp_path, encoder, tmp_path / "run")
    assert launch(KILLED, *keys, check=False, KILL_AT="10").returncode != 0
    title = {"entity_id": "unseen", "title": "Bank"}
    update_entities(write_lines(tmp_path / "titles.jsonl", [title]), tmp_path / "entities")
    done = launch(TRAIN, *keys, "resume_from_checkpoint_dir=latest", check=False)
    assert done.returncode == 2
    assert (
        f"data_config.entity_table={tmp_path}/entities was edited since the checkpoint (1 updated "
        "(unseen)), so the run cannot be continued exactly; restore the table of the checkpoint, "
        "or start a new run: out_dir=ANOTHER"
    ) in " ".join(done.stderr.split())


@pytest.mark.long
def test_a_mention_detector_killed_and_resumed_repeats_the_undisturbed_run(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, encoder: Path
) -> None:
    write_world(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    more = (
        "mention_detection=both", "data_config.unmarked_match_weight=0.1",
        "data_config.prep_workers=2", "keep_best_by=mention_f1",
    )  # fmt: skip
    launch(TRAIN, *arguments(tmp_path, encoder, whole, *more), processes=2)
    again = arguments(tmp_path, encoder, killed, *more)
    train_killed_and_resumed(launch, again, 13, processes=2)

    assert [event["step"] for event in events(killed, "resume")] == [8]
    assert_same_runs(killed, whole, steps, documents)
    tag_losses = [step["parts"]["tag_loss"] for step in steps(whole).values()]
    assert tag_losses == [step["parts"]["tag_loss"] for step in steps(killed).values()]
    assert tag_losses[-1] < tag_losses[0]

    # The evaluation of the exported model, which has the layer, is equal, too.
    first, second = (run / "evaluation/evaluation.json" for run in (whole, killed))
    assert first.read_text() == second.read_text()
    assert [*json.loads(first.read_text())["mention_detection"]] == [
        "dictionary", "detector", "both"
    ]  # fmt: skip
    assert load_file(whole / "model/model.safetensors")["tag_layer.weight"].shape == (3, 32)
    assert {"mention_precision", "mention_recall", "mention_f1"} <= events(whole, "eval")[0].keys()


@pytest.mark.slow
def test_a_frozen_encoder_and_hard_negatives_resume_exactly(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, encoder: Path
) -> None:
    write_world(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    more = (
        "train_entity_layers=0", "hard_negatives=2", "train_in_candidates=false",
        "data_config.mention_encoding=window", "max_train_candidates=2",
    )  # fmt: skip
    launch(TRAIN, *arguments(tmp_path, encoder, whole, *more))
    again = arguments(tmp_path, encoder, killed, *more)
    train_killed_and_resumed(launch, again, 13, processes=1)
    assert_same_runs(killed, whole, steps, documents)
    before = load_file(encoder / "model.safetensors")
    after = load_file(whole / "model/model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(after[f"entity_encoder.{name}"], before[name])
    assert not torch.equal(after[f"mention_encoder.{name}"], before[name])


LAST_LAYER = (
    "train_entity_layers=1", "negatives=own",
    "data_config.mask_rarest=0.1", "data_config.mask_most_frequent=0.3",
)  # fmt: skip


@pytest.mark.slow
def test_trained_last_layers_of_entities_resume_exactly(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path
) -> None:
    write_world(tmp_path)
    encoder = write_encoder(tmp_path / "encoder", layers=2)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    launch(TRAIN, *arguments(tmp_path, encoder, whole, *LAST_LAYER), processes=2)
    train_killed_and_resumed(
        launch, arguments(tmp_path, encoder, killed, *LAST_LAYER), 12, processes=2
    )
    assert [event["step"] for event in events(killed, "resume")] == [8]
    assert_same_runs(killed, whole, steps, documents)

    before = load_file(encoder / "model.safetensors")
    after = load_file(whole / "model/model.safetensors")
    name = "encoder.layer.{}.attention.self.query.weight"
    lower, upper = name.format(0), name.format(1)
    assert torch.equal(after[f"entity_encoder.{lower}"], before[lower])
    assert not torch.equal(after[f"entity_encoder.{upper}"], before[upper])


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), LAST_LAYER])
def test_one_two_and_four_processes_train_on_the_same_mentions_with_the_same_result(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, more: tuple[str, ...]
) -> None:
    write_world(tmp_path)
    encoder = write_encoder(tmp_path / "encoder", dropout=0.0, layers=2)
    runs = []
    for processes in (1, 2, 4):
        runs.append(tmp_path / str(processes))
        # Each mention beside its own candidates: those of a micro-batch depend on its rows.
        own = arguments(tmp_path, encoder, runs[-1], "negatives=own", *more)
        launch(TRAIN, *own, processes=processes)
    alone, *others = runs
    for other in others:
        assert documents(other) == documents(alone)
        for number, step in steps(alone).items():
            assert steps(other)[number]["loss"] == pytest.approx(step["loss"], rel=1e-3)
        for found, expected in zip(events(other, "eval"), events(alone, "eval"), strict=True):
            assert found["accuracy"] == expected["accuracy"]
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-2)


@pytest.mark.slow
def test_one_two_and_four_processes_evaluate_a_model_alike(
    launch: Launch, tmp_path: Path, encoder: Path
) -> None:
    write_world(tmp_path)
    found = []
    for processes in (1, 2, 4):
        out_dir = tmp_path / str(processes)
        more = ("start_with_eval=true", "max_train_steps=1", "num_train_epochs=null")
        more += ("evals_per_epoch=null", "eval_steps=0", "saves_per_epoch=null")
        launch(
            TRAIN,
            *arguments(tmp_path, encoder, out_dir, *more, "keep_best_by=null", "export_best=false"),
            processes=processes,
        )  # fmt: skip
        found.append(events(out_dir, "eval")[0])
    assert found[0]["step"] == 0
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_trains_evaluates_and_finishes(tmp_path: Path, encoder: Path, stage: int) -> None:
    write_world(tmp_path)
    out_dir = tmp_path / "run"
    train_with_deepspeed(tmp_path, stage, arguments(tmp_path, encoder, out_dir))
    assert [event["split"] for event in events(out_dir, "eval")] == ["validation"] * 3 + ["test"]
    assert events(out_dir, "eval")[-1]["mentions"] == 42.0
    assert (out_dir / "evaluation" / "report.html").exists()
