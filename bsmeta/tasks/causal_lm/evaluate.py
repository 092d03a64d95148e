"""`evaluate.py` for `task=causal_lm`: held-out documents with and without metadata."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.core.progress import progress_bar
from bsmeta.tasks.causal_lm.evaluation.checkpoints import run_config
from bsmeta.tasks.causal_lm.evaluation.report import print_report, write_report
from bsmeta.tasks.causal_lm.evaluation.run import evaluate
from bsmeta.tasks.checkpoints import report_folder
from bsmeta.training.locations import Location
from bsmeta.training.ranks import Ranks


def run(
    config: EvaluateConfig, locations: Sequence[Location], ranks: Ranks, device: torch.device
) -> None:
    """Scores the held-out documents on all processes; rank 0 writes and prints the report."""
    with progress_bar("scoring", 1, shown=ranks.is_main) as progress:
        report = evaluate(config, locations, ranks, device, progress)
    if ranks.is_main:
        folder = locations[0].run_folder
        metrics = folder / "metrics.jsonl" if folder else None
        out_dir = report_folder(
            config, locations[0], has_other_data=_has_other_data(config, locations[0])
        )
        print_report(report, write_report(report, out_dir, metrics))


def _has_other_data(config: EvaluateConfig, location: Location) -> bool:
    """Whether the held-out file is not that of the run, which may have been moved since."""
    if config.validation_file is None:
        return False
    own = run_config(location, config.training_config, config.overrides).data_config.validation_file
    if own is None or os.path.basename(own) != os.path.basename(config.validation_file):
        return True
    return os.path.exists(own) and os.path.realpath(own) != os.path.realpath(config.validation_file)
