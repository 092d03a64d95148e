"""The tags of tokens that the mention detector learns: which tokens are mentions.

    line -> tags of its tokens (in the store) -> inputs of the loss

The first token of a mention has the tag B, its others I, and all other tokens O (CoNLL-2002; after
Ramshaw and Marcus, 1995). Of overlapping mentions, the first is tagged, or the longest of several
that begin together.

Lines may mark only some of their mentions, such as links. An unmarked mention would then teach the
detector not to detect it, so an O inside a match of the dictionary has a weight of its own
(`data_config.unmarked_match_weight`).

A masked mention would give itself away, and the detector never meets masks in new texts. So in
each epoch a part of the rows, drawn at random, is tagged and not masked; the others are masked as
usual and not tagged. The loss of tags therefore sees sentences as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bsmeta.core.files import hash_file
from bsmeta.tasks.disambiguation.config import DisambiguationDataConfig
from bsmeta.tasks.disambiguation.dictionary import (
    DETECTION_VERSION,
    AliasDictionary,
    open_dictionary,
)
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import Line
from bsmeta.tasks.disambiguation.texts import Row, find_overlaps

OUTSIDE, BEGIN, INSIDE = range(3)
TAG_COUNT = 3
UNMARKED_MATCH = 3
"""A token outside of all mentions, inside a match of the dictionary; only in the store."""

TAGGED_SHARE = 0.5
"""Share of the rows of an epoch that are tagged, if mentions may be masked; all rows otherwise."""

TAGS_VERSION = 1
"""Version of the stored tags; increment it when the same line gets other tags."""


class LineTagger:
    """Tags the tokens of training lines; is pickled to the processes that encode the lines.

    Args:
        forms_dir: The folder of the counts of forms; see `open_dictionary`.

    Attributes:
        key: The settings that determine the tags, for the key of a store.
    """

    def __init__(
        self, config: DisambiguationDataConfig, table: EntityTable, forms_dir: Path
    ) -> None:
        self._config = config
        self._table = table
        self._forms_dir = forms_dir
        self._marks_matches = config.unmarked_match_weight < 1
        self.key: dict[str, Any] = {
            "tags": TAGS_VERSION,
            "data_config.use_weak_labels": config.use_weak_labels,
            "data_config.unmarked_match_weight<1": self._marks_matches,
        }
        if self._marks_matches:
            self.key |= {
                "detection": DETECTION_VERSION,
                "data_config.train_file": hash_file(Path(str(config.train_file))),
                "data_config.alias_form": config.alias_form,
                "data_config.min_mention_share": config.min_mention_share,
            }

    def __getstate__(self) -> dict[str, Any]:
        # The dictionary cannot be pickled; each process opens it.
        return {name: value for name, value in self.__dict__.items() if name != "_dictionary"}

    @cached_property
    def _dictionary(self) -> AliasDictionary:
        return open_dictionary(self._config, self._table, self._forms_dir)

    def tag(self, line: Line, tokens: np.ndarray) -> np.ndarray:
        """Tags the tokens of a line.

        Weak labels are mentions, too, unless the configuration leaves them out.

        Args:
            tokens: int [tokens, 2], start and end of each token in characters.

        Returns:
            uint8 [tokens]: `OUTSIDE`, `BEGIN`, `INSIDE` or `UNMARKED_MATCH`.
        """
        tags = np.full(len(tokens), OUTSIDE, np.uint8)
        if self._marks_matches:
            matches = [
                (match.start, match.end) for match in self._dictionary.find_matches(line.text)
            ]
            for start, end in _find_token_ranges(matches, tokens):
                tags[start:end] = UNMARKED_MATCH

        mentions = [
            (mention.start, mention.end)
            for mention in line.mentions
            if mention.is_gold or self._config.use_weak_labels
        ]
        mentions.sort(key=lambda span: (span[0], -span[1]))
        last_end = 0
        for start, end in _find_token_ranges(mentions, tokens):
            if last_end <= start < end:
                tags[start] = BEGIN
                tags[start + 1 : end] = INSIDE
                last_end = end
        return tags


def _find_token_ranges(
    spans: Sequence[tuple[int, int]], tokens: np.ndarray
) -> list[tuple[int, int]]:
    """Returns the range of tokens that each span of characters overlaps."""
    ranges = find_overlaps(np.array(spans, np.int64).reshape(-1, 2), tokens)
    return [(start, end) for start, end in ranges.tolist()]


def build_tag_tensors(
    rows: Sequence[Row],
    is_tagged: Sequence[bool],
    shape: torch.Size,
    first_token: int,
    unmarked_match_weight: float,
) -> dict[str, torch.Tensor]:
    """Builds the inputs of `compute_tag_loss`.

    Args:
        rows: Rows of a store with tags.
        is_tagged: Whether the tags of each row are in the loss.
        shape: Shape of `input_ids`.
        first_token: Index of the first token of a row in `input_ids`, after special tokens.

    Returns:
        `tags`, int64 [rows, tokens], and `tag_weights`, float32 [rows, tokens], 0 for special
        tokens, padding and rows that are not tagged.
    """
    tags = np.full(shape, OUTSIDE, np.int64)
    weights = np.zeros(shape, np.float32)
    for number, (row, has_loss) in enumerate(zip(rows, is_tagged, strict=True)):
        assert row.tags is not None
        tokens = slice(first_token, first_token + len(row.tags))
        is_unmarked = row.tags == UNMARKED_MATCH
        tags[number, tokens] = np.where(is_unmarked, OUTSIDE, row.tags)
        if has_loss:
            weights[number, tokens] = np.where(is_unmarked, unmarked_match_weight, 1.0)
    return {"tags": torch.from_numpy(tags), "tag_weights": torch.from_numpy(weights)}


def compute_tag_loss(
    scores: torch.Tensor, tags: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Computes the sum over tokens of weight times negative log-probability of the tag, in nats.

    Args:
        scores: float [rows, tokens, `TAG_COUNT`].
        tags: int64 [rows, tokens].
        weights: float32 [rows, tokens].
    """
    losses = functional.cross_entropy(scores.flatten(0, 1), tags.flatten(), reduction="none")
    return (losses * weights.flatten()).sum()


def decode_tags(tags: np.ndarray) -> list[tuple[int, int]]:
    """Decodes the tags of a text to mentions, as ranges of tokens.

    An I that follows an O begins a mention, as in the evaluation of CoNLL-2000.
    """
    mentions: list[tuple[int, int]] = []
    previous = OUTSIDE
    for token, tag in enumerate(tags.tolist()):
        if tag == BEGIN or (tag == INSIDE and previous == OUTSIDE):
            mentions.append((token, token + 1))
        elif tag == INSIDE:
            mentions[-1] = (mentions[-1][0], token + 1)
        previous = tag
    return mentions
