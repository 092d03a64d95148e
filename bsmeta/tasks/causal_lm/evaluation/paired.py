"""The paired evaluation: scores every document in every arm and sums over identical bytes.

    documents -> blocks of this rank -> render, encode, windows -> batches -> model
    -> log-probabilities -> readings -> paired sums -> gathered from all ranks

A block is a group of documents, rendered in every arm; an arm is scored once, even if several
comparisons use it. Blocks are built, scored and freed one at a time, so memory does not grow with
the number of documents. All ranks make the same number of model calls (otherwise collective forward
passes would hang): a rank with fewer batches makes dummy calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig, compute_row_length
from bsmeta.core.errors import DataError
from bsmeta.core.progress import Advance, report_each
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.metadata.document import Document
from bsmeta.metadata.donors import Donors
from bsmeta.metadata.metadata_type import OWN, SHUFFLED
from bsmeta.metadata.rendering import Rendered
from bsmeta.tasks.causal_lm.evaluation.arms import (
    AGAINST_PREFIX,
    TEXT,
    TRAINING,
    Arm,
    Comparison,
    StyledRenderer,
)
from bsmeta.tasks.causal_lm.evaluation.batches import limit_batch_tokens, plan_batches
from bsmeta.tasks.causal_lm.evaluation.blocks import plan_blocks, take_blocks
from bsmeta.tasks.causal_lm.evaluation.documents import NamedDocuments
from bsmeta.tasks.causal_lm.evaluation.readings import (
    COLUMNS,
    Reading,
    count_lost_bytes,
    make_reading,
    sum_paired,
)
from bsmeta.tasks.causal_lm.evaluation.results import ComparisonSums
from bsmeta.tasks.causal_lm.evaluation.scorer import Scorer, open_scorer
from bsmeta.tasks.causal_lm.evaluation.windows import WINDOW_CUTTERS, Window
from bsmeta.training.ranks.processes import ALONE, Processes

MAX_FAILURES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ArmRendering:
    """The rendering of a document in an arm.

    Attributes:
        number: Index of the rendering in its block; arms with the same rendering share it.
        types: The metadata types that the rendering contains.
    """

    number: int
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockDocument:
    """A document of a block, with its rendering in each arm."""

    index: int
    text: str
    renderings: dict[Arm, ArmRendering]


@dataclass(frozen=True, slots=True)
class Block:
    """A group of documents, ready to be scored.

    Attributes:
        documents: The documents, with their renderings by arm.
        windows: The windows of each rendering.
        prefix_cut: For each rendering, whether its prefix was too long and was truncated.
        lost: For each rendering, whether its tokens lose each character of the document's text:
            bool [characters]; None if they lose none.
        batches: The windows to score, one for each key: windows with the same key get the same
            scores in any batch.
    """

    documents: list[BlockDocument]
    windows: list[list[Window]]
    prefix_cut: list[bool]
    lost: list[np.ndarray | None]
    batches: list[list[Window]]


@dataclass(frozen=True, slots=True)
class DocumentSums:
    """The sums of one document in one comparison, as ranks exchange them.

    Attributes:
        comparison: Name of the comparison.
        document: Index of the document.
        prefix_cut: Whether a prefix of either arm was truncated.
        lost_bytes: Bytes that are left out because the tokenizer loses text.
        values: float64 [2, bins, COLUMNS], see `sum_paired`.
    """

    comparison: str
    document: int
    prefix_cut: bool
    lost_bytes: int
    values: np.ndarray


class _Style(NamedTuple):
    """The renderer and the encoder of one style.

    The encoder needs the style too: it ends a truncated prefix as the style does.
    """

    renderer: StyledRenderer
    encoder: DocumentEncoder


class _StyledRendering(NamedTuple):
    """A rendering, and the style whose encoder encodes it."""

    style: str
    rendered: Rendered


class PairedEvaluation:
    """Compares arms over held-out documents.

    Args:
        windows: Window policy: a name in `WINDOW_CUTTERS`.
        position_edges: Byte offsets at which the bins of the position curve begin; the first is 0.
        ranks: The processes among which the documents are divided.
        seed: Seed of the random choice of donors, for arms that show values of other documents.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        documents: NamedDocuments,
        comparisons: Sequence[Comparison],
        *,
        windows: str = "all_pieces",
        position_edges: Sequence[int] = (0,),
        ranks: Processes = ALONE,
        seed: int = 0,
    ) -> None:
        # Here the arms define the metadata: the random removal of training must not apply.
        metadata = replace(config.metadata_config, without_metadata_same_context=False)
        self._config = replace(config, metadata_config=metadata)
        self._documents = documents
        self._comparisons = list(comparisons)
        pairs = ((comparison.base, comparison.test) for comparison in comparisons)
        self._arms = list(dict.fromkeys(chain.from_iterable(pairs)))
        self._cut_windows = WINDOW_CUTTERS[windows]
        self._edges = np.asarray(position_edges)
        self._ranks = ranks

        # A document is shown with the values of training; controls replace them.
        self._trained_values = SHUFFLED if metadata.metadata_values == SHUFFLED else OWN
        self._styles: dict[str, _Style] = {}
        for style in dict.fromkeys(arm.style for arm in self._arms):
            values = metadata.metadata_values if style == TRAINING else OWN
            renderer = StyledRenderer(style, replace(metadata, metadata_values=values))
            encoder = DocumentEncoder(tokenizer, replace(config, metadata_config=renderer.config))
            self._styles[style] = _Style(renderer, encoder)

        self._donors = None
        if any(self._choose_values(arm) != OWN for arm in self._arms):
            self._donors = Donors(documents, metadata.metadata_list, seed)

        self._max_tokens = limit_batch_tokens(
            len(tokenizer), config.per_device_eval_batch_size, compute_row_length(config)
        )
        max_cost = max(documents.sizes)
        if windows == "first_piece":  # at most one sequence, of about four characters per token
            max_cost = 4 * metadata.max_seq_len
        costs = [min(size, max_cost) for size in documents.sizes]
        self._plan = take_blocks(plan_blocks(costs), self._ranks.rank, self._ranks.size)

    def build_blocks(self) -> Iterator[Block]:
        """Yields this rank's blocks, built lazily (a list of them may be scored repeatedly)."""
        return map(self._build_block, self._plan)

    def _choose_values(self, arm: Arm) -> str:
        """Returns the values that an arm shows: for `own`, the ones that the model trained on."""
        if arm.values == OWN and arm.types:
            return self._trained_values
        return arm.values

    def _build_block(self, indices: Sequence[int]) -> Block:
        """Renders, encodes and cuts the documents with these indices."""
        documents = []
        renderings: list[_StyledRendering] = []
        for index in report_each(indices):
            document = self._documents[index]
            arm_renderings = self._render_in_arms(index, document, renderings)
            documents.append(BlockDocument(index, document.text, arm_renderings))

        windows: list[list[Window]] = [[] for _ in renderings]
        prefix_cut = [False] * len(renderings)
        lost: list[np.ndarray | None] = [None] * len(renderings)
        for name, style in self._styles.items():
            numbers = [
                number for number, rendering in enumerate(renderings) if rendering.style == name
            ]
            if not numbers:
                continue

            # The tokenizer is called once for all renderings of a style.
            encoded_documents = style.encoder.encode(
                [renderings[number].rendered for number in numbers]
            )
            for number, encoded in zip(numbers, encoded_documents, strict=True):
                windows[number] = self._cut_windows(encoded, self._config)
                prefix_cut[number] = encoded.prefix_is_cut
                lost[number] = encoded.lost

        return Block(documents, windows, prefix_cut, lost, self._plan_batches(windows))

    def encode_in_arm(self, index: int, arm: Arm) -> EncodedDocument:
        """Encodes a document as it is scored in an arm."""
        renderings: list[_StyledRendering] = []
        arm_renderings = self._render_in_arms(index, self._documents[index], renderings)
        rendering = renderings[arm_renderings[arm].number]
        (encoded,) = self._styles[rendering.style].encoder.encode([rendering.rendered])
        return encoded

    def _plan_batches(self, windows: Sequence[Sequence[Window]]) -> list[list[Window]]:
        """Groups the distinct windows that have scored tokens into batches."""
        windows_by_key = {
            window.key: window for window in chain.from_iterable(windows) if window.scored.any()
        }
        distinct_windows = list(windows_by_key.values())
        lengths = [len(window.ids) for window in distinct_windows]

        batches = []
        for indices in plan_batches(lengths, self._max_tokens):
            batches.append([distinct_windows[index] for index in indices])
        return batches

    def _render_in_arms(
        self, index: int, document: Document, renderings: list[_StyledRendering]
    ) -> dict[Arm, ArmRendering]:
        """Renders a document in each arm, and appends the distinct renderings to `renderings`."""
        variants = {OWN: document}
        numbers: dict[tuple[str | None, ...], int] = {}
        arm_renderings: dict[Arm, ArmRendering] = {}
        for arm in self._arms:
            values = self._choose_values(arm)
            if values not in variants:
                assert self._donors is not None
                variants[values] = self._donors.replace_values(index, document, values)

            rendered = self._styles[arm.style].renderer.render(variants[values], arm.types)
            # Equal texts are shared, but each style truncates its prefixes differently.
            style = arm.style if rendered.prefix else None
            key = (style, rendered.prefix, rendered.lead, rendered.body)
            if key not in numbers:
                numbers[key] = len(renderings)
                renderings.append(_StyledRendering(arm.style, rendered))
            arm_renderings[arm] = ArmRendering(numbers[key], rendered.types)
        return arm_renderings

    def run(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        blocks: Sequence[Block] | None = None,
        progress: Advance = lambda share: None,
    ) -> dict[str, ComparisonSums]:
        """Scores this rank's share and exchanges the sums; every rank must call it.

        Args:
            model: A causal language model, wrapped by a launcher or not.
            blocks: Prebuilt blocks (`list(evaluation.build_blocks())`); None: they are built here.
            progress: Called with the share of the work that is done, from 0 to 1.

        Returns:
            The sums of each comparison by name, on every rank.

        Raises:
            DataError: On every rank, if any score is not finite; lists the documents and arms.
        """
        blocks_to_score = self.build_blocks() if blocks is None else blocks
        rank_sums: list[DocumentSums] = []
        failures: list[str] = []
        progress(0.0)
        with open_scorer(model, device) as scorer:
            for num_done, block in enumerate(blocks_to_score, start=1):
                readings = self._read_block(scorer, block, failures)
                rank_sums += self._sum_block(block, readings)
                progress(num_done / len(self._plan))
        self._refuse_failures(self._ranks.gather(failures))

        sums = {comparison.name: self._make_empty_sums() for comparison in self._comparisons}
        for document_sums in chain.from_iterable(self._ranks.gather(rank_sums)):
            comparison_sums = sums[document_sums.comparison]
            index = document_sums.document
            comparison_sums.values[index] = document_sums.values
            comparison_sums.takes_part[index] = True
            comparison_sums.prefix_cut[index] = document_sums.prefix_cut
            comparison_sums.lost_bytes[index] = document_sums.lost_bytes
        return sums

    def _make_empty_sums(self) -> ComparisonSums:
        """Returns the sums of a comparison in which no document takes part."""
        num_documents = len(self._documents)
        return ComparisonSums(
            values=np.zeros((num_documents, 2, len(self._edges), COLUMNS)),
            takes_part=np.zeros(num_documents, bool),
            prefix_cut=np.zeros(num_documents, bool),
            lost_bytes=np.zeros(num_documents, np.int64),
        )

    def _read_block(self, scorer: Scorer, block: Block, failures: list[str]) -> list[Reading]:
        """Returns the readings of the block's renderings; adds non-finite scores to `failures`."""
        # Before the model's first call: all ranks issue collective calls in the same order.
        rank_states = self._ranks.gather((len(block.batches), failures))
        self._refuse_failures([rank_failures for _, rank_failures in rank_states])

        windows = chain.from_iterable(block.batches)
        values = chain.from_iterable(scorer.score(block.batches))
        scores = {window.key: value for window, value in zip(windows, values, strict=True)}

        max_batches = max(num_batches for num_batches, _ in rank_states)
        for _ in range(max_batches - len(block.batches)):
            scorer.call_dummy()

        readings = []
        for number, rendering_windows in enumerate(block.windows):
            rendering_scores = [scores.get(window.key, np.zeros(0)) for window in rendering_windows]
            if not all(np.isfinite(score).all() for score in rendering_scores):
                failures.append(self._name_rendering(block, number))
            readings.append(make_reading(rendering_windows, rendering_scores, block.lost[number]))
        return readings

    def _name_rendering(self, block: Block, number: int) -> str:
        """Names the first document and arm that have a rendering."""
        for document in block.documents:
            for arm, rendering in document.renderings.items():
                if rendering.number == number:
                    return f"{self._documents.name(document.index)}, {arm}"
        raise AssertionError(f"no document has the rendering {number}")

    def _refuse_failures(self, failures: Sequence[Sequence[str]]) -> None:
        """Raises an error on every rank if any rank has scores that are not finite.

        Args:
            failures: For each rank, the documents and arms with such scores.

        Raises:
            DataError: If there are any.
        """
        names = list(dict.fromkeys(chain.from_iterable(failures)))
        if not names:
            return

        remainder = ""
        if len(names) > MAX_FAILURES_SHOWN:
            remainder = f"\n  and {len(names) - MAX_FAILURES_SHOWN} more"
        raise DataError(
            "the model's log-probabilities are not finite (NaN or infinite), so there is "
            "nothing to compare; expected a checkpoint with finite weights, or "
            "precision=float32. Documents and arms:\n  "
            + "\n  ".join(names[:MAX_FAILURES_SHOWN])
            + remainder
        )

    def _sum_block(self, block: Block, readings: list[Reading]) -> Iterator[DocumentSums]:
        """Yields the sums of each document in each comparison whose arms render it differently."""
        for document in block.documents:
            for comparison in self._comparisons:
                base = document.renderings[comparison.base]
                test = document.renderings[comparison.test]
                if not _takes_part(comparison, base, test):
                    continue

                pair = (readings[base.number], readings[test.number])
                yield DocumentSums(
                    comparison=comparison.name,
                    document=document.index,
                    prefix_cut=block.prefix_cut[base.number] or block.prefix_cut[test.number],
                    lost_bytes=count_lost_bytes(*pair, document.text),
                    values=sum_paired(*pair, document.text, self._edges),
                )


def _takes_part(comparison: Comparison, base: ArmRendering, test: ArmRendering) -> bool:
    """Whether a document takes part in a comparison, given its renderings in the two arms."""
    if comparison.group == TEXT:
        return True

    # With a control, values that are equal by chance are a tie.
    if comparison.group.startswith(AGAINST_PREFIX):
        return base.types == test.types and base.types != ()

    # Appended metadata does not affect the text before it: the renderings are then the same.
    return base.types != test.types and base.number != test.number
