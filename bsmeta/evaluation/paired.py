"""The paired evaluation: every document under every arm, scored together, summed over equal bytes.

    documents -> blocks (plan) -> this rank's blocks -> render, encode, windows -> batches -> model
    -> log-probabilities -> readings -> paired sums -> gathered from all ranks

A block is made, scored and forgotten, so memory does not grow with the set. All ranks call the
model equally often (collective forward passes would hang otherwise): a rank with less to do makes
dummy calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.evaluation.arms import TEXT, Comparison
from bsmeta.evaluation.blocks import Block, BlockMaker
from bsmeta.evaluation.documents import HeldOutDocuments
from bsmeta.evaluation.plan import own_blocks, plan_blocks
from bsmeta.evaluation.ranks import Ranks
from bsmeta.evaluation.scoring import Scorer, scoring
from bsmeta.evaluation.segments import Reading, paired_sums
from bsmeta.evaluation.windows import WINDOWS, reading_of

Progress = Callable[[float], None]


class PairedEvaluation:
    """Compares arms over held-out documents.

    Args:
        config: How documents are rendered, encoded and cut.
        tokenizer: The model's tokenizer.
        documents: The held-out documents.
        comparisons: What to compare.
        windows: Window policy: a name in `bsmeta.evaluation.windows.WINDOWS`.
        position_edges: Bytes at which the bins of the position curve begin; the first is 0.
        ranks: The processes that share the work.
        seed: Seed of the controls.

    Raises:
        ConfigurationError: The window policy is unknown, or the edges do not rise from 0.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        documents: HeldOutDocuments,
        comparisons: Sequence[Comparison],
        *,
        windows: str = "all_pieces",
        position_edges: Sequence[int] = (0,),
        ranks: Ranks | None = None,
        seed: int = 0,
    ) -> None:
        check_choices(windows, position_edges)
        # all arms are made here: what training leaves out at random must not be left out again
        metadata = replace(config.metadata_config, without_metadata_same_context=False)
        self._comparisons = list(comparisons)
        self._edges = np.asarray(position_edges)
        self._ranks = ranks or Ranks()
        self._maker = BlockMaker(
            replace(config, metadata_config=metadata),
            tokenizer,
            documents,
            (arm for one in comparisons for arm in (one.base, one.test)),
            WINDOWS[windows],
            seed,
        )
        most = 4 * metadata.max_seq_len if windows == "first_piece" else max(documents.sizes)
        costs = [min(size, most) for size in documents.sizes]  # four characters are about a token
        self._plan = own_blocks(plan_blocks(costs), self._ranks.rank, self._ranks.world_size)
        self._count = len(documents)

    def blocks(self) -> Iterator[Block]:
        """This rank's blocks, made one at a time (a list of them may be scored repeatedly)."""
        return map(self._maker.make, self._plan)

    def run(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        blocks: Sequence[Block] | None = None,
        progress: Progress = lambda share: None,
    ) -> dict[str, np.ndarray]:
        """Score this rank's share and exchange the sums; every rank must call it.

        Args:
            model: A causal language model, wrapped by a launcher or not.
            device: Where its inputs go.
            blocks: Blocks made before (`list(evaluation.blocks())`); by default they are made now.
            progress: Told the share of the work that is done, from 0 to 1.

        Returns:
            For each comparison by name, on every rank: float64 [documents, bins, 4], the sums of
            `paired_sums`; zero where a document does not take part.
        """
        own: list[tuple[int, int, np.ndarray]] = []
        progress(0.0)
        with scoring(model, device) as scorer:
            for number, block in enumerate(self.blocks() if blocks is None else blocks):
                own += self._compare(block, self._score(scorer, block))
                progress((number + 1) / len(self._plan))
        sums = np.zeros((len(self._comparisons), self._count, len(self._edges), 4))
        for part in self._ranks.gather(own):
            for comparison, document, values in part:
                sums[comparison, document] = values
        return {one.name: sums[i] for i, one in enumerate(self._comparisons)}

    def _score(self, scorer: Scorer, block: Block) -> list[Reading]:
        """Readings of the block's renderings, in their order."""
        # asked before the first call: all ranks make their collective calls in one order
        most = max(self._ranks.gather(len(block.batches)))
        scores = [[np.zeros(0)] * len(windows) for windows in block.windows]
        found = scorer.score([[block.windows[r][w] for r, w in batch] for batch in block.batches])
        for batch, values in zip(block.batches, found, strict=True):
            for (r, w), own in zip(batch, values, strict=True):
                scores[r][w] = own
        for _ in range(most - len(block.batches)):
            scorer.dummy()
        return [reading_of(w, s) for w, s in zip(block.windows, scores, strict=True)]

    def _compare(
        self, block: Block, readings: list[Reading]
    ) -> Iterator[tuple[int, int, np.ndarray]]:
        """(comparison, document, sums) wherever the two arms show a document differently."""
        for (index, text), shown in zip(block.documents, block.shown, strict=True):
            for number, one in enumerate(self._comparisons):
                (base, base_types), (test, test_types) = shown[one.base], shown[one.test]
                if one.group == TEXT or base_types != test_types:
                    sums = paired_sums(readings[base], readings[test], text, self._edges)
                    yield number, index, sums


def check_choices(windows: str, position_edges: Sequence[int]) -> None:
    """Refuse a window policy or position bins that cannot be meant (a `ConfigurationError`)."""
    if windows not in WINDOWS:
        raise ConfigurationError(f"windows={windows}: expected one of {list(WINDOWS)}")
    if list(position_edges[:1]) != [0] or any(np.diff(position_edges) <= 0):
        raise ConfigurationError(
            f"position_edges={list(position_edges)}: expected rising bytes that begin with 0"
        )
