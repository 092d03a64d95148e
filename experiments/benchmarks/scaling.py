"""Models scaling to more GPUs: the communication of ZeRO 1-3 relative to the time of a step.

    python experiments/benchmarks/scaling.py                     # the tables of docs/scaling.md
    python experiments/benchmarks/scaling.py parameters=7e9 micro_batch_s=0.8

Keys (defaults in `Setting`): parameters, micro_batch_tokens, micro_batch_s (forward and backward
pass of one micro-batch on one GPU, measured by loop.py; 0: at `mfu` of `peak_flops`), mfu,
peak_flops, node_gpus, node_gb_s and network_gb_s (per GPU and direction), link_efficiency,
latency_us, bucket_mb. docs/scaling.md has the formulas and their sources.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from bsmeta.core.process import run_and_report

Keys = TypeVar("Keys", bound=Any)
GPUS = (8, 64, 512)
ACCUMULATIONS = (1, 8)
STAGES = (1, 2, 3)
HALF = 2.0
"""Bytes of a bf16 weight or gradient."""

MASTER = 12.0
"""Bytes per parameter of the float32 weight and both Adam moments."""

PLAIN = 16.0
"""Bytes per parameter in plain data-parallel training: all in float32, gradient included."""

UTILIZATIONS = (0.2, 0.4, 0.5)
"""Model FLOPs utilizations that are compared; the last is the goal, and none was measured."""

SIZES = (0.124, 1.558, 7, 13)
"""Model sizes in the table of states, in billions of parameters."""

BACKWARD_SHARE = 2 / 3
"""The backward pass's share of a micro-batch's time: it has twice the FLOPs of the forward pass."""


@dataclass(frozen=True)
class Setting:
    """Model, GPU and links; the defaults are GPT-2 XL on H200s with NVLink 4 and 400 Gb/s each."""

    parameters: float = 1.558e9
    micro_batch_tokens: float = 16384.0
    micro_batch_s: float = 0.0
    mfu: float = 0.5
    peak_flops: float = 989e12
    node_gpus: float = 8.0
    node_gb_s: float = 450.0
    network_gb_s: float = 50.0
    link_efficiency: float = 0.8
    latency_us: float = 10.0
    bucket_mb: float = 400.0

    @property
    def compute_s(self) -> float:
        """Seconds per micro-batch on one GPU without communication."""
        flops = 6 * self.parameters * self.micro_batch_tokens
        return self.micro_batch_s or flops / (self.mfu * self.peak_flops)


def one_way_s(setting: Setting, gpus: int) -> float:
    """Seconds of a reduce-scatter of all gradients, or an all-gather of all weights, in bf16."""
    size = HALF * setting.parameters
    link = setting.node_gb_s if gpus <= setting.node_gpus else setting.network_gb_s
    moving = size * (gpus - 1) / gpus / (link * 1e9 * setting.link_efficiency)
    calls = math.ceil(size / (setting.bucket_mb * 1e6))
    return moving + calls * setting.latency_us * 1e-6 * math.log2(gpus)


def state_gb(setting: Setting, stage: int, gpus: int) -> float:
    """GB per GPU of weights, gradients and optimizer states, without activations."""
    weights = HALF / gpus if stage == 3 else HALF
    gradients = HALF / gpus if stage >= 2 else HALF
    return setting.parameters * (weights + gradients + MASTER / gpus) / 1e9


def passes(stage: int, accumulation: int) -> tuple[int, int]:
    """Number of reduce-scatters of all gradients and all-gathers of all weights per step.

    Returns:
        The number that can overlap with computation, and the number that cannot.
    """
    if stage == 1:
        return 1, 1  # gradients once per step, then the new weights
    if stage == 2:
        return accumulation, 1  # gradients with every micro-batch
    return 3 * accumulation, 0  # weights for forward and backward pass, and gradients


def step_s(setting: Setting, stage: int, gpus: int, accumulation: int) -> tuple[float, float]:
    """Seconds per step: with maximum overlap of communication and computation, and with none."""
    computing = accumulation * setting.compute_s
    beside, behind = (count * one_way_s(setting, gpus) for count in passes(stage, accumulation))
    room = {
        1: BACKWARD_SHARE * setting.compute_s,  # only the last micro-batch's backward pass
        2: BACKWARD_SHARE * computing,
        3: computing,
    }[stage]
    return computing + max(0.0, beside - room) + behind, computing + beside + behind


def table(setting: Setting) -> str:
    """The main table of docs/scaling.md, in Markdown."""
    heads = [f"A={a}: GB sent | A={a}: M tokens/s | A={a}: efficiency" for a in ACCUMULATIONS]
    lines = [
        f"| GPUs | ZeRO | states, GB a GPU | {' | '.join(heads)} |",
        "|---|---|---|" + "---|---|---|" * len(ACCUMULATIONS),
    ]
    for gpus in GPUS:
        for stage in STAGES:
            cells = [f"{gpus} | {stage} | {state_gb(setting, stage, gpus):.1f}"]
            for accumulation in ACCUMULATIONS:
                best, worst = step_s(setting, stage, gpus, accumulation)
                sent = sum(passes(stage, accumulation)) * HALF * setting.parameters / 1e9
                tokens = setting.micro_batch_tokens * accumulation * gpus / 1e6
                computing = accumulation * setting.compute_s
                cells.append(f"{sent * (gpus - 1) / gpus:.1f}")
                cells.append(f"{tokens / worst:.2f}–{tokens / best:.2f}")
                cells.append(f"{computing / worst:.0%}–{computing / best:.0%}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def utilization_table(setting: Setting) -> str:
    """A Markdown table of M tokens/s for several utilizations of one GPU."""
    names = [f"{share:g}" for share in UTILIZATIONS[:-1]] + [f"{UTILIZATIONS[-1]:g} (goal)"]
    heads = [f"A={count}: MFU {name}" for count in ACCUMULATIONS for name in names]
    lines = [f"| GPUs | ZeRO | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for gpus in GPUS:
        for stage in STAGES:
            cells = [f"{gpus} | {stage}"]
            for accumulation in ACCUMULATIONS:
                tokens = setting.micro_batch_tokens * accumulation * gpus / 1e6
                for share in UTILIZATIONS:
                    best, worst = step_s(replace(setting, mfu=share), stage, gpus, accumulation)
                    cells.append(f"{tokens / worst:.2f}–{tokens / best:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def states_table(setting: Setting) -> str:
    """A Markdown table with the memory of the states of several model sizes on 8 GPUs."""
    lines = ["| parameters | data parallel | ZeRO-1 | ZeRO-2 | ZeRO-3 |", "|---|---|---|---|---|"]
    for billions in SIZES:
        model = replace(setting, parameters=billions * 1e9)
        cells = [f"{billions * PLAIN:.1f}", *(f"{state_gb(model, s, 8):.1f}" for s in STAGES)]
        lines.append(f"| {billions} billion | {' | '.join(cells)} |")
    return "\n".join(lines)


def given(kind: type[Keys], page: str | None) -> Keys:
    """Settings with the values of the command line; ends the process after `--help`, or an error.

    Args:
        kind: A dataclass of numbers, whose fields are the keys.
        page: What `--help` prints.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(page))
    known = [field.name for field in fields(kind)]
    values = dict(one.split("=", 1) for one in sys.argv[1:] if "=" in one)
    unknown = [one for one in sys.argv[1:] if one.split("=", 1)[0] not in known]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: expected key=value with a key of {', '.join(known)}")
    return kind(**{name: float(value) for name, value in values.items()})


def main() -> None:
    """Print the tables for the keys of the command line."""
    setting = given(Setting, __doc__)
    print(f"one micro-batch on one GPU: {setting.compute_s:.3f} s\n")
    print(table(setting))
    if not setting.micro_batch_s:
        print("\nM tokens/s by the MFU of one GPU:\n")
        print(utilization_table(setting))
    print("\nGB of weights, gradients and optimizer on each of 8 GPUs:\n")
    print(states_table(setting))


if __name__ == "__main__":
    sys.exit(run_and_report(main))
