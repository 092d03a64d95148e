"""Measures the detection of mentions on held-out lines: dictionary, trained detector, and both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from bsmeta.tasks.disambiguation.config import BOTH, DETECTOR, DICTIONARY
from bsmeta.tasks.disambiguation.data import RunData
from bsmeta.tasks.disambiguation.detection_metrics import (
    MarkedSpans,
    SpanCounts,
    TextSpan,
    count_spans,
)
from bsmeta.tasks.disambiguation.dictionary import Span
from bsmeta.tasks.disambiguation.lines import Line, Problems, read_lines
from bsmeta.tasks.disambiguation.mention_detection import (
    MentionTagger,
    look_up_spans,
    merge_spans,
)
from bsmeta.training.ranks.processes import Processes


@dataclass(frozen=True)
class MarkedTexts:
    """The texts of a file of lines, and the mentions that they mark.

    Attributes:
        documents: Index of the document of each text, int64 [texts].
    """

    texts: list[str]
    marked: list[MarkedSpans]
    documents: np.ndarray


def read_marked_texts(path: Path) -> MarkedTexts:
    """Reads the texts of a file of lines.

    Raises:
        DataError: If lines are invalid.
    """
    problems = Problems(path)
    lines = [*read_lines(path, problems)]
    problems.close()

    _, documents = np.unique([line.document for line in lines], return_inverse=True)
    return MarkedTexts(
        texts=[line.text for line in lines],
        marked=[
            MarkedSpans(_select_spans(line, is_gold=True), _select_spans(line, is_gold=False))
            for line in lines
        ],
        documents=documents,
    )


def _select_spans(line: Line, *, is_gold: bool) -> frozenset[TextSpan]:
    return frozenset(
        (mention.start, mention.end) for mention in line.mentions if mention.is_gold == is_gold
    )


def measure_detection(
    data: RunData, model: nn.Module, held_out: MarkedTexts, context: Processes
) -> dict[str, SpanCounts]:
    """Detects the mentions of texts, and counts them by system.

    Every process calls this function, and gets the same result.

    Args:
        model: A bi-encoder with a mention detector in evaluation mode, which may be wrapped by an
            engine.
    """
    tagged = MentionTagger(model, data, context).find_spans(held_out.texts)
    dictionary = data.dictionary

    mentions: dict[str, list[list[Span]]] = {DICTIONARY: [], DETECTOR: [], BOTH: []}
    unlinked = []
    for text, spans in zip(held_out.texts, tagged, strict=True):
        matched = dictionary(text)
        detected = look_up_spans(text, spans, dictionary)
        unlinked.append(len(spans) - len(detected))
        mentions[DICTIONARY].append(matched)
        mentions[DETECTOR].append(detected)
        mentions[BOTH].append(merge_spans(detected, matched))

    counts = {}
    for system, mentions_by_text in mentions.items():
        spans_by_text = []
        for text_mentions in mentions_by_text:
            spans_by_text.append([(mention.start, mention.end) for mention in text_mentions])

        unlinked_by_text = [0] * len(unlinked) if system == DICTIONARY else unlinked
        counts[system] = count_spans(
            held_out.marked, spans_by_text, unlinked_by_text, held_out.documents
        )
    return counts
