"""Windows from their lines to their sequences."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig, Phase
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.stream.plan import Position
from bsmeta.data.stream.window_maker import WindowMaker
from tests.data.helpers import small_tokenizer
from tests.data.stream.stages.helpers import title_line, window_of

WRONG_TITLE = b'{"text": "its text", "metadata_title": 3}'
LINES = [title_line("one", "A"), b"{", title_line(""), WRONG_TITLE, title_line("two", "B")]


def make(data: dict[str, Any] | None = None, **metadata: Any) -> WindowMaker:
    """A maker of windows whose documents have all of their metadata."""
    settings: dict[str, Any] = {
        "metadata_list": ["title"],
        "metadata_probability": 1.0,
        "random_sample_metadata": False,
        "max_seq_len": 64,
    }
    config = MetadataConfig(**settings | metadata)
    values = {"bad_documents": "skip"} | (data or {})
    return WindowMaker(DataConfig(metadata_config=config, **values), small_tokenizer(), seed=1)


def texts(
    maker: WindowMaker, lines: list[bytes] = LINES, **arguments: Any
) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Number and rendered text of the documents of a window, and what was skipped."""
    documents, skipped = maker.prepare_documents(window_of(lines), **arguments)
    assert all(document.chunks for document in documents)
    return [(document.number, document.rendered.full_text) for document in documents], skipped


def test_good_documents_are_rendered_and_bad_ones_counted() -> None:
    assert texts(make()) == (
        [(10, "Title: A ||| one"), (14, "Title: B ||| two")],
        {"not_json": 1, "empty_text": 1, "wrong_type": 1},
    )


def test_damage_is_counted_after_the_lines_that_were_read() -> None:
    window = window_of(LINES[:1], damage="the file ends")
    documents, skipped = make().prepare_documents(window)
    assert [document.number for document in documents] == [10]
    assert skipped == {"damaged_file": 1}


def test_the_first_bad_line_stops_a_strict_run() -> None:
    maker = make({"bad_documents": "strict"})
    with pytest.raises(DataError, match=r"^/data/pages\.jsonl, line 12: not_json: "):
        maker.prepare_documents(window_of(LINES))
    with pytest.raises(DataError, match=r"^/data/pages\.jsonl, line 12: damaged_file: the file"):
        maker.prepare_documents(window_of(LINES[:1], damage="the file ends"))


def test_left_out_documents_are_read_and_not_yielded() -> None:
    rendered, skipped = texts(make(), leave_out={10})
    assert rendered == [(14, "Title: B ||| two")]
    assert skipped == {"not_json": 1, "empty_text": 1, "wrong_type": 1}


def test_each_phase_has_its_own_sampling() -> None:
    maker = make(schedule=[Phase(share=0.5), Phase(share=0.5, types=[])])
    lines = [title_line("one", "A")]
    assert texts(maker, lines)[0] == [(10, "Title: A ||| one")]
    assert texts(maker, lines, phase=1)[0] == [(10, "one")]


def test_values_are_lent_between_the_good_documents() -> None:
    rendered, _ = texts(make(metadata_values="shuffled"))
    assert rendered == [(10, "Title: B ||| one"), (14, "Title: A ||| two")]


def test_under_a_row_budget_of_text_bad_metadata_costs_no_text() -> None:
    rendered, skipped = texts(make({"row_budget": "text"}))
    assert rendered == [(10, "Title: A ||| one"), (13, "its text"), (14, "Title: B ||| two")]
    assert skipped == {"not_json": 1, "empty_text": 1, "wrong_type": 1}


def test_without_metadata_in_the_same_context_chunks_have_text_alone() -> None:
    maker = make(without_metadata_same_context=True)
    (document,), _ = maker.prepare_documents(window_of([title_line("one", "A")]))
    assert document.rendered.full_text == "Title: A ||| one"
    tokenizer = small_tokenizer()
    assert [tokenizer.decode(chunk.ids.tolist()) for chunk in document.chunks] == [" one<eos>"]


def test_documents_are_packed_into_sequences() -> None:
    maker = make()
    window = window_of(LINES)
    documents, _ = maker.prepare_documents(window)
    packed = maker.pack(window, documents)
    (sequence,) = [packed.make_sequence(row, 0, Position()) for row in range(len(packed))]
    assert sorted(sequence.documents) == ["pages.jsonl:10", "pages.jsonl:14"]
    assert sequence.types.tolist() == [1, 1]
    assert sequence.counts[:3].tolist() == [2, 2, 2]


def test_a_row_budget_refuses_settings_that_change_the_text() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"special_tokens_in_text in Hydra configuration: found true, expected false",
    ):
        make({"row_budget": "text"}, special_tokens_in_text=True)


def test_bad_lines_of_the_sample_are_left_out() -> None:
    config = DataConfig(metadata_config=MetadataConfig(metadata_list=["title"]))
    sample = [json.dumps({"text": "the fox"}).encode(), b"{"]
    maker = WindowMaker(config, small_tokenizer(), seed=1, sample=sample)
    assert len(maker.prepare_documents(window_of([title_line("one")]))[0]) == 1
