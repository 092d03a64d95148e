"""Compares one encoder pass a sentence with one a mention: mentions per CPU second, and accuracy.

    python experiments/benchmarks/disambiguation.py --config-name disambiguation \
        data_config.train_file=train.jsonl data_config.dev_file=dev.jsonl … [steps=50] [rows=500] \
        [documents=shard.jsonl.gz]

It takes every key that training takes. Both encodings train for the same steps on the same
mentions and score the same first rows of the dev split; the vectors of a frozen encoder are
computed before. Prints one JSON line for each encoding; the CPU time is that of all threads. With
`documents`, a further line: how fast mentions are detected in their texts (up to 1,000).
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import torch
from common import own_arguments

from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.learning_rate import RatePlan
from bsmeta.core.changed_values import replace_values
from bsmeta.data.io.shard_lines import read_first_lines
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.evaluate import compute_candidate_embeddings, score_mentions
from bsmeta.tasks.disambiguation.task import EntityDisambiguator
from bsmeta.training.optimization import build_optimizer, set_learning_rate
from bsmeta.training.ranks.processes import ALONE


def measure(config: DisambiguationConfig, steps: int, rows: int) -> dict[str, Any]:
    """Trains and evaluates with one encoding."""
    torch.manual_seed(config.seed)
    task = EntityDisambiguator(config)
    model = task.build_model()
    optimizer = build_optimizer(model, config)
    rates = RatePlan.of(config, steps + 1)
    trained = 0.0
    # The first step also opens the data, and is not timed.
    stream = itertools.islice(task.train_stream(0, 1, None), steps + 1)
    began = time.process_time()
    for number, step in enumerate(stream):
        (batch,) = step.micro_batches
        model.train()
        set_learning_rate(optimizer.param_groups, rates.compute_rate(number + 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=config.mixed_precision == "bf16"):
            loss = task.loss(model, batch.tensors).sum / max(batch.weight, 1.0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        if number == 0:
            began = time.process_time()
        else:
            trained += batch.weight
    train_s = time.process_time() - began
    dev = task.data.open_split("dev")
    assert dev is not None
    chosen = dev.read_gold()[:rows]
    model.eval()
    embeddings = compute_candidate_embeddings(task.data, model, chosen, ALONE)
    began = time.process_time()
    scored = score_mentions(task.data, model, chosen, ALONE, embeddings=embeddings)
    score_s = time.process_time() - began
    return {
        "mention_encoding": config.data_config.mention_encoding,
        "training_mentions": int(trained),
        "training_mentions_per_cpu_second": round(trained / train_s, 1),
        "scored_mentions": len(scored.rank),
        "scored_mentions_per_cpu_second": round(len(scored.rank) / score_s, 1),
        "accuracy": round(float(scored.is_right.mean()), 4),
        "popular_accuracy": round(float(scored.popular_is_right.mean()), 4),
    }


def measure_detection(config: DisambiguationConfig, path: str) -> dict[str, Any]:
    """Detects the mentions of texts."""
    data = EntityDisambiguator(config).data
    dictionary = data.dictionary
    texts = [json.loads(line)["text"] for line in read_first_lines(path, 1000)]
    began = time.process_time()
    mentions = sum(len(dictionary(text)) for text in texts)
    seconds = time.process_time() - began
    return {
        "forms": len(dictionary.forms),
        "documents": len(texts),
        "documents_per_cpu_second": round(len(texts) / seconds),
        "characters_per_cpu_second": round(sum(map(len, texts)) / seconds),
        "detected_mentions": mentions,
    }


def main(config: DisambiguationConfig) -> None:
    """Measures both encodings, and the detection."""
    if OWN["documents"]:
        print(json.dumps(measure_detection(config, OWN["documents"])), flush=True)
    for encoding in ("sentence", "window"):
        variant = replace_values(config, {"data_config.mention_encoding": encoding})
        print(json.dumps(measure(variant, int(OWN["steps"]), int(OWN["rows"]))), flush=True)


if __name__ == "__main__":
    OWN = own_arguments({"steps": "50", "rows": "500", "documents": ""})
    run_entry_point(main, DisambiguationConfig, "disambiguation")
