"""Counts false alarms: words of correct text that a system flags or changes, by kind of word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bsmeta.tasks.spelling.corrections import find_changed_words
from bsmeta.tasks.spelling.word_kinds import KINDS, find_word_kind


@dataclass(frozen=True)
class FalseAlarms:
    """The false alarms among words of one kind."""

    words: int
    flagged: int

    @property
    def rate(self) -> float:
        """Share of the words that are flagged; 0 without words."""
        return self.flagged / self.words if self.words else 0.0


def count_false_alarms(
    lines: Sequence[str], flags: Sequence[Sequence[int]]
) -> dict[str, FalseAlarms]:
    """Counts the flagged words of correct lines, by kind.

    Args:
        lines: Correct text.
        flags: For each word of each line, whether it is flagged.
    """
    words = dict.fromkeys(KINDS, 0)
    flagged = dict.fromkeys(KINDS, 0)
    for line, line_flags in zip(lines, flags, strict=True):
        for word, flag in zip(line.split(), line_flags, strict=True):
            kind = find_word_kind(word)
            if kind:
                words[kind] += 1
                flagged[kind] += bool(flag)
    return {kind: FalseAlarms(words[kind], flagged[kind]) for kind in KINDS}


def flag_changed_words(lines: Sequence[str], corrected: Sequence[str]) -> list[list[int]]:
    """Flags the words of each line that its corrected form changes: 1, otherwise 0."""
    flags: list[list[int]] = []
    for line, corrected_line in zip(lines, corrected, strict=True):
        text = " ".join(line.split())
        changed = find_changed_words(text, " ".join(corrected_line.split()))
        flags.append([int(number in changed) for number in range(len(text.split()))])
    return flags
