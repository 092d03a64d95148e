"""Fixtures of several tests of spelling."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

TOKENIZER = Path(__file__).resolve().parents[3] / "examples" / "tokenizer"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    found = AutoTokenizer.from_pretrained(TOKENIZER, add_prefix_space=True)
    found.pad_token = found.eos_token
    return found
