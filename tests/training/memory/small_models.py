"""Two small language models of four layers."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

SIZES = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}


def gpt2() -> torch.nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            **SIZES, n_embd=64, n_layer=4, n_head=4, n_positions=256, attn_implementation="eager"
        )
    )


def llama() -> torch.nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            **SIZES,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
