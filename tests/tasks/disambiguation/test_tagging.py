"""Tags of training lines, the loss over them, and the mentions that they stand for."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bsmeta.tasks.disambiguation.config import DisambiguationDataConfig
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import Problems, find_word_spans, read_lines
from bsmeta.tasks.disambiguation.tagging import (
    LineTagger,
    build_tag_tensors,
    compute_tag_loss,
    decode_tags,
)
from bsmeta.tasks.disambiguation.texts import Row
from tests.tasks.disambiguation.helpers import write
from tests.tasks.disambiguation.test_dictionary import table_of

SENTENCE = "New York City hall in York and new york"


def write_line(folder: Path, mentions: list[tuple[str, int, int, bool]]) -> Path:
    line = {
        "sentence": SENTENCE,
        "sent_idx_unq": 1,
        "aliases": [alias for alias, _, _, _ in mentions],
        "qids": ["Q0"] * len(mentions),
        "char_spans": [[start, end] for _, start, end, _ in mentions],
        "gold": [is_gold for _, _, _, is_gold in mentions],
    }
    return write(folder / "train.jsonl", [line])


def tag_words(tagger: LineTagger, path: Path) -> list[int]:
    (line,) = read_lines(path, Problems(path))
    return tagger.tag(line, find_word_spans(line.text)).tolist()


@pytest.fixture
def table(tmp_path: Path) -> EntityTable:
    return table_of(tmp_path / "table", "york", "new york", "new york city")


def make_tagger(folder: Path, path: Path, table: EntityTable, **keys: Any) -> LineTagger:
    config = DisambiguationDataConfig(train_file=str(path), **keys)
    return LineTagger(config, table, folder / "forms")


MENTIONS = [
    ("york", 4, 8, True),  # inside the next one
    ("new york city", 0, 13, True),
    ("york", 22, 26, False),
]


def test_the_first_and_longest_of_overlapping_mentions_is_tagged(
    tmp_path: Path, table: EntityTable
) -> None:
    path = write_line(tmp_path, MENTIONS)
    tags = tag_words(make_tagger(tmp_path, path, table), path)
    assert tags == [1, 2, 2, 0, 0, 1, 0, 0, 0]  # BII OO B OOO


def test_weak_labels_are_mentions_only_if_they_are_trained_on(
    tmp_path: Path, table: EntityTable
) -> None:
    path = write_line(tmp_path, MENTIONS)
    tags = tag_words(make_tagger(tmp_path, path, table, use_weak_labels=False), path)
    assert tags == [1, 2, 2, 0, 0, 0, 0, 0, 0]


def test_unmarked_matches_of_the_dictionary_have_a_tag_of_their_own(
    tmp_path: Path, table: EntityTable
) -> None:
    path = write_line(tmp_path, MENTIONS)
    tagger = make_tagger(tmp_path, path, table, unmarked_match_weight=0.0)
    assert tag_words(tagger, path) == [1, 2, 2, 0, 0, 1, 0, 3, 3]
    assert tag_words(pickle.loads(pickle.dumps(tagger)), path) == [1, 2, 2, 0, 0, 1, 0, 3, 3]


def test_only_settings_that_change_the_tags_change_their_key(
    tmp_path: Path, table: EntityTable
) -> None:
    path = write_line(tmp_path, MENTIONS)

    def key(**keys: Any) -> dict[str, Any]:
        return make_tagger(tmp_path, path, table, **keys).key

    assert key() == key(min_mention_share=0.2)  # no dictionary is used
    assert key(unmarked_match_weight=0.0) == key(unmarked_match_weight=0.5) != key()
    some = key(unmarked_match_weight=0.5)
    assert some != key(unmarked_match_weight=0.5, min_mention_share=0.2)
    assert some != key(unmarked_match_weight=0.5, alias_form="lemma_pos")
    assert key() != key(use_weak_labels=False)


def make_row(tags: list[int]) -> Row:
    none = np.zeros(0, np.int64)
    return Row(
        number=0, sentence=0, document=0, tokens=np.zeros(len(tags), np.int64), starts=none,
        ends=none, aliases=none, entities=none.reshape(0, 1), is_gold=none.astype(bool),
        positions=none, slices=[], tags=np.array(tags, np.uint8),
    )  # fmt: skip


def test_special_tokens_padding_and_untagged_rows_have_no_weight() -> None:
    rows = [make_row([1, 2, 3]), make_row([0, 1])]
    tensors = build_tag_tensors(rows, [True, False], torch.Size((2, 5)), 1, 0.25)
    assert tensors["tags"].tolist() == [[0, 1, 2, 0, 0], [0, 0, 1, 0, 0]]
    assert tensors["tag_weights"].tolist() == [[0, 1, 1, 0.25, 0], [0, 0, 0, 0, 0]]


def test_the_loss_is_a_weighted_sum_of_log_probabilities() -> None:
    scores = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]]))
    loss = compute_tag_loss(scores, torch.tensor([[0, 1, 2]]), torch.tensor([[1.0, 0.5, 0.0]]))
    assert loss.item() == pytest.approx(math.log(2) + 0.5 * math.log(1.25))


@pytest.mark.parametrize(
    ("tags", "mentions"),
    [
        ([], []),
        ([0, 1, 2, 2, 0, 1], [(1, 4), (5, 6)]),
        ([1, 1, 2], [(0, 1), (1, 3)]),
        ([2, 2, 0, 2], [(0, 2), (3, 4)]),  # an I after an O begins a mention
    ],
)
def test_tags_stand_for_ranges_of_tokens(tags: list[int], mentions: list[tuple[int, int]]) -> None:
    assert decode_tags(np.array(tags, np.int64)) == mentions
