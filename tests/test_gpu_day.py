"""The day on a GPU, as far as a machine without one can tell: its commands, and its runner."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.waiting import wait_until

FOLDER = REPOSITORY / "experiments" / "benchmarks"
GPU_DAY = FOLDER / "gpu_day.py"
Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gpu_day(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu_day

    return gpu_day


@pytest.fixture
def gpu_plan(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu_plan

    return gpu_plan


@pytest.mark.long
def test_every_command_of_the_plan_can_run() -> None:
    command = [sys.executable, str(GPU_DAY), "dry_run=true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *checked, total = done.stdout.splitlines()
    assert set(checked[1::2]) == {"  ok"}
    assert re.fullmatch(r"\d+ items, about (2\d) minutes", total)
    items = {line.split(":", 1)[0] for line in checked[::2]}
    assert {f"R{number}" for number in (1, 2, 3, 4, 7, 8, 9)} < items
    assert {"R5-8-rows", "R5-4-rows", "R6-ddp", "R6-zero2", "R6-zero3", "R6-fsdp2"} < items


def test_a_command_that_cannot_run_is_reported(gpu_day: ModuleType, gpu_plan: ModuleType) -> None:
    command = gpu_plan.Command(
        arguments=("bsmeta/train.py",), training=("--config-name", "demo", "max_train_step=3")
    )
    assert "max_train_step" in gpu_day.check_command(command)


def test_the_tests_on_a_gpu_cover_the_plan(gpu_plan: ModuleType, tmp_path: Path) -> None:
    """Each R item is in a test, and all tests have the marker of `make test-gpu`."""
    names = [item.name for item in gpu_plan.Plan(tmp_path, {}, None).items()]
    tested = (REPOSITORY / "tests" / "gpu" / "test_gpu_day.py").read_text()
    asked = {name for name in names if name.startswith("R")}
    assert asked == set(re.findall(r'"(R\d[\w-]*)"', tested))
    for file in (REPOSITORY / "tests" / "gpu").glob("test_*.py"):
        assert re.search(r"^pytestmark = \[\n    pytest\.mark\.gpu,$", file.read_text(), re.M), file


@pytest.mark.long
def test_finished_results_are_kept_and_only_the_rest_runs(
    tmp_path: Path, gpu_day: ModuleType
) -> None:
    file = tmp_path / "results.jsonl"
    command = [sys.executable, str(GPU_DAY), f"out={tmp_path}"]
    subprocess.run([*command, "only=imports"], check=True, capture_output=True)
    [result] = map(json.loads, file.read_text().splitlines())
    assert (result["item"], result["values"]["step"]) == ("imports", 3)
    assert "error" not in result
    assert "step 3/3" in (tmp_path / "outputs" / "imports-1.txt").read_text()

    with file.open("a") as lines:
        lines.write('{"item": "R1", "val')  # an interruption
    assert list(gpu_day.read_results(file)) == ["imports"]
    gpu_day.append_result(file, {"item": "R2"})
    assert list(gpu_day.read_results(file)) == ["imports", "R2"]

    # No time is left, so the call shows what it would run.
    left = subprocess.run([*command, "minutes=0"], check=True, capture_output=True, text=True)
    names = [line.split(":")[0] for line in left.stdout.splitlines()]
    assert names[:3] == ["R1", "R6-ddp", "R6-zero2"]
    assert names[-1] == "loop"


@pytest.mark.slow
def test_items_of_the_plan_run_on_a_cpu_with_a_tiny_model(
    gpu_day: ModuleType, gpu_plan: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2}
    for name in ("GPT2", "GPT2_XL", "LLAMA_1B"):
        monkeypatch.setattr(gpu_plan, name, tiny)
    for name in ("SMALL", "LARGE"):
        short = ("data_config.metadata_config.max_seq_len=64", "gradient_accumulation_steps=1")
        keys = [key for key in getattr(gpu_plan, name) if "_seq_len" not in key]
        keys = [key for key in keys if "batch_size" not in key and "accumulation" not in key]
        monkeypatch.setattr(gpu_plan, name, (*keys, *short))
    items = {item.name: item for item in gpu_plan.Plan(tmp_path, {}, None).items()}

    def values(name: str) -> Any:
        result = gpu_day.run_item(items[name], tmp_path)
        assert "error" not in result, result["output_tail"]
        return result["values"]

    again, resumed = values("R4")["runs"]
    assert (again["steps"], again["first_difference"]) == (20, None)
    assert (resumed["steps"], resumed["first_difference"]) == (10, None)
    measured = values("R5-4-rows")
    assert not measured["out_of_memory"]
    assert measured["step_s"] > 0
    assert measured["tokens_per_s"] > 0
    saves = values("saves")
    assert [len(saves[name]) for name in ("save-in-loop", "save-beside")] == [4, 4]
    assert [len(each["evaluations"]) for each in values("evaluation").values()] == [2, 2]
    assert values("R9") == {
        "exit_codes": [75, -9, 0], "last_step": 600, "distinct_steps": 600
    }  # fmt: skip


def finished(output: str, out_dir: Path | None = None) -> Any:
    import gpu_values  # the fixtures have put its folder into the path

    return gpu_values.Finished(0, 1.0, 0.0, output, out_dir)


def test_the_values_of_an_estimate_are_parsed(gpu_plan: ModuleType) -> None:
    output = """
  H100: 79.1 GiB, of which 2.0 GiB are left to CUDA and to fragmentation
(assumed); this launch takes 52.5 GiB with 4 rows: it fits
probe          12 steps, after 12 to warm up
a step         0.214 s, 4,096 positions, of which padding 1.2%
tokens/s       18,912 on all devices, without padding
MFU            17.9%
memory         53.41 GiB at most on this device; weights 5.80 GiB (counted 5.80
               GiB), optimizer 11.61 GiB (counted 11.61 GiB)
"""
    assert gpu_plan.values.read_estimate([finished(output)]) == {
        "out_of_memory": False,
        "step_s": 0.214,
        "tokens_per_s": 18912.0,
        "mfu_percent": 17.9,
        "measured_gib": 53.41,
        "counted_gib": 52.5,
    }
    failed = gpu_plan.values.read_estimate([finished("torch.OutOfMemoryError: CUDA out of memory")])
    assert failed["out_of_memory"]
    assert failed["tokens_per_s"] is None


def test_the_fastest_arms_are_profiled(gpu_plan: ModuleType, tmp_path: Path) -> None:
    speeds = {"R5-4-rows": 1.0, "xl-compile": 3.0, "xl-zero1": 2.0}
    done = {name: {"tokens_per_s": speed} for name, speed in speeds.items()}
    done["R5-8-rows"] = {"tokens_per_s": None}
    items = {item.name: item for item in gpu_plan.Plan(tmp_path, done, None).items()}
    [first], [second] = items["profile-1"].commands, items["profile-2"].commands
    assert "torch_compile=true" in first.arguments
    assert second.launch_file == "zero1.yaml"
    assert not {"estimate=true", "estimate_steps=24"} & {*first.arguments, *second.arguments}


def test_waits_that_grow_with_the_steps_are_detected(gpu_plan: ModuleType) -> None:
    short = finished('step 12/12\n{"waits": {"a.py:1": 2, "b.py:2": 12}}\n')
    long = finished('{"waits": {"a.py:1": 2, "b.py:2": 24, "c.py:3": 1}}\n')
    assert gpu_plan.values.compare_waits([short, long]) == {
        "waits": {"a.py:1": 2, "b.py:2": 12},
        "growing": {"b.py:2": 24, "c.py:3": 1},
    }


def test_an_unknown_item_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(GPU_DAY), f"out={tmp_path}", "only=R1,R99"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("only=R99: expected some of imports, R1, R2, ")


RUN = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
for step in range(1, 4):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"event": "step", "step": step, "loss": 1.0 / step}) + "\\n")
while True:
    time.sleep(0.01)
"""


def test_a_signal_can_be_sent_at_a_step(
    gpu_day: ModuleType, gpu_plan: ModuleType, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = gpu_plan.Command(
        arguments=("-c", RUN, str(run)), out_dir=run, signal_at=(3, signal.SIGTERM)
    )
    finished = gpu_day.run_command(command, 3600.0, tmp_path / "output.txt")
    assert finished.exit_code == -signal.SIGTERM


def test_a_failed_item_counts_as_a_result(
    gpu_day: ModuleType, gpu_plan: ModuleType, tmp_path: Path
) -> None:
    command = gpu_plan.Command(arguments=("-c", "print('no such kernel'); raise SystemExit(3)"))
    item = gpu_plan.Item(
        name="X", prediction="", seconds=900, commands=[command, command], read=dict
    )
    result = gpu_day.run_item(item, tmp_path)
    assert result["error"] == "ItemError: exit code 3 instead of 0"
    assert result["output_tail"] == "no such kernel\n"
    assert "values" not in result
    assert not (tmp_path / "X-2.txt").exists()


def test_a_command_that_takes_too_long_is_ended(
    gpu_day: ModuleType, gpu_plan: ModuleType, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = gpu_plan.Command(arguments=("-c", RUN, str(run)), out_dir=run)
    with pytest.raises(gpu_day.ItemError, match="it took too long"):
        gpu_day.run_command(command, 1.0, tmp_path / "output.txt")


def test_an_interruption_leaves_the_item_without_a_result(tmp_path: Path) -> None:
    command = [sys.executable, str(GPU_DAY), f"out={tmp_path}", "only=imports"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    output = tmp_path / "outputs" / "imports-1.txt"
    wait_until(output.exists, process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 1
    assert not (tmp_path / "results.jsonl").exists()
