"""Checks studies end to end on corpora whose answers are known.

    python experiments/known_answers.py [topics | hierarchy] [FOLDER]

Makes the corpus, runs experiments/studies/known_answers.yaml (or known_hierarchy.yaml) on the CPU,
and compares its results with what they must be. FOLDER is that of the study
(runs/studies/known_answers). The same command continues. Exit code 1: an answer is wrong.

topics: the metadata says one, two or three bits of the topic of a document, which is its first
character; the other characters do not depend on it.

hierarchy: a document is the yield of a grammar, a binary tree of three levels with two productions
for each node. The characters below a node show its production, so that text alone pays one bit at
the first character below each node. Metadata that names the productions at one level saves exactly
these bits, and no others: the gain by position is known.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import string
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bsmeta.core.process import run_and_report

STUDIES = Path(__file__).parent / "studies"
TOPICS = "abcdefgh"
VALUES = "ABCDEFGH"
OTHERS = "0123456789mnopqr"
LENGTH = 6
"""Other characters of a document: the first is any of OTHERS, each next one of two."""

BITS = {"one_bit": 1, "two_bits": 2, "three_bits": 3}
FACTORS = {"half": 2.0, "twice": 0.5}
"""Arms without metadata: how many times their data the baseline needs to learn as much."""

FALSE = ("three_bits_unused", "shuffled", "constant", "wrong_character", "level_2_unused")
"""Declared claims that do not hold."""

TEXT_BITS = math.log2(len(TOPICS)) + math.log2(len(OTHERS)) + LENGTH - 1
"""Entropy of a document, whose first character is always the same."""

TOLERANCE = 0.03
"""Share of what is expected, because training is finite and gradients have noise."""

LEVELS = 3
LEAVES = string.ascii_letters + string.digits + "@#"
"""The terminals: for each of the eight places of a document, one for each productions above it."""

NAMES = "αβγδεζηθικλμνξ"
"""What metadata calls the productions: two for each of the nodes, level by level."""

TAIL = "!$%&*+-/"
"""After the leaves: three of these at random, so that few documents are equal."""

Draw = Callable[[random.Random], dict[str, Any]]


def write_corpus(
    folder: Path, grammar: str = "topics", seed: int = 0, documents: int = 40_000,
    held_out: int = 400,
) -> None:  # fmt: skip
    """Writes the shards, the tokenizer (a token a character) and the shape of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(seed)
    characters, draw = GRAMMARS[grammar](generator)
    shards = {"train-0": documents // 2, "train-1": documents // 2, "test": held_out}
    for name, count in shards.items():
        lines = (json.dumps(draw(generator)) for _ in range(count))
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    vocabulary = {character: number for number, character in enumerate(["<eos>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": len(vocabulary), "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    (folder / "model.json").write_text(json.dumps(shape))


def _topics(generator: random.Random) -> tuple[list[str], Draw]:
    """The characters of the topics' grammar, and a function that draws a document."""
    following = {character: generator.sample(OTHERS, 2) for character in OTHERS}

    def draw(generator: random.Random) -> dict[str, Any]:
        topic = generator.randrange(len(TOPICS))
        others = generator.choice(OTHERS)
        while len(others) < LENGTH:
            others += generator.choice(following[others[-1]])
        values = {name: VALUES[topic >> (3 - bits)] for name, bits in BITS.items()}
        return {"text": f"={TOPICS[topic]}{others}", **_columns(values)}

    return ["=", "|", *TOPICS, *VALUES, *OTHERS], draw


def _hierarchy(generator: random.Random) -> tuple[list[str], Draw]:
    """The same for the trees; a level of metadata names its productions from left to right."""

    def draw(generator: random.Random) -> dict[str, Any]:
        nodes = [generator.randrange(2) for _ in range(2**LEVELS - 1)]  # level by level
        text = "="
        for place in range(2**LEVELS):
            above = 0
            for level in range(LEVELS):
                above = 2 * above + nodes[2**level - 1 + (place >> (LEVELS - level))]
            text += LEAVES[2**LEVELS * place + above]
        text += "".join(generator.choices(TAIL, k=3))
        named = [NAMES[2 * node + production] for node, production in enumerate(nodes)]
        levels = {
            f"level_{level}": "".join(named[2**level - 1 : 2 ** (level + 1) - 1])
            for level in range(LEVELS)
        }
        return {"text": text, **_columns(levels)}

    return ["=", "|", *LEAVES, *TAIL, *NAMES], draw


def _columns(values: Mapping[str, str]) -> dict[str, Any]:
    return {
        f"metadata_{name}": [{"key": name, "type": "global", "value": value}]
        for name, value in values.items()
    }


def revealed(place: int) -> list[int]:
    """The levels whose productions text alone learns from the character at a place (from 0)."""
    if place >= 2**LEVELS:  # after the leaves
        return []
    return [level for level in range(LEVELS) if place % 2 ** (LEVELS - level) == 0]


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


def answers_of_hierarchy(results: Mapping[str, Any]) -> Iterator[Answer]:
    """Compares the gain at each character of a document with the closed form."""
    for level in range(LEVELS):
        arm = results["arms"][f"level_{level}"]
        gains = [gain for gain in arm["gains"] if gain["by"] == "position"]
        for place, gain in enumerate(gains):
            for mode in ("with", "without"):
                expected = -1.0 if mode == "with" and level in revealed(place) else 0.0
                effect = gain[mode]
                yield Answer(
                    f"level {level} {mode} metadata - none, bits of character {place + 1}",
                    expected, effect["value"], effect["low"], effect["high"],
                    TOLERANCE,
                )  # fmt: skip


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


GRAMMARS = {"topics": _topics, "hierarchy": _hierarchy}
STUDY_OF = {
    "topics": STUDIES / "known_answers.yaml",
    "hierarchy": STUDIES / "known_hierarchy.yaml",
}
ANSWERS = {"topics": answers, "hierarchy": answers_of_hierarchy}


def main() -> int:
    """Makes the corpus, runs the study and prints the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grammar", nargs="?", choices=GRAMMARS, default="topics")
    parser.add_argument("folder", nargs="?", type=Path, help="of the study")
    given = parser.parse_args()
    study = STUDY_OF[given.grammar]
    folder = (given.folder or Path("runs/studies") / study.stem).resolve()
    if not (folder / "corpus" / "model.json").exists():
        write_corpus(folder / "corpus", given.grammar)
    settings = {
        "KNOWN_ANSWERS": str(folder), "BSMETA_FORCE_LOCAL": "true", "BSMETA_PROCESSES": "1",
        "BSMETA_LAUNCH_FILE": "cpu.yaml", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, str(STUDIES.parent / "study.py"), str(study)]
    code = subprocess.run(command, env={**os.environ, **settings}, check=False).returncode
    if code:
        return code
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    found, wrong = list(ANSWERS[given.grammar](results)), list(verdicts(results))
    Console(markup=False, width=140).print(table_of(found))
    print(*wrong, sep="\n")
    return 0 if all(answer.holds for answer in found) and not wrong else 1


if __name__ == "__main__":
    sys.exit(run_and_report(main))
