"""The first and the last layers of an encoder, run apart, make what the whole encoder makes."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
)

from bsmeta.tasks.disambiguation.layers import after_states, states_before

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
SIZE = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


def encoders() -> list[PreTrainedModel]:
    torch.manual_seed(0)
    modern = {"num_hidden_layers": 4, "cls_token_id": 1, "sep_token_id": 1}
    return [
        BertModel(BertConfig(num_hidden_layers=3, **SIZE)),
        GPT2Model(GPT2Config(vocab_size=50, n_embd=32, n_head=2, n_layer=3, **TOKENS)),
        ModernBertModel(ModernBertConfig(**SIZE, **TOKENS, **modern)),
    ]


@pytest.mark.parametrize("encoder", encoders(), ids=lambda encoder: type(encoder).__name__)
@pytest.mark.parametrize("last", [1, 2, 3])
def test_both_parts_make_what_the_whole_encoder_makes(encoder: PreTrainedModel, last: int) -> None:
    encoder = encoder.eval()
    ids, mask = torch.randint(5, 50, (3, 7)), torch.ones(3, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    with torch.no_grad():
        expected = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        states = states_before(encoder, last, ids, mask)
        found = after_states(encoder, last, states, mask)
        again = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    assert torch.equal(found[mask > 0], expected[mask > 0])
    assert torch.equal(again, expected)
