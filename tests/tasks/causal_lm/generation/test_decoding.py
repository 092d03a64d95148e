"""Decoding: guidance, caches, padding and seeds, against the plain way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM, PreTrainedTokenizerBase

from bsmeta.tasks.causal_lm.generation.decoding import Decoder, Draw, draw_tokens
from tests.tasks.causal_lm.generation.conftest import MAX_SEQ_LEN
from tests.tasks.causal_lm.generation.plain import compute_next_scores, decode_greedily

EOS = 0
VOCABULARY = 4096
CONTEXT = [17, 250, 33, 901, 6]
NULL = [901, 6]


@pytest.fixture
def decoder(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> Decoder:
    assert len(tokenizer) == VOCABULARY
    return make_decoder(model)


def make_decoder(model: torch.nn.Module, *, eos: int = EOS) -> Decoder:
    return Decoder(
        model,
        eos=eos,
        vocabulary=VOCABULARY,
        max_length=MAX_SEQ_LEN,
        device=torch.device("cpu"),
    )


def draw(**values: object) -> Draw:
    base = Draw(context=CONTEXT, null_context=NULL, max_new_tokens=20, seed=3)
    return replace(base, **values)  # type: ignore[arg-type]


def test_guidance_1_samples_after_the_context(decoder: Decoder) -> None:
    guided, plain, other = decoder.continue_texts(
        [draw(guidance=1.0), draw(null_context=[]), draw(guidance=1.5)]
    )
    assert guided.ids == plain.ids != other.ids
    almost = draw(guidance=1.0 + 1e-12)  # both contexts are asked, and the null one cancels out
    assert decoder.continue_texts([almost])[0].ids == plain.ids


def test_guidance_0_samples_after_the_null_context(decoder: Decoder) -> None:
    guided, plain, other = decoder.continue_texts([draw(guidance=0.0), draw(context=NULL), draw()])
    assert guided.ids == plain.ids != other.ids
    assert decoder.continue_texts([draw(guidance=1e-12)])[0].ids == plain.ids


@pytest.mark.parametrize("guidance", [0.5, 2.0, -1.0])
def test_greedy_guidance_equals_the_plain_computation(
    decoder: Decoder, model: LlamaForCausalLM, guidance: float
) -> None:
    expected = decode_greedily(
        model, CONTEXT, NULL, guidance=guidance, steps=20, vocabulary=VOCABULARY, eos=EOS
    )
    (written,) = decoder.continue_texts([draw(guidance=guidance, temperature=0.0)])
    assert written.ids == expected
    assert written.finished == ("max_new_tokens" if len(expected) == 20 else "eos")


def test_texts_of_a_batch_equal_those_of_single_runs(decoder: Decoder) -> None:
    draws = [
        draw(context=[5], guidance=2.0, temperature=0.7),
        draw(context=[9] * 30, null_context=[], top_p=0.5, seed=9, max_new_tokens=7),
        draw(context=[12, 7, 44], null_context=[1] * 40, guidance=0.5, max_new_tokens=24),
        draw(temperature=0.0),
    ]
    together = decoder.continue_texts(draws)
    assert [continuation.ids for continuation in together] == [
        decoder.continue_texts([draw])[0].ids for draw in draws
    ]
    assert [len(continuation.ids) for continuation in together] == [20, 7, 24, 20]


def test_generation_stops_at_the_last_learned_position() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=MAX_SEQ_LEN, n_embd=16, n_layer=1, n_head=2
    )
    decoder = make_decoder(GPT2LMHeadModel(config).eval(), eos=VOCABULARY - 1)
    draws = [draw(context=[3] * 60, max_new_tokens=50), draw(context=[3], max_new_tokens=50)]
    short, long = decoder.continue_texts(draws)
    assert (len(short.ids), short.finished) == (4, "max_seq_len")
    assert (len(long.ids), long.finished) == (50, "max_new_tokens")
    assert short.ids == decoder.continue_texts(draws[:1])[0].ids


def test_a_text_ends_with_the_end_of_text_token(model: LlamaForCausalLM) -> None:
    first = int(compute_next_scores(model, CONTEXT, VOCABULARY).argmax())
    decoder = make_decoder(model, eos=first)
    (written,) = decoder.continue_texts([draw(temperature=0.0)])
    assert (written.ids, written.finished) == ([], "eos")


def test_the_seed_determines_the_text(decoder: Decoder) -> None:
    same, again, other = decoder.continue_texts([draw(), draw(), draw(seed=4)])
    assert same.ids == again.ids != other.ids


SCORES = torch.log(torch.tensor([[0.1, 0.5, 0.15, 0.25]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("temperature", "top_p", "drawn", "token"),
    [
        (1.0, 1.0, 0.49, 1),  # the most likely first: 1 to 0.5, 3 to 0.75, 2 to 0.9, 0 to 1
        (1.0, 1.0, 0.51, 3),
        (1.0, 1.0, 0.76, 2),
        (1.0, 1.0, 0.999999, 0),
        (1.0, 0.75, 0.999999, 3),  # only 1 and 3 are kept: 0.75 of the probability
        (1.0, 0.76, 0.999999, 2),  # and a token that passes the limit
        (1.0, 0.01, 0.999999, 1),
        (0.0, 1.0, 0.999999, 1),
        (0.5, 1.0, 0.72, 1),  # squared: 0.25 / 0.345
        (0.5, 1.0, 0.73, 3),
    ],
)
def test_tokens_are_drawn_by_temperature_and_top_p(
    temperature: float, top_p: float, drawn: float, token: int
) -> None:
    values = [torch.tensor([[value]], dtype=torch.float64) for value in (temperature, top_p, drawn)]
    assert draw_tokens(SCORES, *values).tolist() == [token]


@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=9),
    st.floats(0.1, 5),
    st.floats(0.01, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_only_tokens_within_top_p_are_drawn(
    scores: list[float], temperature: float, top_p: float, drawn: float
) -> None:
    row = torch.tensor([scores], dtype=torch.float64)
    values = [torch.tensor([[value]], dtype=torch.float64) for value in (temperature, top_p, drawn)]
    token = int(draw_tokens(row, *values))
    probabilities = (row / temperature).softmax(-1)[0]
    more_likely = probabilities[probabilities > probabilities[token]].sum()
    assert more_likely < top_p + 1e-9
