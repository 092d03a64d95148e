"""The benchmarks of the data: one JSON line each, on the shipped sample."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "experiments/benchmarks"


@pytest.mark.parametrize("override", ["data_config.tokenizer_backend=tiktoken", "plain=true"])
def test_stream_reports_rates_of_tokens(
    launch: Callable[..., subprocess.CompletedProcess[str]], override: str
) -> None:
    done = launch(BENCHMARKS / "stream.py", "--config-name", "demo", "seconds=0.5", override)
    result = json.loads(done.stdout)
    keys = {"tokens", "cpu_s", "wall_s", "documents", "fill", "rss_mb"}
    rates = {"tokenizer_backend", "stream", "plain", "times_plain"}
    assert set(result) == (keys if override == "plain=true" else keys | rates)
    if override != "plain=true":
        ratio = result["stream"] / result["plain"]
        assert result["times_plain"] == pytest.approx(ratio, abs=0.01)
    assert result["tokens"] > result["documents"] > 0
    assert result["wall_s"] >= 0.5
    assert 0.9 < result["fill"] <= 1.0


@pytest.mark.long
def test_stream_measures_every_backend(
    launch: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    pytest.importorskip("gigatoken", reason="an optional extra")
    keys = ("--config-name", "demo", "seconds=0.1", "rounds=2")
    done = launch(BENCHMARKS / "stream.py", *keys)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    names = [result["tokenizer_backend"] for result in results]
    assert names == ["gigatoken", "tiktoken", "hf"]
    assert all(result["stream"] > 0 for result in results)


def test_stream_uses_the_tokenizer_of_the_configuration(
    launch: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    keys = ("seconds=0.5", "data_config.tokenizer_backend=fast")
    done = launch(BENCHMARKS / "stream.py", "--config-name", "demo", *keys, check=False)
    assert done.returncode == 2
    assert 'data_config.tokenizer_backend in Hydra configuration: found "fast"' in done.stderr


def run_benchmark(
    launch: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    name: str,
    *overrides: str,
) -> dict[str, Any]:
    """Runs a benchmark with the demo's configuration; returns its JSON output."""
    keys = (
        f"data_config.cache_dir={tmp_path}",
        "data_config.tokenizer_backend=tiktoken",
        *overrides,
    )
    done = launch(BENCHMARKS / f"{name}.py", "--config-name", "demo", *keys)
    return json.loads(done.stdout)


Launch = Callable[..., subprocess.CompletedProcess[str]]


def test_seek_reports_the_time_to_enter_a_shard(launch: Launch, tmp_path: Path) -> None:
    result = run_benchmark(launch, tmp_path, "seek", "raw_mb=12", "repeats=1")
    assert list(result["seek_ms"]) == list(result["reread_ms"]) == ["10%", "50%", "90%"]
    assert result["documents"] > 100


@pytest.mark.slow
def test_stream_peers_reports_the_ratio_to_each_library(launch: Launch, tmp_path: Path) -> None:
    arguments = ["--config-name", "demo", f"data_config.cache_dir={tmp_path}", "rounds=1"]
    done = launch(BENCHMARKS / "stream_peers.py", *arguments)
    datasets, tf_data = map(json.loads, done.stdout.splitlines())
    assert (datasets["peer"], tf_data["peer"]) == ("datasets", "tf.data")
    for result in (datasets, tf_data):
        assert result["ratio"] == pytest.approx(result["ours"] / result["theirs"], rel=0.01)
        assert min(result["our_tokens"], result["their_tokens"]) > 10_000
        assert result["rounds"] == 1
    assert datasets["their_fill"] == 1.0
    assert tf_data["their_fill"] < 0.9 < tf_data["our_fill"]


@pytest.mark.slow
def test_stream_formats_reports_every_format(launch: Launch, tmp_path: Path) -> None:
    arguments = ["--config-name", "demo", f"data_config.cache_dir={tmp_path}", "rounds=1"]
    done = launch(BENCHMARKS / "stream_formats.py", *arguments)
    results = {result["format"]: result for result in map(json.loads, done.stdout.splitlines())}
    assert list(results) == [
        "records .jsonl.gz",
        "records .jsonl.zst",
        "records .parquet",
        "plain .jsonl.gz",
        "plain .parquet",
    ]
    for suffix in (".jsonl.gz", ".parquet"):  # the same documents, drawn from the same names
        assert (
            results[f"plain {suffix}"]["tokens"] == results[f"records {suffix}"]["tokens"] > 10_000
        )
    assert results["records .jsonl.gz"]["ratio"] == 1.0


@pytest.mark.slow
def test_resume_reports_the_time_to_resume(launch: Launch, tmp_path: Path) -> None:
    result = run_benchmark(launch, tmp_path, "resume", "raw_mb=12", "repeats=1")
    assert set(result["resumed_ms"]) == {"10%", "50%", "90%", "50% of epoch 10"}
    assert result["windows"] > 3


@pytest.mark.slow
def test_packing_reports_fill_and_splits(launch: Launch, tmp_path: Path) -> None:
    result = run_benchmark(launch, tmp_path, "packing", "documents=300")
    assert result["pad"]["fill"] < result["best_fit"]["256"]["fill"]
    assert result["best_fit"]["256"]["split"] == 0 < result["concatenate"]["split"]


@pytest.mark.slow
def test_memory_reports_the_peak_of_each_epoch(launch: Launch, tmp_path: Path) -> None:
    result = run_benchmark(launch, tmp_path, "memory", "epochs=2")
    assert len(result["epochs_mb"]) == 2
    assert result["imports_mb"] < result["peak_mb"]


@pytest.mark.slow
def test_row_budget_reports_every_arm_and_budget(launch: Launch, tmp_path: Path) -> None:
    arguments = ["--config-name", "demo", f"data_config.cache_dir={tmp_path}"]
    done = launch(BENCHMARKS / "row_budget.py", *arguments, "train_steps=2", "rounds=1")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    arms = ["text alone", "URL", "global types", "and html"]
    budgets = [(arm, budget) for arm in arms for budget in ("sequence", "text")]
    assert [(row["arm"], row["row_budget"]) for row in rows] == budgets
    matched = [row["targets"] for row in rows if row["row_budget"] == "text"]
    shared = [row["targets"] for row in rows if row["row_budget"] == "sequence"]
    assert len(set(matched)) == 1
    assert shared == sorted(shared, reverse=True)
    assert matched[0] == pytest.approx(shared[0], rel=0.01)
    assert all(0 < row["text"] < row["fill"] <= 1 for row in rows)
    assert all(len(row["train_ratio"]) == 3 for row in rows if row["row_budget"] == "text")
