"""`evaluate.py` for `task=causal_lm`: held-out documents with and without metadata."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.evaluation.checkpoints import Location
from bsmeta.evaluation.output import print_report, progress_bar, write_report
from bsmeta.evaluation.ranks import Ranks
from bsmeta.evaluation.run import evaluate, report_folder


def run(
    config: EvaluateConfig, locations: Sequence[Location], ranks: Ranks, device: torch.device
) -> None:
    """Scores the held-out documents on all processes; rank 0 writes and prints the report."""
    with progress_bar(shown=ranks.is_main) as progress:
        report = evaluate(config, locations, ranks, device, progress)
    if ranks.is_main:
        folder = locations[0].run_folder
        metrics = folder / "metrics.jsonl" if folder else None
        files = write_report(report, report_folder(config, locations[0]), metrics)
        print_report(report, files)
