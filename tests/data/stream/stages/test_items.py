"""What passes from stage to stage."""

from __future__ import annotations

from bsmeta.data.stream.stages.items import (
    BadLine,
    NumberedLine,
    ReadDocument,
    apply_stage,
    number_lines,
)
from bsmeta.data.stream.window import Window
from bsmeta.metadata.records import BadDocument
from tests.data.stream.stages.helpers import SHARD, bad, describe, read, title_line


def test_lines_have_their_numbers_in_window_and_shard() -> None:
    window = Window(0, SHARD, [3, 4, 9, 10], [b"a", b"b", b"c"])
    expected = [NumberedLine(0, 3, b"a"), NumberedLine(1, 4, b"b"), NumberedLine(2, 9, b"c")]
    assert list(number_lines(window)) == expected


def test_damage_is_a_bad_line_after_the_lines_read() -> None:
    (line, damage) = number_lines(Window(0, SHARD, [3, 4, 9], [b"a"], "the file ends"))
    assert line == NumberedLine(0, 3, b"a")
    assert isinstance(damage, BadLine)
    assert damage.source == NumberedLine(1, 4, b"")
    assert str(damage.error) == "damaged_file: the file ends"


def test_damage_after_a_whole_window_is_at_the_next_line() -> None:
    *_, damage = number_lines(Window(0, SHARD, [3, 9], [b"a", b"b"], "the file ends"))
    assert describe([damage]) == [(10, "damaged_file")]


def test_a_window_without_lines_may_be_damaged() -> None:
    assert describe(number_lines(Window(0, SHARD, [7, 8], [], "no bytes"))) == [(7, "damaged_file")]


def test_a_stage_may_drop_or_refuse_documents_and_passes_bad_lines_on() -> None:
    documents = [read(title_line(text)) for text in ("good", "drop", "refuse", "also good")]

    def stage(document: ReadDocument) -> ReadDocument | None:
        if document.document.text == "refuse":
            raise BadDocument("wrong_type", "refused")
        return None if document.document.text == "drop" else document

    items = [documents[0], bad("not_json", number=11), *documents[1:]]
    assert describe(apply_stage(stage, items)) == [
        (10, "good"),
        (11, "not_json"),
        (10, "wrong_type"),
        (10, "also good"),
    ]


def test_a_stage_is_applied_when_its_result_is_taken() -> None:
    taken: list[str] = []

    def note(document: ReadDocument) -> ReadDocument:
        taken.append(document.document.text)
        return document

    stream = apply_stage(note, map(read, map(title_line, ("first", "second"))))
    assert taken == []
    next(stream)
    assert taken == ["first"]
