"""Measures what using a spelling model costs on the CPU, and what noise, metrics and baselines do.

    python experiments/benchmarks/spelling.py --texts texts.txt
    python experiments/benchmarks/spelling.py --texts texts.txt --checkpoint runs/sed_words

Prints one JSON line, medians of `--rounds`, per CPU second of one process: characters that a model
judges or corrects (with `--checkpoint`; that alone); otherwise words that each method of noise
reads, words that the metrics of corrections align, characters that are cut into chunks, and
characters that the dictionary judges and corrects.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bsmeta.core.process import run_and_report
from bsmeta.data.text.sentences import cut_text
from bsmeta.tasks.spelling.config import CODESPELL, NoiseConfig
from bsmeta.tasks.spelling.corrections import count_correction_outcomes
from bsmeta.tasks.spelling.evaluate import Dictionary
from bsmeta.tasks.spelling.noise import Noise, load_misspellings

ALIGNED_LINES = 300
CHUNK = 512


def measure_rate(amount: int, action: Callable[[], object], rounds: int) -> int:
    """Returns the amount that an action processes per CPU second: the median of the rounds."""
    rates: list[float] = []
    for _ in range(rounds):
        start = time.process_time()
        action()
        rates.append(amount / (time.process_time() - start))
    return round(statistics.median(rates))


def corrupt_lines(lines: list[str], noise: Noise) -> list[str]:
    """Misspells words of each line."""
    return [
        noise.corrupt(line, seed=0, epoch=0, sample=number) for number, line in enumerate(lines)
    ]


def measure_parts(lines: list[str], misspellings: str, rounds: int) -> dict[str, int]:
    """Measures the rates of the noise, the metrics, the division into chunks and the dictionary."""
    words = sum(len(line.split()) for line in lines)
    characters = sum(map(len, lines))
    known = load_misspellings(misspellings)

    rates: dict[str, int] = {}
    for method in ("artificial", "realistic", "mixed"):
        noise = Noise(NoiseConfig(method=method), known)
        corrupt = partial(corrupt_lines, lines, noise)
        rates[f"noise_{method}_words"] = measure_rate(words, corrupt, rounds)

    corrupted = corrupt_lines(lines, noise)[:ALIGNED_LINES]
    correct = lines[:ALIGNED_LINES]
    aligned_words = sum(len(line.split()) for line in correct)
    rates["metrics_words"] = measure_rate(
        aligned_words, lambda: count_correction_outcomes(corrupted, correct, correct), rounds
    )
    rates["cut_characters"] = measure_rate(
        characters, lambda: cut_text("\n".join(lines), CHUNK), rounds
    )

    dictionary = Dictionary()
    rates["flag_characters"] = measure_rate(
        characters, lambda: [dictionary.flags(line) for line in lines], rounds
    )
    dictionary.correct_word.cache_clear()
    rates["correct_characters"] = measure_rate(
        sum(map(len, corrupted)), lambda: [dictionary.correct(line) for line in corrupted], 1
    )
    return rates


def measure_model(lines: list[str], checkpoint: str, rounds: int) -> dict[str, int]:
    """Measures the rate of a trained model with one thread, on lines and on a single line."""
    import torch

    from bsmeta.tasks.checkpoints import open_task
    from bsmeta.training.task import ChangesText

    torch.set_num_threads(1)
    task, folder = open_task(checkpoint, {})
    if not isinstance(task, ChangesText):
        raise SystemExit(f"--checkpoint {checkpoint}: its task does not change texts")
    model = task.load(folder).eval()
    long_line = " ".join(lines)
    return {
        "predict_characters": measure_rate(
            sum(map(len, lines)), lambda: task.changes(model, lines), rounds
        ),
        "predict_characters_of_a_long_line": measure_rate(
            len(long_line), lambda: task.changes(model, [long_line]), rounds
        ),
    }


def main() -> None:
    """Reads the texts, and prints the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True, help="correct text, a line each")
    parser.add_argument("--misspellings", default=CODESPELL, help="codespell, or a JSON file")
    parser.add_argument("--checkpoint", help="measure this model: a run folder or a checkpoint")
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()[: arguments.lines]
    if arguments.checkpoint is not None:
        rates = measure_model(lines, arguments.checkpoint, arguments.rounds)
    else:
        rates = measure_parts(lines, arguments.misspellings, arguments.rounds)
    print(json.dumps(rates))


if __name__ == "__main__":
    sys.exit(run_and_report(main))
