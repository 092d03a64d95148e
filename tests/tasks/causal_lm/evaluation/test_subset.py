"""The evaluation during training, of a fixed subset."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.tasks.causal_lm.evaluation.subset import SubsetEvaluation
from bsmeta.training.ranks.processes import ALONE

CPU = torch.device("cpu")


def test_a_prepared_subset_is_scored_repeatedly(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    subset = SubsetEvaluation(data_config, tokenizer, max_documents=4, seed=1, ranks=ALONE)
    model.train()
    figures = subset.run(model, CPU)
    assert model.training
    model.eval()
    assert figures == subset.run(model, CPU)
    assert figures["documents"] == 3  # the fourth has no metadata
    assert list(figures)[:4] == [
        "bits_per_byte_without",
        "bits_per_byte_with",
        "difference",
        "text_bits_per_byte",
    ]
    low, high = figures["difference_low"], figures["difference_high"]
    assert low <= figures["difference"] <= high
    difference = figures["bits_per_byte_with"] - figures["bits_per_byte_without"]
    assert figures["difference"] == pytest.approx(difference)


def test_a_subset_without_metadata_still_scores_the_text(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    nothing = replace(data_config.metadata_config, metadata_list=[])
    config = replace(data_config, metadata_config=nothing)
    figures = SubsetEvaluation(config, tokenizer, max_documents=4, seed=1, ranks=ALONE).run(
        model, CPU
    )
    assert sorted(figures) == ["bytes", "documents", "text_bits_per_byte"]
    assert figures["documents"] == 4
