"""Evaluates trained models on held-out data, as their task defines it.

python bsmeta/evaluate.py checkpoint=runs/demo
accelerate launch --config_file experiments/accelerate/cpu.yaml bsmeta/evaluate.py
python bsmeta/evaluate.py checkpoint=[runs/a,runs/b] controls=[shuffled] --prompt
python bsmeta/evaluate.py checkpoint=runs/classification validation_file=other.csv
"""

from __future__ import annotations

import sys

from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.tasks.evaluation import evaluate_checkpoints

FLAGS = {"--prompt": "prompt=true", "--untrained": "untrained=true"}


def main(config: EvaluateConfig) -> None:
    """Evaluates the checkpoints of the configuration."""
    evaluate_checkpoints(config)


if __name__ == "__main__":
    sys.argv[1:] = [FLAGS.get(argument, argument) for argument in sys.argv[1:]]
    run_entry_point(main, EvaluateConfig, "evaluate")
