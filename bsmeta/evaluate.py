"""Evaluate a trained model on held-out documents, with and without metadata.

python bsmeta/evaluate.py checkpoint=runs/demo
accelerate launch --cpu --num_processes 2 bsmeta/evaluate.py checkpoint=runs/demo
"""

from __future__ import annotations

import os

from bsmeta.config.compose import run_entry_point
from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.evaluation.checkpoints import locate
from bsmeta.evaluation.output import print_report, progress_bar, write_report
from bsmeta.evaluation.ranks import start_ranks
from bsmeta.evaluation.run import evaluate, report_folder


def main(config: EvaluateConfig) -> None:
    """Score the held-out documents on all processes; rank 0 writes and prints the report."""
    location = locate(config.checkpoint)
    environment = os.environ  # set by torchrun and `accelerate launch`
    with start_ranks(
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        world_size=int(environment.get("WORLD_SIZE", "1")),
    ) as (ranks, device):
        with progress_bar(shown=ranks.is_main) as progress:
            report = evaluate(config, location, ranks, device, progress)
        if ranks.is_main:
            metrics = location.run_folder and location.run_folder / "metrics.jsonl"
            files = write_report(report, report_folder(config, location), metrics)
            print_report(report, files)


if __name__ == "__main__":
    run_entry_point(main, EvaluateConfig, "evaluate")
