"""Corrections are made only where a detector allows them, and the corrector's batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ByT5Tokenizer, T5Config, T5ForConditionalGeneration

from bsmeta.core.errors import DataError
from bsmeta.tasks import TASKS
from bsmeta.tasks.spelling.config import SecConfig
from bsmeta.tasks.spelling.correction import CandidateCorrection
from bsmeta.tasks.spelling.corrections import (
    apply_corrections,
    find_corrections,
    restrict_corrections,
)
from bsmeta.tasks.spelling.samples import Pair
from bsmeta.tasks.spelling.seq2seq_correction import IGNORED, Seq2SeqCorrection
from bsmeta.training.ranks.processes import ALONE


def kept(line: str, corrected: str, flags: list[int]) -> str:
    changes = find_corrections(line, corrected)
    return apply_corrections(line, restrict_corrections(line, changes, [*map(bool, flags)]))


def test_words_that_are_not_flagged_stay() -> None:
    line, new = "teh  cat seet on\tmats", "the cat sat on mat"
    assert kept(line, new, [1, 0, 0, 0, 0]) == "the  cat seet on\tmats"
    assert kept(line, new, [0, 1, 1, 0, 0]) == "teh  cat sat on\tmats"
    assert kept(line, new, [0] * 5) == line
    assert kept(line, line, [1] * 5) == line


def test_every_word_of_a_change_must_be_flagged() -> None:
    line, new = "teh ca t sat onthe mat", "the cat sat on the mats"
    assert kept(line, new, [1, 0, 0, 0, 0, 0]) == "the ca t sat onthe mat"
    assert kept(line, new, [0, 1, 0, 0, 0, 0]) == line  # the merge concerns the next word, too
    assert kept(line, new, [0, 1, 1, 0, 1, 0]) == "teh cat sat on the mat"
    assert kept("the cat", "the black cat", [1, 1]) == "the cat"  # no word is inserted


def small(folder: Path) -> Seq2SeqCorrection:
    """A task with a model of random weights over bytes, in a folder."""
    shape = T5Config(
        vocab_size=259, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    T5ForConditionalGeneration(shape).save_pretrained(folder / "t5")
    ByT5Tokenizer(extra_ids=0).save_pretrained(folder / "t5")
    config = SecConfig(
        model_name=str(folder / "t5"), max_characters=16, store_dir=str(folder / "store"),
        datasets=[str(folder / "texts.txt")], val_splits=[],
    )  # fmt: skip
    (folder / "texts.txt").write_text("abc abd\nünder\n")
    return Seq2SeqCorrection(config)


def test_tokens_are_targets(tmp_path: Path) -> None:
    task = small(tmp_path)
    tensors = task.make_tensors([Pair(["ab"], ["abc"], "a"), Pair(["ü"], ["u"], "b")])
    assert tensors["input_ids"].tolist() == [[100, 101, 1], [198, 191, 1]]
    assert tensors["labels"].tolist() == [[100, 101, 102, 1], [120, 1, IGNORED, IGNORED]]
    loss = task.loss(task.build_model(), tensors)
    assert loss.parts["token_accuracy"][1] == 6
    assert loss.sum.item() > 0


def test_long_lines_are_corrected_in_chunks_and_a_model_is_reloaded(tmp_path: Path) -> None:
    task = small(tmp_path)
    model = task.build_model().eval()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    (tmp_path / "model").mkdir()
    task.export(model, weights, tmp_path / "model")
    again = task.load(tmp_path / "model")
    lines = ["abc " * 9, "x" * 40, ""]
    found = task.judge(model, lines, ALONE)
    assert found == Seq2SeqCorrection(task._config).judge(again, lines, ALONE)
    assert found[1:] == ["x" * 40, ""]  # a word longer than a chunk stays


def test_blank_lines_stay_as_they_are(tmp_path: Path) -> None:
    task = small(tmp_path)
    model = task.build_model().eval()
    read: list[list[int]] = []
    model.encoder.register_forward_pre_hook(
        lambda _, __, inputs: read.extend(inputs["input_ids"].tolist()), with_kwargs=True
    )
    text = "abc\n \n\nabd"
    (changes,) = task.changes(model, [text])
    assert sorted(read) == [[100, 101, 102, 1], [100, 101, 103, 1]]
    assert all(text[change.start : change.end].strip() for change in changes)


def test_a_run_with_a_model_name_is_one_of_seq2seq(tmp_path: Path) -> None:
    task = small(tmp_path)
    assert isinstance(TASKS["sec"].make(task._config), Seq2SeqCorrection)
    assert isinstance(TASKS["sec"].make(SecConfig()), CandidateCorrection)


def test_missing_weights_of_a_pretrained_model_are_refused(tmp_path: Path) -> None:
    task = small(tmp_path)
    file = tmp_path / "t5" / "model.safetensors"
    weights = load_file(file)
    lost = "decoder.block.0.layer.0.SelfAttention.q.weight"
    del weights[lost]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(DataError, match=rf"1 missing \(they would be random\): {lost}"):
        task.build_model()
