"""The paired evaluation: scores every document in every arm and sums over identical bytes.

    documents -> blocks of this rank -> render, encode, windows -> batches -> model
    -> log-probabilities -> readings -> paired sums -> gathered from all ranks

A block is a group of documents, rendered in every arm; an arm is scored once, however many
comparisons use it. Blocks are built, scored and freed one at a time, so memory does not grow with
the set. All ranks call the model equally often (otherwise collective forward passes would hang): a
rank with fewer batches makes dummy calls. During training, a fixed subset in two arms is prepared
once and scored repeatedly.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig, row_length
from bsmeta.core.errors import DataError
from bsmeta.core.log_once import log_once
from bsmeta.core.progress import Advance, reporting
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.data.text.lost_share import describe_lost_bytes
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import OWN, SHUFFLED
from bsmeta.metadata.rendering import Donors, Rendered
from bsmeta.tasks.causal_lm.arms import (
    AGAINST,
    TEXT,
    TEXT_ALONE,
    TRAINING,
    Arm,
    Comparison,
    StyledRenderer,
    plan_comparisons,
)
from bsmeta.tasks.causal_lm.documents import HeldOutDocuments, NamedDocuments
from bsmeta.tasks.causal_lm.results import ComparisonSums, paired_metrics
from bsmeta.tasks.causal_lm.scoring import (
    COLUMNS,
    WINDOWS,
    Reading,
    Scorer,
    Window,
    lost_bytes,
    max_batch_tokens,
    paired_sums,
    plan_batches,
    reading_of,
    scoring,
)
from bsmeta.training.processes import ALONE, Processes

FEWEST_BLOCKS = 16
"""Minimum number of blocks, so that several ranks can share a small set."""

DOCUMENTS_PER_BLOCK = 64
"""Documents (on average) that are rendered, encoded and kept in memory at one time."""

FAILURES_SHOWN = 5
RESAMPLES = 10_000
FIRST = ("bits_per_byte_without", "bits_per_byte_with", "difference", "text_bits_per_byte")
"""The most important metrics, which come first so that a narrow screen shows them."""

logger = logging.getLogger(__name__)

_Compared = tuple[str, int, bool, int, np.ndarray]
"""Name of the comparison, document index, whether a prefix was truncated, lost bytes, sums."""


def plan_blocks(costs: Sequence[int]) -> list[list[int]]:
    """Group documents into blocks of similar document lengths and about equal total cost.

    Args:
        costs: The cost of each document (for example its characters).

    Returns:
        Blocks of document indices, the longest documents first.
    """
    count = len(costs)
    wanted = max(min(FEWEST_BLOCKS, count), -(-count // DOCUMENTS_PER_BLOCK), 1)
    share = sum(costs) / wanted
    blocks: list[list[int]] = []
    filled = 0.0
    for index in sorted(range(count), key=lambda i: (-costs[i], i)):
        if not blocks or filled + costs[index] / 2 > share:
            blocks.append([])
            filled = 0.0
        blocks[-1].append(index)
        filled += costs[index]
    return blocks


def own_blocks(blocks: Sequence[list[int]], rank: int, world_size: int) -> list[list[int]]:
    """The blocks that a rank scores; every rank gets the same number, possibly some empty."""
    mine = [*blocks[rank::world_size]]
    rounds = -(-len(blocks) // world_size)
    return mine + [[] for _ in range(rounds - len(mine))]


@dataclass(frozen=True, slots=True)
class Block:
    """A group of documents, ready to be scored.

    Attributes:
        documents: Index and text of each document; and by arm the place of its rendering in
            `windows` (one that several arms share is stored once) and the types in it.
        windows: The windows of each rendering.
        prefix_cut: For each rendering, whether its prefix was too long and was truncated.
        lost: For each rendering, the characters that its tokens lose; None: none.
        batches: The windows to score. Of those with the same key there is one: they get the same
            scores, whatever they are batched with.
    """

    documents: list[tuple[int, str, dict[Arm, tuple[int, tuple[str, ...]]]]]
    windows: list[list[Window]]
    prefix_cut: list[bool]
    lost: list[np.ndarray | None]
    batches: list[list[Window]]


class PairedEvaluation:
    """Compares arms over held-out documents.

    Args:
        windows: Window policy: a name in `bsmeta.tasks.causal_lm.scoring.WINDOWS`.
        position_edges: Byte offsets at which the bins of the position curve begin; the first is 0.
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
        # the arms define the metadata here: training's random removal of it must not apply
        metadata = replace(config.metadata_config, without_metadata_same_context=False)
        self._config = replace(config, metadata_config=metadata)
        self._documents = documents
        self._comparisons = list(comparisons)
        arms = ((comparison.base, comparison.test) for comparison in comparisons)
        self._arms = list(dict.fromkeys(chain.from_iterable(arms)))
        self._windows = WINDOWS[windows]
        self._edges = np.asarray(position_edges)
        self._ranks = ranks
        # a document is shown as in training; the controls replace that by something else
        self._own = SHUFFLED if metadata.metadata_values == SHUFFLED else OWN
        self._styles: dict[str, tuple[StyledRenderer, DocumentEncoder]] = {}
        for style in dict.fromkeys(arm.style for arm in self._arms):
            values = metadata.metadata_values if style == TRAINING else OWN
            renderer = StyledRenderer(style, replace(metadata, metadata_values=values))
            # the encoder closes truncated prefixes in the style
            encoder = DocumentEncoder(tokenizer, replace(config, metadata_config=renderer.config))
            self._styles[style] = (renderer, encoder)
        self._donors = None
        if any(self._values(arm) != OWN for arm in self._arms):
            self._donors = Donors(documents, metadata.metadata_list, seed)
        self._max_tokens = max_batch_tokens(
            len(tokenizer), config.per_device_eval_batch_size, row_length(config)
        )
        most = 4 * metadata.max_seq_len if windows == "first_piece" else max(documents.sizes)
        costs = [min(size, most) for size in documents.sizes]  # about four characters per token
        self._plan = own_blocks(plan_blocks(costs), self._ranks.rank, self._ranks.size)

    def blocks(self) -> Iterator[Block]:
        """This rank's blocks, built lazily (a list of them may be scored repeatedly)."""
        return map(self._block, self._plan)

    def _values(self, arm: Arm) -> str:
        """The values that an arm shows: for its own, those that the model was trained on."""
        return self._own if arm.values == OWN and arm.types else arm.values

    def _block(self, indices: Sequence[int]) -> Block:
        block = Block([], [], [], [], [])
        renderings: list[tuple[str, Rendered]] = []
        for index in reporting(indices):
            document = self._documents[index]
            shown = self._render(index, document, renderings)
            block.documents.append((index, document.text, shown))
        block.windows.extend([] for _ in renderings)
        block.prefix_cut.extend(False for _ in renderings)
        block.lost.extend(None for _ in renderings)
        for style, (_, encoder) in self._styles.items():  # one call of the tokenizer for each
            places = [i for i, (own, _) in enumerate(renderings) if own == style]
            encoded = encoder.encode([renderings[i][1] for i in places]) if places else []
            for place, own in zip(places, encoded, strict=True):
                block.windows[place] = self._windows(own, self._config)
                block.prefix_cut[place] = own.prefix_cut
                block.lost[place] = own.lost
        every = chain.from_iterable(block.windows)
        scored = list({window.key: window for window in every if window.scored.any()}.values())
        for batch in plan_batches([len(window.ids) for window in scored], self._max_tokens):
            block.batches.append([scored[i] for i in batch])
        return block

    def _render(
        self, index: int, document: Document, renderings: list[tuple[str, Rendered]]
    ) -> dict[Arm, tuple[int, tuple[str, ...]]]:
        """Append the renderings of a document; return the place and the types of each arm's."""
        variants = {OWN: document}
        known: dict[tuple[str, ...], int] = {}
        shown: dict[Arm, tuple[int, tuple[str, ...]]] = {}
        for arm in self._arms:
            values = self._values(arm)
            if values not in variants:
                assert self._donors is not None
                variants[values] = self._donors.with_values(index, document, values)
            rendering = self._styles[arm.style][0].render(variants[values], arm.types)
            key = (rendering.prefix, rendering.lead, rendering.body)
            if key not in known:
                known[key] = len(renderings)
                renderings.append((arm.style, rendering))
            shown[arm] = (known[key], rendering.types)
        return shown

    def run(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        blocks: Sequence[Block] | None = None,
        progress: Advance = lambda share: None,
    ) -> dict[str, ComparisonSums]:
        """Score this rank's share and exchange the sums; every rank must call it.

        Args:
            model: A causal language model, wrapped by a launcher or not.
            blocks: Prebuilt blocks (`list(evaluation.blocks())`); by default they are built here.
            progress: Called with the share of the work that is done, from 0 to 1.

        Returns:
            The sums of each comparison by name, on every rank.

        Raises:
            DataError: A score is not finite; lists documents and arms, and is raised on every rank.
        """
        own: list[_Compared] = []
        failures: list[str] = []
        progress(0.0)
        with scoring(model, device) as scorer:
            for number, block in enumerate(self.blocks() if blocks is None else blocks):
                own += self._compare(block, self._score(scorer, block, failures))
                progress((number + 1) / len(self._plan))
        self._refuse(self._ranks.gather(failures))
        count = len(self._documents)
        shape = (count, 2, len(self._edges), COLUMNS)
        sums = {
            comparison.name: ComparisonSums(
                values=np.zeros(shape),
                takes_part=np.zeros(count, bool),
                prefix_cut=np.zeros(count, bool),
                lost_bytes=np.zeros(count, np.int64),
            )
            for comparison in self._comparisons
        }
        compared = chain.from_iterable(self._ranks.gather(own))
        for name, document, prefix_cut, lost, values in compared:
            found = sums[name]
            found.values[document] = values
            found.takes_part[document] = True
            found.prefix_cut[document] = prefix_cut
            found.lost_bytes[document] = lost
        return sums

    def _score(self, scorer: Scorer, block: Block, failures: list[str]) -> list[Reading]:
        """Readings of the block's renderings, in order; adds non-finite scores to `failures`."""
        # before the model's first call: all ranks issue collective calls in the same order
        states = self._ranks.gather((len(block.batches), failures))
        self._refuse([theirs for _, theirs in states])
        scored, values = chain.from_iterable(block.batches), scorer.score(block.batches)
        scores = {
            window.key: own for window, own in zip(scored, chain.from_iterable(values), strict=True)
        }
        for _ in range(max(count for count, _ in states) - len(block.batches)):
            scorer.dummy()
        readings = []
        for rendering, windows in enumerate(block.windows):
            found = [scores.get(window.key, np.zeros(0)) for window in windows]
            if not all(np.isfinite(own).all() for own in found):
                failures.append(
                    next(  # of the first document and arm that have this rendering
                        f"{self._documents.name(index)}, {arm}"
                        for index, _, shown in block.documents
                        for arm, (number, _) in shown.items()
                        if number == rendering
                    )
                )
            readings.append(reading_of(windows, found, block.lost[rendering]))
        return readings

    def _refuse(self, failures: Sequence[Sequence[str]]) -> None:
        """Raise on every rank if any rank found scores that are not finite."""
        listed = list(dict.fromkeys(chain.from_iterable(failures)))
        if listed:
            more = f"\n  and {len(listed) - FAILURES_SHOWN} more" if listed[FAILURES_SHOWN:] else ""
            raise DataError(
                "the model's log-probabilities are not finite (NaN or infinite), so there is "
                "nothing to compare; expected a checkpoint with finite weights, or "
                "precision=float32. Documents and arms:\n  "
                + "\n  ".join(listed[:FAILURES_SHOWN])
                + more
            )

    def _compare(self, block: Block, readings: list[Reading]) -> Iterator[_Compared]:
        """The sums of each document in each comparison whose arms render it differently."""
        for index, text, shown in block.documents:
            for comparison in self._comparisons:
                base, base_types = shown[comparison.base]
                test, test_types = shown[comparison.test]
                # With a control, values that are equal by chance are a tie.
                if comparison.group.startswith(AGAINST):
                    is_compared = base_types == test_types != ()
                else:  # appended metadata does not affect the text before it
                    is_compared = base_types != test_types and base != test
                if comparison.group == TEXT or is_compared:
                    pair = (readings[base], readings[test])
                    sums = paired_sums(*pair, text, self._edges)
                    is_cut = block.prefix_cut[base] or block.prefix_cut[test]
                    yield comparison.name, index, is_cut, lost_bytes(*pair, text), sums


class SubsetEvaluation:
    """Evaluates the first `max_documents` held-out documents with all their metadata, and without.

    Every rank creates one, and all ranks call `run` together.

    Args:
        found: The held-out file, if it is remote and was looked up before.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_documents: int,
        seed: int,
        ranks: Processes,
        found: FileRef | None = None,
    ) -> None:
        documents = HeldOutDocuments(
            config, max_documents=max_documents, deduplicate=True, found=found
        )
        comparisons = plan_comparisons(["all"], config.metadata_config.metadata_list)
        self._evaluation = PairedEvaluation(
            config, tokenizer, documents, [TEXT_ALONE, *comparisons], ranks=ranks
        )
        self._blocks = list(self._evaluation.blocks())
        self._text_bytes = int(np.sum(documents.bytes))
        self._seed = seed

    def run(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Score the subset; return `PairedMetrics` as a flat dict, equal on all ranks.

        Those of `FIRST` come first. `text_bits_per_byte` is over all documents without metadata; if
        no document has metadata, it is the only metric besides `documents` and `bytes`.
        """
        sums = self._evaluation.run(model, device, blocks=self._blocks)
        stacked = np.stack([sums[name].totals for name in ("text", "all")])
        text, both = paired_metrics(stacked, resamples=RESAMPLES, seed=self._seed)
        lost = int(sums["text"].lost_bytes.sum())
        if lost:
            log_once(
                logger,
                logging.WARNING,
                f"evaluations leave out {describe_lost_bytes(lost, self._text_bytes)}"
                + ("; no bytes are left to score" if text is None else ""),
            )
        if text is None:
            return {"documents": 0, "bytes": 0}
        metrics = {"text_bits_per_byte": text.bits_per_byte_without}
        if both is None:
            return {**metrics, "documents": text.documents, "bytes": text.bytes}
        # there are no intervals for a single document
        metrics |= {name: value for name, value in asdict(both).items() if value is not None}
        return {**{name: metrics[name] for name in FIRST}, **metrics}
