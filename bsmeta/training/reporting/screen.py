"""The progress of a run on the screen: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.table import Column

from bsmeta.core.progress import PLAIN_INTERVAL_S
from bsmeta.core.terminal import ProgressDisplay, TextColumn
from bsmeta.training.reporting.flat_values import flatten_values

_MAX_METRICS_SHOWN = 4
_MIN_BAR_COLUMNS = 6  # of the terminal


class Screen:
    """A progress bar on a terminal; elsewhere, plain lines: every ten seconds and per event."""

    def __init__(self, total: int, step: int) -> None:
        self._total = total
        self._bar: ProgressDisplay | None = None
        self._last_line_time = 0.0

        if sys.stderr.isatty():
            self._bar = ProgressDisplay(
                TextColumn("training"),
                BarColumn(
                    bar_width=None,
                    table_column=Column(min_width=_MIN_BAR_COLUMNS, max_width=4 * _MIN_BAR_COLUMNS),
                ),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.description}"),
            )
            # Step and time are never cut; columns are separated by four blanks in all.
            step_width = 2 * len(str(total)) + 1
            fixed_width = len("training") + _MIN_BAR_COLUMNS + step_width + len("0:00:00") + 4
            self._description_width = self._bar.console.width - fixed_width

            self._task = self._bar.add_task("", total=total, completed=step)
            self._bar.start()

    def show(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Shows an event, unless its values do not fit on a line; `metrics.jsonl` has them all."""
        if kind == "step":
            self._show_step(step, values)
        elif kind not in ("exposure", "totals"):
            self._show_event(kind, step, values)

    def _show_step(self, step: int, values: dict[str, Any]) -> None:
        """Updates the bar, or prints a line if the last one is old enough."""
        metrics = (
            f"loss {values['loss']:.4f}",
            f"lr {values['learning_rate']:.2e}",
            f"{values['tokens_per_s']:,.0f} tokens/s",
            f"data wait {values['data_wait_s']:.3f} s",
        )
        if self._bar is not None:
            description = _join_until(metrics, self._description_width)
            self._bar.update(self._task, completed=step, description=description)
        elif time.monotonic() - self._last_line_time > PLAIN_INTERVAL_S or step == self._total:
            self._last_line_time = time.monotonic()
            self._print(f"step {step}/{self._total}  {'  '.join(metrics)}")

    def _show_event(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Prints a line with the values of an event, of an evaluation only the first few."""
        items = flatten_values(values)
        if kind == "eval":
            numbers = [(name, value) for name, value in items if isinstance(value, float)]
            items = numbers[:_MAX_METRICS_SHOWN]

        words = []
        for name, value in items:
            words.append(f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}")
        self._print(f"step {step}/{self._total}  {kind}  {'  '.join(words)}")

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stops the bar, if there is one."""
        if self._bar is not None:
            self._bar.stop()


def _join_until(values: Sequence[str], width: int) -> str:
    """Joins the first values, up to `width` characters, with two blanks between them."""
    text = ""
    for value in values:
        extended_text = f"{text}  {value}" if text else value
        if len(extended_text) > width:
            break
        text = extended_text
    return text
