"""Published corpora and mixtures of them as a user trains on them: `accelerate launch`, a kill."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run_warm
from tests.data.corpora import CORPORA, overrides, write_corpus
from tests.test_main_job import job, kill_when, list_metrics, logged_step, run
from tests.warm import REPOSITORY

Documents = Callable[[Path], dict[int, list[str]]]
Steps = Callable[[Path], dict[int, dict[str, Any]]]

SMALL = (
    "max_train_steps=12",
    "save_steps=4",
    "eval_steps=12",
    "data_config.window_documents=8",
    "data_config.metadata_config.metadata_list=[url,timestamp,quality,source]",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPORA)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_run(
    name: str, steps: Steps, documents: Documents, tmp_path: Path
) -> None:
    """Two processes with ZeRO-2; then the held-out documents are evaluated and shown."""
    write_corpus(name, tmp_path / name)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    data = [*SMALL, *overrides(name, tmp_path / name)]
    run(job("cpu_zero2.yaml", whole, *data), tmp_path)
    command = job("cpu_zero2.yaml", killed, *data, "resume_from_checkpoint_dir=latest")
    kill_when(command, tmp_path, lambda: logged_step(killed) >= 6)
    run(command, tmp_path)
    assert list(steps(whole)) == list(range(1, 13))
    assert list_metrics(steps(killed)) == list_metrics(steps(whole))
    assert documents(killed) == documents(whole)
    report = evaluate(whole)
    assert (report["documents"], report["left_out"]) == (12, {})


def evaluate(out_dir: Path) -> dict[str, Any]:
    """Returns the report of `evaluate.py` on the held-out documents."""
    script = str(REPOSITORY / "bsmeta" / "evaluate.py")
    run([sys.executable, script, f"checkpoint={out_dir}", "bootstrap_resamples=10"], out_dir)
    report = json.loads((out_dir / "evaluation" / "evaluation.json").read_text())
    return dict(report["models"][0]["data"])


@pytest.mark.long
def test_the_log_has_losses_and_exposure_of_each_source(
    steps: Steps, documents: Documents, tmp_path: Path
) -> None:
    """Half of the run is trained by two processes, half by one."""
    sources = []
    for name, weight in (("c4_en", 0.7), ("fineweb", 0.2), ("dclm", 0.1)):
        write_corpus(name, tmp_path / name)
        columns = "{url: url}" if name != "dclm" else "{url: url, quality: warcinfo}"
        files = f"{tmp_path}/{name}/{CORPORA[name].pattern}"
        sources.append(
            f"{{name: {name}, train_file: {files}, columns: {columns}, weight: {weight}}}"
        )
    data = [
        *SMALL,
        "eval_steps=0",
        "data_config.train_file=null",
        f"data_config.sources=[{','.join(sources)}]",
        "data_config.validation_file=null",
        "data_config.exclude=[014_00000.parquet,shard_00000000_processed.jsonl.zst]",
        "data_config.metadata_config.metadata_list=[url,source]",
    ]
    run(job("cpu.yaml", tmp_path / "run", *data, "max_train_steps=6"), tmp_path)
    more = ["data_config.per_device_train_batch_size=4", "resume_from_checkpoint_dir=latest"]
    run(job(None, tmp_path / "run", *data, *more), tmp_path)
    shares = {"c4_en": 0.7, "fineweb": 0.2, "dclm": 0.1}
    counts = dict.fromkeys(shares, 0.0)
    for step, event in steps(tmp_path / "run").items():
        for name, share in shares.items():
            sequences = event["counts"].get(f"source_sequences/{name}", 0)
            counts[name] += sequences
            assert abs(counts[name] - share * step * 8) < 1
            if sequences:
                assert 0 < event["parts"][f"source_{name}"] < 12
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    exposure = [result for result in map(json.loads, lines) if result["event"] == "exposure"][-1]
    exposure_by_source = exposure["sources"]
    assert {name: one["configured"] for name, one in exposure_by_source.items()} == pytest.approx(
        shares
    )
    assert {name: one["sequences"] for name, one in exposure_by_source.items()} == counts
    assert (
        sum(counts["tokens"] for counts in exposure_by_source.values())
        == steps(tmp_path / "run")[12]["tokens"]
    )
    assert exposure["types"]["source"]["realized"] > 0
    trained = {name.split("/")[0] for step in documents(tmp_path / "run").values() for name in step}
    assert trained == set(shares)


def test_a_wrong_column_path_is_refused_by_the_check(tmp_path: Path) -> None:
    write_corpus("c4_en", tmp_path / "c4_en")
    data = [*overrides("c4_en", tmp_path / "c4_en"), "data_config.columns.timestamp=date"]
    done = run_warm(job(None, tmp_path / "run", *data, "check_only=true"), tmp_path)
    assert done.returncode == 2
    assert (
        '1. data_config.columns.timestamp in Hydra configuration: found "date", which none of the '
        "first 100 documents has, expected one of their columns: text, timestamp, url (did you "
        "mean timestamp?).\n   Fix: data_config.columns.timestamp=timestamp"
    ) in done.stderr
