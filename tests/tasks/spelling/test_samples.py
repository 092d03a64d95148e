"""Samples, their noise, and the steps of a token budget."""

from __future__ import annotations

import gzip
import itertools
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.spelling.config import (
    NoiseConfig,
    SecConfig,
    SedWordsConfig,
    SpellingConfig,
    count_step_parts,
)
from bsmeta.tasks.spelling.correction import CandidateCorrection
from bsmeta.tasks.spelling.samples import (
    Pair,
    Sample,
    compute_prose_share,
    count_held_out_samples,
    open_table,
    read_samples,
    shorten_to_fit,
)
from bsmeta.tasks.spelling.task import WordDetection
from tests.tasks.spelling.helpers import write_misspellings, write_texts


def config_of(schema: type[SpellingConfig], folder: Path, **more: Any) -> Any:
    noise = NoiseConfig(
        misspellings=str(write_misspellings(folder)), word_probability=0.5, artificial_share=0.5
    )
    settings = {
        "datasets": [str(write_texts(folder))], "store_dir": str(folder / "store"),
        "val_splits": [20], "noise": noise, "batch_max_length": 2048,
        "counted_share": 0.0, **more,
    }  # fmt: skip
    return schema(**settings)


def test_samples_are_split_and_read(tmp_path: Path) -> None:
    config = config_of(SedWordsConfig, tmp_path, dataset_limits=[100])
    table = open_table(config)
    train, validation = table.list_numbers("train"), table.list_numbers("validation")
    assert (len(train), len(validation)) == (80, 20)
    samples = table.read(np.concatenate([train, validation]))
    assert len({sample.source for sample in samples}) == 100
    assert all(sample.target is None for sample in samples)
    assert samples == open_table(config).read(np.concatenate([train, validation]))


def test_a_share_of_the_texts_is_counted_and_not_trained_on(tmp_path: Path) -> None:
    config = config_of(SedWordsConfig, tmp_path, counted_share=0.7)
    table = open_table(config)
    splits = [table.list_numbers(split) for split in ("train", "validation", "counted")]
    assert [len(numbers) for numbers in splits] == [30, 20, 70]
    assert len({*np.concatenate(splits).tolist()}) == 120
    encoder = config_of(SedWordsConfig, tmp_path, counted_share=0.7, model_name="owner/encoder")
    assert len(open_table(encoder).list_numbers("train")) == 100  # it knows no counts


def test_a_text_is_for_training_or_for_validation_with_all_its_samples(tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("".join(" ".join([f"word{n}"] * 40) + f" {n}\n" for n in range(9)))
    config = config_of(
        SedWordsConfig, tmp_path, datasets=[str(file)], val_splits=[4], max_characters=100
    )
    table = open_table(config)
    names = [
        {sample.name for sample in table.read(table.list_numbers(split))}
        for split in ("train", "validation")
    ]
    assert [len(texts) for texts in names] == [7, 2]  # of three samples each
    assert not names[0] & names[1]


def test_samples_of_several_sets_have_limits_and_no_copies(tmp_path: Path) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("".join(f"one {n % 30}\n" for n in range(60)))
    second.write_text("".join(f"one {n}\ntwo {n}\n" for n in range(30)))
    config = config_of(
        SedWordsConfig, tmp_path, datasets=[str(first), str(second)],
        dataset_limits=[20, 100], val_splits=[5, 0.1],
    )  # fmt: skip
    table = open_table(config)
    found = {
        split: [s.source.split()[0] for s in table.read(table.list_numbers(split))]
        for split in ("train", "validation")
    }
    assert {name: found["train"].count(name) for name in ("one", "two")} == {"one": 15, "two": 27}
    assert {name: found["validation"].count(name) for name in ("one", "two")} == {
        "one": 5, "two": 3,
    }  # fmt: skip
    texts = [s.source for s in table.read(np.arange(50))]
    assert len({*texts}) == 50


@pytest.mark.long
def test_samples_do_not_live_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allocated is what is read at once: 1 MB of a file to hash, a batch of samples."""
    monkeypatch.setattr("bsmeta.tasks.spelling.samples.BATCH_SAMPLES", 100)
    file = tmp_path / "large.txt"
    with file.open("w") as opened:
        opened.writelines(
            f"{'somemorewordsofonetext ' * 8}{' '.join(f'{n:05}')}\n" for n in range(15_000)
        )
    assert file.stat().st_size > 2_800_000

    def first_steps(**more: Any) -> int:
        task = WordDetection(config_of(SedWordsConfig, tmp_path, **more))
        assert len([*itertools.islice(task.train_stream(0, 1, None), 3)]) == 3
        return task.steps_per_epoch(1)

    first_steps()  # imports what is needed
    tracemalloc.start()
    try:
        # The features of a batch take memory, too, so the batches are small.
        few = {"batch_max_length": 256, "val_splits": [20]}
        assert first_steps(datasets=[str(file)], **few) > 300
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_500_000


def test_lengths_are_computed_once(tmp_path: Path) -> None:
    table = open_table(config_of(SedWordsConfig, tmp_path))
    calls = []

    def measure(samples: list[Sample]) -> np.ndarray:
        calls.append(len(samples))
        return np.array([len(sample.source) for sample in samples])

    first = table.measure_lengths("characters", measure)
    expected = [len(sample.source) for sample in table.read(table.list_numbers("train"))]
    assert first.tolist() == expected
    again = open_table(config_of(SedWordsConfig, tmp_path)).measure_lengths("characters", measure)
    assert again.tolist() == expected
    assert calls == [100]
    assert table.measure_lengths("other", measure).tolist() == expected
    assert calls == [100, 100]


def test_a_changed_file_beside_one_of_the_same_name_is_read_again(tmp_path: Path) -> None:
    files = [tmp_path / "set" / language / "part.txt" for language in ("de", "en")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text(f"{file.parent.name} before\n")
    config = config_of(SedWordsConfig, tmp_path, datasets=[str(tmp_path / "set")], val_splits=[])
    assert sorted(open_table(config).read_texts("train")) == ["de before", "en before"]
    files[0].write_text("de after\n")
    assert sorted(open_table(config).read_texts("train")) == ["de after", "en before"]


def test_a_word_list_without_counts_is_named(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("hello 5\nworld\n")
    config = config_of(SedWordsConfig, tmp_path, counted_share=0.7, word_lists=[str(words)])
    with pytest.raises(ConfigurationError, match="words.txt, line 2 is 'world'"):
        next(iter(WordDetection(config).train_stream(0, 1, None)))
    assert not [*(tmp_path / "store").rglob("*words.txt")]
    assert not [*(tmp_path / "store").rglob("counts-*.part")]


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(SedWordsConfig, tmp_path)
    readings: Iterator[int] = itertools.count()

    def changing(*arguments: Any) -> Iterator[Sample]:
        found = [*read_samples(*arguments)]
        return iter(found[: len(found) - next(readings)])

    monkeypatch.setattr("bsmeta.tasks.spelling.samples.read_samples", changing)
    with pytest.raises(DataError, match="a file has changed while it was read"):
        open_table(config)
    assert not [*(tmp_path / "store").glob("*/*.arrow")]


@pytest.mark.parametrize(
    ("split", "count", "held_out"),
    [(None, 50, 0), (0, 50, 0), (0.05, 50, 3), (0.5, 3, 2), (1, 50, 1), (20, 50, 20), (80, 50, 50)],
)
def test_a_split_is_a_share_or_a_number_of_samples(
    split: float | None, count: int, held_out: int
) -> None:
    assert count_held_out_samples(split, count) == held_out


def test_prose_is_words_of_letters() -> None:
    assert compute_prose_share('He said: "Don’t go (yet)!"') == 1.0
    assert compute_prose_share("x = np.zeros(3) # four zeros") == pytest.approx(3 / 6)


def test_pairs_of_a_file_keep_their_target_and_must_agree_in_words(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"sequence": "teh cat", "target_sequence": "the cat"}\n' * 2)
    config = config_of(SedWordsConfig, tmp_path, datasets=[str(file)], val_splits=[])
    table = open_table(config)
    assert [vars(s) for s in table.read(table.list_numbers("train"))] == [
        {"source": "teh cat", "target": "the cat", "name": "pairs.jsonl:1"}
    ]
    file.write_text('{"sequence": "the cat", "target_sequence": "thecat"}\n')
    with pytest.raises(Exception, match=r"line 1: 2 words, but 1 in target_sequence"):
        open_table(config)
    merged = config_of(SecConfig, tmp_path, datasets=[str(file)], val_splits=[])
    assert len(open_table(merged).list_numbers("train")) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "\\ud83d"}', "line 1: not JSON: a text with half of a surrogate pair"),
        ('{"text": "", "target_sequence": "the cat"}', "line 1: no word in the text or in target"),
        ('{"text": "the cat", "target_sequence": " "}', "line 1: no word in the text or in target"),
    ],
)
def test_lines_that_cannot_be_used_are_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        open_table(config_of(SecConfig, tmp_path, datasets=[str(file)], val_splits=[]))


def test_a_name_that_is_not_in_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / os.fsdecode(b"caf\xe9.txt")).write_text("some text\n")
    with pytest.raises(DataError, match=r"^datasets: .* has a name that is not in UTF-8"):
        open_table(
            config_of(SecConfig, tmp_path, datasets=[str(tmp_path / "texts")], val_splits=[])
        )


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt.gz"
    content = bytearray(gzip.compress(b"".join(b"some text %d\n" % n for n in range(200))))
    content[20:60] = b"\xff" * 40
    file.write_bytes(content)
    with pytest.raises(DataError, match="texts.txt.gz cannot be read"):
        open_table(config_of(SecConfig, tmp_path, datasets=[str(file)], val_splits=[]))


def test_noise_follows_from_seed_epoch_and_sample(tmp_path: Path) -> None:
    task = WordDetection(config_of(SedWordsConfig, tmp_path, seed=1))
    numbers = task.table.list_numbers("train")
    first, again = task.make_pairs(numbers, 0), task.make_pairs(numbers[::-1], 0)[::-1]
    assert first == again
    assert all(len(pair.source) == len(pair.correct) for pair in first)
    changed = [
        a.source != b.source for a, b in zip(first, task.make_pairs(numbers, 1), strict=True)
    ]
    assert sum(changed) > 60  # of 100


def test_errors_without_room_are_left_out_from_the_end() -> None:
    pair = Pair(["teeeh", "caaat", "saaat"], ["the", "cat", "sat"], "name")

    def fits(words: Any, room: int) -> bool:
        return len("".join(words)) <= room

    assert shorten_to_fit(pair, fits, 20).source == ["teeeh", "caaat", "saaat"]
    assert shorten_to_fit(pair, fits, 13).source == ["teeeh", "caaat", "sat"]
    assert shorten_to_fit(pair, fits, 9).source == ["the", "cat", "sat"]
    split = Pair(["t", "h", "eeeeeeee"], ["the"], "name")
    assert shorten_to_fit(split, fits, 10) is split
    assert shorten_to_fit(split, fits, 4).source == ["the"]


@pytest.mark.parametrize(
    ("budget", "shares"), [(1, 1), (511, 1), (512, 1), (1024, 2), (4095, 4), (4096, 8), (10**6, 64)]
)
def test_shares_leave_512_tokens(budget: int, shares: int) -> None:
    assert count_step_parts(SpellingConfig(batch_max_length=budget)) == shares


def test_a_sample_longer_than_its_part_of_a_step_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text(" ".join(["word"] * 600) + "\n")
    config = config_of(
        SedWordsConfig, tmp_path, datasets=[str(file)], val_splits=[], max_characters=4000
    )
    with pytest.raises(ConfigurationError, match=r"may have 600 tokens.*at least 2,400"):
        WordDetection(config).steps_per_epoch(1)


@pytest.mark.parametrize("kind", ["sed_words", "sec"])
def test_no_rank_exceeds_its_part_of_the_budget(tmp_path: Path, kind: str) -> None:
    schema = SedWordsConfig if kind == "sed_words" else SecConfig
    config = config_of(schema, tmp_path, gradient_accumulation_steps=1)
    task: WordDetection | CandidateCorrection = (
        WordDetection(config) if kind == "sed_words" else CandidateCorrection(config)
    )
    for world_size in (1, 2, 4):
        for rank in range(world_size):
            stream = task.train_stream(rank, world_size, None)
            for step in itertools.islice(stream, 2 * task.steps_per_epoch(world_size)):
                (batch,) = step.micro_batches
                assert batch.tokens + batch.padding <= 2048 // world_size


def test_steps_have_the_same_errors_for_every_world_size(tmp_path: Path) -> None:
    task = WordDetection(config_of(SedWordsConfig, tmp_path))
    found = []
    for world_size in (1, 2, 4):
        ranks = [
            list(itertools.islice(task.train_stream(rank, world_size, None), 8))
            for rank in range(world_size)
        ]
        found.append([
            (
                sorted(name for step in parts for name in step.micro_batches[0].documents),
                sum(step.micro_batches[0].counts["errors"] for step in parts),
                sum(step.micro_batches[0].weight for step in parts),
            )
            for parts in zip(*ranks, strict=True)
        ])  # fmt: skip
    assert found[0] == found[1] == found[2]
