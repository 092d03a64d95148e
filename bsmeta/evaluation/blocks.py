"""Blocks: groups of documents rendered in every arm, encoded, cut into windows and batched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.evaluation.arms import FORM, OWN, PROMPT, SEPARATOR, TRAINING, Arm
from bsmeta.evaluation.batches import Windows, plan_batches
from bsmeta.evaluation.controls import Donors, FormRenderer, PromptRenderer, prompt_config
from bsmeta.evaluation.documents import HeldOutDocuments
from bsmeta.evaluation.scoring import Window, max_batch_tokens
from bsmeta.metadata.records import Document
from bsmeta.metadata.rendering import Rendered, Renderer

Place = tuple[int, int]
"""Index of a rendering, and index of one of its windows."""


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
    """Builds blocks.

    Args:
        config: How documents are rendered, encoded and truncated.
        tokenizer: The model's tokenizer.
        documents: The held-out documents.
        arms: The arms in which each document is scored.
        windows: The window policy.
        seed: Seed of the controls.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        documents: HeldOutDocuments,
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
        if any(arm.style == PROMPT for arm in self._arms):
            self._styles[PROMPT] = _prompt_style(metadata, tokenizer, config)
        for style, with_words in ((FORM, True), (SEPARATOR, False)):
            if any(arm.style == style for arm in self._arms):
                renderer = FormRenderer(metadata, with_words=with_words)
                self._styles[style] = _Style(renderer, tokenizer, config)
        self._donors = None
        if any(arm.values != OWN for arm in self._arms):
            self._donors = Donors(documents, metadata.metadata_list, seed)
        self._max_tokens = max_batch_tokens(
            len(tokenizer), config.per_device_eval_batch_size, metadata.max_seq_len
        )

    def make(self, indices: Sequence[int]) -> Block:
        """Build the block of these documents."""
        block = Block()
        renderings: list[tuple[str, Rendered]] = []
        for index in indices:
            self._show(index, block, renderings)
        self._encode(renderings, block)
        scored: list[Place] = []
        seen: dict[tuple[bytes, bytes], Place] = {}
        for place in ((r, w) for r, one in enumerate(block.windows) for w in range(len(one))):
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
        dressed = {OWN: document}
        known: dict[tuple[str, ...], int] = {}
        shown: dict[Arm, tuple[int, tuple[str, ...]]] = {}
        for arm in self._arms:
            if arm.values not in dressed:
                assert self._donors is not None
                dressed[arm.values] = self._donors.dress(index, document, arm.values)
            one = self._styles[arm.style].renderer.render(dressed[arm.values], arm.types)
            key = (one.prefix, one.lead, one.body)
            if key not in known:
                known[key] = len(renderings)
                renderings.append((arm.style, one))
            shown[arm] = (known[key], one.types)
        block.documents.append((index, document.text))
        block.shown.append(shown)

    def _encode(self, renderings: Sequence[tuple[str, Rendered]], block: Block) -> None:
        """Build the windows of each rendering, with one tokenizer call per style."""
        block.windows = [[] for _ in renderings]
        block.prefix_cut = [False] * len(renderings)
        for name, style in self._styles.items():
            places = [i for i, (own, _) in enumerate(renderings) if own == name]
            encoded = style.encoder.encode([renderings[i][1] for i in places]) if places else []
            for place, one in zip(places, encoded, strict=True):
                block.windows[place] = self._windows(one, self._config)
                block.prefix_cut[place] = one.prefix_cut


def _prompt_style(
    metadata: MetadataConfig, tokenizer: PreTrainedTokenizerBase, config: DataConfig
) -> _Style:
    own = prompt_config(metadata)
    return _Style(PromptRenderer(own), tokenizer, replace(config, metadata_config=own))
