"""Counts the lines of test sets that are in the texts that a run was trained on.

    training texts, test lines -> sentences of the lines that a training text contains -> counts

A training sample is a part of a text, and a line may be a sentence of a text, or several. So the
sentences of a line are searched for in the texts, word for word; only white space may differ. A
line counts if a training text contains each of its sentences. Sentences of fewer than `MIN_WORDS`
words are ignored: texts that were not copied share them. Sentences of more than `MAX_WORDS` words
are searched for in parts, so that the time is linear in the length of the texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

from bsmeta.data.text.sentences import find_sentences

MIN_WORDS = 4
"""Minimum number of words of a sentence that is searched for."""

MAX_WORDS = 64
"""Maximum number of words that are compared at once."""

Words = tuple[str, ...]


def count_training_lines(
    test_sets: Mapping[str, Sequence[Sequence[str]]], training_texts: Iterable[str]
) -> dict[str, int]:
    """Counts the lines of each test set that are in the training texts.

    Args:
        test_sets: By the name of a test set, the versions of each line, such as one with errors and
            a correct one; a line counts if one of its versions does.
        training_texts: The texts before they were cut into samples; they are read once.
    """
    sentences = {
        name: [[divide_line(version) for version in versions] for versions in lines]
        for name, lines in test_sets.items()
    }
    distinct_sentences = {
        sentence
        for lines in sentences.values()
        for versions in lines
        for version in versions
        for sentence in version
    }
    contained = find_contained_sentences(distinct_sentences, training_texts)
    return {
        name: sum(
            any(version and contained.issuperset(version) for version in versions)
            for versions in lines
        )
        for name, lines in sentences.items()
    }


def divide_line(line: str) -> list[Words]:
    """Divides a line into the words of its sentences, or of parts of long sentences.

    Sentences and parts of fewer than `MIN_WORDS` words are left out.
    """
    sentences = [line[start:end].split() for start, end in find_sentences(line, "rules")]
    parts = [
        tuple(words[start : start + MAX_WORDS])
        for words in sentences
        for start in range(0, len(words), MAX_WORDS)
    ]
    return [part for part in parts if len(part) >= MIN_WORDS]


def find_contained_sentences(sentences: Set[Words], texts: Iterable[str]) -> set[Words]:
    """Finds the sentences that a text contains.

    Args:
        sentences: Sentences, or parts of them, of `MIN_WORDS` to `MAX_WORDS` words.
    """
    lengths_by_beginning: defaultdict[Words, set[int]] = defaultdict(set)
    for sentence in sentences:
        lengths_by_beginning[sentence[:MIN_WORDS]].add(len(sentence))

    contained: set[Words] = set()
    for text in texts:
        words = text.split()
        beginnings = zip(*(words[offset:] for offset in range(MIN_WORDS)), strict=False)
        for start, beginning in enumerate(beginnings):
            for length in lengths_by_beginning.get(beginning, ()):
                candidate = tuple(words[start : start + length])
                if candidate in sentences:
                    contained.add(candidate)
    return contained
