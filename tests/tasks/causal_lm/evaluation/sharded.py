"""A process of a group whose model DeepSpeed has spread over all of them.

    sharded.py SHARD OUT: evaluates a tiny model under ZeRO-3 and writes the figures to OUT-{rank}.

Beside them stand the figures of the model as it was before, by one process alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.tasks.causal_lm.evaluation.subset import SubsetEvaluation
from bsmeta.training.ranks.distributed_op import prepare_cpu_op
from bsmeta.training.ranks.processes import ALONE, Processes
from tests.tasks.causal_lm.evaluation.conftest import MAX_SEQ_LEN, TOKENIZER

CPU = torch.device("cpu")


def main(shard: str, out: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    metadata = MetadataConfig(metadata_list=["html", "title", "url"], max_seq_len=MAX_SEQ_LEN)
    config = DataConfig(
        validation_file=shard, per_device_eval_batch_size=2, metadata_config=metadata
    )
    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=len(tokenizer), n_positions=MAX_SEQ_LEN, n_embd=32, n_layer=2, n_head=2
    )
    model = GPT2LMHeadModel(shape).eval()
    figures = []
    prepare_cpu_op()
    deepspeed.init_distributed(dist_backend="gloo")
    for ranks in (ALONE, Processes.of_group(CPU)):
        if ranks.size > 1:
            model = deepspeed.initialize(
                model=model,
                model_parameters=model.parameters(),
                config={
                    "train_micro_batch_size_per_gpu": 1,
                    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
                    "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": True}},
                    "zero_force_ds_cpu_optimizer": False,
                },
            )[0]
        # seven documents: one of two ranks has less to do than the other
        subset = SubsetEvaluation(config, tokenizer, max_documents=7, seed=1, ranks=ranks)
        figures.append(subset.run(model, CPU))
    Path(f"{out}-{os.environ['RANK']}").write_text(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
