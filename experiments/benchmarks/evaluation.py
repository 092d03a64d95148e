"""Compares the speed of the evaluation with a naive implementation of the same metrics.

    python experiments/benchmarks/evaluation.py [--documents 24] [--types title url datasource]

The naive implementation is the reference of the tests (`plain.py` beside those of the evaluation):
one document at a time, chunk by chunk, all logits, and the text without metadata again for every
comparison. Both score documents of the sample's test file with the demo's model (random weights) on
the CPU. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.model_files import create_model, read_model_config, read_tokenizer
from bsmeta.core.process import run_and_report
from bsmeta.tasks.causal_lm.evaluation.arms import plan_comparisons
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from tests.tasks.causal_lm.evaluation.plain import bits_of_document  # noqa: E402 (on the path through the line above)

EXAMPLES = REPOSITORY / "examples"
SHARD = EXAMPLES / "webdocs" / "c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz"
TYPES = ["title", "url", "datasource", "website_description", "timestamp", "entity"]


def main() -> None:
    """Time both implementations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=12)
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-seq-len", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8, help="full sequences in a batch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = create_model(AutoModelForCausalLM, read_model_config(EXAMPLES / "model")).eval()
    tokenizer = read_tokenizer(EXAMPLES / "tokenizer")
    metadata = MetadataConfig(metadata_list=arguments.types, max_seq_len=arguments.max_seq_len)
    config = DataConfig(
        validation_file=str(SHARD),
        metadata_config=metadata,
        per_device_eval_batch_size=arguments.batch,
    )
    documents = HeldOutDocuments(
        config, max_documents=arguments.documents, deduplicate=True, training_overlap=None
    )
    batched_s(model, tokenizer, config, documents, arguments.types[:1])  # the first call is slow
    batched = batched_s(model, tokenizer, config, documents, arguments.types)
    plain = plain_s(model, tokenizer, config, documents, arguments.types)
    metrics = {
        "documents": len(documents),
        "comparisons": 1 + len(arguments.types),
        "threads": arguments.threads,
        "plain_s": round(plain, 2),
        "batched_s": round(batched, 2),
        "ratio": round(plain / batched, 2),
    }
    print(json.dumps(metrics))


def batched_s(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    config: DataConfig,
    documents: HeldOutDocuments,
    types: Sequence[str],
) -> float:
    """Seconds that the evaluation takes for all types together and each alone."""
    start = time.perf_counter()
    comparisons = plan_comparisons(["all", "each"], types)
    device = next(model.parameters()).device
    PairedEvaluation(config, tokenizer, documents, comparisons).run(model, device)
    return time.perf_counter() - start


def plain_s(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    config: DataConfig,
    documents: HeldOutDocuments,
    types: Sequence[str],
) -> float:
    """Seconds that the naive scorer of the tests takes for the same comparisons."""
    start = time.perf_counter()
    for one in plan_comparisons(["all", "each"], types):
        for index in range(len(documents)):
            bits_of_document(model, tokenizer, config, documents[index], one.test.types)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(run_and_report(main))
