"""Tiny models of many architectures of transformers, and what a run does with each.

Each has the vocabulary of the example tokenizer, random weights and at least two layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import CONFIG_MAPPING

SEES_OTHERS = "the documents packed into a sequence see each other"
TOKENS = {"vocab_size": 4096, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
SMALL = {
    **TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
HEADS = {**SMALL, "head_dim": 8}
GPT = {**TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
EXPERTS = {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GEMMA = {**HEADS, "query_pre_attn_scalar": 8, "sliding_window": 16}
DECODER = {
    **TOKENS,
    "pad_token_id": 1,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
}
LINEAR_ATTENTION = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A tiny model of an architecture.

    Attributes:
        name: The `model_type`.
        sizes: Arguments of its config.
        refused: Part of the message if documents packed into one row cannot be trained on; they
            can then be with `data_config.packing=pad`.
        lora_refused: Part of the message if adapters of all linear layers cannot be trained.
        frozen: Parts of the model that text alone does not train.
    """

    name: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    lora_refused: str = ""
    frozen: tuple[str, ...] = ()

    def shape(self) -> Any:
        """Returns the config of the model."""
        return CONFIG_MAPPING[self.name](**self.sizes)


ARCHITECTURES = [
    # dense
    Architecture(name="llama", sizes=SMALL),
    Architecture(name="mistral", sizes={**SMALL, "sliding_window": 16}),
    Architecture(name="qwen2", sizes=SMALL),
    Architecture(name="qwen3", sizes=HEADS),
    Architecture(name="phi3", sizes=SMALL),
    Architecture(name="olmo2", sizes=SMALL),
    Architecture(name="glm4", sizes=HEADS),
    Architecture(name="stablelm", sizes=SMALL),
    Architecture(name="granite", sizes=SMALL),
    Architecture(name="gpt_neox", sizes=SMALL),
    Architecture(name="gptj", sizes={**GPT, "rotary_dim": 4}),
    Architecture(name="falcon", sizes={**SMALL, "alibi": False}, refused=SEES_OTHERS),
    # tied embeddings, or learned positions
    Architecture(name="gpt2", sizes=GPT),
    Architecture(name="gpt_bigcode", sizes=GPT),
    Architecture(name="smollm3", sizes=SMALL),
    Architecture(name="starcoder2", sizes=SMALL),
    Architecture(name="cohere", sizes=SMALL),
    Architecture(name="gemma", sizes=HEADS),
    Architecture(name="opt", sizes={**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32},
                 refused=SEES_OTHERS),
    Architecture(name="bloom", sizes={**TOKENS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
                 refused=SEES_OTHERS),
    Architecture(name="mpt", sizes={**TOKENS, "d_model": 32, "n_layers": 2, "n_heads": 4},
                 refused=SEES_OTHERS),
    Architecture(name="xglm", sizes={
        **TOKENS, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4,
        "max_position_embeddings": 128,
    }, refused=SEES_OTHERS),
    # soft-capped logits
    Architecture(name="gemma2", sizes=GEMMA),
    Architecture(name="gemma3_text", sizes={**GEMMA, "final_logit_softcapping": 5.0}),
    # mixtures of experts
    Architecture(name="mixtral", sizes={
        **EXPERTS, "output_router_logits": True, "router_aux_loss_coef": 10.0,
    }),
    Architecture(name="qwen2_moe", sizes={**QWEN_EXPERTS, "shared_expert_intermediate_size": 24}),
    Architecture(name="qwen3_moe", sizes={**QWEN_EXPERTS, "output_router_logits": True}),
    Architecture(name="olmoe", sizes={**SMALL, "num_experts": 4, "num_experts_per_tok": 2}),
    Architecture(name="granitemoe", sizes={**EXPERTS, "output_router_logits": True}),
    Architecture(name="phimoe", sizes=EXPERTS, lora_refused="peft cannot adapt 'router'"),
    Architecture(name="gpt_oss", sizes={
        **HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
        "output_router_logits": True,
    }, refused=SEES_OTHERS),
    Architecture(name="jetmoe", sizes={
        **TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "kv_channels": 8, "intermediate_size": 24, "max_position_embeddings": 128,
        "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True,
    }),
    Architecture(name="deepseek_v3", sizes={
        **SMALL, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 8, "n_shared_experts": 1,
    }),
    Architecture(name="llama4_text", sizes={
        **HEADS, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 48,
        "interleave_moe_layer_step": 1,
    }, lora_refused="peft cannot adapt 'router'"),
    # recurrent, alone or beside attention
    Architecture(name="mamba", sizes={
        **TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4,
    }, refused=SEES_OTHERS, lora_refused="incompatible with Mamba-based models"),
    Architecture(name="mamba2", sizes={
        **TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8,
        "head_dim": 8, "n_groups": 2, "chunk_size": 16,
    }, refused=SEES_OTHERS, lora_refused="incompatible with Mamba-based models"),
    Architecture(name="rwkv", sizes={
        **TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32,
        "context_length": 128,
    }, refused=SEES_OTHERS),
    Architecture(name="recurrent_gemma", sizes={
        **TOKENS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "lru_width": 32, "attention_window_size": 16,
    }, refused=SEES_OTHERS),
    Architecture(name="jamba", sizes={
        **SMALL, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2,
        "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
        "mamba_d_state": 4, "mamba_d_conv": 2, "mamba_dt_rank": 4, "use_mamba_kernels": False,
    }, refused=SEES_OTHERS),
    Architecture(name="lfm2", sizes={**SMALL, "layer_types": ["conv", "full_attention"]}),
    Architecture(name="qwen3_next", sizes={
        **QWEN_EXPERTS, **LINEAR_ATTENTION, "shared_expert_intermediate_size": 24,
    }, refused=SEES_OTHERS),
    # nested in a config that also has an encoder of images
    Architecture(name="gemma3", sizes={
        "text_config": {**GEMMA, "model_type": "gemma3_text"}, "vision_config": VISION,
        "mm_tokens_per_image": 4, "image_token_index": 3, "boi_token_index": 1,
        "eoi_token_index": 2,
    }, frozen=("model.vision_tower", "model.multi_modal_projector")),
    Architecture(name="qwen3_5", sizes={
        "text_config": {**HEADS, **LINEAR_ATTENTION, "model_type": "qwen3_5_text"},
    }, refused=SEES_OTHERS),
    # encoders and decoders
    Architecture(name="bart", sizes=DECODER, refused=SEES_OTHERS,
                  frozen=("model.decoder.layers.*.encoder_attn",)),
    Architecture(name="pegasus", sizes=DECODER, refused="counts the positions of a packed document",
                  frozen=("model.decoder.layers.*.encoder_attn",)),
    Architecture(name="bert", sizes={**SMALL, "is_decoder": True}, refused=SEES_OTHERS),
    Architecture(name="roberta", sizes={**SMALL, "is_decoder": True, "pad_token_id": 1},
                 refused=SEES_OTHERS),
]  # fmt: skip


def make_shape(name: str) -> Any:
    """Returns the config of the architecture `name`."""
    return next(entry.shape() for entry in ARCHITECTURES if entry.name == name)
