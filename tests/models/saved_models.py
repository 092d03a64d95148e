"""A small GPT-2 in a folder, as transformers saves it."""

from __future__ import annotations

from pathlib import Path

from transformers import GPT2Config, GPT2LMHeadModel


def save_model(folder: Path, *, tied: bool = True) -> Path:
    config = GPT2Config(
        vocab_size=50, n_positions=16, n_embd=8, n_layer=1, n_head=2, tie_word_embeddings=tied
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder
