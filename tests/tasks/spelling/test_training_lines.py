"""Lines of test sets that are in the training texts of a run are counted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bsmeta import evaluate
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.errors import DataError
from bsmeta.tasks.spelling.config import SecConfig, SedWordsConfig
from bsmeta.tasks.spelling.evaluate import note_training_lines, read_test_sets
from bsmeta.tasks.spelling.samples import open_saved_table, open_table
from bsmeta.tasks.spelling.training_lines import count_training_lines, divide_line

PARAGRAPH = (
    "The letters from the village travel slowly. Every careful neighbour believes that the weather "
    "reports are wrong, because the children receive separate answers until tomorrow. Why?"
)
SENTENCE = "The letters from the village travel slowly."


def write_lines(file: Path, lines: list[str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def write_corrections(folder: Path, corrupt: list[str], correct: list[str]) -> Path:
    """Writes a test set of corrections."""
    write_lines(folder / "sec/letters/test/corrupt.txt", corrupt)
    write_lines(folder / "sec/letters/test/correct.txt", correct)
    return folder


def test_a_line_is_a_part_of_a_text_or_several_sentences_of_texts() -> None:
    lines = {
        "first": [[SENTENCE], [PARAGRAPH], ["the  village travel\tslowly. "], [""], ["Why?"]],
        "second": [["She believes that the letters travel slowly."], [f"{SENTENCE} She is away."]],
    }
    assert count_training_lines(lines, [PARAGRAPH]) == {"first": 3, "second": 1}
    # The text may also be divided where the line is not.
    assert count_training_lines({"first": [[PARAGRAPH]]}, PARAGRAPH.split(". ")) == {"first": 0}
    sentences = [f"{SENTENCE} ", PARAGRAPH.removeprefix(SENTENCE)]
    assert count_training_lines({"first": [[PARAGRAPH]]}, sentences) == {"first": 1}
    # A heading without a full stop is not a sentence of its own.
    assert count_training_lines({"first": [[SENTENCE]]}, [f"News {SENTENCE}"]) == {"first": 1}


def test_any_version_of_a_line_counts() -> None:
    lines = {"test": [("Teh letters travel slowly today.", "The letters travel slowly today.")]}
    assert count_training_lines(lines, ["The letters travel slowly today. Why?"]) == {"test": 1}
    assert count_training_lines(lines, ["Teh letters travel slowly today."]) == {"test": 1}
    assert count_training_lines(lines, ["The letters travel slowly, today."]) == {"test": 0}


def test_short_sentences_are_ignored() -> None:
    assert divide_line("Why not? The weather reports are wrong.") == [
        ("The", "weather", "reports", "are", "wrong.")
    ]
    assert count_training_lines({"test": [["It is wrong."]]}, ["It is wrong."]) == {"test": 0}


def test_long_sentences_are_searched_for_in_parts() -> None:
    words = [f"word{number}" for number in range(130)]
    line = " ".join(words)
    assert divide_line(line) == [tuple(words[:64]), tuple(words[64:128])]  # two words are left out
    count = {"test": [[line]]}
    assert count_training_lines(count, [f"News {line}"]) == {"test": 1}
    assert count_training_lines(count, [line.replace("word100 ", "")]) == {"test": 0}


def test_texts_are_compared_as_before_they_were_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = write_lines(tmp_path / "texts.txt", [PARAGRAPH, "The morning questions are necessary."])
    config = SecConfig(
        datasets=[str(texts)], store_dir=str(tmp_path / "store"), max_characters=60,
        counted_share=0.0, val_splits=[],
    )  # fmt: skip
    table = open_table(config)
    assert len(table.list_numbers("train")) == 5  # four parts of the paragraph
    assert [*table.read_training_texts()] == texts.read_text().splitlines()

    # The second sentence of the paragraph is longer than a sample.
    folder = write_corrections(
        tmp_path / "tests",
        [SENTENCE.replace("village", "villiage"), PARAGRAPH, "The morning is necesary today."],
        [SENTENCE, PARAGRAPH, "The morning is necessary today."],
    )
    sets = read_test_sets(folder, "sec")
    expected = "letters/test: 2 of 3 lines are in the training texts, too"
    assert note_training_lines(sets, table) == [expected]
    assert expected in caplog.text
    assert note_training_lines(read_test_sets(folder, "sec", limit=1), table) == [
        "letters/test: 1 of 1 lines are in the training texts, too"
    ]
    assert note_training_lines(sets, None) == [
        "not compared with the training texts, which cannot be read"
    ]


def test_validation_texts_are_no_training_texts_and_counted_ones_are(tmp_path: Path) -> None:
    lines = [f"The children believe in answer number {number}." for number in range(40)]
    texts = write_lines(tmp_path / "texts.txt", lines)
    config = SecConfig(
        datasets=[str(texts)], store_dir=str(tmp_path / "store"), counted_share=0.5,
        val_splits=[10], dataset_limits=[30],
    )  # fmt: skip
    table = open_table(config)
    counts = [len(table.list_numbers(split)) for split in ("train", "validation", "counted")]
    assert counts == [10, 10, 10]
    sets = read_test_sets(write_corrections(tmp_path / "tests", lines, lines), "sec")
    assert note_training_lines(sets, table) == [
        "letters/test: 20 of 40 lines are in the training texts, too"
    ]


def test_both_texts_of_a_pair_are_compared(tmp_path: Path) -> None:
    pair = {
        "text": "Teh letters travel slowly today.",
        "target": "The letters travel slowly today.",
    }
    texts = write_lines(tmp_path / "pairs.jsonl", [json.dumps(pair)])
    config = SecConfig(
        datasets=[str(texts)], store_dir=str(tmp_path / "store"), target_column="target",
        counted_share=0.0, val_splits=[],
    )  # fmt: skip
    assert [*open_table(config).read_training_texts()] == [pair["text"], pair["target"]]


def test_the_samples_of_a_run_are_opened_without_its_data_sets(tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "texts.txt", [PARAGRAPH])
    store = str(tmp_path / "store")
    settings = {"datasets": [str(texts)], "store_dir": store, "val_splits": []}
    key = open_table(SedWordsConfig(**settings, counted_share=0.0)).key
    open_table(SedWordsConfig(**settings, counted_share=0.0, min_prose_share=0.5))
    texts.unlink()
    fingerprint = json.loads(json.dumps({**key, "task": "sed_words"}))
    assert [*open_saved_table(store, fingerprint).read_training_texts()] == [PARAGRAPH]

    for other in ({}, {**fingerprint, "seed": 7}):
        with pytest.raises(DataError, match=f"store_dir={store} lacks the samples of the run"):
            open_saved_table(store, other)
    with pytest.raises(DataError, match="lacks the samples of the run"):
        open_saved_table(str(tmp_path / "absent"), fingerprint)
    assert not (tmp_path / "absent").exists()


def test_the_report_of_an_evaluation_names_training_lines(trained: Path, tmp_path: Path) -> None:
    run_report = json.loads((trained / "evaluation/evaluation.json").read_text())
    assert run_report["notes"] == []

    lines = (trained.parent / "texts.txt").read_text().splitlines()[:24]
    folder = tmp_path / "tests"
    write_lines(folder / "sed_words/texts/first/corrupt.txt", lines)
    labels = [" ".join("0" * len(line.split())) for line in lines]
    write_lines(folder / "sed_words/texts/first/correct.txt", labels)

    def score() -> tuple[list[str], str]:
        out = tmp_path / "report"
        config = EvaluateConfig(
            checkpoint=str(trained), validation_file=str(folder), out_dir=str(out),
            bootstrap_resamples=50,
        )  # fmt: skip
        evaluate.main(config)
        report = json.loads((out / "evaluation.json").read_text())
        return report["notes"], report["answers"][-1]

    # Two lines have fewer than 4 words, and line 11 is a validation text.
    expected = "texts/first: 21 of 24 lines are in the training texts, too"
    assert score() == ([expected], f"{expected}.")

    store = trained.parent / "store"
    shutil.move(store, tmp_path / "moved")
    try:
        expected = "not compared with the training texts, which cannot be read"
        assert score() == ([expected], f"{expected}.")
    finally:
        shutil.move(tmp_path / "moved", store)
