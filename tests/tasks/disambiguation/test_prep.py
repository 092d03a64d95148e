"""The store of encoded sentences: their rows, of which none loses a mention; when it is refused."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.disambiguation import prep
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import Problems, read_lines
from bsmeta.tasks.disambiguation.prep import Sentences, count_shared_sentences, open_prep
from bsmeta.tasks.disambiguation.profiles import (
    add_entities,
    build_entities,
    remove_entities,
    update_entities,
)
from bsmeta.tasks.disambiguation.texts import (
    Chunk,
    Limits,
    divide_sentence,
    find_overlaps,
    widen_range,
)
from tests.conftest import REPOSITORY
from tests.tasks.disambiguation import helpers
from tests.tasks.disambiguation.helpers import CITY, LINCOLN, TODD, write
from tests.tasks.training import TRAIN
from tests.waiting import STUCK_S, wait_until


def words_of(lengths: list[int]) -> np.ndarray:
    """Words of these lengths, with a space between them."""
    ends = np.cumsum(np.array(lengths, np.int64) + 1) - 1
    return np.stack([ends - lengths, ends], axis=1) if lengths else np.empty((0, 2), np.int64)


def letters(words: np.ndarray) -> np.ndarray:
    """A token for each letter."""
    places = [place for start, end in words.tolist() for place in range(start, end)]
    return np.array([(place, place + 1) for place in places], np.int64).reshape(-1, 2)


def test_a_sentence_that_fits_is_one_row() -> None:
    words = words_of([1] * 6)
    mentions = np.array([[4, 7], [0, 1]])
    chunks, lost = divide_sentence(mentions, words, letters(words), Limits(2, 6, 6))
    assert chunks == [Chunk(0, 6, [1, 0])]
    assert lost == 0


def test_too_many_mentions_become_rows_of_about_as_many() -> None:
    words = words_of([1] * 11)
    chunks, lost = divide_sentence(words, words, letters(words), Limits(10, 100, 100))
    assert chunks == [Chunk(0, 11, [0, 1, 2, 3, 4, 5]), Chunk(0, 11, [6, 7, 8, 9, 10])]
    assert lost == 0


def test_a_long_sentence_is_cut_around_its_mentions() -> None:
    words = words_of([1] * 20)
    chunks, lost = divide_sentence(words[[2, 9, 19]], words, letters(words), Limits(10, 5, 100))
    assert chunks == [Chunk(0, 5, [0]), Chunk(7, 12, [1]), Chunk(15, 20, [2])]
    assert lost == 0


def test_long_words_are_cut_at_tokens() -> None:
    words = words_of([50, 4, 50])
    chunks, lost = divide_sentence(words[[1]], words, letters(words), Limits(10, 100, 10))
    assert chunks == [Chunk(47, 57, [0])]
    assert lost == 0


def test_mentions_that_no_row_can_hold_are_counted() -> None:
    words = words_of([1] * 20)
    mentions = np.array([[0, 11], [3, 4], [0, 1]])  # six words; a space; a word
    chunks, lost = divide_sentence(mentions, words, letters(words), Limits(10, 5, 100))
    assert chunks == [Chunk(0, 5, [2])]
    assert lost == 2


@pytest.mark.parametrize(
    ("start", "end", "size", "found"),
    [(4, 6, 6, (2, 8)), (1, 2, 5, (0, 5)), (9, 10, 5, (5, 10)), (4, 6, 99, (0, 10))],
)
def test_a_window_uses_all_its_room(
    start: int, end: int, size: int, found: tuple[int, int]
) -> None:
    assert widen_range(start, end, 0, 10, size) == found


@st.composite
def sentences(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Limits]:
    words = words_of(draw(st.lists(st.integers(1, 6), max_size=40)))
    length = int(words[-1, 1]) if len(words) else 0
    spans = st.tuples(st.integers(0, length), st.integers(1, 12))
    mentions = [(start, start + size) for start, size in draw(st.lists(spans, max_size=30))]
    limits = Limits(*(draw(st.integers(1, most)) for most in (12, 20, 40)))
    return np.array(mentions, np.int64).reshape(-1, 2), words, limits


@given(sentences())
def test_no_mention_is_lost_or_doubled(case: tuple[np.ndarray, np.ndarray, Limits]) -> None:
    mentions, words, limits = case
    tokens = letters(words)
    chunks, lost = divide_sentence(mentions, words, tokens, limits)
    held = [number for chunk in chunks for number in chunk.mentions]
    assert len({*held}) == len(held)
    for number in {*range(len(mentions))} - {*held}:
        start, end = mentions[number]
        covered = (tokens[:, 1] > start) & (tokens[:, 0] < end)
        in_words = (words[:, 1] > start) & (words[:, 0] < end)
        assert not covered.any() or covered.sum() > limits.tokens or in_words.sum() > limits.words
    assert lost == len(mentions) - len(held)
    in_tokens = find_overlaps(mentions, tokens)
    for chunk in chunks:
        assert 0 < len(chunk.mentions) <= limits.mentions
        assert 0 <= chunk.start < chunk.end <= len(tokens)
        assert chunk.end - chunk.start <= limits.tokens
        text = tokens[chunk.start, 0], tokens[chunk.end - 1, 1]
        assert ((words[:, 1] > text[0]) & (words[:, 0] < text[1])).sum() <= limits.words
        for first, after in in_tokens[chunk.mentions]:
            assert chunk.start <= first < after <= chunk.end


LIMITS = Limits(2, 100, 100)
SENTENCE = "Lincoln married Mary Todd Lincoln in [SEP] Lincoln ."
LINE: dict[str, Any] = {
    "sentence": SENTENCE,
    "sent_idx_unq": 7,
    "aliases": ["lincoln", "mary lincoln", "lincoln"],
    "qids": ["Q91", "Q94", "Q28260"],
    "char_spans": [[0, 7], [16, 33], [43, 50]],
    "gold": [True, False, True],
    "document": "wedding",
    "slices": {"tail": {"2": 1.0, "1": 1.0}},
}

Open = Callable[..., Sentences]
Launch = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(REPOSITORY / "examples/tokenizer")


@pytest.fixture
def open_lines(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Open:
    build_entities(write(tmp_path / "profiles.jsonl", [LINCOLN, TODD, CITY]), tmp_path / "table")

    def call(
        lines: list[Any] | None = None, limits: Limits = LIMITS, workers: int = 1, **options: bool
    ) -> Sentences:
        path = tmp_path / "train.jsonl"
        if lines is not None:
            write(path, lines)
        table = EntityTable.open(tmp_path / "table")
        folder = tmp_path / "prep/train"
        return open_prep(path, table, tokenizer, folder, limits, workers=workers, **options)

    return call


def test_rows_have_the_tokens_and_the_mentions(
    open_lines: Open, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    found = open_lines([LINE])
    first, second = found.rows
    assert tokenizer.decode(first["input_ids"]) == SENTENCE
    assert second["input_ids"] == first["input_ids"]

    def texts(row: dict[str, Any]) -> list[str]:
        spans = zip(row["start"], row["end"], strict=True)
        return [tokenizer.decode(row["input_ids"][start:end]).strip() for start, end in spans]

    assert texts(first) == ["Lincoln", "Mary Todd Lincoln"]
    assert texts(second) == ["Lincoln"]
    names = ("sentence", "line", "alias", "entities", "gold", "position", "slices")
    assert {name: first[name] for name in names} == {
        "sentence": 7,
        "line": 1,
        "alias": [0, 2],
        "entities": [[1], [2]],
        "gold": [True, False],
        "position": [0, 1],
        "slices": [[], []],
    }
    assert {name: second[name] for name in names} == {
        "sentence": 7,
        "line": 1,
        "alias": [0],
        "entities": [[3]],
        "gold": [True],
        "position": [2],
        "slices": [["tail"]],
    }
    assert first["document"] == second["document"] > 0
    facts = {"sentences": 1, "rows": 2, "mentions": 3, "lost": 0, "slices": ["tail"]}
    assert {name: found.facts[name] for name in facts} == facts
    assert str(found).startswith("1 sentences, 2 rows, 3 mentions (0 left out), ")
    assert [file.name for file in (tmp_path / "prep").iterdir()] == ["train.lock", "train"]
    assert found.rows.features["input_ids"].feature.dtype == "uint16"


def test_aliases_of_lines_are_found_in_any_case_and_composition(
    open_lines: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    street = {"entity_id": "Q34442", "mentions": [["Straße", 1], ["caf\u00e9", 1]], "title": "road"}
    add_entities(write(tmp_path / "new.jsonl", [street]), tmp_path / "table")
    line = {
        "sentence": "In der Straße, STRASSE, cafe\u0301 of LINCOLN .",
        "sent_idx_unq": 1,
        "aliases": ["straße", "Straße", "Cafe\u0301", "Lincoln"],
        "qids": ["Q34442", "Q34442", "Q34442", "Q91"],
        "char_spans": [[7, 13], [15, 22], [24, 29], [33, 40]],
        "gold": [True] * 4,
    }
    rows = open_lines([line], Limits(10, 100, 100)).rows
    aliases = EntityTable.open(tmp_path / "table").aliases
    assert [aliases[number] for number in rows[0]["alias"]] == [
        "strasse", "strasse", "caf\u00e9", "lincoln",
    ]  # fmt: skip
    assert (
        f"{tmp_path}/train.jsonl: aliases that are looked up in lower case, composed, with single "
        "spaces: 4"
    ) in caplog.messages


@pytest.mark.long
def test_any_number_of_processes_builds_the_same(
    open_lines: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prep, "LINES_PER_PART", 3)
    monkeypatch.setattr(prep, "PARTS_PER_GROUP", 2)
    lines = [{**LINE, "sent_idx_unq": number} for number in range(16)]
    expected = open_lines(lines).rows[:]
    assert expected["sentence"] == [number for number in range(16) for _ in range(2)]
    (tmp_path / "prep/train").rename(tmp_path / "before")
    assert open_lines(workers=2).rows[:] == expected


def test_lost_mentions_are_counted_and_reported(
    open_lines: Open, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [
        LINE,
        {**LINE, "sent_idx_unq": 8, "qids": ["Q91"], "aliases": ["lincoln"], "gold": [True],
         "char_spans": [[0, 30]], "slices": None},
    ]  # fmt: skip
    found = open_lines(lines, Limits(10, 3, 100))
    assert found.facts["lost"] == 1
    assert found.facts["mentions"] == 3
    assert found.facts["sentences"] == 1
    assert found.rows["sentence"][:] == [7, 7, 7]
    assert "they have no token: 1 (first lines: 2)" in caplog.text


@pytest.mark.parametrize("workers", [1, 2])
def test_invalid_lines_are_named(
    open_lines: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(prep, "LINES_PER_PART", 2)
    bad = {**LINE, "sent_idx_unq": 9, "qids": ["Q91", "Q7", "Q8"]}
    bad["aliases"] = ["lincoln", "lnk", "lincoln"]
    with pytest.raises(DataError) as error:
        open_lines([LINE, {**LINE, "sent_idx_unq": 8}, bad], workers=workers)
    assert str(error.value).splitlines() == [
        f"{tmp_path}/train.jsonl: 3 problems; correct the file",
        "  line 3: no entity has the alias 'lnk'",
        "  line 3: there is no entity 'Q7'",
        "  line 3: there is no entity 'Q8'",
    ]


def test_a_sentence_number_that_is_not_unique_is_named(open_lines: Open) -> None:
    with pytest.raises(DataError, match="line 3: sent_idx_unq 7 is that of line 1, too"):
        open_lines([LINE, {**LINE, "sent_idx_unq": 8}, LINE])


def test_a_plain_file_with_the_name_of_a_compressed_one_is_not_called_empty(
    open_lines: Open, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    open_lines([LINE])
    plain = (tmp_path / "train.jsonl").rename(tmp_path / "train.jsonl.gz")
    table = EntityTable.open(tmp_path / "table")
    with pytest.raises(
        DataError, match=r"train.jsonl.gz: damaged after line 0: the file is not co"
    ):
        open_prep(plain, table, tokenizer, tmp_path / "prep/plain", LIMITS)


def test_a_file_without_mentions_is_refused(open_lines: Open) -> None:
    with pytest.raises(DataError, match=r"train.jsonl is empty"):
        open_lines([])
    empty = {"aliases": [], "qids": [], "char_spans": [], "gold": [], "slices": None}
    with pytest.raises(DataError, match="has no mention"):
        open_lines([{**LINE, **empty}])


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        (Limits(3, 100, 100), "data_config.max_mentions: 2 in the store, 3 now"),
        (Limits(2, 99, 100), "data_config.max_words: 100 in the store, 99 now"),
        (Limits(2, 100, 99), "max_tokens: 100 in the store, 99 now"),
    ],
)
def test_a_stale_store_is_refused_by_the_name_of_the_setting(
    open_lines: Open, limits: Limits, line: str
) -> None:
    open_lines([LINE])
    with pytest.raises(ConfigurationError, match=rf"overwrite_prep=true:\n  .*{line}"):
        open_lines(limits=limits)


def test_another_file_or_table_is_refused(
    open_lines: Open, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    open_lines([LINE])
    with pytest.raises(ConfigurationError, match="  file: "):
        open_lines([{**LINE, "sent_idx_unq": 8}])
    other = build_entities(write(tmp_path / "other.jsonl", [LINCOLN, TODD]), tmp_path / "other")
    with pytest.raises(ConfigurationError, match="  data_config.entity_table: "):
        open_prep(tmp_path / "train.jsonl", other, tokenizer, tmp_path / "prep/train", LIMITS)


def test_several_entities_of_a_mention_are_kept(open_lines: Open) -> None:
    found = open_lines([{**LINE, "qids": [["Q91", "Q28260"], "Q94", "Q28260"]}])
    assert [row["entities"] for row in found.rows] == [[[1, 3], [2]], [[3]]]
    with pytest.raises(DataError, match="line 1: there is no entity 'Q7'"):
        open_lines([{**LINE, "qids": [["Q91", "Q7"], "Q94", "Q28260"]}], overwrite=True)


def test_a_stale_store_is_built_again_if_it_may_be(open_lines: Open) -> None:
    open_lines([LINE])
    again = open_lines([{**LINE, "sent_idx_unq": 8}], Limits(3, 100, 100), overwrite=True)
    assert again.rows["sentence"][:] == [8]
    assert open_lines(limits=Limits(3, 100, 100)).key == again.key


def test_stores_of_files_with_one_name_lie_side_by_side(
    open_lines: Open, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    open_lines([LINE])
    table = EntityTable.open(tmp_path / "table")
    for folder, number in (("x", 1), ("y", 2), ("x", 1)):
        path = tmp_path / folder / "dev.jsonl"
        path.parent.mkdir(exist_ok=True)
        write(path, [{**LINE, "sent_idx_unq": number}])
        found = open_prep(path, table, tokenizer, tmp_path / "o/other", LIMITS, by_content=True)
        assert {*found.rows["sentence"][:]} == {number}
    stores = [file for file in (tmp_path / "o").iterdir() if file.is_dir()]
    assert len(stores) == 2


def test_fields_that_are_not_used_are_named(
    open_lines: Open, caplog: pytest.LogCaptureFixture
) -> None:
    open_lines([{**LINE, "title": "x"}, {**LINE, "sent_idx_unq": 8, "title": "y", "sources": []}])
    assert "fields that are not used: title (2 lines), sources (1 lines)" in caplog.text


def test_a_line_with_many_mentions(open_lines: Open) -> None:
    count = (1 << 16) + 2
    line = {
        "sentence": "Lincoln " * count, "sent_idx_unq": 1, "aliases": ["lincoln"] * count,
        "qids": ["Q91"] * count, "gold": [True] * count,
        "spans": [[number, number + 1] for number in range(count)],
    }  # fmt: skip
    found = open_lines([line], Limits(50, 100, 300))
    assert found.facts["mentions"] == count
    assert found.rows[-1]["position"][-1] == count - 1


@pytest.mark.parametrize(("workers", "expected"), [(1, [2, 4, 4, 6, 7, 7]), (2, [7])])
def test_progress_counts_encoded_lines(
    open_lines: Open,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    workers: int,
    expected: list[int],
) -> None:
    monkeypatch.setattr(prep, "LINES_PER_PART", 2)
    monkeypatch.setattr(prep, "PARTS_PER_GROUP", 2)
    shown: list[tuple[str, float, list[float]]] = []

    @contextmanager
    def show_progress_bar(name: str, total: float) -> Iterator[Callable[[float], None]]:
        shown.append((name, total, []))
        yield shown[-1][2].append

    monkeypatch.setattr(prep, "show_progress_bar", show_progress_bar)
    open_lines([{**LINE, "sent_idx_unq": number} for number in range(7)], workers=workers)
    assert shown == [("encoding train.jsonl", 7, expected)]
    assert capfd.readouterr().err == ""  # no bars of datasets


def test_weak_labels_can_be_left_out(open_lines: Open) -> None:
    weak = {**LINE, "sent_idx_unq": 8, "gold": [False] * 3}
    sentences = open_lines([weak, LINE])
    gold = sentences.select_gold()
    assert [len(sentences.lengths), len(gold.lengths)] == [4, 2]
    first, second = gold.read([0, 1])
    assert (first.sentence, first.number, first.is_gold.tolist()) == (7, 0, [True])
    assert (first.aliases.tolist(), first.positions.tolist()) == ([0], [0])
    assert (second.aliases.tolist(), second.positions.tolist()) == ([0], [2])
    assert gold.read_aliases().tolist() == [0, 0]
    assert gold.read_meanings().entities.tolist() == [1, 3]
    assert gold.key == {**sentences.key, "data_config.use_weak_labels": False}
    with pytest.raises(DataError, match="has no gold mention to train on, only weak labels"):
        open_lines([weak], overwrite=True).select_gold()


def test_sentences_of_another_file_are_counted_by_their_text(
    open_lines: Open, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    sentences = open_lines([LINE])
    other_line = {
        "sentence": "Lincoln is a city .",
        "sent_idx_unq": 7,  # the number of another sentence
        "aliases": ["lincoln"],
        "qids": ["Q28260"],
        "char_spans": [[0, 7]],
        "gold": [True],
    }
    mention = {name: LINE[name][2:] for name in ("aliases", "qids", "char_spans", "gold")}
    lines = [
        other_line,
        {**LINE, "sent_idx_unq": 8, "document": "copy"},  # two rows, one sentence
        {**LINE, **mention, "sent_idx_unq": 9, "slices": {}},  # with other mentions
    ]
    path = tmp_path / "other.jsonl"
    write(path, lines)
    table = EntityTable.open(tmp_path / "table")
    others = open_prep(path, table, tokenizer, tmp_path / "prep/other", LIMITS, workers=1)
    assert len(others.rows) == 4
    assert count_shared_sentences(others.read_gold(), sentences) == 2
    assert count_shared_sentences(sentences.read_gold(), others) == 1
    assert count_shared_sentences(others.read_gold()[:1], sentences.select_gold()) == 0


def test_a_store_is_valid_for_a_table_to_which_entities_were_added(
    open_lines: Open, tmp_path: Path
) -> None:
    before = open_lines([LINE]).rows[:]
    new = json.dumps({"entity_id": "Q1", "mentions": [["lincoln", 99]], "title": "Lincoln Park"})
    add_entities(write(tmp_path / "new.jsonl", [new]), tmp_path / "table")
    assert open_lines().rows[:] == before


def test_a_store_with_mentions_that_the_table_has_lost_is_refused(
    open_lines: Open, tmp_path: Path
) -> None:
    before = open_lines([LINE]).rows[:]
    table = tmp_path / "table"
    titles = write(tmp_path / "titles.jsonl", [{"entity_id": "Q94", "title": "Mary"}])
    update_entities(titles, table)
    assert open_lines().rows[:] == before

    remove_entities(write(tmp_path / "names.jsonl", [{"entity_id": "Q94"}]), table)
    with pytest.raises(ConfigurationError) as error:
        open_lines()
    assert str(error.value) == (
        f"{tmp_path}/prep/train was built before {table} was edited (since then: 1 updated (Q94), "
        f"1 removed (Q94)), and has 1 mentions of removed entities (Q94); take them out of "
        f"{tmp_path}/train.jsonl, or add the entities again; then build it again with "
        "data_config.overwrite_prep=true"
    )
    with pytest.raises(DataError) as data_error:
        open_lines(overwrite=True)
    assert str(data_error.value).splitlines()[1:] == [
        "  line 1: no entity has the alias 'mary lincoln'",
        "  line 1: entity 'Q94' was removed from the table",
    ]
    # The entity has its former number, so the sentences are encoded as before.
    add_entities(write(tmp_path / "new.jsonl", [TODD]), table)
    assert open_lines([LINE]).rows[:] == before

    moved = {"entity_id": "Q94", "mentions": [["todd", 1]]}
    update_entities(write(tmp_path / "moved.jsonl", [moved]), table)
    with pytest.raises(ConfigurationError, match=r"1 mentions of aliases without an entity \(mary"):
        open_lines()


def test_a_build_that_is_killed_is_resumed(
    open_lines: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prep, "LINES_PER_PART", 2)
    monkeypatch.setattr(prep, "PARTS_PER_GROUP", 2)
    lines = [{**LINE, "sent_idx_unq": number} for number in range(14)]
    expected = open_lines(lines).rows[:]
    (tmp_path / "prep/train").rename(tmp_path / "undisturbed")
    encode = prep.Encoder.encode_part
    waits = tmp_path / "waits"

    def encode_until_8(encoder: Any, reader: Any, first: int) -> Any:
        if first == 10:
            waits.touch()
            time.sleep(STUCK_S)
        return encode(encoder, reader, first)

    monkeypatch.setattr(prep.Encoder, "encode_part", encode_until_8)
    process = multiprocessing.get_context("fork").Process(target=open_lines)
    process.start()
    wait_until(lambda: waits.exists() or not process.is_alive())
    assert process.is_alive()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert not (tmp_path / "prep/train").exists()
    encoded = []

    def encode_and_note(encoder: Any, reader: Any, first: int) -> Any:
        encoded.append(first)
        return encode(encoder, reader, first)

    monkeypatch.setattr(prep.Encoder, "encode_part", encode_and_note)
    assert open_lines().rows[:] == expected
    assert encoded == [8, 10, 12]  # 0 to 6 are two groups, completed before the kill
    assert sorted(file.name for file in (tmp_path / "prep").iterdir()) == ["train", "train.lock"]


def test_every_mention_of_the_shipped_sentences_is_in_one_row(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    sample = REPOSITORY / "examples/senses_sample"
    table = build_entities(sample / "profiles.jsonl.gz", tmp_path / "table")
    path = sample / "dev.jsonl.gz"
    found = open_prep(path, table, tokenizer, tmp_path / "prep", Limits(2, 12, 30))
    expected = {}
    for line in read_lines(path, Problems(path)):
        for position, mention in enumerate(line.mentions):
            surface = line.text[mention.start : mention.end]
            expected[line.number, position] = (mention.alias, mention.entities, surface.split())
    rows: dict[tuple[int, int], tuple[str, tuple[str, ...], list[str]]] = {}
    for row in found.rows:
        assert 0 < len(row["alias"]) <= 2
        columns = (row[name] for name in ("position", "start", "end", "alias", "entities"))
        for position, start, end, alias, entities in zip(*columns, strict=True):
            assert (row["line"], position) not in rows
            text = tokenizer.decode(row["input_ids"][start:end]).split()
            names = table.aliases[alias], tuple(table.ids[one] for one in entities)
            rows[row["line"], position] = (*names, text)
    assert rows == expected
    assert found.facts["lost"] == 0
    assert found.facts["bytes_per_mention"] < 260


@pytest.mark.parametrize("key", ["prep_only=true", "prep_only=false"])
def test_workers_end_with_the_program(
    launch: Launch, world: Path, encoder: Path, tmp_path: Path, key: str
) -> None:
    """A pool ends its workers with SIGTERM, which a run handles in its own way."""
    bad = {**helpers.lines(1, seed=7)[0], "qids": ["none"]}
    train = helpers.write_lines(tmp_path / "train.jsonl", [*helpers.lines(1200, seed=1), bad])
    done = launch(
        TRAIN, "--config-name", "disambiguation", f"data_config.train_file={train}",
        f"data_config.entity_table={world}/entities", f"model_name={encoder}", key,
        "data_config.max_entity_length=48", "data_config.window_length=32", f"out_dir={tmp_path}/r",
        "data_config.prep_workers=3", "keep_best_by=null", "export_best=false", check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().endswith("line 1,201: there is no entity 'none'")
    assert "Traceback" not in done.stderr
