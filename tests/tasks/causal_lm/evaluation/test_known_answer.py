"""A model whose answer is known by construction: the evaluation must find exactly that.

Texts are random letters, of which every fifth one stands in the document's `secret`. The model
knows this rule: after a prefix with the secret it copies those letters, everything else it holds
for equally likely. So the secret is worth four bits for each letter that it gives away.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.tasks.causal_lm.evaluation.arms import list_comparisons
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.evaluation.results import Row, compute_paired_metrics, make_rows
from tests.tasks.causal_lm.evaluation.conftest import write_shard

LETTERS = "abcdefghijklmnop"  # sixteen: four bits a letter
EVERY = 5
LENGTH = 100
DOUBT = 0.01
"""What the model leaves for the other fifteen letters where it copies."""

CHARACTERS = ["<eos>", *LETTERS, *"ABCDEFGHIJKLMNOPQRSTUVWXYZ :|;.,qrstuvwxyz0123456789"]


@pytest.fixture(scope="module")
def characters() -> PreTrainedTokenizerBase:
    """A tokenizer with one token per character."""
    vocabulary = {character: number for number, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


class Copier(nn.Module):
    """A model with log-probabilities as hidden states and an identity head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(len(CHARACTERS), len(CHARACTERS), bias=False)
        nn.init.eye_(self.head.weight)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        rows = [self.beliefs([CHARACTERS[i] for i in row]) for row in input_ids.tolist()]
        return SimpleNamespace(logits=self.head(torch.tensor(np.log(rows), dtype=torch.float32)))

    def beliefs(self, row: Sequence[str]) -> np.ndarray:
        """Returns the probabilities [tokens, vocabulary] of the next token."""
        shown = "".join(character if len(character) == 1 else "#" for character in row)
        closed = re.match(r"(?P<prefix>[^|]*( \| [^|]*)*) \|\|\| ", shown)
        begin = closed.end() if closed else 0
        secret = re.search(r"secret: ([a-p]+)", closed["prefix"]) if closed else None
        beliefs = np.full((len(row), len(CHARACTERS)), 1e-9)
        beliefs[:, 1 : 1 + len(LETTERS)] = 1 / len(LETTERS)
        for place in range(0, LENGTH, EVERY) if secret else ():
            at = begin + place - 1  # where the letter at `place` is predicted
            if at < len(row):
                beliefs[at, 1 : 1 + len(LETTERS)] = DOUBT / (len(LETTERS) - 1)
                beliefs[at, 1 + LETTERS.index(secret[1][place // EVERY])] = 1 - DOUBT
        return beliefs


def make_document(generator: random.Random) -> dict[str, Any]:
    text = "".join(generator.choices(LETTERS, k=LENGTH))
    values = {"secret": text[::EVERY], "noise": "".join(generator.choices(LETTERS, k=12))}
    columns = {
        f"metadata_{k}": [{"key": k, "type": "global", "value": v}] for k, v in values.items()
    }
    return {"text": text, **columns}


@pytest.fixture(scope="module")
def rows(
    characters: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Row]:
    generator = random.Random(3)
    path: Path = tmp_path_factory.mktemp("known") / "held-out.jsonl.gz"
    write_shard(path, [make_document(generator) for _ in range(60)])
    data = DataConfig(
        validation_file=str(path),
        metadata_config=MetadataConfig(metadata_list=["secret", "noise"], max_seq_len=256),
    )
    config = EvaluateConfig(
        comparisons=["all", "each", "left_out", "added"], controls=["shuffled", "wrong"]
    )
    comparisons = list_comparisons(config, ["secret", "noise"])
    documents = HeldOutDocuments(data, max_documents=None, deduplicate=True, training_overlap=None)
    evaluation = PairedEvaluation(data, characters, documents, comparisons, seed=1)
    sums = evaluation.run(Copier(), torch.device("cpu"))
    metrics_of = partial(compute_paired_metrics, resamples=2000, seed=1)
    rows = make_rows(comparisons, sums, np.array(documents.bytes), [0], metrics_of)
    return {row.comparison.name: row for row in rows}


def information(letters: int) -> float:
    """Returns the bits per byte that the secret is worth over the last `letters` letters."""
    return 4 * (letters // EVERY) / letters


@pytest.mark.parametrize(
    ("name", "letters"),
    [
        ("all", LENGTH - 1),  # nothing predicts the first letter without metadata
        ("each/secret", LENGTH - 1),
        ("left_out/noise", LENGTH - 1),
        ("added/secret", LENGTH - 1),  # nor is it scored after a prefix
    ],
)
def test_the_gain_equals_the_information_of_the_secret(
    name: str, letters: int, rows: dict[str, Row]
) -> None:
    metrics = rows[name].metrics
    assert metrics is not None
    assert metrics.documents == 60
    assert metrics.bytes == 60 * letters
    assert -metrics.difference == pytest.approx(information(letters), rel=0.05)
    certain = 4 + math.log2(1 - DOUBT)  # the doubt costs a little, and exactly this
    assert -metrics.difference == pytest.approx(information(letters) * certain / 4, rel=1e-4)
    assert metrics.difference_high < 0
    assert metrics.documents_better == 60
    assert metrics.sign_test_p < 1e-15


@pytest.mark.parametrize("name", ["each/noise", "left_out/secret", "added/noise", "shuffled/noise"])
def test_noise_gains_nothing(name: str, rows: dict[str, Row]) -> None:
    metrics = rows[name].metrics
    assert metrics is not None
    assert metrics.difference_low <= 0 <= metrics.difference_high
    assert metrics.difference == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", ["shuffled/all", "shuffled/secret", "wrong/secret", "wrong/all"])
def test_a_wrong_secret_is_no_better_than_none(name: str, rows: dict[str, Row]) -> None:
    metrics = rows[name].metrics
    assert metrics is not None
    # right by chance once in sixteen, otherwise surprised by log2(15 / 0.01) instead of 4 bits
    right, wrong = math.log2(1 / (1 - DOUBT)), math.log2(15 / DOUBT)
    expected = (right / 16 + wrong * 15 / 16 - 4) * information(LENGTH - 1) / 4
    assert metrics.difference == pytest.approx(expected, rel=0.05)
    assert metrics.difference_low > 0


def test_without_metadata_every_letter_costs_four_bits(rows: dict[str, Row]) -> None:
    for row in rows.values():
        assert row.metrics is not None
    text = rows["text"].metrics
    assert text is not None
    assert text.bits_per_byte_without == pytest.approx(4, abs=1e-4)
    assert text.perplexity_without == pytest.approx(16, rel=1e-3)
