"""Files of texts → samples in a store on disk → pairs of a text and its correction, with noise.

A sample is a text of at most `max_characters`, or a pair of a text and its correction. The store
is built once per machine; its folder is named after what determines the samples. The data sets are
read twice: to choose the samples, of which only a hash and the number of the text are kept in
memory, and to write those that are chosen. The store is memory-mapped.

The errors of a sample follow from the seed, the epoch and the sample, not from the process or the
batch that it is in: they are the same after a resume and for any number of processes, and others in
every epoch.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import math
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import building
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import exclusively, report_progress
from bsmeta.data import derive, permutation
from bsmeta.data.table.store import file_hashes, open_store
from bsmeta.data.text.sentences import cut
from bsmeta.tasks.spelling.config import DetectionConfig, SpellingConfig
from bsmeta.tasks.spelling.lexicon import is_lexicon
from bsmeta.tasks.spelling.noise import Noise, load_misspellings
from bsmeta.training.task import batched

if TYPE_CHECKING:
    from datasets import Dataset


TEXT_COLUMNS = ("sequence", "text", "sentence")
SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
_PLAIN_WORD = re.compile(r"[\"'“‘(\[]*[^\W\d_]+(?:['’-][^\W\d_]+)*[\"'”’)\].,;:!?]*")
UNUSED, TRAIN, VALIDATION, COUNTED = range(4)  # the uses of a sample
USES = {"train": TRAIN, "validation": VALIDATION, "counted": COUNTED}
BATCH = 1000  # samples that are read or written at once
_SCHEMA = pa.schema([
    ("source", pa.string()), ("target", pa.string()), ("name", pa.string()),
    ("use", pa.int8()),
])  # fmt: skip
VALIDATION_EPOCH = -1  # the epoch of the validation, whose noise is always the same


@dataclass(frozen=True)
class Sample:
    """A text to train or validate on."""

    source: str  # as it is read
    target: str | None  # the correct text; None: `source` is correct, and gets noise
    name: str  # the file and the number of its text, for `log_documents`

    @property
    def correct(self) -> str:
        """The correct text."""
        return self.source if self.target is None else self.target


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
    is_json = file.name.removesuffix(".gz").endswith(".jsonl")
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                yield _parse(config, f"{file}, line {number:,}", line) if is_json else (line, None)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}; expected text in UTF-8") from error


def _parse(config: SpellingConfig, where: str, line: str) -> tuple[str, str | None]:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    names = TEXT_COLUMNS if config.text_column == "auto" else (config.text_column,)
    texts = [record[name] for name in names if isinstance(record, dict) and name in record]
    if not texts or not isinstance(texts[0], str):
        raise DataError(f"{where}: no text in {' or '.join(names)}; name its key: text_column=NAME")
    target = record.get(config.target_column)
    try:
        f"{texts[0]}{target}".encode()
    except UnicodeEncodeError as error:  # "\\ud83d" is JSON, and half of a character
        raise DataError(f"{where}: not text: {error}") from error
    if target is None:
        return texts[0], None
    source, correct = texts[0].split(), str(target).split()
    if not source or not correct:
        raise DataError(f"{where}: no word in the text or in {config.target_column}; leave it out")
    if config.task != "sec" and len(source) != len(correct):
        raise DataError(
            f"{where}: {len(source)} words, but {len(correct)} in {config.target_column}; expected "
            "the same number, because each word is compared with its correction"
        )
    return " ".join(source), " ".join(correct)


class Table:
    """The samples of a run, memory-mapped from a store; the key is what determines them."""

    def __init__(self, rows: Dataset, key: dict[str, Any], folder: Path) -> None:
        self._rows = rows
        self.key = key
        self._folder = folder
        self._uses = rows.data.column("use").to_numpy()

    def numbers(self, split: str) -> np.ndarray:
        """The numbers of the samples of a split: `train`, `validation` or `counted`."""
        return np.flatnonzero(self._uses == USES[split])

    def read(self, numbers: np.ndarray) -> list[Sample]:
        """Some samples, in the order of their numbers as given."""
        rows = self._rows[numbers.tolist()]
        report_progress()
        return [*map(Sample, rows["source"], rows["target"], rows["name"])]

    def _batches(self, split: str) -> Iterator[list[Sample]]:
        numbers = self.numbers(split)
        starts = range(0, len(numbers), BATCH)
        return (self.read(numbers[start : start + BATCH]) for start in starts)

    def texts(self, split: str) -> Iterator[str]:
        """The correct texts of a split."""
        return (sample.correct for batch in self._batches(split) for sample in batch)

    def lengths(self, key: Any, measure: Callable[[list[Sample]], np.ndarray]) -> np.ndarray:
        """A number for each training sample, int32 [samples], memory-mapped; computed once for a
        key, which is any JSON value.
        """
        file = self._folder / f"lengths-{_digest(key)}.npy"

        def compute(part: Path) -> None:
            found = [np.zeros(0, np.int32), *map(measure, self._batches("train"))]
            with part.open("wb") as opened:
                np.save(opened, np.concatenate(found).astype(np.int32))

        self._once(file, compute)
        return np.load(file, mmap_mode="r")

    def counted(self, key: Any, count: Callable[[Iterator[str], Path], None]) -> Path:
        """The folder of what is counted in the texts that are for that, counted once for a key;
        `count` writes to a folder.
        """
        folder = self._folder / f"counts-{_digest(key)}"

        def write(part: Path) -> None:
            part.mkdir()
            count(self.texts("counted"), part)

        self._once(folder, write)
        return folder

    def _once(self, file: Path, write: Callable[[Path], None]) -> None:
        """Writes a file or folder next to the samples if there is none, in one process."""
        with exclusively(f"{file}.lock", f"computing {file.name} of the samples"):
            if not file.exists():
                with building(file) as part:
                    write(part)


def open_table(config: SpellingConfig) -> Table:
    """The samples of a configuration, from the store, which is built first if there is none.

    Raises:
        ConfigurationError: If a data set is missing.
        DataError: If a data set cannot be read, or nothing remains to train on.
    """
    sets = [data_files(name) for name in config.datasets]
    hashes = file_hashes([file for files in sets for file in files], Path(config.store_dir))
    folders = [os.path.commonpath([file.parent for file in files]) for files in sets]
    key = {
        "files": [
            {os.path.relpath(file, folder): hashes[file] for file in files}
            for files, folder in zip(sets, folders, strict=True)
        ],
        "dataset_limits": _per_dataset(config.dataset_limits, len(sets)),
        "val_splits": _per_dataset(config.val_splits, len(sets)),
        "text_column": config.text_column,
        "target_column": config.target_column,
        "max_characters": config.max_characters,
        "min_prose_share": config.min_prose_share,
        "counted_share": config.counted_share if is_small(config) else 0.0,
        "seed": config.seed,
    }
    folder = Path(config.store_dir) / _digest(key)
    return Table(open_store(folder, key, lambda: _build(config, sets, key)), key, folder)


def _digest(key: Any) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


def is_small(config: SpellingConfig) -> bool:
    """Whether the model of a run is the small one."""
    is_new = config.model_name is None and config.model_config_file is None
    return is_new or is_lexicon(config.model_name)


def _per_dataset(values: list[Any], count: int) -> list[Any]:
    """One value for each data set: from one for all, one for each, or none (None)."""
    return list(values) * (count if len(values) == 1 else 1) or [None] * count


def _build(
    config: SpellingConfig, sets: Sequence[Sequence[Path]], key: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    hashes, texts, ends = _scan(config, sets)
    uses = _choose(hashes, texts, ends, key)
    if not (uses == TRAIN).any():
        raise DataError(
            f"datasets: {(uses != UNUSED).sum():,} samples, and val_splits={config.val_splits} "
            "leaves none of them to train on (a text is for training or for validation, with all "
            "its samples)"
        )
    samples = (sample for files in sets for sample in samples_of(config, files))
    rows = (
        {**vars(sample), "use": use}
        for sample, use in zip(samples, uses, strict=True)
        if use != UNUSED
    )
    try:
        for batch in batched(rows, BATCH):
            yield pa.RecordBatch.from_pylist(batch, _SCHEMA)
    except ValueError as error:
        raise DataError("datasets: a file has changed while it was read; begin again") from error


def _scan(
    config: SpellingConfig, sets: Sequence[Sequence[Path]]
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """What the choice of samples needs to know: of each sample, the hash of its correct text and
    the number of the text that it was cut from, uint64 [samples]; where each data set ends.
    """
    hashes, texts = array("Q"), array("Q")
    ends: list[int] = []
    text, name = -1, None
    for files in sets:
        for sample in samples_of(config, files):
            if sample.name != name:
                text, name = text + 1, sample.name
            hashes.append(xxhash.xxh3_64_intdigest(sample.correct.encode()))
            texts.append(text)
        ends.append(len(hashes))
        name = None
    return np.frombuffer(hashes, np.uint64), np.frombuffer(texts, np.uint64), ends


def _choose(
    hashes: np.ndarray, texts: np.ndarray, ends: Sequence[int], key: Mapping[str, Any]
) -> np.ndarray:
    """What each sample is used for, uint8 [samples].

    Of equal samples the first is used, or copies of a validation sample would be trained on. Texts
    are chosen at random, up to the limit of their data set; the first of them are for validation,
    and a share of the others for counts.
    """
    uses = np.full(len(hashes), UNUSED, np.uint8)
    is_first = np.zeros(len(hashes), bool)
    is_first[np.unique(hashes, return_index=True)[1]] = True
    start = 0
    for number, end in enumerate(ends):
        own = start + np.flatnonzero(is_first[start:end])
        found, place = np.unique(texts[own], return_inverse=True)
        turn = np.empty(len(found), np.int64)
        turn[permutation(len(found), derive(key["seed"], "samples", number))] = range(len(found))
        chosen = own[np.argsort(turn[place], kind="stable")][: key["dataset_limits"][number]]
        uses[chosen] = TRAIN
        held_out = held_out_samples(key["val_splits"][number], len(chosen))
        if held_out:
            last = texts[chosen[held_out - 1]]
            uses[chosen[:held_out]] = VALIDATION
            uses[chosen[texts[chosen] == last]] = VALIDATION
        rest = chosen[uses[chosen] == TRAIN]
        if len(rest) and key["counted_share"]:
            last = texts[rest[int(key["counted_share"] * len(rest))]]
            uses[rest[: np.flatnonzero(texts[rest] == last)[0]]] = COUNTED
        start = end
    return uses


def held_out_samples(split: float | None, count: int) -> int:
    """How many of `count` samples are for validation: a number from 1, or a share below 1."""
    if split is None:
        return 0
    return min(int(split) if split >= 1 else math.ceil(split * count), count)


@dataclass(frozen=True)
class Pair:
    """A text and its correction, in words."""

    source: list[str]  # as they are read
    correct: list[str]  # the same number, unless the data set says otherwise
    name: str  # where it is from, for `log_documents`


def make_noise(config: SpellingConfig) -> Noise:
    """The errors of a run; detection needs a label for each word, so their number is kept."""
    noise = config.noise
    known = {} if noise.method == "artificial" else load_misspellings(noise.misspellings)
    keeps = isinstance(config, DetectionConfig) or is_small(config)
    return Noise(noise, known, keep_word_count=keeps)


def fitting(pair: Pair, fits: Callable[[Sequence[str], int], bool], room: int) -> Pair:
    """The pair, whose correct text fits into a number of tokens, without those of its last errors
    for which there is no room; if errors merge or split words, without any.
    """
    if fits(pair.source, room):
        return pair
    if len(pair.source) != len(pair.correct):
        return replace(pair, source=pair.correct)
    source = list(pair.source)
    for place in reversed(range(len(source))):
        source[place] = pair.correct[place]
        if fits(source, room):
            break
    return replace(pair, source=source)
