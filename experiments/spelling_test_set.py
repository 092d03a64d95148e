"""Makes a test set from correct text: GROUP of all three tasks, in the layout of `benchmarks`.

    python experiments/spelling_test_set.py examples/webdocs/*000.jsonl.gz --out runs/tests \
        --group webdocs --lines 300

Lines with errors are in TASK/GROUP/SPLIT/corrupt.txt, their labels (or the correct lines, for sec)
in correct.txt beside it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bsmeta.core.process import run_and_report
from bsmeta.tasks.spelling.config import NoiseConfig, SedWordsConfig
from bsmeta.tasks.spelling.samples import make_noise, read_samples


def main() -> None:
    """Reads the texts, and writes the test set."""
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
    noise = NoiseConfig(misspellings=arguments.misspellings, clean_share=arguments.clean_share)
    config = SedWordsConfig(max_characters=256, min_prose_share=0.8, noise=noise)
    found = dict.fromkeys(sample.source for sample in read_samples(config, arguments.texts))
    # Evenly over the pages.
    right = [*found][:: max(1, len(found) // arguments.lines)][: arguments.lines]
    corrupt = make_noise(config).corrupt
    wrong = [
        corrupt(text, seed=arguments.seed, epoch=0, sample=number)
        for number, text in enumerate(right)
    ]
    pairs = (zip(a.split(), b.split(), strict=True) for a, b in zip(wrong, right, strict=True))
    labels = [[int(word != other) for word, other in pair] for pair in pairs]
    answers = {
        "sed_words": [" ".join(map(str, flags)) for flags in labels],
        "sed_sequence": [str(int(any(flags))) for flags in labels],
        "sec": right,
    }
    for task, correct in answers.items():
        folder = arguments.out / task / arguments.group / arguments.split
        folder.mkdir(parents=True, exist_ok=True)
        for name, lines in (("corrupt", wrong), ("correct", correct)):
            (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(right):,} lines for each task in {arguments.out}")


if __name__ == "__main__":
    sys.exit(run_and_report(main))
