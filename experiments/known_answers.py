"""Checks a study end to end on a corpus whose answers are known.

    python experiments/known_answers.py [FOLDER]

Makes the corpus, runs experiments/studies/known_answers.yaml on the CPU, and compares its results
with what they must be. FOLDER is that of the study (runs/studies/known_answers). The same command
continues. Exit code 1: an answer is wrong.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FOLDER = Path("runs/studies/known_answers")
STUDY = Path(__file__).parent / "studies" / "known_answers.yaml"
TOPICS = "abcdefgh"
VALUES = "ABCDEFGH"
OTHERS = "0123456789mnopqr"
LENGTH = 6
"""Other characters of a document: the first is any of OTHERS, each next one of two."""

BITS = {"one_bit": 1, "two_bits": 2, "three_bits": 3}
FACTORS = {"half": 2.0, "twice": 0.5}
"""Arms without metadata: how many times their data the baseline needs to learn as much."""

FALSE = ("three_bits_unused", "shuffled", "constant")
"""Declared claims that do not hold."""

TEXT_BITS = math.log2(len(TOPICS)) + math.log2(len(OTHERS)) + LENGTH - 1
"""Entropy of a document, whose first character is always the same."""

TOLERANCE = 0.03
"""Share of what is expected, because training is finite and gradients have noise."""


def write_corpus(folder: Path, seed: int = 0, documents: int = 40_000, held_out: int = 400) -> None:
    """Writes the shards, the tokenizer (a token a character) and the shape of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    following = {character: draw.sample(OTHERS, 2) for character in OTHERS}
    shards = {"train-0": documents // 2, "train-1": documents // 2, "test": held_out}
    for name, count in shards.items():
        lines = (json.dumps(_document(draw, following)) for _ in range(count))
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    characters = ["<eos>", "=", "|", *TOPICS, *VALUES, *OTHERS]
    vocabulary = {character: number for number, character in enumerate(characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": len(characters), "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    (folder / "model.json").write_text(json.dumps(shape))


def _document(draw: random.Random, following: Mapping[str, list[str]]) -> dict[str, Any]:
    topic = draw.randrange(len(TOPICS))
    others = draw.choice(OTHERS)
    while len(others) < LENGTH:
        others += draw.choice(following[others[-1]])
    values = {name: VALUES[topic >> (3 - bits)] for name, bits in BITS.items()}
    columns = {
        f"metadata_{name}": [{"key": name, "type": "global", "value": value}]
        for name, value in values.items()
    }
    return {"text": f"={TOPICS[topic]}{others}", **columns}


@dataclass(frozen=True)
class Answer:
    """A result that is known, and what the study found.

    Attributes:
        name: What it is about.
        expected: What it must be.
        found: What the study found.
        low, high: The study's 95% interval.
        tolerance: How far the interval may be from what is expected.
    """

    name: str
    expected: float
    found: float
    low: float
    high: float
    tolerance: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the interval, with the tolerance, covers what is expected, and not also 0."""
        excludes_0 = self.expected == 0 or not self.low <= 0 <= self.high
        ends = (self.low - self.tolerance, self.high + self.tolerance)
        return excludes_0 and ends[0] <= self.expected <= ends[1]


def answers(results: Mapping[str, Any]) -> Iterator[Answer]:
    """Compares what `results.json` holds with what is known.

    Args:
        results: The content of the file.
    """
    characters = results["bytes"] / results["documents"]  # a document's, without its first
    for arm, other, mode, effect in _effects(results["arms"]):
        bits = BITS.get(arm, 0) if mode == "with" else 0
        found, low, high = (characters * effect[name] for name in ("value", "low", "high"))
        name = f"{arm} {mode} metadata - {other}, bits a document"
        yield Answer(name, -bits, found, low, high, TOLERANCE * bits)
    last = results["arms"]["none"]["curves"]["without"]["text tokens"][-1]
    found, low, high = (characters * last[name] for name in ("value", "low", "high"))
    yield Answer("none, bits a document", TEXT_BITS, found, low, high, TOLERANCE * TEXT_BITS)
    for arm, factor in FACTORS.items():
        saved = results["arms"][arm]["savings"]["without"]["text tokens"]
        found, low, high = (1 / (1 - saved[name]["value"]) for name in ("share", "low", "high"))
        name = f"data that none needs, in times those of {arm}"
        yield Answer(name, factor, found, low, high, TOLERANCE * factor)


def _effects(arms: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, float]]]:
    """Arm, what it is compared with, mode and effect; but for the arms about the batch."""
    for name, arm in arms.items():
        if name not in FACTORS:
            for mode, by_axis in arm["effects"].items():
                yield name, "none", mode, by_axis["text tokens"]
            for own in arm["controls"]:
                yield name, own["control"], own["mode"], own["difference"]


def verdicts(results: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the verdicts on the declared claims."""
    for claim in results["claims"]:
        expected = "undecided" if claim["name"] in FALSE else "supported"
        if claim["verdict"] != expected:
            yield f"{claim['label']}: {claim['verdict']}, expected {expected}"


def table_of(found: list[Answer]) -> Table:
    """The comparison, for the terminal."""
    table = Table(box=box.SIMPLE)
    for name in ("", "expected", "found", "95% interval", "tolerance", "holds"):
        table.add_column(name, justify="left" if name in ("", "holds") else "right")
    for answer in found:
        table.add_row(
            answer.name, f"{answer.expected:.2f}", f"{answer.found:.3f}",
            f"{answer.low:.3f} to {answer.high:.3f}", f"{answer.tolerance:.3f}",
            "yes" if answer.holds else "NO",
        )  # fmt: skip
    return table


def main() -> int:
    """Makes the corpus, runs the study and prints the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="of the study")
    folder = parser.parse_args().folder.resolve()
    if not (folder / "corpus" / "model.json").exists():
        write_corpus(folder / "corpus")
    settings = {
        "KNOWN_ANSWERS": str(folder), "BSMETA_FORCE_LOCAL": "true", "BSMETA_PROCESSES": "1",
        "BSMETA_LAUNCH_FILE": "cpu.yaml", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, str(STUDY.parents[1] / "study.py"), str(STUDY)]
    code = subprocess.run(command, env={**os.environ, **settings}, check=False).returncode
    if code:
        return code
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    found, wrong = list(answers(results)), list(verdicts(results))
    Console(markup=False, width=140).print(table_of(found))
    print(*wrong, sep="\n")
    return 0 if all(answer.holds for answer in found) and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
