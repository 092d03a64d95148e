"""A tiny encoder of random weights, with its tokenizer, as a folder for `model_name`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from tests.tasks.classification.helpers import bert_tokenizer


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = bert_tokenizer()
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
