"""The evaluation during training: a fixed subset, prepared once and scored repeatedly."""

from __future__ import annotations

import logging
from dataclasses import asdict

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.core.log_once import log_once
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.text.lost_share import describe_lost_bytes
from bsmeta.tasks.causal_lm.evaluation.arms import TEXT_ALONE, plan_comparisons
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.evaluation.results import compute_paired_metrics
from bsmeta.training.processes import Processes

RESAMPLES = 10_000
"""Bootstrap resamples of an evaluation during training."""

FIRST = ("bits_per_byte_without", "bits_per_byte_with", "difference", "text_bits_per_byte")
"""The most important metrics, which come first so that a narrow screen shows them."""

logger = logging.getLogger(__name__)


class SubsetEvaluation:
    """Evaluates the first `max_documents` held-out documents with all their metadata, and without.

    Every rank creates one, and all ranks call `run` together.

    Args:
        remote_file: The held-out file, if it is remote and was already located.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_documents: int,
        seed: int,
        ranks: Processes,
        remote_file: FileRef | None = None,
    ) -> None:
        documents = HeldOutDocuments(
            config, max_documents=max_documents, deduplicate=True, remote_file=remote_file
        )
        comparisons = plan_comparisons(["all"], config.metadata_config.metadata_list)
        self._evaluation = PairedEvaluation(
            config, tokenizer, documents, [TEXT_ALONE, *comparisons], ranks=ranks
        )
        self._blocks = list(self._evaluation.blocks())
        self._text_bytes = int(np.sum(documents.bytes))
        self._seed = seed

    def run(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Scores the subset; returns `PairedMetrics` as a flat dict, equal on all ranks.

        The metrics of `FIRST` come first. `text_bits_per_byte` is over all documents without
        metadata; if no document has metadata, it is the only metric besides `documents` and
        `bytes`.
        """
        sums = self._evaluation.run(model, device, blocks=self._blocks)
        stacked = np.stack([sums[name].totals for name in ("text", "all")])
        text, everything = compute_paired_metrics(stacked, resamples=RESAMPLES, seed=self._seed)

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
        if everything is None:
            return {**metrics, "documents": text.documents, "bytes": text.bytes}
        # there are no intervals for a single document
        metrics |= {name: value for name, value in asdict(everything).items() if value is not None}
        return {**{name: metrics[name] for name in FIRST}, **metrics}
