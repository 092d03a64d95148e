"""Measures the time that saves take from the training loop, with two processes on the CPU.

    python experiments/benchmarks/save_time.py saves=3 every=8 [engines=zero2,zero3] \
        [bucket=true] [layers=12 width=768] [keys of train.py]

starts `train.py` for each engine (by default `ddp` and `fsdp2`), with a new GPT-2 of 124 million
weights (12 layers, 768 wide) and AdamW in float32, on the sample: once with `async_save=false` and
once with `true`. Under DeepSpeed, every other checkpoint has `model/` (`export_steps`). With
`bucket=true`, every run has `async_save=true`, the first one in a folder, and the second one in a
bucket on a local server (`bucket_sink.py`), which discards what it receives. Prints a JSON line for
each run, under DeepSpeed for each kind of its checkpoints, with medians over its saves, except the
last one, which the end of the run waits for:

    pause_s: what a save took from the loop (`loop_seconds` of its event)
    write_s: from its start until the checkpoint was complete, and uploaded (`seconds`)
    step_s: a step while no save was in progress
    slower_s: how much longer the steps beside a save took than as many others
    lost: (pause_s + slower_s) / one minute: the share of time lost at one save per minute
    cpu_s_per_gb: CPU time of an upload to the bucket, without TLS, in seconds per GB
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from common import own_arguments

from bsmeta.config.run_location import name_local_folder
from bsmeta.core.process import run_and_report
from bsmeta.training.buckets.choice import open_bucket

ROOT = Path(__file__).resolve().parents[2]
OWN_KEYS = {
    "saves": "3",
    "every": "8",
    "engines": "ddp,fsdp2",
    "bucket": "false",
    "layers": "12",
    "width": "768",
}
BUCKET = "benchmark"
UPLOAD_BYTES = 256_000_000
ENGINES = {"ddp": "cpu", "fsdp2": "cpu_fsdp2", "zero2": "cpu_zero2", "zero3": "cpu_zero2"}
MODEL = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SMALL_STEPS = (
    "gradient_accumulation_steps=1",
    "data_config.per_device_train_batch_size=1",
    "data_config.metadata_config.max_seq_len=64",
    "eval_steps=0",
    "trackers=[]",
    "keep_last_checkpoints=1",
)


def launch_file(engine: str, folder: Path) -> Path:
    """The launch file of an engine on the CPU; that of ZeRO-3 is written to a folder."""
    shipped = ROOT / "experiments" / "accelerate" / f"{ENGINES[engine]}.yaml"
    if engine != "zero3":
        return shipped
    settings = json.loads((ROOT / "deepspeed_configs" / "cpu.json").read_text())
    settings["zero_optimization"] = {
        "stage": 3, "stage3_gather_16bit_weights_on_model_save": True
    }  # fmt: skip
    (folder / "zero3.json").write_text(json.dumps(settings))
    launch = yaml.safe_load(shipped.read_text())
    launch["deepspeed_config"] = {
        "deepspeed_config_file": str(folder / "zero3.json"), "zero3_init_flag": True
    }  # fmt: skip
    (folder / "zero3.yaml").write_text(yaml.safe_dump(launch))
    return folder / "zero3.yaml"


@contextmanager
def run_server() -> Iterator[None]:
    """Context with a local server, and the environment variables by which a run uses it."""
    command = [sys.executable, str(Path(__file__).with_name("bucket_sink.py"))]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        os.environ |= {
            "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield
    finally:
        server.terminate()
        server.wait()


def train(launch: Path, folder: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Runs `train.py` and returns the events of its log."""
    return _train(launch, str(folder), folder, overrides)


def train_in_bucket(launch: Path, folder: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Runs `train.py` in the bucket of `run_server`; returns the events of its log."""
    url = f"s3://{BUCKET}/{folder.name}"
    staging = [f"staging_dir={folder}"]
    return _train(launch, url, folder / name_local_folder(url), [*overrides, *staging])


def _train(launch: Path, out_dir: str, folder: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Runs `train.py`, and reads its log in a folder."""
    command = [sys.executable, "-P", "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(launch)]
    command += [str(ROOT / "bsmeta/train.py"), "--config-name", "demo", f"out_dir={out_dir}"]
    subprocess.run([*command, *overrides], check=True, stdout=sys.stderr)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary(
    events: list[dict[str, Any]], every: int, counted: range | None = None
) -> dict[str, float]:
    """The medians of a run that saved after every `every` steps.

    Args:
        counted: The steps whose saves are counted; None: all.
    """
    times = {event["step"]: event["step_s"] for event in events if event["event"] == "step"}
    saves = [event for event in events if event["event"] == "save"][:-1]
    beside: dict[int, list[float]] = {}
    for save in saves:
        left = save["seconds"] - save["loop_seconds"]
        steps = beside[save["step"]] = []
        for step in range(save["step"] + 1, save["step"] + every + 1):
            if left <= 0:
                break
            steps.append(times[step])
            left -= times[step]
    busy = {step + 1 + index for step, found in beside.items() for index in range(len(found))}
    # The first step of a run also allocates memory.
    usual = median(time for step, time in times.items() if step > 1 and step not in busy)
    saves = [save for save in saves if counted is None or save["step"] in counted]
    pause = median(save["loop_seconds"] for save in saves)
    slower = median(sum(beside[save["step"]]) - usual * len(beside[save["step"]]) for save in saves)
    return {
        "pause_s": round(pause, 3),
        "write_s": round(median(save["seconds"] for save in saves), 3),
        "step_s": round(usual, 3),
        "slower_s": round(slower, 3),
        "lost": round((pause + slower) / 60, 4),
    }


def results(engine: str, keys: list[str], every: int, steps: int, folder: Path) -> Iterator[Any]:
    """Trains under an engine, and yields what its saves took for each setting."""
    launch = launch_file(engine, folder)
    for aside in ("false", "true"):
        own = [f"async_save={aside}", f"max_train_steps={steps}"]
        label = {"engine": engine, "async_save": aside == "true"}
        if not engine.startswith("zero"):
            events = train(launch, folder / f"{engine}-{aside}", [*keys, *own])
            yield label | summary(events, every)
            continue

        # Checkpoints with and without a model alternate, so that both meet the same disk.
        own = [f"async_save={aside}", f"max_train_steps={2 * steps}", f"export_steps={2 * every}"]
        events = train(launch, folder / f"{engine}-{aside}", [*keys, *own])
        for has_model in (True, False):
            first = 2 * every if has_model else every
            counted = range(first, 2 * steps, 2 * every)
            yield label | {"model": has_model} | summary(events, every, counted)


def measure_upload(folder: Path) -> float:
    """Returns the CPU seconds that this process needs to upload a GB to `run_server`."""
    file = folder / "random"
    file.write_bytes(os.urandom(UPLOAD_BYTES))
    bucket = open_bucket(f"s3://{BUCKET}/upload")
    bucket.upload("warm-up", file)
    began = time.process_time()
    bucket.upload("random", file)
    return (time.process_time() - began) / UPLOAD_BYTES * 1e9


def bucket_results(
    engine: str, keys: list[str], every: int, steps: int, folder: Path
) -> Iterator[Any]:
    """Trains in a folder and in a bucket, and yields what the asynchronous saves of each took."""
    launch = launch_file(engine, folder)
    own = [f"max_train_steps={steps}", "async_save=true"]
    events = train(launch, folder / engine, [*keys, *own])
    yield {"engine": engine, "bucket": False} | summary(events, every)
    with run_server():
        cpu_s_per_gb = round(measure_upload(folder), 2)
        events = train_in_bucket(launch, folder / f"{engine}-bucket", [*keys, *own])
    cost = summary(events, every) | {"cpu_s_per_gb": cpu_s_per_gb}
    yield {"engine": engine, "bucket": True} | cost


def main() -> None:
    """Trains under each engine and prints the results."""
    own = own_arguments(OWN_KEYS)
    every = int(own["every"])
    steps = every * (int(own["saves"]) + 1)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "config.json"
        size = {"n_layer": int(own["layers"]), "n_embd": int(own["width"])}
        model.write_text(json.dumps(MODEL | size))
        keys = [*SMALL_STEPS, f"model_config_file={model}", f"save_steps={every}"]
        keys += ["num_warmup_steps=0", *sys.argv[1:]]
        for engine in own["engines"].split(","):
            measure = bucket_results if own["bucket"] == "true" else results
            for result in measure(engine, keys, every, steps, Path(folder)):
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(run_and_report(main))
