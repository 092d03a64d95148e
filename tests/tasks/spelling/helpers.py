"""Small texts with known misspellings, and the arguments of short runs on them."""

from __future__ import annotations

import json
from pathlib import Path

from bsmeta.tasks.spelling.lexicon import Lexicon, build_lexicon

WORDS = [
    "the", "village", "letters", "travel", "slowly", "because", "every", "careful", "neighbour",
    "believes", "that", "separate", "weather", "reports", "definitely", "receive", "attention",
    "until", "tomorrow", "morning", "while", "children", "necessary", "questions", "apparent",
]  # fmt: skip
MISSPELLINGS = {
    "village": ["villiage"], "because": ["becuase", "becouse"], "believes": ["beleives"],
    "separate": ["seperate"], "weather": ["wether", "waether"], "definitely": ["definately"],
    "receive": ["recieve"], "until": ["untill"], "tomorrow": ["tommorow"],
    "necessary": ["neccesary"], "children": ["chidlren"], "apparent": ["apparant"],
}  # fmt: skip


def write_texts(folder: Path, count: int = 120) -> Path:
    """Texts of 1 to 24 words, one a line; no two are equal."""
    lines = [
        " ".join(WORDS[(7 * row + n) % len(WORDS)] for n in range(1 + row % 24)) + f" {row}"
        for row in range(count)
    ]
    file = folder / "texts.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def write_misspellings(folder: Path) -> Path:
    """A JSON file for `noise.misspellings`."""
    file = folder / "misspellings.json"
    file.write_text(json.dumps(MISSPELLINGS), encoding="utf-8")
    return file


def arguments(task: str, folder: Path, out_dir: Path, *more: str) -> list[str]:
    """The command line of a short run on the texts of `folder`, which it writes."""
    return [
        "--config-name", task, f"datasets=[{write_texts(folder, 420)}]", "val_splits=[20]",
        f"noise.misspellings={write_misspellings(folder)}", "noise.word_probability=0.3",
        f"store_dir={folder}/store", f"out_dir={out_dir}", "trackers=[]", "log_documents=true",
        "batch_max_length=2048", "num_train_epochs=3", "evals_per_epoch=1", "saves_per_epoch=1",
        "small_model.width=32", "small_model.layers=1", "small_model.heads=2", *more,
    ]  # fmt: skip


TEXTS = [
    "The cat sat on the mat. We saw Berlin, and we receive the letters.",
    "We receive the cat in the old house of Berlin.",
] * 2


def lexicon() -> Lexicon:
    """The words of `TEXTS`, and the known misspellings."""
    return build_lexicon(TEXTS, [], {word: tuple(wrong) for word, wrong in MISSPELLINGS.items()})


ANSWERS = {
    "sed_words": ["1 0 0", "0 0 1 0"],
    "sed_sequence": ["1", "1"],
    "sec": ["the cat sat", "we received some mail"],
}


def write_test_set(folder: Path) -> Path:
    """Two lines with one error each, for every task."""
    for task, correct in ANSWERS.items():
        own = folder / task / "small" / "dev"
        own.mkdir(parents=True)
        (own / "corrupt.txt").write_text("teh cat sat\nwe received soem mail\n")
        (own / "correct.txt").write_text("\n".join(correct) + "\n")
    return folder
