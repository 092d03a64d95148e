r"""Compares the training loop's speed with a bare loop and transformers' Trainer, on equal batches.

    python experiments/benchmarks/loop.py preset=cpu-tiny
    python experiments/benchmarks/loop.py preset=gpt2-xl feed=stream \
        data_config.train_file='shards/*.jsonl.gz'

accepts every training key (which overrides the preset) and prints one JSON object. Each loop runs
in its own process, all on one device (whose memory must hold the states of the three models at
once). They alternate round by round; `rounds` rounds of `steps` steps are measured after a warm-up
round. Its own keys:

    preset=cpu-tiny|gpt2|gpt2-xl|llama-1b   model and batch
    rounds=5  steps=N                       default of steps: set by the preset
    engines=torch,zero2                     zero2: all loops under DeepSpeed; omits those that fail
    feed=memory|stream                      memory: batches built beforehand; stream: on the fly

For each engine and loop it prints medians over the rounds of `tokens_per_s` (without padding),
`tokens_per_cpu_s` (per second of CPU time of all threads, which other processes disturb less),
`mfu` (see bsmeta/training/metrics.py; null without a GPU), `data_wait_share`, and the maximum
`peak_memory_gb`. `ratios` are medians of the ratios of consecutive rounds.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import statistics
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from common import own_arguments
from loop_arms import ARMS, work

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import run_entry_point

OWN_KEYS = {
    "preset": "cpu-tiny",
    "rounds": "5",
    "steps": "",
    "engines": "torch,zero2",
    "feed": "memory",
}
ORDER = tuple(ARMS)


def gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    """A model configuration of GPT-2 (Radford et al. 2019), without dropout."""
    shape = {"model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads}
    return {**shape, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


LLAMA_1B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}

# Model (None: the demo's), tokens per sequence, sequences per micro-batch, steps per round.
PRESETS: dict[str, tuple[dict[str, Any] | None, int, int, int]] = {
    "cpu-tiny": (None, 256, 4, 20),
    "gpt2": (gpt2(768, 12, 12), 1024, 32, 20),
    "gpt2-xl": (gpt2(1600, 48, 25), 1024, 8, 20),
    "llama-1b": (LLAMA_1B, 1024, 8, 20),
}


def overrides(preset: str, folder: Path) -> list[str]:
    """The keys of a preset, which are inserted before the user's keys."""
    model, length, rows, _ = PRESETS[preset]
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
        f"data_config.metadata_config.max_seq_len={length}",
        f"data_config.per_device_train_batch_size={rows}",
    ]
    if model is not None:
        file = folder / "model.json"
        file.write_text(json.dumps(model))
        keys += [f"model_config_file={file}", "mixed_precision=bf16"]
    return keys


def compare(
    engine: str, rounds: int, steps: int, feed: str, config: CausalLMConfig
) -> dict[str, Any]:
    """Run the loops of one engine in alternating rounds; returns their metrics."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    for arm in ORDER:
        pipes[arm], theirs = context.Pipe()
        process = context.Process(target=work, args=(arm, engine, feed, steps, config, theirs))
        process.start()
        theirs.close()
        processes.append(process)
    measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in ORDER}
    failed: dict[str, str] = {}
    for number in range(rounds + 1):
        shift = number % len(ORDER)
        for arm in [*ORDER[shift:], *ORDER[:shift]]:
            if arm not in failed:
                try:
                    pipes[arm].send(True)
                    result = pipes[arm].recv()
                except (EOFError, OSError):
                    failed[arm] = "its process ended; see above"
                    continue
                if number:
                    measured[arm].append(result)
    for arm in ORDER:
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

    from bsmeta.core.model_files import new_model, read_shape
    from bsmeta.training.metrics import peak_flops
    from bsmeta.training.task import flops_per_token

    peak = peak_flops(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if peak is None:
        return None
    with torch.device("meta"):
        model = new_model(AutoModelForCausalLM, read_shape(str(config.model_config_file)))
    model.tie_weights()
    return round(tokens_per_s * flops_per_token(model) / peak, 4)


def ratios(measured: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Speed of our loop relative to each other loop, per wall-clock and per CPU second."""
    found = {}
    for other in ("bare", "trainer"):
        pairs = list(zip(measured["ours"], measured[other], strict=False))
        if pairs and len(measured["ours"]) == len(measured[other]):
            for clock in ("wall", "cpu"):
                each = [
                    (a["tokens"] / a[f"{clock}_s"]) / (b["tokens"] / b[f"{clock}_s"])
                    for a, b in pairs
                ]
                found[f"ours / {other} ({clock})"] = round(statistics.median(each), 4)
    return found


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the result."""
    rounds, steps = int(OWN["rounds"]), int(OWN["steps"] or PRESETS[OWN["preset"]][3])
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    result = {
        "preset": OWN["preset"],
        "device": gpu or f"CPU, {torch.get_num_threads()} threads",
        "feed": OWN["feed"],
        "rounds": rounds,
        "steps": steps,
    }
    for engine in OWN["engines"].split(","):
        result[engine] = compare(engine, rounds, steps, OWN["feed"], config)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    OWN = own_arguments(OWN_KEYS)
    if OWN["preset"] not in PRESETS or OWN["feed"] not in ("memory", "stream"):
        sys.exit(f"preset: expected one of {', '.join(PRESETS)}; feed: memory or stream")
    with tempfile.TemporaryDirectory() as scratch:
        sys.argv[1:1] = overrides(OWN["preset"], Path(scratch))
        run_entry_point(main, CausalLMConfig, "demo")
