"""Blocks: some documents under every arm, rendered, encoded, cut into windows, and batched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.encoding import DocumentEncoder
from bsmeta.evaluation.arms import OWN, PROMPT, TRAINING, Arm
from bsmeta.evaluation.controls import Donors
from bsmeta.evaluation.documents import HeldOutDocuments
from bsmeta.evaluation.plan import plan_batches
from bsmeta.evaluation.prompts import PromptRenderer, prompt_config
from bsmeta.evaluation.scoring import Window, max_batch_tokens
from bsmeta.evaluation.windows import Windows
from bsmeta.metadata.records import Document
from bsmeta.metadata.rendering import Rendered, Renderer


@dataclass(slots=True)
class Block:
    """Some documents, ready to be scored.

    Attributes:
        documents: Index and text of each.
        shown: For each document and arm: the rendering (index into `windows`) and its types; a
            rendering that several arms share is there once.
        windows: The windows of each rendering.
        batches: Windows as (rendering, number of the window), a batch at a time.
    """

    documents: list[tuple[int, str]] = field(default_factory=list)
    shown: list[dict[Arm, tuple[int, tuple[str, ...]]]] = field(default_factory=list)
    windows: list[list[Window]] = field(default_factory=list)
    batches: list[list[tuple[int, int]]] = field(default_factory=list)


class AnyRenderer(Protocol):
    """What turns a document and types into text, in one style."""

    def render(self, document: Document, types: Sequence[str]) -> Rendered: ...


class _Style:
    """One style of metadata: its renderer and, since it closes cut prefixes, its encoder."""

    def __init__(
        self, renderer: AnyRenderer, tokenizer: PreTrainedTokenizerBase, config: DataConfig
    ) -> None:
        self.renderer = renderer
        self.encoder = DocumentEncoder(tokenizer, config)


class BlockMaker:
    """Makes blocks.

    Args:
        config: How documents are rendered, encoded and cut.
        tokenizer: The model's tokenizer.
        documents: The held-out documents.
        arms: The ways to show each of them.
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
        self._donors = None
        if any(arm.values != OWN for arm in self._arms):
            self._donors = Donors(documents, metadata.metadata_list, seed)
        self._max_tokens = max_batch_tokens(
            len(tokenizer), config.per_device_eval_batch_size, metadata.max_seq_len
        )

    def make(self, indices: Sequence[int]) -> Block:
        """The block of these documents."""
        block = Block()
        renderings: list[tuple[str, Rendered]] = []
        for index in indices:
            self._show(index, block, renderings)
        block.windows = self._encode(renderings)
        scored = [
            (r, w)
            for r, windows in enumerate(block.windows)
            for w, window in enumerate(windows)
            if window.scored.any()
        ]
        lengths = [len(block.windows[r][w].ids) for r, w in scored]
        for batch in plan_batches(lengths, self._max_tokens):
            block.batches.append([scored[i] for i in batch])
        return block

    def _show(self, index: int, block: Block, renderings: list[tuple[str, Rendered]]) -> None:
        """Render one document under every arm."""
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

    def _encode(self, renderings: Sequence[tuple[str, Rendered]]) -> list[list[Window]]:
        """The windows of each rendering, with one call of the tokenizer for each style."""
        windows: list[list[Window]] = [[] for _ in renderings]
        for name, style in self._styles.items():
            places = [i for i, (own, _) in enumerate(renderings) if own == name]
            encoded = style.encoder.encode([renderings[i][1] for i in places]) if places else []
            for place, one in zip(places, encoded, strict=True):
                windows[place] = self._windows(one, self._config)
        return windows


def _prompt_style(
    metadata: MetadataConfig, tokenizer: PreTrainedTokenizerBase, config: DataConfig
) -> _Style:
    own = prompt_config(metadata)
    return _Style(PromptRenderer(own), tokenizer, replace(config, metadata_config=own))
