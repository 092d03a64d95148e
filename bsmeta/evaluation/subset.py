"""The evaluation during training: a fixed subset in both arms, prepared once, scored repeatedly."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.evaluation.arms import plan_comparisons, text_alone
from bsmeta.evaluation.documents import HeldOutDocuments
from bsmeta.evaluation.paired import PairedEvaluation
from bsmeta.evaluation.ranks import Ranks
from bsmeta.evaluation.statistics import figures_of

RESAMPLES = 10_000

FIRST = ("bits_per_byte_without", "bits_per_byte_with", "difference", "text_bits_per_byte")
"""The most important metrics, which come first so that a narrow screen shows them."""


class SubsetEvaluation:
    """Evaluates the first `max_documents` held-out documents with all their metadata, and without.

    Every rank creates one, and all ranks call `run` together.

    Args:
        config: The held-out file and how it is rendered.
        tokenizer: The model's tokenizer.
        max_documents: Number of documents in the subset.
        seed: Seed of the bootstrap.
        ranks: The processes that share the work.

    Raises:
        ConfigurationError, DataError: See `HeldOutDocuments`.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_documents: int,
        seed: int,
        ranks: Ranks,
    ) -> None:
        documents = HeldOutDocuments(config, max_documents=max_documents, deduplicate=True)
        comparisons = plan_comparisons(["all"], config.metadata_config.metadata_list)
        self._evaluation = PairedEvaluation(
            config, tokenizer, documents, [text_alone(), *comparisons], ranks=ranks
        )
        self._blocks = list(self._evaluation.blocks())
        self._seed = seed

    def run(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Score the subset; returns the metrics of `Figures` as a flat dict, equal on all ranks.

        Those of `FIRST` come first. `text_bits_per_byte` is over all documents without metadata; if
        no document has metadata, it is the only metric besides `documents` and `bytes`.
        """
        sums = self._evaluation.run(model, device, blocks=self._blocks)
        stacked = np.stack([sums[name].totals for name in ("text", "all")])
        text, both = figures_of(stacked, resamples=RESAMPLES, seed=self._seed)
        if text is None:
            return {"documents": 0, "bytes": 0}
        figures = {"text_bits_per_byte": text.bits_per_byte_without}
        if both is None:
            return {**figures, "documents": text.documents, "bytes": text.bytes}
        # there are no intervals for a single document
        figures |= {name: value for name, value in both.as_dict().items() if value is not None}
        return {**{name: figures[name] for name in FIRST}, **figures}
