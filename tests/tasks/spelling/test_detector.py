"""The detectors: their inputs, logits and losses."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerBase

from bsmeta.core.errors import DataError
from bsmeta.tasks.spelling.config import SedWordsConfig
from bsmeta.tasks.spelling.detector import (
    Ranker,
    RankerConfig,
    build_detector,
    compute_logits_of_words,
    compute_sequence_logit,
    compute_sequence_losses,
    compute_word_logits,
    compute_word_losses,
)
from bsmeta.tasks.spelling.inputs import CandidateInputs, TokenInputs
from bsmeta.training.ranks.processes import ALONE
from tests.tasks.classification.helpers import bert_tokenizer
from tests.tasks.spelling.helpers import lexicon

SHAPE = {"width": 16, "layers": 1, "heads": 2, "dropout": 0.0}


def small_model() -> tuple[Ranker, CandidateInputs]:
    torch.manual_seed(0)
    inputs = CandidateInputs(lexicon())
    return Ranker(RankerConfig(features=inputs.features, **SHAPE)).eval(), inputs


def test_what_is_never_misspelled_in_training_is_not_flagged() -> None:
    model, inputs = small_model()
    with torch.no_grad():
        model.read.weight.zero_()
        model.read.bias.fill_(9.0)
        model.read.weight[:, 0] = -18.0  # of the word itself
        model.own.weight.copy_(torch.eye(16))
        model.score.weight.fill_(1.0)
    texts = [["Mr.", "teh", "foo@bar.org,", "(12)", "mr"], [], ["--"]]
    flags = [(row > 0).tolist() for row in compute_logits_of_words(model, inputs, texts, 64, ALONE)]
    assert flags == [[False, True, False, False, True], [], [False]]


def test_other_texts_of_a_batch_do_not_change_the_small_model(tmp_path: Path) -> None:
    model, inputs = small_model()
    short, long = ["the", "cat"], ["a", "much", "longer", "text", "about", "incomprehensibility"]
    alone = compute_word_logits(model, inputs.make_tensors([short]))[0]
    together = compute_word_logits(model, inputs.make_tensors([short, long]))[0, :2]
    assert torch.allclose(alone, together, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = Ranker.from_pretrained(tmp_path).eval()
    assert torch.allclose(
        compute_word_logits(again, inputs.make_tensors([short]))[0], alone, atol=1e-5
    )


def token_model() -> tuple[torch.nn.Module, TokenInputs]:
    from transformers import AutoModelForTokenClassification

    tokenizer = bert_tokenizer()
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, num_labels=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForTokenClassification.from_config(shape).eval(), TokenInputs(tokenizer, 16)


def test_the_logit_of_a_word_is_the_mean_over_its_tokens() -> None:
    model, inputs = token_model()
    tensors = inputs.make_tensors([["she", "zq", "signs"], ["she"]])
    # [CLS] she z ##q signs [SEP]
    assert tensors["places"].tolist() == [[3, 0, 1, 1, 2, 3], [3, 0, 3, 3, 3, 3]]
    tokens = model(
        input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"]
    ).logits[:, :, 0]  # fmt: skip
    found = compute_word_logits(model, tensors)
    expected = [tokens[0, 1], (tokens[0, 2] + tokens[0, 3]) / 2, tokens[0, 4]]
    assert torch.allclose(found[0], torch.stack(expected))
    assert torch.allclose(found[1, 0], tokens[1, 1])


def test_texts_longer_than_the_model_reads_are_scored_in_windows() -> None:
    model, inputs = token_model()
    words = ["signs"] * 40
    parts = inputs.divide_windows(words)
    assert [word for part in parts for word in part.words[part.judged]] == words
    assert all(inputs.fits(part.words, 16) for part in parts)
    (logits,) = compute_logits_of_words(model, inputs, [words], 100, ALONE)
    assert logits.shape == (40,)
    empty, one = compute_logits_of_words(model, inputs, [[], ["signs"]], 100, ALONE)
    assert (empty.shape, one.shape) == ((0,), (1,))


def test_losses_of_words_and_sequences() -> None:
    logits = torch.tensor([[0.0, 2.0], [-1.0, 9.0]])
    labels = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    losses = compute_word_losses(logits, labels)
    expected = [[math.log(2), math.log1p(math.exp(2))], [math.log1p(math.exp(-1)), 0.0]]
    assert losses.tolist() == [pytest.approx(row) for row in expected]

    correct = 0.5 * (1 - 1 / (1 + math.exp(-2)))  # no error in either word
    alone = 1 - 1 / (1 + math.exp(1))
    found = compute_sequence_losses(logits, labels >= 0, torch.tensor([1.0, 0.0]))
    assert found.tolist() == pytest.approx([-math.log(1 - correct), -math.log(alone)])
    odds = math.log((1 - correct) / correct)
    assert float(compute_sequence_logit(np.array([0.0, 2.0]))) == pytest.approx(odds)
    assert float(compute_sequence_logit(np.zeros(0))) < -10


def test_sequence_losses_stay_finite() -> None:
    logits = torch.tensor([[-60.0, -60.0], [60.0, 60.0]], requires_grad=True)
    is_word = torch.ones(2, 2, dtype=torch.bool)
    losses = compute_sequence_losses(logits, is_word, torch.tensor([1.0, 0.0]))
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(logits.grad).all()


def test_an_encoder_of_transformers_is_built_from_a_folder(tmp_path: Path) -> None:
    from bsmeta.tasks.spelling.config import SedWordsConfig
    from bsmeta.tasks.spelling.detector import build_detector, build_inputs, load_detector

    tokenizer = bert_tokenizer()
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    BertModel(shape).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    config = SedWordsConfig(model_name=str(tmp_path / "bert"))
    inputs = build_inputs(config, None, None)  # type: ignore[arg-type]
    model = build_detector(config, inputs).eval()
    assert inputs.measure_lengths([["she"] * 4]).tolist() == [
        9
    ]  # 6 tokens, and half as many for errors
    model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    inputs.write(tmp_path / "model")
    again, same = load_detector(tmp_path / "model")
    texts = [["she", "signs"]]
    found = compute_word_logits(again, same.make_tensors(texts))
    assert torch.allclose(found, compute_word_logits(model, inputs.make_tensors(texts)), atol=1e-5)


class IdAsLogit(nn.Module):
    """The logit of a token is its id."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=input_ids.float()[:, :, None])


@pytest.mark.parametrize(
    "texts",
    [[["The", "cat"]], [["The", "unbelievable", "cat"], ["cat"]], [["cat", "\x00\x00"], ["The"]]],
)
def test_a_word_has_the_mean_of_its_tokens(
    tokenizer: PreTrainedTokenizerBase, texts: list[list[str]]
) -> None:
    inputs = TokenInputs(tokenizer, None)
    logits = compute_word_logits(IdAsLogit(), inputs.make_tensors(texts))
    assert logits.shape == (len(texts), max(map(len, texts)))
    for row, words in enumerate(texts):
        for place, word in enumerate(words):
            ids = tokenizer([word], is_split_into_words=True)["input_ids"]
            assert logits[row, place] == pytest.approx(np.mean(ids) if ids else 0.0)


def test_a_text_has_an_error_if_any_word_has_one() -> None:
    logits = torch.tensor([[0.0, -1.0, 9.0], [-3.0, 0.0, 0.0]])
    is_word = torch.tensor([[True, True, False], [True, False, False]])
    losses = compute_sequence_losses(logits, is_word, torch.tensor([1.0, 0.0]))
    none_wrong = 0.5 * (1 - 1 / (1 + np.e))
    assert losses.tolist() == pytest.approx([-np.log(1 - none_wrong), np.log(1 + np.exp(-3))])
    logit = compute_sequence_logit(np.array([0.0, -1.0]))
    assert 1 / (1 + np.exp(-logit)) == pytest.approx(1 - none_wrong)


def test_a_pretrained_encoder_gets_a_new_head_and_embeddings_of_new_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = bert_tokenizer()
    tokenizer.save_pretrained(tmp_path / "base")
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    BertForMaskedLM(shape).save_pretrained(tmp_path / "base")
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(tmp_path / "wider")

    config = SedWordsConfig(
        model_name=str(tmp_path / "base"), tokenizer_name=str(tmp_path / "wider")
    )
    caplog.set_level(logging.INFO)
    model = build_detector(config, TokenInputs(tokenizer, 16))
    assert "2 new random weights: classifier.bias, classifier.weight" in caplog.text
    embeddings = model.get_parameter("bert.embeddings.word_embeddings.weight").detach()
    assert len(embeddings) == len(tokenizer)
    torch.testing.assert_close(embeddings[-1], embeddings[:-1].mean(0), rtol=0, atol=1e-4)

    file = tmp_path / "base" / "model.safetensors"
    weights = load_file(file)
    del weights["bert.encoder.layer.0.output.dense.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(
        DataError, match=r"1 missing \(they would be random\): bert.encoder.layer.0"
    ):
        build_detector(config, TokenInputs(tokenizer, 16))
