"""Mentions by the trained detector: windows, whole words, aliases, and beside the dictionary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.disambiguation.config import DisambiguationConfig, DisambiguationDataConfig
from bsmeta.tasks.disambiguation.data import RunData
from bsmeta.tasks.disambiguation.detection_evaluation import measure_detection, read_marked_texts
from bsmeta.tasks.disambiguation.detection_metrics import MENTION_METRICS, MarkedSpans
from bsmeta.tasks.disambiguation.dictionary import AliasDictionary, FormCount, Span
from bsmeta.tasks.disambiguation.lines import find_word_spans
from bsmeta.tasks.disambiguation.mention_detection import (
    convert_to_characters,
    cut_windows,
    look_up_spans,
    merge_spans,
    open_mention_detector,
    refuse_model_without_detector,
)
from bsmeta.tasks.disambiguation.model import BiEncoder, build_model
from bsmeta.tasks.disambiguation.texts import Limits
from bsmeta.training.ranks.processes import ALONE
from tests.tasks.disambiguation.helpers import WORDS, write_lines
from tests.tasks.disambiguation.test_dictionary import table_of


def cut(text: str, limits: Limits) -> list[tuple[int, int, int, int]]:
    words = find_word_spans(text)
    return [tuple(window) for window in cut_windows(words, words, limits)]  # tokens are words


def test_a_short_text_is_one_window() -> None:
    assert cut("a b c", Limits(10, 100, 62)) == [(0, 3, 0, 3)]


def test_windows_overlap_by_a_quarter_and_keep_each_token_once() -> None:
    text = " ".join("abcdefghijkl")
    assert cut(text, Limits(10, 100, 8)) == [(0, 8, 0, 7), (6, 12, 7, 12)]
    assert cut(text, Limits(10, 8, 100)) == [(0, 8, 0, 7), (6, 12, 7, 12)]
    assert cut("a b c", Limits(10, 100, 1)) == [(0, 1, 0, 1), (1, 2, 1, 2), (2, 3, 2, 3)]


def test_a_word_of_many_tokens_is_cut() -> None:
    tokens = np.array([(number, number + 1) for number in range(9)])
    assert cut_windows(np.array([(0, 9)]), tokens, Limits(10, 1, 4)) == [
        (0, 4, 0, 3), (3, 7, 3, 6), (6, 9, 6, 9)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "token_spans", "ranges", "found"),
    [
        ("in Lincoln.", [(0, 2), (3, 6), (6, 10), (10, 11)], [(1, 2)], ["Lincoln"]),
        ("in Lincoln.", [(0, 2), (3, 6), (6, 10), (10, 11)], [(1, 2), (2, 3)], ["Lincoln"]),
        ("in Lincoln", [(0, 2), (2, 6), (6, 10)], [(1, 3)], ["Lincoln"]),  # tokens with spaces
        ("use C++ now", [(0, 3), (4, 5), (5, 7), (8, 11)], [(1, 3)], ["C++"]),
        ("a -- b", [(0, 1), (2, 4), (5, 6)], [(1, 2)], []),
        ("我在北京。", [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [(2, 4)], ["北京"]),
        ("น้ำตก", [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [(0, 1)], ["น้ำ"]),
    ],
)
def test_spans_are_widened_to_whole_words(
    text: str, token_spans: list[tuple[int, int]], ranges: list[tuple[int, int]], found: list[str]
) -> None:
    spans = convert_to_characters(text, ranges, np.array(token_spans))
    assert [text[start:end] for start, end in spans] == found


def test_a_span_is_a_mention_if_it_is_a_form_even_a_rare_one(tmp_path: Path) -> None:
    table = table_of(tmp_path, "in", "new york")
    counts = {"in": FormCount(-1, 0, 99), "big apple": FormCount(1, 3, 3)}
    dictionary = AliasDictionary(table, counts=counts, min_share=0.05)
    text = "In the Big Apple, new york"
    assert [text[start:end] for start, end, _ in dictionary(text)] == ["Big Apple", "new york"]
    spans = [(0, 2), (3, 6), (7, 16), (18, 21)]
    assert look_up_spans(text, spans, dictionary) == [Span(0, 2, 0), Span(7, 16, 1)]
    assert (dictionary.find_alias("IN"), dictionary.find_alias("Big  apple")) == (-1, 1)


def test_mentions_of_the_dictionary_fill_the_gaps() -> None:
    detected = [Span(2, 5, 1), Span(8, 10, 2)]
    others = [Span(0, 2, 3), Span(4, 6, 4), Span(5, 8, 5), Span(9, 12, 6), Span(10, 11, 7)]
    assert merge_spans(detected, others) == [
        Span(0, 2, 3), Span(2, 5, 1), Span(5, 8, 5), Span(8, 10, 2), Span(10, 11, 7)
    ]  # fmt: skip


Open = Callable[..., RunData]


@pytest.fixture
def open_data(world: Path, encoder: Path, tmp_path: Path) -> Open:
    def open_with(mode: str = "detector", **keys: Any) -> RunData:
        data = DisambiguationDataConfig(
            train_file=f"{world}/train.jsonl", dev_file=f"{world}/dev.jsonl",
            entity_table=f"{world}/entities", prep_dir=f"{tmp_path}/prep", max_entity_length=48,
            window_length=32, **keys,
        )  # fmt: skip
        config = DisambiguationConfig(
            model_name=str(encoder), data_config=data, mention_detection=mode
        )
        return RunData(config)

    return open_with


def build_word_tagger(data: RunData, words: tuple[str, ...]) -> BiEncoder:
    """Builds a model that tags every occurrence of some words: its layers pass embeddings on."""
    model = build_model(data.config, data.tokenizer).eval()
    embeddings = torch.zeros(len(data.tokenizer), 32)
    embeddings[:, 0] = 1.0
    for word in words:
        embeddings[data.tokenizer.convert_tokens_to_ids(word)] = torch.eye(32)[1]

    class Lookup(nn.Module):
        config = model.mention_encoder.config

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return type("Encoded", (), {"last_hidden_state": embeddings[input_ids]})

    assert model.tag_layer is not None
    model.mention_encoder = Lookup()  # type: ignore[assignment]
    nn.init.zeros_(model.tag_layer.bias)
    nn.init.zeros_(model.tag_layer.weight)
    with torch.no_grad():
        model.tag_layer.weight[0, 0] = 1.0
        model.tag_layer.weight[1, 1] = 1.0
    return model


TEXTS = ["The seal saw a boat by the bank.", "", "near old spring, the crane " * 40]


@pytest.mark.parametrize(
    ("mode", "first"),
    [
        ("dictionary", ["seal", "bank"]),
        ("detector", ["seal"]),  # `boat` is tagged, too, but no alias
        ("both", ["seal", "bank"]),
    ],
)
def test_the_configured_detection_finds_mentions(
    open_data: Open, mode: str, first: list[str]
) -> None:
    tagging = open_data("detector")
    model = build_word_tagger(tagging, ("seal", "boat", "crane"))
    detector = open_mention_detector(open_data(mode), model)
    mentions = detector(TEXTS)
    assert [TEXTS[0][start:end] for start, end, _ in mentions[0]] == first
    assert mentions[1] == []
    words = [TEXTS[2][start:end] for start, end, _ in mentions[2]]
    assert words == (["crane"] * 40 if mode == "detector" else ["spring", "crane"] * 40)


def test_held_out_mentions_are_measured_for_all_systems(open_data: Open, tmp_path: Path) -> None:
    data = open_data()
    model = build_word_tagger(data, ("seal", "boat"))
    line = {
        "aliases": ["seal", "bank"],
        "qids": ["seal-river", "bank-river"],
        "gold": [True, False],
    }
    lines = [
        {**line, "sent_idx_unq": 1, "sentence": "the seal near bank", "spans": [[1, 2], [3, 4]]},
        {**line, "sent_idx_unq": 2, "sentence": "crane seal boat bank", "spans": [[1, 2], [3, 4]]},
    ]
    held_out = read_marked_texts(write_lines(tmp_path / "dev.jsonl", lines))
    assert held_out.marked == [
        MarkedSpans(frozenset({(4, 8)}), frozenset({(14, 18)})),
        MarkedSpans(frozenset({(6, 10)}), frozenset({(16, 20)})),
    ]
    counts = measure_detection(data, model, held_out, ALONE)
    values = {
        system: tuple(metric.compute(of_system) for metric in MENTION_METRICS.values())
        for system, of_system in counts.items()
    }
    assert values == {
        "dictionary": (2 / 3, 1.0, 0.8),  # also `crane`; `bank` is a weak label
        "detector": (1.0, 1.0, 1.0),
        "both": (2 / 3, 1.0, 0.8),
    }
    assert counts["detector"].unlinked.tolist() == [0, 1]  # `boat`
    assert counts["dictionary"].unlinked.tolist() == [0, 0]


def test_a_model_without_a_detector_is_refused(open_data: Open) -> None:
    data = open_data("dictionary")
    model = build_model(data.config, data.tokenizer)
    refuse_model_without_detector("dictionary", model, Path("run/model"))
    for mode in ("detector", "both"):
        with pytest.raises(ConfigurationError) as refused:
            refuse_model_without_detector(mode, model, Path("run/model"))
        assert str(refused.value) == (
            f"mention_detection={mode}: the model in run/model has no mention detector, because it "
            "was trained with mention_detection=dictionary; expected one that was trained with "
            "detector or both. Fix: train it again, or mention_detection=dictionary"
        )
    refuse_model_without_detector("both", build_word_tagger(open_data(), WORDS), Path("run/model"))
