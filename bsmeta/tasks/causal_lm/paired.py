"""The paired evaluation: scores every document in every arm and sums over identical bytes.

    documents -> blocks of this rank -> render, encode, windows -> batches -> model
    -> log-probabilities -> readings -> paired sums -> gathered from all ranks

A text is tokenized differently with and without metadata (a tag splits a word, a space moves to
another token), and each reading leaves some tokens unscored (the first of a window, those that
share characters with metadata). The character positions at which *both* readings have a token
boundary split the text into segments; a segment counts if both readings score all of its tokens. So
both are summed over identical bytes.

Blocks are built, scored and freed one at a time, so memory does not grow with the set. All ranks
call the model equally often (otherwise collective forward passes would hang): a rank with fewer
batches makes dummy calls. During training, a fixed subset in two arms is prepared once and scored
repeatedly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.core.progress import Advance
from bsmeta.data.io.files import FileRef
from bsmeta.tasks.causal_lm.arms import (
    AGAINST,
    TEXT,
    TEXT_ALONE,
    Block,
    BlockMaker,
    Comparison,
    own_blocks,
    plan_blocks,
    plan_comparisons,
)
from bsmeta.tasks.causal_lm.documents import HeldOutDocuments, NamedDocuments
from bsmeta.tasks.causal_lm.results import ComparisonSums, paired_metrics
from bsmeta.tasks.causal_lm.scoring import (
    BYTES,
    COLUMNS,
    CONTEXT,
    DOCUMENT,
    NATS_WITH,
    NATS_WITHOUT,
    TOKENS,
    TOKENS_WITH,
    WINDOWS,
    Reading,
    Scorer,
    reading_of,
    scoring,
)  # fmt: skip
from bsmeta.training.task import Ranks

FAILURES_SHOWN = 5

_Compared = tuple[str, int, bool, np.ndarray]
"""Name of the comparison, document index, whether a prefix was truncated, sums."""

RESAMPLES = 10_000
FIRST = ("bits_per_byte_without", "bits_per_byte_with", "difference", "text_bits_per_byte")
"""The most important metrics, which come first so that a narrow screen shows them."""


def utf8_lengths(text: str) -> np.ndarray:
    """UTF-8 length of each character in bytes: int64 [len(text)]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    wide = (points > 0x7F).astype(np.int64)
    return 1 + wide + (points > 0x7FF) + (points > 0xFFFF)


def paired_sums(
    without: Reading, with_metadata: Reading, text: str, edges: np.ndarray
) -> np.ndarray:
    """Sum both readings over the segments that count, by position in the document and by context.

    Args:
        edges: int [bins], byte positions at which the position bins begin; the first is 0.

    Returns:
        float64 [2, bins, COLUMNS]: the columns of each bin, by DOCUMENT and by CONTEXT (in the
        reading without metadata); a segment belongs to the bin in which it begins.
    """
    sums = np.zeros((2, len(edges), COLUMNS))
    if not text:
        return sums
    readings, size, lengths = (without, with_metadata), len(text), utf8_lengths(text)
    # a segment begins at each character that no token extends into
    inside = sum(_coverage(reading.starts + 1, reading.ends, size) for reading in readings)
    segment = np.cumsum(inside == 0) - 1
    first = np.flatnonzero(np.diff(segment, prepend=-1))  # first character of each segment

    def by_segment(places: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(places, values, minlength=len(first))

    good = sum(by_segment(segment, _unscored(reading, size)) for reading in readings) == 0
    offsets = np.cumsum(lengths) - lengths
    shown_from = np.zeros(size, dtype=np.int64)
    shown_from[without.starts] = without.shown_from
    position = offsets[first]
    context = position - offsets[shown_from[first]]
    of_tokens, of_tokens_with = segment[without.starts], segment[with_metadata.starts]
    columns = {
        BYTES: by_segment(segment, lengths),
        TOKENS: by_segment(of_tokens),
        NATS_WITHOUT: by_segment(of_tokens, np.nan_to_num(without.nats)),
        NATS_WITH: by_segment(of_tokens_with, np.nan_to_num(with_metadata.nats)),
        TOKENS_WITH: by_segment(of_tokens_with),
    }
    for axis, place in ((DOCUMENT, position), (CONTEXT, context)):
        bins = np.searchsorted(edges, place[good], side="right") - 1
        for column, values in columns.items():
            sums[axis, :, column] = np.bincount(bins, values[good], minlength=len(edges))
    return sums


def _unscored(reading: Reading, size: int) -> np.ndarray:
    """Whether each character is in no token or in an unscored token: bool [size]."""
    missing = np.isnan(reading.nats)
    unscored = _coverage(reading.starts[missing], reading.ends[missing], size)
    return (_coverage(reading.starts, reading.ends, size) == 0) | (unscored > 0)


def _coverage(starts: np.ndarray, ends: np.ndarray, size: int) -> np.ndarray:
    """Number of spans that contain each character: int64 [size]."""
    steps = np.bincount(starts, minlength=size + 1) - np.bincount(ends, minlength=size + 1)
    return np.cumsum(steps)[:size]


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
        ranks: Ranks | None = None,
        seed: int = 0,
    ) -> None:
        # the arms define the metadata here: training's random removal of it must not apply
        metadata = replace(config.metadata_config, without_metadata_same_context=False)
        self._comparisons = list(comparisons)
        self._edges = np.asarray(position_edges)
        self._ranks = ranks or Ranks()
        self._maker = BlockMaker(
            replace(config, metadata_config=metadata),
            tokenizer,
            documents,
            (arm for comparison in comparisons for arm in (comparison.base, comparison.test)),
            WINDOWS[windows],
            seed,
        )
        most = 4 * metadata.max_seq_len if windows == "first_piece" else max(documents.sizes)
        costs = [min(size, most) for size in documents.sizes]  # about four characters per token
        self._plan = own_blocks(plan_blocks(costs), self._ranks.rank, self._ranks.world_size)
        self._documents = documents
        self._count = len(documents)

    def blocks(self) -> Iterator[Block]:
        """This rank's blocks, built lazily (a list of them may be scored repeatedly)."""
        return map(self._maker.make, self._plan)

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
        shape = (self._count, 2, len(self._edges), COLUMNS)
        flags = np.zeros((2, self._count), dtype=bool)
        sums = {
            comparison.name: ComparisonSums(np.zeros(shape), *flags.copy())
            for comparison in self._comparisons
        }
        for name, document, prefix_cut, values in chain.from_iterable(self._ranks.gather(own)):
            found = sums[name]
            found.values[document] = values
            found.takes_part[document] = True
            found.prefix_cut[document] = prefix_cut
        return sums

    def _score(self, scorer: Scorer, block: Block, failures: list[str]) -> list[Reading]:
        """Readings of the block's renderings, in order; adds non-finite scores to `failures`."""
        # before the model's first call: all ranks issue collective calls in the same order
        states = self._ranks.gather((len(block.batches), failures))
        self._refuse([theirs for _, theirs in states])
        scores = [[np.zeros(0)] * len(windows) for windows in block.windows]
        found = scorer.score([[block.windows[r][w] for r, w in batch] for batch in block.batches])
        for batch, values in zip(block.batches, found, strict=True):
            for (r, w), own in zip(batch, values, strict=True):
                scores[r][w] = own
                if not np.isfinite(own).all():
                    failures.append(
                        next(  # of the first document and arm that have this rendering
                            f"{self._documents.name(index)}, {arm}"
                            for (index, _), shown in zip(block.documents, block.shown, strict=True)
                            for arm, (rendering, _) in shown.items()
                            if rendering == r
                        )
                    )
        for (r, w), (first_r, first_w) in block.copies.items():
            scores[r][w] = scores[first_r][first_w]
        for _ in range(max(count for count, _ in states) - len(block.batches)):
            scorer.dummy()
        return [reading_of(w, s) for w, s in zip(block.windows, scores, strict=True)]

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
        for (index, text), shown in zip(block.documents, block.shown, strict=True):
            for comparison in self._comparisons:
                base, base_types = shown[comparison.base]
                test, test_types = shown[comparison.test]
                # With a control, values that are equal by chance are a tie.
                if comparison.group.startswith(AGAINST):
                    is_compared = base_types == test_types != ()
                else:  # appended metadata does not affect the text before it
                    is_compared = base_types != test_types and base != test
                if comparison.group == TEXT or is_compared:
                    sums = paired_sums(readings[base], readings[test], text, self._edges)
                    yield (
                        comparison.name,
                        index,
                        block.prefix_cut[base] or block.prefix_cut[test],
                        sums,
                    )


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
        ranks: Ranks,
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
        self._seed = seed

    def run(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Score the subset; return `PairedMetrics` as a flat dict, equal on all ranks.

        Those of `FIRST` come first. `text_bits_per_byte` is over all documents without metadata; if
        no document has metadata, it is the only metric besides `documents` and `bytes`.
        """
        sums = self._evaluation.run(model, device, blocks=self._blocks)
        stacked = np.stack([sums[name].totals for name in ("text", "all")])
        text, both = paired_metrics(stacked, resamples=RESAMPLES, seed=self._seed)
        if text is None:
            return {"documents": 0, "bytes": 0}
        metrics = {"text_bits_per_byte": text.bits_per_byte_without}
        if both is None:
            return {**metrics, "documents": text.documents, "bytes": text.bytes}
        # there are no intervals for a single document
        metrics |= {name: value for name, value in asdict(both).items() if value is not None}
        return {**{name: metrics[name] for name in FIRST}, **metrics}
