"""The scripts under `experiments/` that no other test runs, in a small form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

EXPERIMENTS = REPOSITORY / "experiments"
Launch = Callable[..., subprocess.CompletedProcess[str]]

# Run without the package, by shell scripts or on a GPU day; or their output is not a table.
WITHOUT_REPORTS = {
    "gpus.py", "machines.py", "meeting.py", "run_notebooks.py", "soak.py", "bucket_sink.py",
    "gpu_attention.py", "gpu_day.py", "gpu_kernels.py", "gpu_run.py", "spelling_texts.py",
}  # fmt: skip


def test_scripts_report_errors_and_end_quietly_if_nobody_reads_them() -> None:
    without_reports = set()
    for script in EXPERIMENTS.rglob("*.py"):
        _, is_program, start = script.read_text().partition('if __name__ == "__main__":')
        if is_program and "run_and_report(" not in start and "run_entry_point(" not in start:
            without_reports.add(script.name)
    assert without_reports == WITHOUT_REPORTS


def test_the_metadata_benchmark_prints_its_result(launch: Launch) -> None:
    done = launch(
        EXPERIMENTS / "benchmarks" / "metadata.py",
        f"--data={REPOSITORY}/examples/webdocs/*.jsonl.gz",
        f"--tokenizer={REPOSITORY}/examples/tokenizer",
        "--pages=5",
        "--repeats=1",
    )
    result = json.loads(done.stdout)
    steps = [f"{step}_us" for step in ("decode", "sample", "render", "tokenize", "mask")]
    assert list(result) == ["pages", *steps, "ratio", "tokens", "inserted"]
    assert result["pages"] == 5
    assert min(result[step] for step in steps) > 0
    expected = (result["render_us"] + result["mask_us"]) / result["tokenize_us"]
    assert result["ratio"] == pytest.approx(expected, abs=0.01)
    assert result["tokens"] > result["inserted"] > 0


@pytest.mark.slow
def test_the_evaluation_benchmark_prints_its_result(launch: Launch) -> None:
    script = EXPERIMENTS / "benchmarks" / "evaluation.py"
    result = json.loads(launch(script, "--documents=1", "--types=title").stdout)
    assert (result["documents"], result["comparisons"], result["threads"]) == (1, 2, 2)
    assert result["ratio"] == pytest.approx(result["plain_s"] / result["batched_s"], rel=0.02)


def test_the_annotation_benchmark_prints_its_results(launch: Launch) -> None:
    script, pages = EXPERIMENTS / "benchmarks" / "annotate.py", "examples/rawpages/*.jsonl.gz"
    done = launch(script, f"input={REPOSITORY}/{pages}", "limit=2", "repeats=1")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    names = [result["what"] for result in results]
    assert names[:2] == ["lexbor: parse alone", "html with offsets"]
    assert names[-1].startswith("all annotators: ")
    assert {result["pages"] for result in results} == {2}


@pytest.mark.slow
def test_the_benchmark_of_saves_prints_a_result_for_each_engine(launch: Launch) -> None:
    keys = [f"model_config_file={REPOSITORY}/examples/model/config.json", "saves=1", "every=2"]
    keys.append("engines=ddp,fsdp2,zero3")
    done = launch(EXPERIMENTS / "benchmarks" / "save_time.py", *keys)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    by_engine = [
        (result["engine"], result["async_save"], result.get("model")) for result in results
    ]
    assert by_engine == [
        ("ddp", False, None), ("ddp", True, None), ("fsdp2", False, None), ("fsdp2", True, None),
        ("zero3", False, True), ("zero3", False, False), ("zero3", True, True),
        ("zero3", True, False),
    ]  # fmt: skip
    for result in results:
        if not result["async_save"]:  # the loop waits for all of it
            assert result["pause_s"] == result["write_s"]
            assert result["slower_s"] == 0


@pytest.mark.slow
def test_the_benchmark_of_saves_uploads_to_a_bucket(launch: Launch) -> None:
    keys = [f"model_config_file={REPOSITORY}/examples/model/config.json", "saves=1", "every=2"]
    keys += ["engines=ddp", "bucket=true"]
    done = launch(EXPERIMENTS / "benchmarks" / "save_time.py", *keys)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(result["engine"], result["bucket"]) for result in results] == [
        ("ddp", False), ("ddp", True),
    ]  # fmt: skip
    assert all(result["pause_s"] < result["write_s"] for result in results)


def test_the_scores_of_extractors_are_printed_as_a_table(launch: Launch) -> None:
    pages = REPOSITORY / "examples" / "rawpages" / "raw-000.jsonl.gz"
    table = launch(EXPERIMENTS / "content_f1.py", str(pages), "1").stdout.splitlines()
    assert table[0].startswith("| site | pages | all | published | resiliparse |")
    whole = next(line for line in table if line.startswith("| all pages: recall |"))
    assert whole.split(" | ")[2] == "1.000"  # the whole text has all of the content


@pytest.mark.parametrize("answer", ["echo 'GPU-a, 900, 0'", "exit 9", None])
def test_no_gpu_is_selected_if_none_can_be_used(answer: str | None, tmp_path: Path) -> None:
    """With a GPU hidden by CUDA_VISIBLE_DEVICES, a broken nvidia-smi, and no nvidia-smi."""
    if answer is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    environ = {**os.environ, "PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(EXPERIMENTS / "gpus.py"), "1"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.faults
def test_the_soak_test_survives_one_kill(tmp_path: Path) -> None:
    command = [sys.executable, str(EXPERIMENTS / "soak.py"), "steps=30", "kills=1"]
    command += ["seed=1", f"folder={tmp_path}"]  # the kill comes after step 5
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["steps"], result["kills"]["in_saves"] + result["kills"]["at_random"]) == (30, 1)
    assert result["same_weights"]
    assert result["same_losses"]
    assert result["same_documents"]
