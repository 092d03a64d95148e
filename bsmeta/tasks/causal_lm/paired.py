"""The paired evaluation: scores every document in every arm and sums over identical bytes.

    documents -> blocks of this rank -> render, encode, windows -> batches -> model
    -> log-probabilities -> readings -> paired sums -> gathered from all ranks

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
    COLUMNS,
    WINDOWS,
    Reading,
    Scorer,
    paired_sums,
    reading_of,
    scoring,
)
from bsmeta.training.processes import ALONE, Processes

FAILURES_SHOWN = 5

_Compared = tuple[str, int, bool, np.ndarray]
"""Name of the comparison, document index, whether a prefix was truncated, sums."""

RESAMPLES = 10_000
FIRST = ("bits_per_byte_without", "bits_per_byte_with", "difference", "text_bits_per_byte")
"""The most important metrics, which come first so that a narrow screen shows them."""


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
        self._comparisons = list(comparisons)
        self._edges = np.asarray(position_edges)
        self._ranks = ranks
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
        self._plan = own_blocks(plan_blocks(costs), self._ranks.rank, self._ranks.size)
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
                        for (index, _), shown in zip(block.documents, block.shown, strict=True)
                        for arm, (number, _) in shown.items()
                        if number == rendering
                    )
                )
            readings.append(reading_of(windows, found))
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
                    is_cut = block.prefix_cut[base] or block.prefix_cut[test]
                    yield comparison.name, index, is_cut, sums


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
