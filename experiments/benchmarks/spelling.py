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
import time
from collections.abc import Callable
from pathlib import Path

from bsmeta.data.text.sentences import cut_text
from bsmeta.tasks.spelling.config import CODESPELL, NoiseConfig
from bsmeta.tasks.spelling.corrections import count_correction_outcomes
from bsmeta.tasks.spelling.evaluate import Dictionary
from bsmeta.tasks.spelling.noise import Noise, load_misspellings

ALIGNED_LINES = 300
CHUNK = 512


def rate(amount: int, action: Callable[[], object], rounds: int) -> int:
    """What an action gets through per CPU second: the median of some rounds."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        action()
        found.append(amount / (time.process_time() - start))
    return round(statistics.median(found))


def corrupted(lines: list[str], noise: Noise) -> list[str]:
    """The lines with noise."""
    return [noise.corrupt(line, seed=0, epoch=0, sample=i) for i, line in enumerate(lines)]


def measure(lines: list[str], misspellings: str, rounds: int) -> dict[str, int]:
    """The rates of all parts."""
    words, characters = sum(len(line.split()) for line in lines), sum(map(len, lines))
    known = load_misspellings(misspellings)
    found = {}
    for method in ("artificial", "realistic", "mixed"):
        noise = Noise(NoiseConfig(method=method), known)
        found[f"noise_{method}_words"] = rate(words, lambda: corrupted(lines, noise), rounds)  # noqa: B023
    wrong = corrupted(lines, noise)[:ALIGNED_LINES]
    right = lines[:ALIGNED_LINES]
    aligned = sum(len(line.split()) for line in right)
    found["metrics_words"] = rate(
        aligned, lambda: count_correction_outcomes(wrong, right, right), rounds
    )
    found["cut_characters"] = rate(characters, lambda: cut_text("\n".join(lines), CHUNK), rounds)
    dictionary = Dictionary()
    found["flag_characters"] = rate(characters, lambda: list(map(dictionary.flags, lines)), rounds)
    dictionary.correct_word.cache_clear()
    found["correct_characters"] = rate(
        sum(map(len, wrong)), lambda: list(map(dictionary.correct, wrong)), 1
    )
    return found


def measure_model(lines: list[str], checkpoint: str, rounds: int) -> dict[str, int]:
    """The rate of a trained model, with one thread."""
    import torch

    from bsmeta.tasks.checkpoints import open_task
    from bsmeta.training.task import ChangesText

    torch.set_num_threads(1)
    task, folder = open_task(checkpoint, {})
    if not isinstance(task, ChangesText):
        raise SystemExit(f"--checkpoint {checkpoint}: its task does not change texts")
    model = task.load(folder).eval()
    return {
        "predict_characters": rate(sum(map(len, lines)), lambda: task.changes(model, lines), rounds)
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
        found = measure_model(lines, arguments.checkpoint, arguments.rounds)
    else:
        found = measure(lines, arguments.misspellings, arguments.rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
