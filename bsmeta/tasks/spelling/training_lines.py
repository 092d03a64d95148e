"""Counts the lines of test sets that are in the texts that a run was trained on.

    training texts, test lines -> sentences of the lines that a training text contains -> counts

A training sample is a part of a text, and a line may be a sentence of a text, or several. So the
sentences of a line are searched for in the texts, word for word; only white space may differ. A
line counts if a training text contains each of its sentences. Sentences of fewer than `MIN_WORDS`
words are ignored: texts that were not copied share them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bsmeta.data.text.sentences import find_sentences

MIN_WORDS = 4
"""Minimum number of words of a sentence that is searched for."""

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
    wanted = {
        sentence
        for lines in sentences.values()
        for versions in lines
        for version in versions
        for sentence in version
    }
    contained = find_contained_sentences(wanted, training_texts)
    return {
        name: sum(
            any(version and contained.issuperset(version) for version in versions)
            for versions in lines
        )
        for name, lines in sentences.items()
    }


def divide_line(line: str) -> list[Words]:
    """Divides a line into the words of its sentences; leaves out sentences that are too short."""
    sentences = [tuple(line[start:end].split()) for start, end in find_sentences(line, "rules")]
    return [words for words in sentences if len(words) >= MIN_WORDS]


def find_contained_sentences(wanted: Iterable[Words], texts: Iterable[str]) -> set[Words]:
    """Finds the sentences that a text contains.

    Args:
        wanted: Sentences of at least `MIN_WORDS` words.
    """
    by_beginning: defaultdict[Words, list[Words]] = defaultdict(list)
    for sentence in wanted:
        by_beginning[sentence[:MIN_WORDS]].append(sentence)

    contained: set[Words] = set()
    for text in texts:
        words = text.split()
        beginnings = zip(*(words[offset:] for offset in range(MIN_WORDS)), strict=False)
        for start, beginning in enumerate(beginnings):
            for sentence in by_beginning.get(beginning, ()):
                if tuple(words[start : start + len(sentence)]) == sentence:
                    contained.add(sentence)
    return contained
