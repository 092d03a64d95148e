"""Compares correctors with all features and without those of a model, on held-out text.

    python experiments/benchmarks/spelling_context.py texts.txt --steps 60

The rankers are trained on the same steps, with the same seed: with all features, without those of
the context model, and without those of the n-grams of the sentence. Prints one JSON line for each:
F1 of the corrections and false alarms on the validation samples, and the CPU seconds of the ranker.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bsmeta.core.process import run_and_report
from bsmeta.data.batch import MicroBatch
from bsmeta.tasks.spelling.config import NoiseConfig, SecConfig
from bsmeta.tasks.spelling.correction import CandidateCorrection
from bsmeta.tasks.spelling.detector import Ranker, RankerConfig
from bsmeta.tasks.spelling.inputs import MODEL_FEATURES, SENTENCE_FEATURES
from bsmeta.training.ranks.processes import ALONE

LEARNING_RATE = 3e-3
WARMUP_SHARE = 0.05


class CutRanker(nn.Module):
    """A ranker that reads only some features of a candidate.

    Args:
        columns: The features that it reads.
    """

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__()
        self.ranker = Ranker(RankerConfig(features=len(columns)))
        self.columns = list(columns)

    def forward(
        self, features: torch.Tensor, row_words: torch.Tensor, words: torch.Tensor
    ) -> torch.Tensor:
        """Returns the scores of the rows; see `Ranker.forward`."""
        return self.ranker(features[:, self.columns], row_words, words)


def train_ranker(
    task: CandidateCorrection, batches: Sequence[MicroBatch], columns: Sequence[int]
) -> CutRanker:
    """Trains a ranker on some features of batches, one step each."""
    torch.manual_seed(0)
    model = CutRanker(columns)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    for step, batch in enumerate(batches):
        warmup = (step + 1) / (WARMUP_SHARE * len(batches))
        rate = LEARNING_RATE * min(warmup, 1 - step / len(batches))
        optimizer.param_groups[0]["lr"] = rate

        (task.loss(model, batch.tensors).sum / batch.weight).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def measure_ranker(
    task: CandidateCorrection, batches: Sequence[MicroBatch], columns: Sequence[int]
) -> dict[str, Any]:
    """Trains a ranker, and evaluates it on the validation samples."""
    start = time.process_time()
    model = train_ranker(task, batches, columns)
    seconds = time.process_time() - start
    metrics = {metric.name: round(metric.value, 4) for metric in task.evaluate(model, ALONE)}
    return {"features": len(columns), "cpu_s": round(seconds), **metrics}


def main() -> None:
    """Reads the texts, and prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", help="files, folders or globs of .txt or .jsonl")
    parser.add_argument("--store", help="folder for the samples and counts; default: temporary")
    parser.add_argument("--validation", type=int, default=100, help="samples of each data set")
    parser.add_argument("--steps", type=int, default=60, help="steps of 2,048 words")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        config = SecConfig(
            datasets=arguments.texts,
            val_splits=[arguments.validation],
            val_corrections=len(arguments.texts) * arguments.validation,
            counted_share=0.85,
            max_characters=256,
            min_prose_share=0.8,
            word_lists=["symspellpy", "wordfreq"],
            store_dir=arguments.store or str(Path(temporary)),
            batch_max_length=2048,
            noise=NoiseConfig(
                artificial_share=0.5,
                lost_case=0.8,
                accent_share=0.07,
                slip_share=0.53,
                clean_share=0.1,
            ),
        )
        task = CandidateCorrection(config)
        stream = task.train_stream(0, 1, None)
        batches = [step.micro_batches[0] for step in itertools.islice(stream, arguments.steps)]
        columns = [*range(batches[0].tensors["features"].shape[1])]
        # The features of the context model are the last, those of the sentence are before them.
        without_sentence = (
            columns[: -MODEL_FEATURES - SENTENCE_FEATURES] + columns[-MODEL_FEATURES:]
        )
        for name, used in (
            ("all", columns),
            ("without the context model", columns[:-MODEL_FEATURES]),
            ("without the sentence", without_sentence),
        ):
            print(json.dumps({"ranker": name, **measure_ranker(task, batches, used)}), flush=True)


if __name__ == "__main__":
    sys.exit(run_and_report(main))
