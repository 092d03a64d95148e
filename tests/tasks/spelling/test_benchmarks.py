"""The dictionary baseline, and the one that changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.spelling.evaluate import CHANGE_NOTHING, DICTIONARY, Dictionary, baselines

LINE = "Teh  (recieve) women's well-known 3rd www.bbc.co.uk Don’t A,"
FLAGS = [1, 1, 0, 0, 0, 0, 0, 0]


@pytest.fixture
def word_list(tmp_path: Path) -> str:
    pytest.importorskip("symspellpy")
    file = tmp_path / "words.txt"
    counts = {"the": 90, "tech": 9, "receive": 5, "women": 8, "well": 7, "known": 3, "don't": 9}
    file.write_text("".join(f"{word} {count}\n" for word, count in counts.items()))
    return str(file)


def test_words_that_the_dictionary_lacks_are_flagged(word_list: str) -> None:
    assert Dictionary(word_list).flags(LINE) == FLAGS


def test_the_nearest_and_then_most_frequent_word_is_the_correction(word_list: str) -> None:
    dictionary = Dictionary(word_list)
    assert dictionary.correct(LINE) == LINE.replace("Teh", "The").replace("recieve", "receive")
    assert dictionary.correct("RECIEVE qzxqzxqzx") == "RECEIVE qzxqzxqzx"


def test_the_baselines_of_each_task(word_list: str) -> None:
    lines = [LINE, "known"]
    judged = {
        task: {name: judge(lines) for name, judge in baselines(task, word_list).items()}
        for task in ("sed_words", "sed_sequence", "sec")
    }
    assert judged["sed_words"] == {DICTIONARY: [FLAGS, [0]], CHANGE_NOTHING: [[0] * 8, [0]]}
    assert judged["sed_sequence"] == {DICTIONARY: [[1], [0]], CHANGE_NOTHING: [[0], [0]]}
    assert judged["sec"][CHANGE_NOTHING] == lines
    assert judged["sec"][DICTIONARY][1] == "known"


@pytest.mark.slow  # reading the whole list takes seconds
def test_the_words_of_symspellpy() -> None:
    pytest.importorskip("symspellpy")
    dictionary = Dictionary()
    assert dictionary.flags(LINE) == FLAGS
    assert dictionary.correct("Teh recieve") == "The receive"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "symspellpy", None)
    with pytest.raises(ConfigurationError, match="pip install symspellpy, or the extra `spelling`"):
        Dictionary("unread.txt")


@pytest.mark.parametrize("content", [None, "", "one-column\n"])
def test_a_file_without_counted_words_is_refused(tmp_path: Path, content: str | None) -> None:
    pytest.importorskip("symspellpy")
    file = tmp_path / "words.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"words.txt is missing, or .* `word count`"):
        Dictionary(str(file))
