"""Prints attributions: metrics and a row per candidate, or the candidates of a single text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

ROWS = 20
"""Maximum number of candidates to print; the file has all of them."""

NAMES = {"top_1": "first guess", "top_5": "first five", "majority_class": "always the majority"}


def show_attribution(report: dict[str, Any], out: Console) -> None:
    """Print the accuracy, next to that of always guessing the most frequent candidate."""
    figures = report["figures"]
    out.print(
        f"{report['type']} of {figures['documents']:,} documents, told from their text "
        f"({figures['candidates']:,} candidates, {report['prior']} prior)"
    )
    table = _table(["right", "share", "95% interval"])
    for name, title in NAMES.items():
        one = figures[name]
        if name == "top_5" and figures["candidates"] <= 5:
            continue  # always 100%
        interval = f"{one['low']:.1%} to {one['high']:.1%}"
        table.add_row(title, f"{one['share']:.1%}", interval)
    out.print(table)
    heads = ["candidate", "documents", "told", "guessed", "most often taken for"]
    table = _table(heads, left=(0, 4))
    for row in report["candidates"][:ROWS]:
        numbers = [f"{row[name]:,}" for name in ("documents", "told", "guessed")]
        table.add_row(Text(row["label"]), *numbers, Text(row["most_often_taken_for"] or ""))
    out.print(table)
    out.print(
        f"mean reciprocal rank {figures['mean_reciprocal_rank']:.3f}; the right one costs "
        f"{figures['mean_bits_of_the_truth']:.2f} bits; majority: {figures['majority_label']}",
        markup=False,
    )


def show_posterior(
    key: str,
    labels: Sequence[str],
    probabilities: np.ndarray,
    scores: np.ndarray,
    out: Console,
) -> None:
    """Print the candidates of one text, the most probable first."""
    table = _table([key, "p(value | text)", "log p(text | value), nats"])
    for number in np.argsort(-probabilities, kind="stable")[:ROWS]:
        table.add_row(Text(labels[number]), f"{probabilities[number]:.4f}", f"{scores[number]:.2f}")
    out.print(table)


def _table(heads: Sequence[str], left: Sequence[int] = (0,)) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number in left else "right", overflow="fold")
    return table
