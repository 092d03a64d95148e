"""Attribution: a model that knows the answer must give it, and the metrics must show it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.generation.attribution import (
    Attribution,
    compute_metrics,
    compute_posterior,
    list_candidates,
)
from bsmeta.tasks.causal_lm.generation.candidates import Candidates, Labels, find_candidates
from bsmeta.tasks.causal_lm.generation.likelihoods import Likelihoods

CPU = torch.device("cpu")


class Knower(nn.Module):
    """A model that repeats the host of its prefix, with some doubt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self.head = nn.Linear(len(tokenizer), len(tokenizer), bias=False)
        nn.init.eye_(self.head.weight)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        hidden = torch.zeros(*input_ids.shape, len(self._tokenizer))
        for row, ids in enumerate(input_ids.tolist()):
            prefix = self._tokenizer.decode(ids).partition(" |||")[0]
            host = prefix.rpartition("https://")[2].rstrip("/")
            liked = self._tokenizer(f" {host}").input_ids
            hidden[row, :, liked] = 3.0
        return SimpleNamespace(logits=self.head(hidden))


def test_a_model_that_knows_the_host_is_always_right(
    sites: DataConfig, tokenizer: PreTrainedTokenizerBase
) -> None:
    documents = HeldOutDocuments(sites, max_documents=None, deduplicate=True, training_overlap=None)
    labels = Labels("url", sites.metadata_config)
    candidates = find_candidates(labels, [], documents)
    assert candidates.labels == ["one.org", "two.org", "three.org"]
    assert candidates.counts.tolist() == [6, 4, 2]
    assert candidates.truths.tolist() == [0] * 6 + [1] * 4 + [2] * 2 + [-1]
    records = [labels.make_record(label) for label in candidates.labels]
    made = Likelihoods(
        Knower(tokenizer), tokenizer, sites, records, all_pieces=False, rows=4, device=CPU
    )
    own = list(range(12))
    scores, tokens = made.score([documents[index].text for index in own])
    priors = np.stack([candidates.compute_log_prior("uniform", index) for index in own])
    names = [documents.name(index) for index in own]
    found = Attribution(candidates, compute_posterior(scores, priors), tokens, names, own)
    metrics = compute_metrics(found, resamples=200, seed=1)
    assert metrics["top_1"] == {"share": 1.0, "low": 1.0, "high": 1.0}
    assert metrics["majority_class"]["share"] == 0.5
    assert metrics["majority_label"] == "one.org"
    assert metrics["mean_bits_of_the_truth"] < 0.2
    assert [(row["correct"], row["guessed"]) for row in list_candidates(found)] == [
        (6, 6),
        (4, 4),
        (2, 2),
    ]


def test_the_posterior_follows_bayes_rule() -> None:
    likelihood = np.log([[0.2, 0.1, 0.1]])
    uniform = np.log([[1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(np.exp(compute_posterior(likelihood, uniform)), [[0.5, 0.25, 0.25]])
    prior = np.log([[0.1, 0.1, 0.8]])
    np.testing.assert_allclose(
        np.exp(compute_posterior(likelihood, prior)), [[0.02 / 0.11, 0.01 / 0.11, 0.08 / 0.11]]
    )


def test_metrics_of_three_documents_are_computed() -> None:
    candidates = Candidates(list("abcdefg"), np.array([2, 1, 0, 0, 0, 0, 0]), np.array([0, 0, 1]))
    rows = np.log(
        [
            [0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],  # first
            [0.2, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1],  # second
            [0.2, 0.05, 0.15, 0.15, 0.15, 0.15, 0.15],  # last
        ]
    )
    found = Attribution(candidates, rows, np.array([5, 6, 7]), ["x:0", "x:1", "x:2"], [0, 1, 2])
    assert found.ranks.tolist() == [1, 2, 7]
    metrics = compute_metrics(found, resamples=100, seed=0)
    assert metrics["top_1"]["share"] == pytest.approx(1 / 3)
    assert metrics["top_5"]["share"] == pytest.approx(2 / 3)
    assert metrics["majority_class"]["share"] == pytest.approx(2 / 3)
    assert metrics["mean_reciprocal_rank"] == pytest.approx((1 + 1 / 2 + 1 / 7) / 3)
    assert metrics["mean_bits_of_the_truth"] == pytest.approx(
        -(np.log2(0.4) + np.log2(0.2) + np.log2(0.05)) / 3
    )
    assert list_candidates(found)[1] == {
        "label": "b",
        "documents": 1,
        "correct": 0,
        "guessed": 1,
        "most_often_taken_for": "a",
    }
