"""Prints generated texts: one below the other, or side by side for different metadata."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bsmeta.generation.requests import Request
from bsmeta.generation.writer import Result, Sample

WIDTH_OF_A_FILE = 120
"""Width of the printed text if the output is not a terminal."""


def console() -> Console:
    """A console on standard output, as wide as the terminal if there is one."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=WIDTH_OF_A_FILE, highlight=False)


def show(result: Result, out: Console) -> None:
    """Print the texts of a request, each after its prefix (dim) and its prompt (bold)."""
    for number, sample in enumerate(result.samples, start=1):
        if len(result.samples) > 1:
            out.rule(f"{number} of {len(result.samples)}, seed {sample.seed}", align="left")
        text = Text(f"{result.prefix}\n" if result.prefix else "", style="dim")
        out.print(text + _text(result.request, sample), soft_wrap=not out.is_terminal)


def show_side_by_side(results: Sequence[Result], out: Console) -> None:
    """Print a table with a column per request (its metadata) and a row per seed."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, show_lines=True, pad_edge=False)
    for result in results:
        table.add_column(Text(result.prefix or "(no metadata)"), ratio=1, overflow="fold")
    for samples in zip(*(result.samples for result in results), strict=True):
        cells = zip(results, samples, strict=True)
        table.add_row(*[_text(result.request, sample) for result, sample in cells])
    out.print(table)


def _text(request: Request, sample: Sample) -> Text:
    ending = "" if sample.finished == "eos" else " …"
    return Text.assemble((request.prompt, "bold"), sample.text, (ending, "dim"))
