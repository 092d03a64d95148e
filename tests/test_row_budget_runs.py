"""Runs of different arms under `row_budget=text`: the same documents and text in every step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_main_job import Documents, Steps, job, kill_when, list_metrics, logged_step, run

COMMON = (
    "data_config.row_budget=text",
    "max_train_steps=12",
    "save_steps=4",
    "eval_steps=12",
)
METADATA = "data_config.metadata_config"
ARMS = {
    "none": (f"{METADATA}.metadata_list=[]",),
    "all": (
        f"{METADATA}.metadata_list=[html,title,url,datasource,timestamp,entity,meta_tokens]",
        f"{METADATA}.treat_local_metadata_as_regular_text=false",
        f"{METADATA}.local_metadata_special_token_state=true",
        f"{METADATA}.local_metadata_special_token_start={{html: '<HTML>'}}",
        f"{METADATA}.schedule=[{{share: 0.5}}, {{share: 0.25, types: [url]}}, {{share: 0.25, "
        "metadata_probability: 0.0}]",
    ),
    "shuffled": (f"{METADATA}.metadata_values=shuffled", f"{METADATA}.metadata_probability=1.0"),
}


def lines(out_dir: Path) -> list[list[dict[str, Any]]]:
    """Returns documents and targets of each step, by rank."""
    files = sorted(out_dir.glob("documents-rank*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.mark.long
def test_arms_have_the_same_documents_and_text_targets_in_every_step(
    tmp_path: Path, steps: Steps
) -> None:
    """Two processes; the arm with all types is killed and resumed."""
    for arm in ("none", "all"):
        command = job("cpu.yaml", tmp_path / arm, *COMMON, *ARMS[arm])
        if arm == "all":
            command.append("resume_from_checkpoint_dir=latest")
            kill_when(command, tmp_path, lambda: logged_step(tmp_path / "all") >= 5)
        run(command, tmp_path)
    found = {arm: lines(tmp_path / arm) for arm in ("none", "all")}
    assert found["all"] == found["none"]
    for rank in found["none"]:
        assert [line["step"] for line in rank] == list(range(1, 13))
        assert all(len(line["targets"]) == 2 and line["documents"] for line in rank)
        assert len({target for line in rank for target in line["targets"]}) == 24
    events = {arm: steps(tmp_path / arm) for arm in found}
    targets = {arm: [event["targets"] for event in events[arm].values()] for arm in found}
    assert targets["all"] == targets["none"]
    # The weights are equal before the first step: only what a text is read after differs.
    assert list_metrics(events["all"]) != list_metrics(events["none"])
    assert max(event["tokens"] for event in events["all"].values()) > targets["none"][-1]


@pytest.mark.slow
def test_one_process_trains_on_the_same_text_as_two(
    tmp_path: Path, documents: Documents, steps: Steps
) -> None:
    """A control in one process, text alone in two processes under ZeRO-2."""
    large = "data_config.per_device_train_batch_size=4"
    run(job(None, tmp_path / "one", *COMMON, large, *ARMS["shuffled"]), tmp_path)
    run(job("cpu_zero2.yaml", tmp_path / "two", *COMMON, *ARMS["none"]), tmp_path)
    assert documents(tmp_path / "one") == documents(tmp_path / "two")
    one, two = steps(tmp_path / "one"), steps(tmp_path / "two")
    assert [event["targets"] for event in one.values()] == [
        event["targets"] for event in two.values()
    ]
