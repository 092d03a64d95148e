"""Streams of the main content: as if the shards had only that."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from tests.data.helpers import pages, run, same, small_config, write_shard


def add_spans(document: dict[str, Any]) -> dict[str, Any]:
    """Adds two spans to a document: its first half without the first word, and its last word."""
    text = document["text"]
    begin, middle = text.find(" ") + 1, len(text) // 2
    last = text.rfind(" ") + 1
    spans = [[begin, middle], [last, len(text)]] if begin < middle < last - 1 else [[0, len(text)]]
    return {**document, "content_spans": {"resiliparse": spans, "trafilatura": []}}


def cut_to_spans(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the document with only these spans, cut letter by letter."""
    document = copy.deepcopy(add_spans(document))
    text, spans = document["text"], document.pop("content_spans")["resiliparse"]
    places: dict[int, int] = {}  # of the letters that are kept, in the new text
    new = ""
    for number, (start, end) in enumerate(spans):
        new += " " if number else ""
        for place in range(start, end):
            places[place] = len(new)
            new += text[place]
    tags = []
    for tag in document["metadata_html"]:
        kept = [places[p] for p in range(tag["char_start_idx"], tag["char_end_idx"]) if p in places]
        if kept:
            tags.append(tag | {"char_start_idx": kept[0], "char_end_idx": kept[-1] + 1})
    return {**document, "text": new, "metadata_html": tags}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Shards with spans, and the same shards with only the text inside the spans."""
    whole, short = tmp_path / "whole", tmp_path / "short"
    for folder, change in ((whole, add_spans), (short, cut_to_spans)):
        folder.mkdir()
        for number in range(3):
            documents = [change(page) for page in pages(40, first=100 * number)]
            write_shard(folder / f"part-{number}.jsonl.gz", documents)
    return whole, short


def test_a_stream_of_spans_equals_a_stream_of_shards_with_only_the_spans(
    folders: tuple[Path, Path],
) -> None:
    whole, short = folders
    settings = {"metadata_probability": 1.0, "random_sample_metadata": False}
    content = run(small_config(whole, content="resiliparse", **settings), 6)
    assert same(content, run(small_config(short, **settings), 6))
    everything = run(small_config(whole, **settings), 6)
    assert not torch.equal(content.steps[0]["input_ids"], everything.steps[0]["input_ids"])


def test_shards_without_any_content_are_refused(folders: tuple[Path, Path]) -> None:
    config = small_config(folders[0], content="trafilatura")
    with pytest.raises(DataError, match="no usable document"):
        run(config, 1)


def test_a_run_is_not_resumed_with_other_content(folders: tuple[Path, Path]) -> None:
    state = run(small_config(folders[0], content="resiliparse"), 2).state
    assert state["fingerprint"]["content"] == "resiliparse"
    with pytest.raises(ConfigurationError, match="content"):
        run(small_config(folders[0], content="union"), 2, state=state)


def test_shards_without_spans_are_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "part-0.jsonl.gz", pages(20))
    with pytest.raises(DataError, match="no_content_spans: the row has no content_spans of resili"):
        run(small_config(tmp_path, content="resiliparse"), 1)


def test_held_out_texts_are_compared_whole(folders: tuple[Path, Path], tmp_path: Path) -> None:
    held_out = write_shard(tmp_path / "test.jsonl.gz", [{"text": pages(40)[17]["text"]}])
    config = small_config(folders[0], content="resiliparse", validation_file=str(held_out))
    with pytest.raises(DataError, match="the document has the text of one in"):
        run(config, 6)


def test_an_evaluation_reads_only_the_content(folders: tuple[Path, Path]) -> None:
    texts = []
    for folder, content in zip(folders, ("resiliparse", "all"), strict=True):
        file = str(folder / "part-0.jsonl.gz")
        config = small_config(folder, content=content, validation_file=file)
        documents = HeldOutDocuments(
            config, max_documents=None, deduplicate=False, training_overlap=None
        )
        texts.append([documents[index].text for index in range(len(documents))])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 40


def test_without_content_the_state_has_no_such_key(folders: tuple[Path, Path]) -> None:
    assert "content" not in run(small_config(folders[0]), 1).state["fingerprint"]
