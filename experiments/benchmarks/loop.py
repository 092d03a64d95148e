r"""Compares the training loop's speed with a bare loop and transformers' Trainer, on equal batches.

    python experiments/benchmarks/loop.py preset=cpu-tiny
    python experiments/benchmarks/loop.py preset=gpt2-xl feed=stream \
        data_config.train_file='shards/*.jsonl.gz'

accepts every training key (which overrides the preset) and prints one JSON object. Each loop runs
in its own process, all on one device (whose memory must hold the states of all models at once, and
the activations of one). They alternate round by round; `rounds` rounds of `steps` steps are
measured after a warm-up round. Nothing is saved. Its own keys:

    preset=cpu-tiny|gpt2|gpt2-xl|llama-1b   model and batch, which fit a GPU of 80 GB with the
                                            preset's loops
    arms=bare,ours,trainer                  the loops; default: set by the preset
    rounds=5  steps=N                       default of steps: set by the preset
    engines=torch,zero2                     zero2: all loops under DeepSpeed; omits those that fail
    feed=memory|stream                      memory: batches built beforehand; stream: on the fly

For each engine and loop it prints medians over the rounds of `tokens_per_s` (without padding),
`tokens_per_cpu_s` (per second of CPU time of all threads, which other processes disturb less),
`mfu` (see bsmeta/training/reporting/throughput.py; null without a GPU), `data_wait_share`, and the
maximum `peak_memory_gb`. `ratios` are medians of the ratios of consecutive rounds.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from common import own_arguments
from loop_arms import ARMS, work
from shapes import GPT2, GPT2_XL, LLAMA_1B

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point

OWN_KEYS = {
    "preset": "cpu-tiny",
    "arms": "",
    "rounds": "5",
    "steps": "",
    "engines": "torch,zero2",
    "feed": "memory",
}


@dataclass(frozen=True)
class Preset:
    """What is trained by default.

    Attributes:
        shape: The model; None: the demo's.
        length: Tokens per sequence.
        rows: Sequences per micro-batch.
        steps: Steps per round.
        arms: The loops, whose states must fit a GPU together.
    """

    shape: dict[str, Any] | None
    length: int
    rows: int
    steps: int = 20
    arms: tuple[str, ...] = tuple(ARMS)


PRESETS = {
    "cpu-tiny": Preset(None, 256, 4),
    "gpt2": Preset(GPT2, 1024, 32),
    # The states of a third loop would leave no room for the activations of any.
    "gpt2-xl": Preset(GPT2_XL, 1024, 4, arms=("bare", "ours")),
    "llama-1b": Preset(LLAMA_1B, 1024, 4),
}


def overrides(preset: str, folder: Path) -> list[str]:
    """The keys of a preset, which are inserted before the user's keys."""
    chosen = PRESETS[preset]
    keys = [
        "trackers=[]",
        "eval_steps=0",
        "save_steps=0",
        "learning_rate=1e-4",
        "num_warmup_steps=0",
        "lr_scheduler_type=constant",
        "max_train_steps=1000000",
        "gradient_accumulation_steps=1",
        "data_config.validation_file=null",
        f"data_config.metadata_config.max_seq_len={chosen.length}",
        f"data_config.per_device_train_batch_size={chosen.rows}",
    ]
    if chosen.shape is not None:
        file = folder / "model.json"
        file.write_text(json.dumps(chosen.shape))
        keys += [f"model_config_file={file}", "mixed_precision=bf16"]
    return keys


def compare(
    engine: str,
    arms: Sequence[str],
    rounds: int,
    steps: int,
    feed: str,
    config: CausalLMConfig,
    folder: Path,
) -> dict[str, Any]:
    """Run the loops of one engine in alternating rounds; returns their metrics."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    for arm in arms:
        pipes[arm], theirs = context.Pipe()
        own = replace(config, out_dir=str(folder / f"{engine}-{arm}"))
        process = context.Process(target=work, args=(arm, engine, feed, steps, own, theirs))
        process.start()
        theirs.close()
        processes.append(process)
    measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
    failed: dict[str, str] = {}
    for number in range(rounds + 1):
        shift = number % len(arms)
        for arm in [*arms[shift:], *arms[:shift]]:
            if arm not in failed:
                try:
                    pipes[arm].send(True)
                    result = pipes[arm].recv()
                except (EOFError, OSError):
                    failed[arm] = "its process ended; see above"
                    continue
                if number:
                    measured[arm].append(result)
    for arm in arms:
        if arm not in failed:
            pipes[arm].send(False)
    for process in processes:
        process.join()
    metrics = {arm: medians(found, config) for arm, found in measured.items() if arm not in failed}
    return {**metrics, "ratios": ratios(measured), **({"failed": failed} if failed else {})}


def medians(found: list[dict[str, float]], config: CausalLMConfig) -> dict[str, Any]:
    """Medians over the rounds of one loop."""
    per_s = statistics.median(one["tokens"] / one["wall_s"] for one in found)
    return {
        "tokens_per_s": round(per_s, 1),
        "tokens_per_cpu_s": round(
            statistics.median(one["tokens"] / one["cpu_s"] for one in found), 1
        ),
        "mfu": mfu(config, per_s),
        "data_wait_share": round(statistics.median(one["data_wait_share"] for one in found), 5),
        "peak_memory_gb": round(max(one["peak_memory_gb"] for one in found), 3),
    }


def mfu(config: CausalLMConfig, tokens_per_s: float) -> float | None:
    """Share of the GPU's dense bf16 peak; None if that is unknown."""
    from transformers import AutoModelForCausalLM

    from bsmeta.core.model_files import create_model, read_model_config
    from bsmeta.training.reporting.throughput import find_peak_flops
    from bsmeta.training.task import compute_flops_per_token

    peak = find_peak_flops(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if peak is None:
        return None
    with torch.device("meta"):
        model = create_model(AutoModelForCausalLM, read_model_config(str(config.model_config_file)))
    model.tie_weights()
    return round(tokens_per_s * compute_flops_per_token(model) / peak, 4)


def ratios(measured: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Speed of our loop relative to each other loop, per wall-clock and per CPU second."""
    found = {}
    ours = measured.get("ours", [])
    for other in ("bare", "trainer"):
        pairs = list(zip(ours, measured.get(other, []), strict=False))
        if pairs and len(ours) == len(measured[other]):
            for clock in ("wall", "cpu"):
                each = [
                    (a["tokens"] / a[f"{clock}_s"]) / (b["tokens"] / b[f"{clock}_s"])
                    for a, b in pairs
                ]
                found[f"ours / {other} ({clock})"] = round(statistics.median(each), 4)
    return found


def chosen_arms() -> tuple[str, ...]:
    """The loops to compare: those of the command line, or else of the preset."""
    return tuple(OWN["arms"].split(",")) if OWN["arms"] else PRESETS[OWN["preset"]].arms


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the result."""
    if config.check_only:
        return
    rounds, steps = int(OWN["rounds"]), int(OWN["steps"] or PRESETS[OWN["preset"]].steps)
    arms = chosen_arms()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    result = {
        "preset": OWN["preset"],
        "device": gpu or f"CPU, {torch.get_num_threads()} threads",
        "feed": OWN["feed"],
        "arms": list(arms),
        "rounds": rounds,
        "steps": steps,
    }
    for engine in OWN["engines"].split(","):
        with tempfile.TemporaryDirectory() as folder:
            result[engine] = compare(engine, arms, rounds, steps, OWN["feed"], config, Path(folder))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    OWN = own_arguments(OWN_KEYS)
    if OWN["preset"] not in PRESETS or OWN["feed"] not in ("memory", "stream"):
        sys.exit(f"preset: expected one of {', '.join(PRESETS)}; feed: memory or stream")
    if not set(chosen_arms()) <= ARMS.keys():
        sys.exit(f"arms={OWN['arms']}: expected some of {','.join(ARMS)}")
    with tempfile.TemporaryDirectory() as scratch:
        sys.argv[1:1] = overrides(OWN["preset"], Path(scratch))
        run_entry_point(main, CausalLMConfig, "demo")
