"""Texts whose similarity is known, and the similarity of all pairs by brute force."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.annotate.helpers import write_pages

LENGTH = 5  # words of a shingle, by default


def make_text(words: Iterable[int]) -> str:
    """Returns a text of the words with the given numbers."""
    return " ".join(f"w{word}" for word in words)


def write_texts(path: Path, texts: Iterable[str]) -> Path:
    """Writes pages that have text."""
    name = path.name.partition(".")[0]
    return write_pages(
        path,
        [
            {"url": f"https://www.example.org/{name}/{number}", "text": text}
            for number, text in enumerate(texts)
        ],
    )


def list_shingles(text: str, length: int = LENGTH) -> frozenset[tuple[str, ...]]:
    """Returns the sequences of `length` words of a text."""
    words = text.split()
    return frozenset(tuple(words[k : k + length]) for k in range(len(words) - length + 1))


def measure_jaccard(first: str, second: str, length: int = LENGTH) -> float:
    """Returns the share of common shingles, by the definition."""
    shingles = [list_shingles(text, length) for text in (first, second)]
    return len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])


def make_corpus(count: int, seed: int) -> list[str]:
    """Returns random texts; a third are copies of earlier texts with some words replaced."""
    random_numbers = random.Random(seed)
    texts: list[list[int]] = []
    for number in range(count):
        if number % 3 == 2:
            words = list(random_numbers.choice(texts))
            rate = random_numbers.choice([0.0, 0.002, 0.01, 0.03, 0.1])
            words = [
                random_numbers.randrange(10**6) if random_numbers.random() < rate else word
                for word in words
            ]
        else:
            words = [random_numbers.randrange(3000) for _ in range(random_numbers.randint(60, 300))]
        texts.append(words)
    return [make_text(words) for words in texts]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the JSON lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure_all(texts: Sequence[str]) -> dict[tuple[int, int], float]:
    """Returns the similarity of each pair of texts with common shingles, by brute force."""
    shingles = [list_shingles(text) for text in texts]
    similarities = {}
    for second, second_shingles in enumerate(shingles):
        for first in range(second):
            common = len(shingles[first] & second_shingles)
            if common:
                union = len(shingles[first]) + len(second_shingles) - common
                similarities[first, second] = common / union
    return similarities
