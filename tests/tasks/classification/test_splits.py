"""Splits are stratified, and neither a folded text nor a group is in two of them."""

from __future__ import annotations

import csv
import logging
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bsmeta.tasks.classification.config import ClassificationConfig, find_value_problems
from bsmeta.tasks.classification.evaluate import read_test_split
from bsmeta.tasks.classification.examples import open_examples
from bsmeta.tasks.classification.store import (
    describe_similar_labels,
    leave_out_duplicates,
    split_rows,
)
from tests.tasks.classification.helpers import bert_tokenizer, data_config, write_csv

LEANINGS = Path(__file__).resolve().parents[4] / "shared/data/classification/leanings.csv"
SPLITS = ("train", "validation", "test")
TOKENIZER = bert_tokenizer()
FRACTIONS = [0.8, 0.1, 0.1]


def test_each_label_has_its_share_of_each_split() -> None:
    labels = np.repeat([0, 1, 2], [700, 200, 100])
    found = split_rows(labels, None, np.arange(1000), FRACTIONS, ("a", "b", "c"), seed=1)
    counts = [np.bincount(labels[found == split]).tolist() for split in range(3)]
    assert counts == [[560, 160, 80], [70, 20, 10], [70, 20, 10]]


def test_the_seed_determines_the_splits() -> None:
    labels, texts = np.arange(200) % 2, np.arange(200)
    first = split_rows(labels, None, texts, FRACTIONS, ("a", "b"), seed=1)
    assert (first == split_rows(labels, None, texts, FRACTIONS, ("a", "b"), seed=1)).all()
    assert (first != split_rows(labels, None, texts, FRACTIONS, ("a", "b"), seed=2)).any()


def test_a_fraction_of_zero_is_no_split() -> None:
    labels, texts = np.arange(100) % 2, np.arange(100)
    for groups in (None, np.arange(100) // 4):
        found = split_rows(labels, groups, texts, [0.9, 0, 0.1], ("a", "b"), seed=0)
        assert 5 <= (found == 2).sum() <= 15
        assert not (found == 1).any()
        assert not split_rows(labels, groups, texts, [1, 0, 0], ("a", "b"), seed=0).any()


@given(
    labels=st.lists(st.integers(0, 2), min_size=30, max_size=200),
    groups=st.none() | st.integers(3, 40),
    fractions=st.sampled_from(
        [[0.8, 0.1, 0.1], [0.5, 0.25, 0.25], [0.7, 0, 0.3], [0.6, 0.15, 0.25]]
    ),
    seed=st.integers(0, 9),
)
def test_groups_are_whole_and_no_split_is_empty(
    labels: list[int], groups: int | None, fractions: list[float], seed: int
) -> None:
    numbers = np.array([*labels, *(range(3))])
    owners = None if groups is None else np.arange(len(numbers)) * 7 % groups
    units = np.arange(len(numbers)) if owners is None else owners
    assume(all(len({*units[numbers == label].tolist()}) >= 3 for label in range(3)))
    found = split_rows(numbers, owners, np.arange(len(numbers)), fractions, "abc", seed)
    assert {*found.tolist()} == {n for n in range(3) if fractions[n]}
    if owners is not None:
        for first, second in combinations(range(3), 2):
            assert not {*owners[found == first]} & {*owners[found == second]}


def test_many_groups_are_divided_alike() -> None:
    groups = np.repeat(np.arange(5000), 1 + np.arange(5000) % 7)
    labels = (groups % 5 < 2).astype(int)
    labels[groups < 4] = 2
    labels[5::4000] = 3  # in five groups, and in none of them the commonest
    texts = np.arange(len(groups))
    found = split_rows(labels, groups, texts, FRACTIONS, "abcd", seed=3)
    shares = np.bincount(found) / len(found)
    assert shares == pytest.approx(FRACTIONS, abs=0.01)
    for split in range(3):
        assert np.mean(labels[found == split] == 1) == pytest.approx(np.mean(labels == 1), abs=0.02)
        for other in range(split):
            assert not {*groups[found == split]} & {*groups[found == other]}
    assert (found == split_rows(labels, groups, texts, FRACTIONS, "abcd", seed=3)).all()


@given(
    repeated=st.lists(st.integers(1, 30), min_size=9, max_size=80),
    fractions=st.sampled_from([[0.8, 0.1, 0.1], [0.5, 0.25, 0.25], [0.7, 0, 0.3]]),
    seed=st.integers(0, 9),
)
def test_equal_texts_are_in_one_split_which_has_every_label(
    repeated: list[int], fractions: list[float], seed: int
) -> None:
    texts = np.repeat(np.arange(len(repeated)), repeated)
    labels = texts % 3
    found = split_rows(labels, None, texts, fractions, "abc", seed)
    for text in range(len(repeated)):
        assert len({*found[texts == text].tolist()}) == 1
    wanted = [split for split in range(3) if fractions[split]]
    for split in wanted if len({*repeated}) > 1 or repeated[0] > 1 else []:
        assert {*labels[found == split].tolist()} == {0, 1, 2}


def test_rows_of_repeated_texts_have_their_share_of_each_split() -> None:
    texts = np.repeat(np.arange(2000), np.where(np.arange(2000) % 4 == 0, 3, 1))
    texts = np.append(texts, np.full(600, 2000))  # one of them very often
    labels = np.append(np.arange(3000) % 5 == 0, np.zeros(600, bool)).astype(int)
    found = split_rows(labels, None, texts, FRACTIONS, "ab", seed=3)
    assert np.bincount(found).tolist() == pytest.approx([2880, 360, 360], abs=40)
    assert (found[texts == 2000] == 0).all()
    counts = np.bincount(texts)[texts]
    assert all(0.4 < np.mean(counts[found == split] == 3) < 0.6 for split in (1, 2))


def test_a_text_of_two_groups_is_in_the_later_split_only() -> None:
    texts = np.array([0, 1, 2, 0, 0, 2])
    splits = np.array([0, 0, 1, 1, 2, 1])
    assert leave_out_duplicates(texts, splits).tolist() == [3, 1, 2, 3, 0, 2]


@pytest.mark.long
@pytest.mark.parametrize("split_by", [None, "address"])
@pytest.mark.skipif(not LEANINGS.exists(), reason=f"{LEANINGS} is not on this machine")
def test_the_splits_of_the_addresses(tmp_path: Path, split_by: str | None) -> None:
    config = data_config(
        LEANINGS, database=str(tmp_path / "a.sqlite"), label_column="leaning", split_by=split_by
    )
    examples = open_examples(config, TOKENIZER)
    rows, groups, shares = {}, {}, {}
    for split in SPLITS:
        chunks = examples.read(examples.list_chunks(split))
        rows[split] = {chunk.source for chunk in chunks}
        assert rows[split] == {*examples.list_sources(split).tolist()}
        groups[split] = {*examples.list_groups(split)}
        counts = examples.count_labels(split)
        shares[split] = counts["liberal"] / sum(counts.values())
    # Twelve headings and salutations are in several addresses of one speaker.
    found = "".join(examples.facts["warnings"])
    assert "39 of 5,845 rows repeat the text of an earlier row" in found
    without = int(re.findall(r"(\d+) rows are in no split", found)[0]) if split_by else 0
    assert sum(map(len, rows.values())) == 5845 - without
    texts = {name: {" ".join(text.split()) for _, text, _ in examples.read_texts(name)}
             for name in SPLITS}  # fmt: skip
    for first, second in combinations(SPLITS, 2):
        assert not rows[first] & rows[second]
        assert not texts[first] & texts[second]
        assert not groups[first] & groups[second]
    if split_by:
        assert [len(groups[split]) for split in SPLITS] == [54, 6, 5]
        assert all(0.5 < share < 0.6 for share in shares.values())
        assert without > 0
    else:
        assert [len(rows[split]) for split in SPLITS] == pytest.approx([4675, 585, 585], abs=2)
        assert max(shares.values()) - min(shares.values()) < 0.002


@pytest.mark.skipif(not LEANINGS.exists(), reason=f"{LEANINGS} is not on this machine")
def test_texts_that_a_table_repeats(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Three thousand paragraphs, a third of the different ones three times, with other spaces."""
    with LEANINGS.open(newline="", encoding="utf-8") as file:
        every = {" ".join(row["text"].split()): row["leaning"] for row in csv.DictReader(file)}
    rows = [*every.items()][:1800]
    rows += [(text.replace(" ", "  ") + "\n", label) for text, label in rows[:600]] + rows[:600]
    rows[-1] = (rows[599][0], "conservative" if rows[599][1] == "liberal" else "liberal")
    table = write_csv(tmp_path / "table.csv", rows, ["text", "label"])
    with caplog.at_level(logging.WARNING):
        examples = open_examples(data_config(table, max_length=64), TOKENIZER)
    assert "1,200 of 3,000 rows repeat the text of an earlier row" in caplog.text
    first, second = rows[599][1], rows[-1][1]
    expected = f"1 text has more than one label: row 600 ({first}) and row 3,000 ({second})"
    assert expected in caplog.text
    found = [[text for _, text, _ in examples.read_texts(split)] for split in SPLITS]
    assert [len(texts) for texts in found] == pytest.approx([2400, 300, 300], abs=6)
    plain = [{" ".join(text.split()) for text in texts} for texts in found]
    assert not any(one & other for one, other in combinations(plain, 2))
    # The rows of one text are one unit of the bootstrap.
    assert len({*examples.list_groups("test")}) == len(plain[2])


def test_texts_in_two_declared_splits_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = ["train", "train", "test", "test", "validation"]
    rows = [(f"stop {n // 2}", "ab"[n % 2], name) for n, name in enumerate(parts * 2)]
    rows += [("stop  0", "a", "test"), ("stop 0\n", "a", "validation")]
    table = write_csv(tmp_path / "table.csv", rows, ["text", "label", "part"])
    with caplog.at_level(logging.WARNING):
        examples = open_examples(data_config(table, split_column="part"), TOKENIZER)
    assert len(examples.list_sources("test")) == 5
    assert "2 of 5 rows of the test split have a text that is also in the training split" in (
        caplog.text
    )
    in_validation = (
        "2 of 3 rows of the validation split have a text that is also in the training split: "
        "systems, settings and thresholds are chosen on scores that are too high"
    )
    assert f"{table}: {in_validation}" in caplog.text
    # The report on the test split has the same notes.
    config = ClassificationConfig(data_config=data_config(table, split_column="part"))
    assert in_validation in read_test_split(config, examples).notes


def test_labels_that_differ_in_case_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = ["Left", "left", "right", "far  right", "Far right"]
    rows = [(f"stop {n}", labels[n % 5]) for n in range(20)]
    table = write_csv(tmp_path / "table.csv", rows, ["text", "label"])
    with caplog.at_level(logging.WARNING):
        open_examples(data_config(table), TOKENIZER)
    expected = "labels that may be meant as one: 'Far right' and 'far  right', 'Left' and 'left'"
    assert expected in caplog.text


def test_a_column_with_the_splits(tmp_path: Path) -> None:
    names = ["train", "Training", "dev", "val", " test ", "TEST", "validation", "train"]
    rows = [(f"stop {n}", "ab"[n // 2 % 2], name) for n, name in enumerate(names)]
    table = write_csv(tmp_path / "table.csv", rows, ["text", "label", "part"])
    config = data_config(table, split_column="part", split_by="text")
    assert not list(find_value_problems(ClassificationConfig(data_config=config)))
    examples = open_examples(config, TOKENIZER)
    assert [examples.list_sources(split).tolist() for split in SPLITS] == [
        [1, 2, 8],
        [3, 4, 7],
        [5, 6],
    ]


@pytest.mark.parametrize(
    ("labels", "pairs"),
    [
        (["1", "1.0", "2", "+2.00"], "'1' and '1.0', '+2.00' and '2'"),
        (["0.5", ".5", "5e-1"], "'.5' and '0.5', '0.5' and '5e-1'"),
        (
            ["1", "2", "1.1", "v1", "v1.0", "nan", "1e99999", "1" + 30 * "0", "1" + 29 * "0" + "1"],
            "",
        ),
    ],
)
def test_labels_of_the_same_number_are_reported(labels: list[str], pairs: str) -> None:
    assert describe_similar_labels(labels) == (
        [f"labels that may be meant as one: {pairs}"] if pairs else []
    )
