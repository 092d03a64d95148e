"""From documents to batches: their windows, and blocks of documents whose windows are batched.

A block is a group of documents rendered in every arm, encoded, cut into windows and batched.
`first_piece` and `all_pieces` use the chunks of training. `sliding` gives every token at least half
a sequence of preceding text as context, if there is that much: each window repeats the last half of
the previous window and scores only the new tokens. A prefix takes up room in its window, so under
`all_pieces` metadata reduces the text context; under `sliding` it hardly does.

Batches depend on lengths alone, never on the number of processes: a document is always scored in
the same batch, so the metrics do not change with the world size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig, row_length
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.progress import reporting
from bsmeta.data.text.chunks import Chunk, cut
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.metadata.records import Document
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.metadata.sampling import OWN, SHUFFLED, Donors
from bsmeta.tasks.causal_lm.evaluation.arms import (
    FORM,
    PROMPT,
    SEPARATOR,
    TRAINING,
    Arm,
    FormRenderer,
    PromptRenderer,
    prompt_config,
)
from bsmeta.tasks.causal_lm.evaluation.documents import NamedDocuments
from bsmeta.tasks.causal_lm.evaluation.scoring import Window, max_batch_tokens, plan_batches
from bsmeta.tasks.causal_lm.evaluation.statistics import Reading

Windows = Callable[[EncodedDocument, DataConfig], list[Window]]

FEWEST_BLOCKS = 16
"""Minimum number of blocks, so that several ranks can share a small set."""

DOCUMENTS_PER_BLOCK = 64
"""Documents (on average) that are rendered, encoded and kept in memory at one time."""

Place = tuple[int, int]
"""Index of a rendering, and index of one of its windows."""


def first_piece(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """The first chunk of the document, at most one sequence long."""
    return [_from_chunk(chunk) for chunk in cut(document, config)[:1]]


def all_pieces(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """The whole document in chunks, as in training."""
    return [_from_chunk(chunk) for chunk in cut(document, config)]


def sliding(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """The whole document in overlapping windows, with the prefix in the same places as training."""
    metadata, size = config.metadata_config, len(document.ids)
    is_text = (document.token_types == 0) & (document.text_ends > document.text_starts)
    first_text = int(np.argmax(is_text)) if is_text.any() else 0
    windows: list[Window] = []
    stop = 0
    while stop < size:
        prefixed = not windows or metadata.prefix_on == "every_piece"
        prefix_ids = document.prefix_ids if prefixed else document.prefix_ids[:0]
        prefix, new = len(prefix_ids), stop
        room = metadata.max_seq_len - prefix
        start = max(new - room // 2, 0)
        stop = min(start + room, size)
        scored = is_text[start:stop].copy()
        scored[: new - start] = False
        if start == 0 and len(scored):  # without metadata, it has no context
            scored[first_text : first_text + 1] = False
        windows.append(
            Window(
                ids=np.concatenate((prefix_ids, document.ids[start:stop])),
                starts=_padded(prefix, document.text_starts[start:stop]),
                ends=_padded(prefix, document.text_ends[start:stop]),
                scored=np.concatenate((np.zeros(prefix, bool), scored)),
                own=prefix + new - start,
            )
        )
    return windows


WINDOWS: dict[str, Windows] = {
    "first_piece": first_piece,
    "all_pieces": all_pieces,
    "sliding": sliding,
}


def reading_of(windows: list[Window], scores: list[np.ndarray]) -> Reading:
    """The text tokens of a document with their nats.

    Args:
        windows: All windows of the document in one arm.
        scores: For each window, the log-probabilities of its scored tokens, float64.
    """
    starts, ends, nats, shown_from = [], [], [], []
    for window, log_probabilities in zip(windows, scores, strict=True):
        values = np.full(len(window.ids), np.nan)
        values[window.scored] = -log_probabilities
        holds_text = window.ends > window.starts
        first = int(window.starts[np.argmax(holds_text)]) if holds_text.any() else 0
        holds_text[: window.own] = False
        starts.append(window.starts[holds_text])
        ends.append(window.ends[holds_text])
        nats.append(values[holds_text])
        shown_from.append(np.full(len(starts[-1]), first, np.int32))
    if not windows:
        nowhere = np.zeros(0, np.int32)
        return Reading(nowhere, nowhere, np.zeros(0), nowhere)
    return Reading(*map(np.concatenate, (starts, ends, nats, shown_from)))


def _from_chunk(chunk: Chunk) -> Window:
    # Without metadata the first text token has no context, so no arm scores it, even if training
    # has a loss on it.
    chunk = replace(chunk, first_text_is_target=False)
    starts, ends = chunk.text_starts, chunk.text_ends
    scored = chunk.loss_mask & (chunk.token_types == 0) & (ends > starts)
    return Window(chunk.ids, starts, ends, scored, chunk.prefix_length)


def _padded(front: int, values: np.ndarray) -> np.ndarray:
    return np.concatenate((np.zeros(front, values.dtype), values))


def plan_blocks(costs: Sequence[int]) -> list[list[int]]:
    """Group documents into blocks of similar document lengths and about equal total cost.

    Args:
        costs: The cost of each document (for example its characters).

    Returns:
        Blocks of document indices, the longest documents first.
    """
    count = len(costs)
    if count == 0:
        return []
    wanted = max(min(FEWEST_BLOCKS, count), -(-count // DOCUMENTS_PER_BLOCK))
    share = sum(costs) / wanted
    blocks: list[list[int]] = [[]]
    filled = 0.0
    for index in sorted(range(count), key=lambda i: (-costs[i], i)):
        if blocks[-1] and filled + costs[index] / 2 > share:
            blocks.append([])
            filled = 0.0
        blocks[-1].append(index)
        filled += costs[index]
    return blocks


def own_blocks(blocks: Sequence[list[int]], rank: int, world_size: int) -> list[list[int]]:
    """The blocks that a rank scores; every rank gets the same number, possibly some empty."""
    rounds = -(-len(blocks) // world_size)
    mine = [blocks[i] for i in range(rank, len(blocks), world_size)]
    return mine + [[] for _ in range(rounds - len(mine))]


@dataclass(slots=True)
class Block:
    """A group of documents, ready to be scored.

    Attributes:
        documents: Index and text of each document.
        shown: For each document and arm: the rendering (index into `windows`) and its types; a
            rendering that several arms share is stored once.
        windows: The windows of each rendering.
        prefix_cut: For each rendering, whether its prefix was too long and was truncated.
        batches: The `Place` of each window, batch by batch.
        copies: Windows left out of the batches because another window has the same ids and
            targets, mapped to that window: identical windows get identical scores, whatever they
            are batched with.
    """

    documents: list[tuple[int, str]] = field(default_factory=list)
    shown: list[dict[Arm, tuple[int, tuple[str, ...]]]] = field(default_factory=list)
    windows: list[list[Window]] = field(default_factory=list)
    prefix_cut: list[bool] = field(default_factory=list)
    batches: list[list[Place]] = field(default_factory=list)
    copies: dict[Place, Place] = field(default_factory=dict)


class AnyRenderer(Protocol):
    """Renders a document with the given metadata types as text, in one style."""

    def render(self, document: Document, types: Sequence[str]) -> Rendered: ...


class _Style:
    """The renderer of one style, and its encoder, which closes truncated prefixes in that style."""

    def __init__(
        self, renderer: AnyRenderer, tokenizer: PreTrainedTokenizerBase, config: DataConfig
    ) -> None:
        self.renderer = renderer
        self.encoder = DocumentEncoder(tokenizer, config)


class BlockMaker:
    """Builds blocks."""

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        documents: NamedDocuments,
        arms: Iterable[Arm],
        windows: Windows,
        seed: int,
    ) -> None:
        self._config = config
        self._documents = documents
        self._arms = list(dict.fromkeys(arms))
        self._windows = windows
        metadata = config.metadata_config
        self._styles = {TRAINING: _Style(Renderer(metadata), tokenizer, config)}
        # a document is shown as in training; the controls below replace that by something else
        self._own = SHUFFLED if metadata.metadata_values == SHUFFLED else OWN
        config = replace(config, metadata_config=replace(metadata, metadata_values=OWN))
        metadata = config.metadata_config
        if any(arm.style == PROMPT for arm in self._arms):
            self._styles[PROMPT] = _prompt_style(metadata, tokenizer, config)
        for style, with_words in ((FORM, True), (SEPARATOR, False)):
            if any(arm.style == style for arm in self._arms):
                renderer = FormRenderer(metadata, with_words=with_words)
                self._styles[style] = _Style(renderer, tokenizer, config)
        self._donors = None
        if any(self._values(arm) != OWN for arm in self._arms):
            self._donors = Donors(documents, metadata.metadata_list, seed)
        self._max_tokens = max_batch_tokens(
            len(tokenizer), config.per_device_eval_batch_size, row_length(config)
        )

    def _values(self, arm: Arm) -> str:
        """The values that an arm shows: for its own, those that the model was trained on."""
        return self._own if arm.values == OWN and arm.types else arm.values

    def make(self, indices: Sequence[int]) -> Block:
        """Build the block of these documents."""
        block = Block()
        renderings: list[tuple[str, Rendered]] = []
        for index in reporting(indices):
            self._show(index, block, renderings)
        self._encode(renderings, block)
        scored: list[Place] = []
        seen: dict[tuple[bytes, bytes], Place] = {}
        places = [(r, w) for r, made in enumerate(block.windows) for w in range(len(made))]
        for place in places:
            window = block.windows[place[0]][place[1]]
            if not window.scored.any():
                continue
            first = seen.setdefault((window.ids.tobytes(), window.scored.tobytes()), place)
            if first == place:
                scored.append(place)
            else:
                block.copies[place] = first
        lengths = [len(block.windows[r][w].ids) for r, w in scored]
        for batch in plan_batches(lengths, self._max_tokens):
            block.batches.append([scored[i] for i in batch])
        return block

    def _show(self, index: int, block: Block, renderings: list[tuple[str, Rendered]]) -> None:
        """Render one document in every arm."""
        document = self._documents[index]
        variants = {OWN: document}
        known: dict[tuple[str, ...], int] = {}
        shown: dict[Arm, tuple[int, tuple[str, ...]]] = {}
        for arm in self._arms:
            values = self._values(arm)
            if values not in variants:
                assert self._donors is not None
                variants[values] = self._donors.with_values(index, document, values)
            rendering = self._styles[arm.style].renderer.render(variants[values], arm.types)
            key = (rendering.prefix, rendering.lead, rendering.body)
            if key not in known:
                known[key] = len(renderings)
                renderings.append((arm.style, rendering))
            shown[arm] = (known[key], rendering.types)
        block.documents.append((index, document.text))
        block.shown.append(shown)

    def _encode(self, renderings: Sequence[tuple[str, Rendered]], block: Block) -> None:
        """Build the windows of each rendering, with one tokenizer call per style."""
        block.windows = [[] for _ in renderings]
        block.prefix_cut = [False] * len(renderings)
        for name, style in self._styles.items():
            places = [i for i, (own, _) in enumerate(renderings) if own == name]
            encoded = style.encoder.encode([renderings[i][1] for i in places]) if places else []
            for place, document in zip(places, encoded, strict=True):
                block.windows[place] = self._windows(document, self._config)
                block.prefix_cut[place] = document.prefix_cut


def _prompt_style(
    metadata: MetadataConfig, tokenizer: PreTrainedTokenizerBase, config: DataConfig
) -> _Style:
    own = prompt_config(metadata)
    return _Style(PromptRenderer(own), tokenizer, replace(config, metadata_config=own))
