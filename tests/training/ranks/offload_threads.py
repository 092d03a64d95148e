"""Starts a run under DeepSpeed with this `zero_optimization`, and prints the number of threads.

offload_threads.py JSON
"""

from __future__ import annotations

import json
import logging
import sys

import torch

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.ranks.distributed import create_accelerator


def main(text: str) -> None:
    logging.basicConfig(level=logging.INFO)
    config = {
        "zero_optimization": json.loads(text),
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
    }
    create_accelerator(CausalLMConfig(trackers=[]), config, None)
    print(f"threads: {torch.get_num_threads()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
