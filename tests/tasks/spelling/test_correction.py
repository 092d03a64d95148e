"""Corrections are made only where a detector allows them, and the corrector's batches."""

from __future__ import annotations

from pathlib import Path

import torch

from bsmeta.config.spelling import SecConfig, SmallModelConfig
from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.spelling.correction import Correction
from bsmeta.tasks.spelling.corrections import apply_corrections, find_corrections, restricted
from bsmeta.tasks.spelling.pairs import Pair
from bsmeta.tasks.spelling.seq2seq import IGNORED, load_seq2seq, load_tokenizer

ALONE = EvaluationContext.alone(torch.device("cpu"))


def kept(line: str, corrected: str, flags: list[int]) -> str:
    changes = find_corrections(line, corrected)
    return apply_corrections(line, restricted(line, changes, [*map(bool, flags)]))


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


def small(folder: Path) -> Correction:
    config = SecConfig(
        small_model=SmallModelConfig(width=16, layers=1, heads=2), max_characters=16,
        store_dir=str(folder / "store"), datasets=[str(folder / "texts.txt")], val_splits=[],
    )  # fmt: skip
    (folder / "texts.txt").write_text("abc abd\nünder\n")
    return Correction(config)


def test_bytes_are_the_tokens_and_targets(tmp_path: Path) -> None:
    task = small(tmp_path)
    tokenizer = load_tokenizer(SecConfig())
    assert tokenizer("ü")["input_ids"] == [198, 191, 1]
    tensors = task._tensors([Pair(["ab"], ["abc"], "a"), Pair(["ü"], ["u"], "b")])
    assert tensors["input_ids"].tolist() == [[100, 101, 1], [198, 191, 1]]
    assert tensors["labels"].tolist() == [[100, 101, 102, 1], [120, 1, IGNORED, IGNORED]]
    model = task.build_model()
    loss = task.loss(model, tensors)
    assert loss.parts["token_accuracy"][1] == 6
    assert 6 * 4 < loss.sum.item() < 6 * 8  # about log(259) for each target at random weights


def test_long_lines_are_corrected_in_chunks_and_a_model_is_reloaded(tmp_path: Path) -> None:
    task = small(tmp_path)
    model = task.build_model().eval()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    (tmp_path / "model").mkdir()
    task.export(model, weights, tmp_path / "model")
    again, _ = load_seq2seq(tmp_path / "model")
    lines = ["abc " * 9, "x" * 40, ""]
    found = task.judge(model, lines, ALONE)
    assert found == Correction(task._config).judge(again, lines, ALONE)
    assert found[1:] == ["x" * 40, ""]  # a word longer than a chunk stays
