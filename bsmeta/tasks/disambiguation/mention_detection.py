"""Detects mentions in texts by the dictionary, by the trained detector, or by both.

    text -> windows of tokens -> tags -> spans of characters -> aliases

The detector tags windows of a text that are as long as rows of the training data, and overlap: a
token has the tag of the window in which it is farther from the end. Spans that begin or end inside
a word are widened to the whole word. A span is a mention if its text, in any case, is a form of an
alias, even one that is too rarely a mention for the dictionary, because the detector reads the
context.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.tokenizer import find_special_tokens, tokenize_with_spans
from bsmeta.data.text.word_edges import find_word_edges, has_word
from bsmeta.tasks.disambiguation.config import BOTH, DETECTOR, DICTIONARY
from bsmeta.tasks.disambiguation.data import RunData
from bsmeta.tasks.disambiguation.dictionary import AliasDictionary, Span
from bsmeta.tasks.disambiguation.lines import find_word_spans
from bsmeta.tasks.disambiguation.model import BiEncoder, run_model
from bsmeta.tasks.disambiguation.tagging import OUTSIDE, decode_tags
from bsmeta.tasks.disambiguation.texts import Limits, build_attention_mask, pad_sequences
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import run_on_all_ranks, sort_into_batches

OVERLAP_DIVISOR = 4
"""Consecutive windows share this part of the earlier one."""


class Window(NamedTuple):
    """A range of tokens of a text that is encoded by itself."""

    start: int  # in tokens
    end: int
    kept_start: int  # the tokens whose tags are those of this window
    kept_end: int


def cut_windows(words: np.ndarray, tokens: np.ndarray, limits: Limits) -> list[Window]:
    """Divides a text into overlapping windows within the limits of rows.

    Args:
        words, tokens: int [n, 2], start and end in characters.
    """
    ranges: list[tuple[int, int]] = []
    start = 0
    while not ranges or ranges[-1][1] < len(tokens):
        end = min(start + limits.tokens, len(tokens))
        first_word = int(np.searchsorted(words[:, 1], tokens[start, 0], side="right"))
        if first_word + limits.words < len(words):
            next_word_start = words[first_word + limits.words, 0]
            end = min(end, int(np.searchsorted(tokens[:, 0], next_word_start, side="left")))

        end = max(end, start + 1)
        ranges.append((start, end))
        start = max(end - (end - start) // OVERLAP_DIVISOR, start + 1)

    # Two windows divide the tokens that they share in the middle.
    borders = [0]
    for (_, end), (next_start, _) in pairwise(ranges):
        borders.append((next_start + end) // 2)
    borders.append(len(tokens))
    return [Window(*window, *kept) for window, kept in zip(ranges, pairwise(borders), strict=True)]


class MentionTagger:
    """Finds the spans that the trained layer of a model tags as mentions.

    Args:
        model: The bi-encoder in evaluation mode, which may be wrapped by an engine.
        context: The processes that divide the windows of texts.
    """

    def __init__(self, model: nn.Module, data: RunData, context: Processes) -> None:
        self._model = model
        self._context = context
        self._tokenizer = data.tokenizer
        self._prefix, self._suffix = find_special_tokens(data.tokenizer)
        self._limits = data.limits
        self._precision = data.config.mixed_precision
        self._batch_size = data.config.data_config.per_device_eval_batch_size

    def find_spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Returns the spans in each text, in characters, ascending and without overlaps.

        Every process calls this function, and gets the same result.
        """
        encoded = [*tokenize_with_spans(self._tokenizer, texts)]
        windows: list[tuple[int, Window]] = []
        for number, (_, tokens) in enumerate(encoded):
            if len(tokens):
                cut = cut_windows(find_word_spans(texts[number]), tokens, self._limits)
                windows += [(number, window) for window in cut]

        def tag_batch(batch: np.ndarray) -> list[np.ndarray]:
            selected = [windows[index] for index in batch]
            return self._tag(
                [encoded[number][0][window.start : window.end] for number, window in selected]
            )

        lengths = [window.end - window.start for _, window in windows]
        batches = sort_into_batches(lengths, self._batch_size)
        tags = [np.full(len(tokens), OUTSIDE) for _, tokens in encoded]
        results = run_on_all_ranks(batches, tag_batch, self._context)
        for (number, window), window_tags in zip(windows, results, strict=True):
            kept = slice(window.kept_start, window.kept_end)
            offset = window.start
            tags[number][kept] = window_tags[kept.start - offset : kept.stop - offset]

        return [
            [*convert_to_characters(text, decode_tags(text_tags), tokens)]
            for text, text_tags, (_, tokens) in zip(texts, tags, encoded, strict=True)
        ]

    def _tag(self, windows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Tags the tokens of windows, given without special tokens."""
        texts = [[*self._prefix, *tokens, *self._suffix] for tokens in windows]
        inputs = {
            "input_ids": torch.from_numpy(pad_sequences(texts, self._tokenizer.pad_token_id)),
            "attention_mask": torch.from_numpy(build_attention_mask([len(text) for text in texts])),
        }
        output = run_model(self._model, inputs, self._context.device, self._precision)
        assert output.tag_scores is not None
        tags = output.tag_scores.argmax(2).cpu().numpy()
        first = len(self._prefix)
        return [row[first : first + len(tokens)] for row, tokens in zip(tags, windows, strict=True)]


def convert_to_characters(
    text: str, ranges: Sequence[tuple[int, int]], tokens: np.ndarray
) -> Iterator[tuple[int, int]]:
    """Yields ranges of tokens as spans of whole words, without white space at their ends.

    Args:
        tokens: int [tokens, 2], start and end in characters.
    """
    edges = find_word_edges(text)
    word_starts = edges[0::2]
    word_ends = edges[1::2]

    last_end = 0
    for first, end_token in ranges:
        start = int(tokens[first, 0])
        end = int(tokens[end_token - 1, 1])
        span = text[start:end]
        start += len(span) - len(span.lstrip())
        end -= len(span) - len(span.rstrip())

        first_word = bisect_right(word_ends, start)
        if first_word < len(word_starts):
            start = min(start, word_starts[first_word])
        last_word = bisect_left(word_starts, end) - 1
        if last_word >= 0:
            end = max(end, word_ends[last_word])

        if last_end <= start < end and has_word(text[start:end]):
            yield start, end
            last_end = end


class MentionDetector:
    """Detects the mentions of texts.

    Args:
        tagger: The trained detector; None: the dictionary alone.
        adds_dictionary: Whether to add the mentions of the dictionary that overlap none of the
            trained detector.
    """

    def __init__(
        self, dictionary: AliasDictionary, tagger: MentionTagger | None, *, adds_dictionary: bool
    ) -> None:
        self.dictionary = dictionary
        self._tagger = tagger
        self._adds_dictionary = adds_dictionary

    def __call__(self, texts: Sequence[str]) -> list[list[Span]]:
        """Returns the mentions of each text, in the order of the text."""
        if self._tagger is None:
            return [self.dictionary(text) for text in texts]

        mentions = []
        for text, spans in zip(texts, self._tagger.find_spans(texts), strict=True):
            detected = look_up_spans(text, spans, self.dictionary)
            if self._adds_dictionary:
                detected = merge_spans(detected, self.dictionary(text))
            mentions.append(detected)
        return mentions


def look_up_spans(
    text: str, spans: Sequence[tuple[int, int]], dictionary: AliasDictionary
) -> list[Span]:
    """Returns the spans whose text is a form of an alias, with the alias."""
    with_aliases = [
        Span(start, end, dictionary.find_alias(text[start:end], with_rare=True))
        for start, end in spans
    ]
    return [span for span in with_aliases if span.alias >= 0]


def merge_spans(first: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Adds each of the other spans that overlaps none of `first`; returns all in text order."""
    starts = [span.start for span in first]
    ends = [span.end for span in first]
    added = [
        other
        for other in others
        # Without an overlap, every span that starts before its end also ends before its start.
        if bisect_left(starts, other.end) == bisect_right(ends, other.start)
    ]
    return sorted([*first, *added])


def open_mention_detector(data: RunData, model: BiEncoder) -> MentionDetector:
    """Opens the mention detector of a run's configuration, for this process alone."""
    mode = data.config.mention_detection
    tagger = None
    if mode != DICTIONARY:
        device = next(model.parameters()).device
        tagger = MentionTagger(model, data, Processes(device=device))
    return MentionDetector(data.dictionary, tagger, adds_dictionary=mode == BOTH)


def refuse_model_without_detector(mode: str, model: BiEncoder, folder: Path) -> None:
    """Raises ConfigurationError if `mention_detection` needs a layer that a model does not have."""
    if mode != DICTIONARY and not model.settings.has_detector:
        raise ConfigurationError(
            f"mention_detection={mode}: the model in {folder} has no mention detector, because it "
            f"was trained with mention_detection={DICTIONARY}; expected one that was trained with "
            f"{DETECTOR} or {BOTH}. Fix: train it again, or mention_detection={DICTIONARY}",
            ["mention_detection"],
        )
