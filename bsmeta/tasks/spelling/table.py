"""Texts of the data sets → samples of training and validation, in a store on disk.

A sample is a text of at most `max_characters`, or a pair of a text and its correction. The store
is built once per machine; its folder is named after what determines the samples.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.config.progress import report_progress
from bsmeta.config.spelling import SpellingConfig
from bsmeta.data.seeds import derive, permutation
from bsmeta.data.stream.fingerprint import file_hash
from bsmeta.data.table.store import open_store
from bsmeta.tasks.spelling.text import cut

if TYPE_CHECKING:
    from datasets import Dataset

TEXT_COLUMNS = ("sequence", "text", "sentence")
SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
_PLAIN_WORD = re.compile(r"[\"'“‘(\[]*[^\W\d_]+(?:['’-][^\W\d_]+)*[\"'”’)\].,;:!?]*")


@dataclass(frozen=True)
class Sample:
    """A text to train or validate on.

    Attributes:
        source: The text as it is read.
        target: The correct text; None: `source` is correct, and gets noise.
        name: The file and the number of its text, for `log_documents`.
    """

    source: str
    target: str | None
    name: str

    @property
    def correct(self) -> str:
        """The correct text."""
        return self.source if self.target is None else self.target


class Table:
    """The samples of a run.

    Args:
        rows: `source`, `target`, `name` and `split` of each sample.
        key: What determines them.
    """

    def __init__(self, rows: Dataset, key: Mapping[str, Any]) -> None:
        self._rows = rows
        self.key = dict(key)

    def numbers(self, split: str) -> np.ndarray:
        """The numbers of the samples of a split: `train` or `validation`."""
        return np.flatnonzero(self._is_validation == (split == "validation"))

    @cached_property
    def _is_validation(self) -> np.ndarray:
        return np.array(self._rows["is_validation"], dtype=bool)

    def read(self, numbers: np.ndarray) -> list[Sample]:
        """Some samples, in the order of their numbers as given."""
        rows = self._rows[numbers.tolist()]
        report_progress()
        return [
            Sample(*row) for row in zip(rows["source"], rows["target"], rows["name"], strict=True)
        ]

    def texts(self, split: str) -> Iterator[str]:
        """The correct texts of a split."""
        numbers = self.numbers(split)
        for start in range(0, len(numbers), 10_000):
            for sample in self.read(numbers[start : start + 10_000]):
                yield sample.correct


def open_table(config: SpellingConfig) -> Table:
    """The samples of a configuration, from the store, which is built first if there is none.

    Raises:
        ConfigurationError: If a data set is missing, or keys do not fit the data sets.
        DataError: If a data set cannot be read, or nothing remains to train on.
    """
    sets = [data_files(name) for name in config.datasets]
    key = {
        "files": [{file.name: file_hash(file) for file in files} for files in sets],
        "dataset_limits": per_dataset(config.dataset_limits, len(sets)),
        "val_splits": per_dataset(config.val_splits, len(sets)),
        "text_column": config.text_column,
        "target_column": config.target_column,
        "max_characters": config.max_characters,
        "min_prose_share": config.min_prose_share,
        "seed": config.seed,
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    folder = Path(config.store_dir) / digest
    return Table(open_store(folder, key, lambda: _build(config, sets, key)), key)


def per_dataset(values: list[Any], count: int) -> list[Any]:
    """One value for each data set: from one for all, one for each, or none (None)."""
    return list(values) * (count if len(values) == 1 else 1) or [None] * count


def data_files(name: str) -> list[Path]:
    """The files of a data set: a file, those of a folder, or those that match a glob.

    Raises:
        ConfigurationError: If there is none.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.name.endswith(SUFFIXES)]
    else:
        found = [Path(file) for file in glob.glob(str(path), recursive=True)]
    files = sorted(file for file in found if file.is_file() and file.name.endswith(SUFFIXES))
    if not files:
        raise ConfigurationError(
            f"datasets: {name} has no file that ends in {', '.join(SUFFIXES)}; name a file, a "
            "folder or a glob",
            ["datasets"],
        )
    return files


def _build(config: SpellingConfig, sets: list[list[Path]], key: Mapping[str, Any]) -> Dataset:
    from datasets import Dataset

    seen: set[str] = set()
    rows: list[dict[str, Any]] = []
    limits, splits = key["dataset_limits"], key["val_splits"]
    for number, files in enumerate(sets):
        own = []
        for sample in samples_of(config, files):
            if sample.correct in seen:
                continue  # or copies of a validation sample would be trained on
            seen.add(sample.correct)
            own.append(sample)
        chosen = shuffled(own, derive(config.seed, "samples", number))[: limits[number]]
        held_out = held_out_samples(splits[number], len(chosen))
        last = chosen[held_out - 1].name if held_out else None
        rows += [
            {**vars(sample), "is_validation": turn < held_out or sample.name == last}
            for turn, sample in enumerate(chosen)
        ]
    if all(row["is_validation"] for row in rows):
        raise DataError(
            f"datasets: {len(rows):,} samples, and val_splits={config.val_splits} leaves none of "
            "them to train on (a text is for training or for validation, with all its samples)"
        )
    columns = ("source", "target", "name", "is_validation")
    return Dataset.from_dict({name: [row[name] for row in rows] for name in columns})


def shuffled(samples: Sequence[Sample], seed: int) -> list[Sample]:
    """The samples in a random order of their texts; those of a text stay together."""
    texts = [list(group) for _, group in groupby(samples, key=lambda sample: sample.name)]
    return [sample for place in permutation(len(texts), seed).tolist() for sample in texts[place]]


def held_out_samples(split: float | None, count: int) -> int:
    """How many of `count` samples are for validation: a number from 1, or a share below 1."""
    if split is None:
        return 0
    return min(int(split) if split >= 1 else math.ceil(split * count), count)


def samples_of(config: SpellingConfig, files: Sequence[Path]) -> Iterator[Sample]:
    """The samples of files, as they are cut; a text may occur more than once."""
    for file in files:
        for number, (source, target) in enumerate(_read(config, file), start=1):
            report_progress()
            if target is not None:
                yield Sample(source, target, f"{file.name}:{number}")
                continue
            for chunk in cut(source, config.max_characters):
                text = " ".join(chunk.split())
                if text and prose_share(text) >= config.min_prose_share:
                    yield Sample(text, None, f"{file.name}:{number}")


def prose_share(text: str) -> float:
    """The share of words that consist of letters, with punctuation around them."""
    words = text.split()
    return sum(_PLAIN_WORD.fullmatch(word) is not None for word in words) / len(words)


def _read(config: SpellingConfig, file: Path) -> Iterator[tuple[str, str | None]]:
    """The texts of a file, each with its correction if it has one."""
    is_json = file.name.removesuffix(".gz").endswith(".jsonl")
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                yield _pair(config, f"{file}, line {number:,}", line) if is_json else (line, None)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}; expected text in UTF-8") from error


def _pair(config: SpellingConfig, where: str, line: str) -> tuple[str, str | None]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    names = TEXT_COLUMNS if config.text_column == "auto" else (config.text_column,)
    texts = [record[name] for name in names if isinstance(record, dict) and name in record]
    if not texts or not isinstance(texts[0], str):
        raise DataError(f"{where}: no text in {' or '.join(names)}; name its key: text_column=NAME")
    target = record.get(config.target_column)
    if target is None:
        return texts[0], None
    source, correct = texts[0].split(), str(target).split()
    if config.task != "sec" and len(source) != len(correct):
        raise DataError(
            f"{where}: {len(source)} words, but {len(correct)} in {config.target_column}; expected "
            "the same number, because each word is compared with its correction"
        )
    return " ".join(source), " ".join(correct)
