"""Shapes of models that the benchmarks train from random weights: transformers' configurations."""

from __future__ import annotations

from typing import Any


def gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    """A model configuration of GPT-2 (Radford et al. 2019), without dropout."""
    shape = {"model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads}
    return {**shape, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


GPT2 = gpt2(768, 12, 12)
GPT2_XL = gpt2(1600, 48, 25)

LLAMA_1B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
