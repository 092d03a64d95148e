"""Schema of `build.py`."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.core.keys import key

SPELLING = "spelling"
CLASSIFICATION = "classification"
TARGETS = (SPELLING, CLASSIFICATION)
"""The values of `target`."""

SPELLING_WORDS = "spelling_words"
READY_TASKS = {
    SPELLING: SPELLING,
    SPELLING_WORDS: SPELLING,
    CLASSIFICATION: CLASSIFICATION,
}
"""The target whose build makes the model of each task of `bsmeta predict task=TASK`."""


@dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """Trains ready-made models on the shipped texts, which `bsmeta predict task=TASK` uses."""

    target: str | None = key(None, choices=TARGETS)
    """models to build; the key may be left out: bsmeta build spelling. spelling: a corrector
    (task=spelling) and a detector of misspelled words (task=spelling_words); classification: a
    classifier that assigns paragraphs of documentation to projects"""
    max_texts: int | None = key(None, at_least=100)
    """number of texts to learn from, for a quick trial; null: all"""
