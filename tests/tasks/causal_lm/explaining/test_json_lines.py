"""The lines of JSON that programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bsmeta.tasks.causal_lm.explaining.json_lines import format_json_line
from tests.data.helpers import page, small_tokenizer
from tests.tasks.causal_lm.explaining.helpers import (
    demo,
    demo_documents,
    demo_tokenizer,
    own_config,
    own_windows,
)


def lines(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    config = own_config(folder, [page(8, 5)], random_sample_metadata=False, **changes)
    metadata = config.data_config.metadata_config
    return [
        json.loads(format_json_line(document, metadata))
        for window in own_windows(config)
        for document in window.documents
    ]


PREFIX = "html | Title: Page 8 | url: https://example.org/8 |||"

BODY = "<b class:strong>8 dog</b> 12 cafés 😀 the"


def decode_masked(line: dict[str, Any], mask: str, chunk: int = 0) -> str:
    """Returns the text of a chunk's tokens with mask 1."""
    one = line["pieces"][chunk]
    kept = [number for number, is_set in zip(one["input_ids"], one[mask], strict=True) if is_set]
    return small_tokenizer().decode(kept)


def test_a_document_is_one_object(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, max_seq_len=256)
    assert list(line) == ["document", "text", "prefix", "pieces"]
    assert line["document"] == "a.jsonl.gz:0"
    assert line["prefix"] == PREFIX
    assert line["text"] == f"{PREFIX} {BODY}"
    (chunk,) = line["pieces"]
    assert list(chunk) == ["input_ids", "metadata_mask", "loss_mask"]
    assert small_tokenizer().decode(chunk["input_ids"]) == f"{PREFIX} {BODY}<eos>"
    assert {len(values) for values in chunk.values()} == {len(chunk["input_ids"])}
    assert {*chunk["metadata_mask"], *chunk["loss_mask"]} == {0, 1}


def test_the_metadata_mask_covers_the_prefix_if_tags_count_as_text(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, max_seq_len=256)
    assert decode_masked(line, "metadata_mask") == PREFIX
    # What joins it to the prefix is not a target.
    assert decode_masked(line, "loss_mask") == BODY + "<eos>"


def test_otherwise_the_metadata_mask_covers_prefix_and_tags(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, max_seq_len=256, treat_local_metadata_as_regular_text=False)
    assert decode_masked(line, "metadata_mask") == f"{PREFIX}<b class:strong></b>"
    assert decode_masked(line, "loss_mask") == "8 dog 12 cafés 😀 the<eos>"


def test_the_metadata_mask_covers_the_suffix(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, max_seq_len=256, metadata_position="append")
    suffix = " ||| Title: Page 8 | url: https://example.org/8"
    assert line["text"] == f"html ||| {BODY}{suffix}"
    assert decode_masked(line, "metadata_mask") == f"html |||{suffix}"


@pytest.mark.parametrize("prefix_on", ["every_piece", "first_piece"])
def test_chunks_repeat_the_prefix_if_configured(tmp_path: Path, prefix_on: str) -> None:
    (line,) = lines(tmp_path, max_seq_len=40, prefix_max_tokens=12, prefix_on=prefix_on)
    prefixes = [sum(chunk["metadata_mask"]) for chunk in line["pieces"]]
    assert len(prefixes) > 1
    assert prefixes == [12] + [12 if prefix_on == "every_piece" else 0] * (len(prefixes) - 1)
    assert line["prefix"] == PREFIX  # whole, though the chunks have it cut


def test_chunks_join_to_the_text() -> None:
    config = demo()
    for document in demo_documents("limit=30"):
        line = json.loads(format_json_line(document, config.data_config.metadata_config))
        ids = []
        for chunk in line["pieces"]:  # entities count as text: the mask is of the prefix alone
            ids += chunk["input_ids"][sum(chunk["metadata_mask"]) :]
        assert line["prefix"] + demo_tokenizer().decode(ids) == line["text"] + "<|endoftext|>"


def test_a_line_is_plain_ascii_without_line_ends() -> None:
    config = demo()
    for document in demo_documents("limit=10"):
        line = format_json_line(document, config.data_config.metadata_config)
        assert line.isascii()
        assert len(line.splitlines()) == 1
