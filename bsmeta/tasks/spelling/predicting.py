"""Trained models on new text: records for `predict.py`, and the words that a detector flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from bsmeta.config.spelling import SpellingConfig
from bsmeta.tasks.spelling.corrections import as_record

TEXTS_AT_ONCE = 500
"""Records that are batched together."""


def prediction_column(config: SpellingConfig) -> str:
    """The key of the text in new records."""
    return "text" if config.text_column == "auto" else config.text_column


def predictions(
    column: str,
    records: Iterable[Mapping[str, Any]],
    changes: Callable[[Sequence[str]], list[list[Any]]],
) -> Iterator[dict[str, Any]]:
    """The changes of each record's text, with character offsets; for corrections, the new text.

    Args:
        column: The key of the text.
        records: The records.
        changes: Runs the model on some texts.
    """
    remaining = iter(records)
    while batch := list(islice(remaining, TEXTS_AT_ONCE)):
        texts = [str(record[column]) for record in batch]
        for text, found in zip(texts, changes(texts), strict=True):
            record = as_record(text, found)
            del record["text"]
            yield record
