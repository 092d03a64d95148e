"""The evaluation during training: a fixed subset, prepared once and scored repeatedly."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.metric_table import compute_values
from bsmeta.core.log_once import log_once
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.text.lost_share import describe_lost_bytes
from bsmeta.tasks.causal_lm.evaluation.arms import TEXT_ALONE, plan_comparisons
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.evaluation.results import compute_paired_metrics
from bsmeta.tasks.causal_lm.metrics import METRICS, Compared
from bsmeta.training.ranks.processes import Processes

RESAMPLES = 10_000
"""Bootstrap resamples of an evaluation during training."""

logger = logging.getLogger(__name__)


class SubsetEvaluation:
    """Evaluates the first `max_documents` held-out documents, with and without all metadata.

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
            config,
            max_documents=max_documents,
            deduplicate=True,
            training_overlap=None,  # training keeps this file's documents out
            remote_file=remote_file,
        )
        comparisons = plan_comparisons(["all"], config.metadata_config.metadata_list)
        self._evaluation = PairedEvaluation(
            config, tokenizer, documents, [TEXT_ALONE, *comparisons], ranks=ranks
        )
        self._blocks = list(self._evaluation.build_blocks())
        self._text_bytes = int(np.sum(documents.bytes))
        self._seed = seed

    def run(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Scores the subset; returns the metrics of the task's table, equal on all ranks."""
        sums = self._evaluation.run(model, device, blocks=self._blocks)
        stacked = np.stack([sums[name].totals for name in ("text", "all")])
        text, all_metadata = compute_paired_metrics(stacked, resamples=RESAMPLES, seed=self._seed)

        lost_bytes = int(sums["text"].lost_bytes.sum())
        if lost_bytes:
            message = f"evaluations leave out {describe_lost_bytes(lost_bytes, self._text_bytes)}"
            if text is None:
                message += "; no bytes are left to score"
            log_once(logger, logging.WARNING, message)

        return compute_values(METRICS, Compared(text, all_metadata))
