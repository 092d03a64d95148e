"""Bad lines stop the run, or are counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.lines import OVERLONG
from bsmeta.data.io.shards import Shard
from bsmeta.data.stream.stages.reject import Rejecter
from tests.data.stream.stages.helpers import (
    SHARD,
    TITLES,
    bad,
    describe,
    skipping,
    text_document,
)

STRICT = DataConfig(metadata_config=TITLES)


def test_skipped_lines_are_counted_and_the_rest_passes() -> None:
    skipped: Counter[str] = Counter()
    items = [text_document("a"), bad("wrong_type"), text_document("b", 12), bad("wrong_type")]
    rejected = Rejecter(skipping(), SHARD, skipped).reject_bad_lines(items)
    assert describe(rejected) == [(10, "a"), (10, "wrong_type"), (12, "b"), (10, "wrong_type")]
    assert skipped == {"wrong_type": 2}


@pytest.mark.parametrize(
    ("line", "reason"),
    [(b" ", "blank_line"), (b"\xff", "not_utf8"), (OVERLONG, "line_too_long"), (b"{", "not_json")],
)
def test_the_line_shows_why_it_is_not_json(line: bytes, reason: str) -> None:
    skipped: Counter[str] = Counter()
    list(Rejecter(skipping(), SHARD, skipped).reject_bad_lines([bad("not_json", line)]))
    assert skipped == {reason: 1}


def test_strict_names_file_line_and_reason() -> None:
    skipped: Counter[str] = Counter()
    items = [text_document("a"), bad("wrong_type")]
    rejected = Rejecter(STRICT, SHARD, skipped).reject_bad_lines(items)
    assert describe([next(rejected)]) == [(10, "a")]
    with pytest.raises(DataError) as error:
        next(rejected)
    assert str(error.value) == (
        "/data/pages.jsonl, line 11: wrong_type: the detail "
        "(data_config.bad_documents=skip counts such documents and continues)"
    )
    assert skipped == {}


def test_a_file_of_another_format_is_named_at_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "page.jsonl"
    path.write_bytes(b"<!DOCTYPE html>\n<html></html>\n")
    shard = Shard("page.jsonl", str(path), 30)
    rejected = Rejecter(STRICT, shard, Counter()).reject_bad_lines([bad("not_json", number=0)])
    with pytest.raises(DataError, match=r"^data_config\.train_file: .*page\.jsonl"):
        next(rejected)


def test_an_undeclared_reason_is_an_error_of_the_metadata_type() -> None:
    rejected = Rejecter(skipping(), SHARD, Counter()).reject_bad_lines([bad("too_odd")])
    with pytest.raises(ConfigurationError) as error:
        next(rejected)
    assert str(error.value) == (
        "/data/pages.jsonl, line 11: a metadata type refuses the document with the reason "
        '"too_odd" (the detail), for which there is no count; add reasons = ("too_odd",) to the '
        "class of the type"
    )
