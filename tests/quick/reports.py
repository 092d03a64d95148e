"""Reports of two models that were never trained, with known bits per byte."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bsmeta.tasks.causal_lm.evaluation.readings import (
    BYTES,
    COLUMNS,
    NATS_WITH,
    NATS_WITHOUT,
    TOKENS,
    TOKENS_WITH,
)
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport

CONTROLS = ("matched", "form", "separator")


def make_reports(
    bits_per_byte: Mapping[str, float],
    *,
    hosts: Sequence[str],
    without_metadata: Sequence[int] = (),
    spread: float = 0.1,
) -> tuple[ModelReport, ModelReport]:
    """Returns the reports of the models trained on text alone and with metadata.

    Args:
        bits_per_byte: By `base`, `text`, `own` and control; 2 unless they are named.
        hosts: The host of each document.
        without_metadata: Documents without metadata.
        spread: Standard deviation of the differences between documents, which have the same sum.
    """
    count = len(hosts)
    noise = np.random.default_rng(0).normal(0, spread, (6, count))
    noise -= noise.mean(axis=1, keepdims=True)

    def make_totals(number: int, name: str, *, is_text: bool) -> np.ndarray:
        totals = np.zeros((count, COLUMNS))
        totals[:, BYTES] = 1000
        totals[:, [TOKENS, TOKENS_WITH]] = 300
        nats = 1000 * math.log(2) * (bits_per_byte.get(name, 2.0) + noise[number])
        totals[:, NATS_WITH] = nats
        totals[:, NATS_WITHOUT] = nats if is_text else 9.0
        if not is_text:
            totals[list(without_metadata)] = 0
        return totals

    def make_report(name: str, totals: dict[str, np.ndarray]) -> ModelReport:
        return ModelReport(
            checkpoint=name, model="", data={}, rows=[], names=[f"d{k}" for k in range(count)],
            digests=[*range(count)], totals=totals, hosts=[*hosts],
        )  # fmt: skip

    with_totals = {
        "text": make_totals(1, "text", is_text=True),
        "all": make_totals(2, "own", is_text=False),
    }
    for number, control in enumerate(CONTROLS, 3):
        with_totals[f"{control}/all"] = make_totals(number, control, is_text=False)
    without = make_report("without", {"text": make_totals(0, "base", is_text=True)})
    return without, make_report("with", with_totals)
