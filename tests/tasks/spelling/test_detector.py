"""The detectors: their inputs, logits and losses, and that they learn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.spelling import word_model
from bsmeta.tasks.spelling.detector import (
    logits_of_words,
    sequence_logit,
    sequence_losses,
    word_logits,
    word_losses,
)
from bsmeta.tasks.spelling.inputs import FormInputs, TokenInputs
from bsmeta.tasks.spelling.word_model import (
    WordCounts,
    WordDetector,
    WordDetectorConfig,
    bare,
    count_words,
    form_tensors,
    symbols,
    word_list,
)
from tests.tasks.classification.helpers import bert_tokenizer

ALONE = EvaluationContext.alone(torch.device("cpu"))
SHAPE = {"width": 16, "layers": 1, "heads": 2, "dropout": 0.0}


@pytest.mark.parametrize(
    ("word", "expected"),
    [("“Hello,”", "Hello"), ("dog's", "dog"), ("I’m.", "I'm"), ("(3.5)", "3.5"), ("--", "")],
)
def test_a_word_without_punctuation_and_possessive(word: str, expected: str) -> None:
    assert bare(word) == expected


def test_counts_leave_out_the_sample_itself() -> None:
    counts = WordCounts(
        count_words(["The cat saw the cat.", "Cat!"]), {"saw": 1000, "well": 8, "known": 1}
    )
    # the exact form, without case, in the list: 0, 1, 2-3, 4-7, …
    assert counts.features(["cat", "Cat", "saw", "The", "teh"]) == [
        [2, 2, 0], [1, 2, 0], [1, 1, 4], [1, 2, 0], [0, 0, 0],
    ]  # fmt: skip
    own = ["The", "cat", "saw", "the", "cat."]
    assert counts.features(["cat", "The"], own) == [[0, 1, 0], [0, 0, 0]]
    assert counts.features(["saw"], hides_text=True) == [[0, 0, 4]]
    assert counts.features(["well-known", "well-unknown"]) == [[0, 0, 1], [0, 0, 0]]


def test_of_many_words_the_most_frequent_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_model, "MOST_WORDS", 2)
    texts = ["a a a b b", "c d e f", "b g"]
    assert count_words(texts) == {"a": 3, "b": 3}


def test_counts_are_saved_beside_a_model(tmp_path: Path) -> None:
    WordCounts(count_words(["naïve cats"]), {"cats": 3}).write(tmp_path)
    assert WordCounts.read(tmp_path).features(["naïve", "cats"]) == [[1, 1, 0], [1, 1, 1]]
    (tmp_path / "words.json").write_text("{")
    with pytest.raises(DataError, match="words.json cannot be read"):
        WordCounts.read(tmp_path)


def test_a_word_list_has_counts(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("The 20\nthe 1\ncat 3\n")
    assert word_list(str(file)) == {"the": 21, "cat": 3}
    file.write_text("the 20\ncat\n")
    with pytest.raises(ConfigurationError, match=r"line 2 is 'cat'; expected a word and its count"):
        word_list(str(file))
    assert word_list(None) == {}


def test_what_is_never_misspelled_in_training_is_not_flagged() -> None:
    model = WordDetector(WordDetectorConfig(**SHAPE)).eval()
    torch.nn.init.constant_(model.score.bias, 9.0)  # flags every word
    inputs = FormInputs(WordCounts({}, {}), 8)
    texts = [["Mr.", "teh", "foo@bar.org,", "(12)", "mr"], [], ["--"]]
    flags = [(row > 0).tolist() for row in logits_of_words(model, inputs, texts, 64, ALONE)]
    assert flags == [[False, True, False, False, True], [], [False]]


def test_long_words_lose_their_middle() -> None:
    assert symbols("abc", 4) == [1, 100, 101, 102, 2]
    assert symbols("abcdefgh", 4) == [1, 100, 101, 106, 107, 2]


def test_equal_words_have_one_form() -> None:
    tensors = form_tensors([["a", "b"], ["a"]], [[[0] * 3] * 2, [[1] * 3]], 8)
    assert tensors["words"].tolist() == [[1, 2], [1, 0]]
    assert tensors["forms"].tolist() == [[0, 0, 0], [1, 100, 2], [1, 101, 2]]
    assert tensors["counts"].tolist() == [[[0, 0, 0], [0, 0, 0]], [[1, 1, 1], [0, 0, 0]]]


def form_inputs() -> FormInputs:
    return FormInputs(WordCounts({"the": 4, "cat": 2}, {}), word_bytes=8)


def test_padding_does_not_change_the_small_detector(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = WordDetector(WordDetectorConfig(**SHAPE)).eval()
    inputs = form_inputs()
    short, long = ["the", "cat"], ["a", "much", "longer", "text", "about", "incomprehensibility"]
    alone = word_logits(model, inputs.tensors([short]))[0]
    together = word_logits(model, inputs.tensors([short, long]))[0, :2]
    assert torch.allclose(alone, together, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = WordDetector.from_pretrained(tmp_path).eval()
    assert torch.allclose(word_logits(again, inputs.tensors([short]))[0], alone, atol=1e-5)


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
    tensors = inputs.tensors([["she", "zq", "signs"], ["she"]])
    # [CLS] she z ##q signs [SEP]
    assert tensors["places"].tolist() == [[3, 0, 1, 1, 2, 3], [3, 0, 3, 3, 3, 3]]
    tokens = model(
        input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"]
    ).logits[:, :, 0]  # fmt: skip
    found = word_logits(model, tensors)
    expected = [tokens[0, 1], (tokens[0, 2] + tokens[0, 3]) / 2, tokens[0, 4]]
    assert torch.allclose(found[0], torch.stack(expected))
    assert torch.allclose(found[1, 0], tokens[1, 1])


def test_texts_longer_than_the_model_reads_are_scored_in_windows() -> None:
    model, inputs = token_model()
    words = ["signs"] * 40
    parts = inputs.windows(words)
    assert [word for part in parts for word in part] == words
    assert all(inputs.fits(part, 16) for part in parts)
    (logits,) = logits_of_words(model, inputs, [words], 100, ALONE)
    assert logits.shape == (40,)
    empty, one = logits_of_words(model, inputs, [[], ["signs"]], 100, ALONE)
    assert (empty.shape, one.shape) == ((0,), (1,))


def test_losses_of_words_and_sequences() -> None:
    logits = torch.tensor([[0.0, 2.0], [-1.0, 9.0]])
    labels = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    losses = word_losses(logits, labels)
    expected = [[math.log(2), math.log1p(math.exp(2))], [math.log1p(math.exp(-1)), 0.0]]
    assert losses.tolist() == [pytest.approx(row) for row in expected]

    correct = 0.5 * (1 - 1 / (1 + math.exp(-2)))  # no error in either word
    alone = 1 - 1 / (1 + math.exp(1))
    found = sequence_losses(logits, labels >= 0, torch.tensor([1.0, 0.0]))
    assert found.tolist() == pytest.approx([-math.log(1 - correct), -math.log(alone)])
    odds = math.log((1 - correct) / correct)
    assert float(sequence_logit(np.array([0.0, 2.0]))) == pytest.approx(odds)
    assert float(sequence_logit(np.zeros(0))) < -10


def test_sequence_losses_stay_finite() -> None:
    logits = torch.tensor([[-60.0, -60.0], [60.0, 60.0]], requires_grad=True)
    is_word = torch.ones(2, 2, dtype=torch.bool)
    losses = sequence_losses(logits, is_word, torch.tensor([1.0, 0.0]))
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(logits.grad).all()


def test_an_encoder_of_transformers_is_built_from_a_folder(tmp_path: Path) -> None:
    from bsmeta.config.spelling import SedWordsConfig
    from bsmeta.tasks.spelling.detector import build_detector, build_inputs, load_detector

    tokenizer = bert_tokenizer()
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    BertModel(shape).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    config = SedWordsConfig(model_name=str(tmp_path / "bert"))
    inputs = build_inputs(config, None)  # type: ignore[arg-type]
    model = build_detector(config, inputs).eval()
    assert inputs.lengths([["she"] * 4]).tolist() == [9]  # 6 tokens, and half as many for errors
    model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    inputs.write(tmp_path / "model")
    again, same = load_detector(tmp_path / "model")
    texts = [["she", "signs"]]
    found = word_logits(again, same.tensors(texts))
    assert torch.allclose(found, word_logits(model, inputs.tensors(texts)), atol=1e-5)
