"""Evaluate trained models on held-out documents, with and without metadata.

python bsmeta/evaluate.py checkpoint=runs/demo
accelerate launch --config_file experiments/accelerate/cpu.yaml bsmeta/evaluate.py
python bsmeta/evaluate.py checkpoint=[runs/a,runs/b] controls=[shuffled] --prompt
"""

from __future__ import annotations

import os
import sys

from bsmeta.config.compose import run_entry_point
from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.evaluation.output import print_report, progress_bar, write_report
from bsmeta.evaluation.ranks import start_ranks
from bsmeta.evaluation.run import evaluate, locations_of, report_folder

FLAGS = {"--prompt": "prompt=true", "--untrained": "untrained=true"}


def main(config: EvaluateConfig) -> None:
    """Score the held-out documents on all processes; rank 0 writes and prints the report."""
    locations = locations_of(config)
    environment = os.environ  # set by torchrun and `accelerate launch`
    with start_ranks(
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        world_size=int(environment.get("WORLD_SIZE", "1")),
    ) as (ranks, device):
        with progress_bar(shown=ranks.is_main) as progress:
            report = evaluate(config, locations, ranks, device, progress)
        if ranks.is_main:
            run = locations[0].run_folder
            metrics = run / "metrics.jsonl" if run else None
            files = write_report(report, report_folder(config, locations[0]), metrics)
            print_report(report, files)


if __name__ == "__main__":
    sys.argv[1:] = [FLAGS.get(argument, argument) for argument in sys.argv[1:]]
    run_entry_point(main, EvaluateConfig, "evaluate")
