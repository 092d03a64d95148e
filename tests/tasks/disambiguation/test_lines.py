"""Training lines of both generations."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation.lines import (
    FileScan,
    Line,
    Mention,
    Problems,
    read_lines,
    scan_lines,
)

WORDS = {
    "sentence": "How old is  Lincoln , Nebraska ?",
    "sent_idx_unq": 7,
    "aliases": ["lincoln", "nebraska"],
    "qids": ["Q28260", "Q1553"],
    "spans": [[3, 6], [5, 6]],
    "gold": [True, False],
}
CHARACTERS = {
    **{key: value for key, value in WORDS.items() if key != "spans"},
    "char_spans": [[12, 30], [22, 30]],
}


def read(folder: Path, lines: list[Any]) -> list[Line]:
    path = folder / "train.jsonl.gz"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    with gzip.open(path, "wt") as file:
        file.writelines(f"{text}\n" for text in texts)
    problems = Problems(path)
    found = list(read_lines(path, problems))
    problems.close()
    return found


def test_both_generations_give_characters(tmp_path: Path) -> None:
    slices = {"unif_NS_TL": {"0": 1.0, "1": 1.0}, "other": {"0": 0.5}}
    lines = read(tmp_path, [WORDS, "", {**CHARACTERS, "document": "d1", "slices": slices}])
    mentions = (
        Mention(12, 30, "lincoln", ("Q28260",), True, ()),
        Mention(22, 30, "nebraska", ("Q1553",), False, ()),
    )
    assert lines[0] == Line(1, 7, WORDS["sentence"], "7", mentions)
    first = Mention(12, 30, "lincoln", ("Q28260",), True, ("unif_NS_TL",))
    assert lines[1] == Line(3, 7, WORDS["sentence"], "d1", (first, mentions[1]))
    assert lines[0].text[12:30] == "Lincoln , Nebraska"


def test_several_entities_and_the_document_of_bootleg(tmp_path: Path) -> None:
    qids = [["Q28260", "Q1", "Q28260"], "Q1553"]
    (line,) = read(tmp_path, [{**WORDS, "qids": qids, "parent_qid": "Q5"}])
    assert [mention.entities for mention in line.mentions] == [("Q28260", "Q1"), ("Q1553",)]
    assert line.document == "Q5"


def test_the_fields_and_slices_of_a_file(tmp_path: Path) -> None:
    first = {**WORDS, "sources": ["gold"], "title": "x", "slices": {"b": {}, "a": {"0": 1}}}
    lines = [json.dumps(first), "{", "", json.dumps({**WORDS, "title": "y", "slices": None})]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(lines))
    found = scan_lines(path)  # the second line is left to those who read all of it
    assert found == FileScan(4, ["a", "b"], {"title": 2, "sources": 1}, 0)
    path.write_text(json.dumps({**WORDS, "aliases": ["Lincoln", "nebraska ", "café"]}))
    assert scan_lines(path).respelled == 2


def test_a_misspelled_field_is_refused(tmp_path: Path) -> None:
    read(tmp_path, [WORDS, {**WORDS, "slice": {"tail": {"0": 1.0}}}])
    with pytest.raises(DataError, match=r"line 2: there is no field 'slice' .did you mean slices"):
        scan_lines(tmp_path / "train.jsonl.gz")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"gold": [True]}, "lists of unequal lengths: 2 aliases, 2 qids, 2 spans, 1 gold"),
        ({"spans": [[3, 8], [5, 6]]}, r"spans\[0\] is \[3, 8\]; the sentence has 7 words"),
        ({"spans": [[3, 3], [5, 6]]}, r"spans\[0\] is \[3, 3\]"),
        ({"spans": None}, "neither spans .* nor char_spans"),
        ({"char_spans": [[12, 33], [22, 30]]}, r"char_spans\[0\] is \[12, 33\]"),
        ({"slices": {"final_loss": {"0": 1.0}}}, "slices: final_loss is reserved"),
        ({"slices": {"tail": {"2": 1.0}}}, "slices: tail names mention '2'"),
        (
            {"char_spans": [[7, 9], [22, 30]], "sentence": "How old  is" + "x" * 30},
            r"char_spans\[0\] is \[7, 9\], which is only white space",
        ),
        ({"qids": [[], "Q1"]}, r"qids\[0\] is empty"),
        ({"sent_idx_unq": 1 << 63}, "Expected `int` <= 9223372036854775807 - at `.*sent_idx_unq`"),
        ({"sent_idx_unq": 1 << 64}, "Expected `int`"),
        ({"gold": [1, 0]}, r"Expected `bool`, got `int` - at `\$.gold\[0\]`"),
    ],
)
def test_an_invalid_line_is_named(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=rf"train.jsonl.gz: 1 problem; .*\n  line 2: {reason}"):
        read(tmp_path, [WORDS, {**WORDS, **changed}])


def test_a_sentence_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    text = json.dumps(WORDS).encode()
    path.write_bytes(text + b"\n" + text.replace(b"Lincoln", b"Linc\xf6ln") + b"\n")
    problems = Problems(path)
    assert len(list(read_lines(path, problems))) == 1
    with pytest.raises(DataError, match=r"line 2: not UTF-8: invalid .* \(0xf6\)"):
        problems.close()
    assert scan_lines(path).lines == 2


def test_a_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    read(tmp_path, [WORDS] * 9)
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match="damaged after line"):
        list(read_lines(path, Problems(path)))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        list(read_lines(tmp_path / "none.jsonl", Problems(path)))
