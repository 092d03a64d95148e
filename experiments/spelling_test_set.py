"""Makes a test set from correct text: GROUP of all three tasks, in the layout of `benchmarks`.

    python experiments/spelling_test_set.py examples/webdocs/*000.jsonl.gz --out runs/tests \
        --group webdocs --lines 300

Lines with errors are in TASK/GROUP/SPLIT/corrupt.txt, their labels (or the correct lines, for sec)
in correct.txt beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bsmeta.core.process import run_and_report
from bsmeta.tasks.spelling.config import NoiseConfig, SedWordsConfig
from bsmeta.tasks.spelling.samples import make_noise, read_samples


def main() -> None:
    """Reads the texts, misspells some of them evenly over the files, and writes the test set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", type=Path, help=".txt or .jsonl, also .gz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--group", default="texts")
    parser.add_argument("--split", default="test")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--clean-share", type=float, default=0.5)
    parser.add_argument("--misspellings", default="codespell")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    noise_config = NoiseConfig(
        misspellings=arguments.misspellings, clean_share=arguments.clean_share
    )
    config = SedWordsConfig(max_characters=256, min_prose_share=0.8, noise=noise_config)
    distinct = [*dict.fromkeys(sample.source for sample in read_samples(config, arguments.texts))]
    correct = distinct[:: max(1, len(distinct) // arguments.lines)][: arguments.lines]

    noise = make_noise(config)
    corrupt = [
        noise.corrupt(text, seed=arguments.seed, epoch=0, sample=number)
        for number, text in enumerate(correct)
    ]
    labels = [
        [int(word != right) for word, right in zip(line.split(), text.split(), strict=True)]
        for line, text in zip(corrupt, correct, strict=True)
    ]

    answers = {
        "sed_words": [" ".join(map(str, flags)) for flags in labels],
        "sed_sequence": [str(int(any(flags))) for flags in labels],
        "sec": correct,
    }
    for task, answer_lines in answers.items():
        folder = arguments.out / task / arguments.group / arguments.split
        folder.mkdir(parents=True, exist_ok=True)
        _write_lines(folder / "corrupt.txt", corrupt)
        _write_lines(folder / "correct.txt", answer_lines)
    print(f"{len(correct):,} lines for each task in {arguments.out}")


def _write_lines(file: Path, lines: Sequence[str]) -> None:
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_and_report(main))
