"""The samples of the spelling tasks, in a store on disk, and pairs of texts and corrections.

A sample is a text of at most `max_characters`, or a pair of a text and its correction. The store
is built once per machine; its folder is named after a hash of the settings that determine the
samples. The data sets are read twice: to choose the samples, with only a hash and the number of the
text of each in memory, and to write the chosen ones. The store is memory-mapped.

The errors of a sample follow from the seed, the epoch and the sample, not from the process or the
batch that it is in: they are the same after a resume and for any number of processes, and differ
between epochs.
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
from itertools import chain, groupby, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import build_atomically, refuse_undecodable
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import hold_lock, report_progress
from bsmeta.data import derive_seed, permute
from bsmeta.data.table.store import (
    KEY_FILE,
    hash_files,
    load_store,
    open_store,
    read_saved_key,
)
from bsmeta.data.text.sentences import cut_text
from bsmeta.tasks.spelling.config import DetectionConfig, SpellingConfig
from bsmeta.tasks.spelling.lexicon import is_lexicon
from bsmeta.tasks.spelling.noise import Misspellings, Noise, load_misspellings
from bsmeta.training.task import split_into_lists

if TYPE_CHECKING:
    from datasets import Dataset

TEXT_COLUMNS = ("sequence", "text", "sentence")
"""Keys of the text in JSON lines with `text_column=auto`; the first that a record has is used."""
SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
"""Endings of the names of data files."""
_PLAIN_WORD = re.compile(r"[\"'“‘(\[]*[^\W\d_]+(?:['’-][^\W\d_]+)*[\"'”’)\].,;:!?]*")
UNUSED, TRAIN, VALIDATION, COUNTED = range(4)  # the uses of a sample
USES = {"train": TRAIN, "validation": VALIDATION, "counted": COUNTED}
BATCH_SAMPLES = 1000  # samples of a batch that is read or written
_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("target", pa.string()),
        ("name", pa.string()),
        ("use", pa.int8()),
    ]
)
VALIDATION_EPOCH = -1  # the epoch of the validation, whose noise is always the same


@dataclass(frozen=True)
class Sample:
    """A text to train or validate on."""

    source: str  # the text of the data set
    target: str | None  # the correct text; None: `source` is correct, and gets noise
    name: str  # the file and the number of its text, for `log_documents`

    @property
    def correct(self) -> str:
        """The correct text."""
        return self.source if self.target is None else self.target


def list_data_files(name: str) -> list[Path]:
    """Lists the files of a data set: a file, the files of a folder, or the matches of a glob.

    Raises:
        ConfigurationError: If there is none.
        DataError: If a name is not in UTF-8.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        paths = [*path.rglob("*")]
    else:
        paths = [Path(file) for file in glob.glob(str(path), recursive=True)]

    files = sorted(file for file in paths if file.name.endswith(SUFFIXES) and file.is_file())
    if not files:
        raise ConfigurationError(
            f"datasets: {name} has no file that ends in {', '.join(SUFFIXES)}; name a file, a "
            "folder or a glob",
            ["datasets"],
        )
    refuse_undecodable(files, "datasets")
    return files


def read_samples(config: SpellingConfig, files: Sequence[Path]) -> Iterator[Sample]:
    """Yields the samples of files, in order; equal texts are repeated.

    Texts without a target are cut to at most `max_characters`.
    """
    for file in files:
        for number, (source, target) in enumerate(_read_texts(config, file), start=1):
            report_progress()
            name = f"{file.name}:{number}"
            if target is not None:
                yield Sample(source, target, name)
                continue

            for chunk in cut_text(source, config.max_characters):
                text = " ".join(chunk.split())
                if text and compute_prose_share(text) >= config.min_prose_share:
                    yield Sample(text, None, name)


def compute_prose_share(text: str) -> float:
    """Returns the share of the words of a text that are letters, with punctuation around them."""
    words = text.split()
    return sum(_PLAIN_WORD.fullmatch(word) is not None for word in words) / len(words)


def _read_texts(config: SpellingConfig, file: Path) -> Iterator[tuple[str, str | None]]:
    """Yields each text of a file, and the correct text if the file has it, otherwise None."""
    is_json = file.name.removesuffix(".gz").endswith(".jsonl")
    open_file = gzip.open if file.suffix == ".gz" else open
    try:
        with open_file(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                if is_json:
                    yield _parse_line(config, f"{file}, line {number:,}", line)
                else:
                    yield line, None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}; expected text in UTF-8") from error


def _parse_line(config: SpellingConfig, position: str, line: str) -> tuple[str, str | None]:
    """Parses a line of JSON.

    Args:
        position: The file and the line, for messages.

    Returns:
        A text, and the correct text if there is one.
    """
    try:
        record = parse_json(line)
    except ValueError as error:
        raise DataError(f"{position}: not JSON: {error}") from error

    names = TEXT_COLUMNS if config.text_column == "auto" else (config.text_column,)
    texts = [record[name] for name in names if isinstance(record, dict) and name in record]
    if not texts or not isinstance(texts[0], str):
        raise DataError(
            f"{position}: no text in {' or '.join(names)}; name its key: text_column=NAME"
        )

    text = texts[0]
    target = record.get(config.target_column)
    if target is None:
        return text, None

    source = text.split()
    correct = str(target).split()
    if not source or not correct:
        raise DataError(
            f"{position}: no word in the text or in {config.target_column}; leave it out"
        )
    if config.task != "sec" and len(source) != len(correct):
        raise DataError(
            f"{position}: {len(source)} words, but {len(correct)} in {config.target_column}; "
            "expected the same number, because each word is compared with its correction"
        )
    return " ".join(source), " ".join(correct)


class Table:
    """The samples of a run, memory-mapped from a store.

    Attributes:
        key: The settings that determine the samples.
    """

    def __init__(self, rows: Dataset, key: dict[str, Any], folder: Path) -> None:
        self._rows = rows
        self.key = key
        self._folder = folder
        self._uses = rows.data.column("use").to_numpy()

    def list_numbers(self, split: str) -> np.ndarray:
        """Returns the numbers of the samples of a split: `train`, `validation` or `counted`."""
        return np.flatnonzero(self._uses == USES[split])

    def read(self, numbers: np.ndarray) -> list[Sample]:
        """Reads samples, in the order of `numbers`."""
        rows = self._rows[numbers.tolist()]
        report_progress()
        return [*map(Sample, rows["source"], rows["target"], rows["name"])]

    def _read_batches(self, split: str) -> Iterator[list[Sample]]:
        numbers = self.list_numbers(split)
        for start in range(0, len(numbers), BATCH_SAMPLES):
            yield self.read(numbers[start : start + BATCH_SAMPLES])

    def read_texts(self, split: str) -> Iterator[str]:
        """Yields the correct texts of a split."""
        for batch in self._read_batches(split):
            for sample in batch:
                yield sample.correct

    def read_training_texts(self) -> Iterator[str]:
        """Yields the texts of samples that are trained on or counted, as before they were cut.

        White space is normalized. Of a pair, both texts are yielded, the one with errors first.
        """
        for split in ("train", "counted"):
            samples = chain.from_iterable(self._read_batches(split))
            for _, text_samples in groupby(samples, attrgetter("name")):
                parts = [*text_samples]
                if any(part.target is not None for part in parts):
                    yield " ".join(part.source for part in parts)
                yield " ".join(part.correct for part in parts)

    def measure_lengths(
        self, key: Any, measure: Callable[[list[Sample]], np.ndarray]
    ) -> np.ndarray:
        """Returns the lengths of the training samples: int32 [samples], memory-mapped.

        Args:
            key: A JSON value that identifies `measure`; the lengths are computed once per key.
            measure: Returns the lengths of a batch of samples.
        """
        file = self._folder / f"lengths-{_hash_key(key)}.npy"

        def compute(part: Path) -> None:
            lengths = [np.zeros(0, np.int32), *map(measure, self._read_batches("train"))]
            with part.open("wb") as output:
                np.save(output, np.concatenate(lengths).astype(np.int32))

        self._create_once(file, compute)
        return np.load(file, mmap_mode="r")

    def open_counts(self, key: Any, count: Callable[[Iterator[str], Path], None]) -> Path:
        """Returns the folder with the counts of the texts of the split `counted`.

        Args:
            key: A JSON value that identifies `count`; the texts are counted once per key.
            count: Counts texts, and writes the result to a folder.
        """
        folder = self._folder / f"counts-{_hash_key(key)}"

        def write(part: Path) -> None:
            part.mkdir()
            count(self.read_texts("counted"), part)

        self._create_once(folder, write)
        return folder

    def _create_once(self, file: Path, write: Callable[[Path], None]) -> None:
        """Writes a file or folder next to the samples under a lock, unless it exists."""
        with hold_lock(f"{file}.lock", f"computing {file.name} of the samples"):
            if not file.exists():
                with build_atomically(file) as part:
                    write(part)


def open_table(config: SpellingConfig) -> Table:
    """Opens the samples of a configuration; builds their store if it does not exist.

    Raises:
        ConfigurationError: If a data set is missing.
        DataError: If a data set cannot be read, or nothing remains to train on.
    """
    sets = [list_data_files(name) for name in config.datasets]
    key = {
        "files": _hash_sets(sets, Path(config.store_dir)),
        "dataset_limits": _spread_over_datasets(config.dataset_limits, len(sets)),
        "val_splits": _spread_over_datasets(config.val_splits, len(sets)),
        "text_column": config.text_column,
        "target_column": config.target_column,
        "max_characters": config.max_characters,
        "min_prose_share": config.min_prose_share,
        "counted_share": config.counted_share if is_small(config) else 0.0,
        "seed": config.seed,
    }
    folder = Path(config.store_dir) / _hash_key(key)
    return Table(open_store(folder, key, lambda: _build_rows(config, sets, key)), key, folder)


def open_saved_table(store_dir: str, fingerprint: Mapping[str, Any]) -> Table:
    """Opens the samples that a run has read, without its data sets.

    Args:
        store_dir: The folder of the stores.
        fingerprint: The fingerprint of the data in a checkpoint of the run.

    Raises:
        DataError: If the store is missing, or a store is damaged.
    """
    for key_file in sorted(Path(store_dir).glob(f"*/{KEY_FILE}")):
        folder = key_file.parent
        key = read_saved_key(folder)
        if key and key.items() <= fingerprint.items():
            return Table(load_store(folder, key), key, folder)
    raise DataError(f"store_dir={store_dir} lacks the samples of the run")


def _hash_sets(sets: Sequence[Sequence[Path]], store_dir: Path) -> list[dict[str, str]]:
    """Returns, for each data set, the hash of each file by its path relative to the data set.

    So a data set may be moved.
    """
    hashes = hash_files([*chain.from_iterable(sets)], store_dir)
    set_hashes: list[dict[str, str]] = []
    for files in sets:
        common = os.path.commonpath([file.parent for file in files])
        set_hashes.append({os.path.relpath(file, common): hashes[file] for file in files})
    return set_hashes


def _hash_key(key: Any) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


def is_small(config: SpellingConfig) -> bool:
    """Returns whether the model of a run is the small one."""
    is_new = config.model_name is None and config.model_config_file is None
    return is_new or is_lexicon(config.model_name)


def _spread_over_datasets(values: list[Any], count: int) -> list[Any]:
    """Returns a value for each data set: a single value is repeated; without values, None."""
    if not values:
        return [None] * count
    return list(values) * count if len(values) == 1 else list(values)


def _build_rows(
    config: SpellingConfig, sets: Sequence[Sequence[Path]], key: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the store in batches."""
    uses = _choose_uses(_scan_samples(config, sets), key)
    if not (uses == TRAIN).any():
        raise DataError(
            f"datasets: {(uses != UNUSED).sum():,} samples, and val_splits={config.val_splits} "
            "leaves none of them to train on (a text is for training or for validation, with all "
            "its samples)"
        )

    for batch in split_into_lists(_iterate_rows(config, sets, uses), BATCH_SAMPLES):
        yield pa.RecordBatch.from_pylist(batch, _SCHEMA)


def _iterate_rows(
    config: SpellingConfig, sets: Sequence[Sequence[Path]], uses: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields the row of each sample whose use is not `UNUSED`.

    Raises:
        DataError: If the files have another number of samples than `uses`.
    """
    samples = chain.from_iterable(read_samples(config, files) for files in sets)
    for sample, use in zip_longest(samples, uses):
        if sample is None or use is None:
            raise DataError("datasets: a file has changed while it was read; begin again")
        if use != UNUSED:
            yield {**vars(sample), "use": use}


class _Scan(NamedTuple):
    """All samples of the data sets, in reading order."""

    hashes: np.ndarray  # uint64 [samples], the hash of the correct text
    texts: np.ndarray  # uint64 [samples], the number of the text before it is cut into samples
    ends: list[int]  # the number of samples up to the end of each data set


def _scan_samples(config: SpellingConfig, sets: Sequence[Sequence[Path]]) -> _Scan:
    """Reads all samples, and keeps the hash and the text number of each."""
    hashes = array("Q")
    texts = array("Q")
    ends: list[int] = []
    text = -1
    for files in sets:
        previous_name = None
        for sample in read_samples(config, files):
            if sample.name != previous_name:
                text += 1
                previous_name = sample.name
            hashes.append(xxhash.xxh3_64_intdigest(sample.correct.encode()))
            texts.append(text)
        ends.append(len(hashes))
    return _Scan(np.frombuffer(hashes, np.uint64), np.frombuffer(texts, np.uint64), ends)


def _choose_uses(scan: _Scan, key: Mapping[str, Any]) -> np.ndarray:
    """Chooses the use of each sample: uint8 [samples], values of `USES`.

    Of equal samples only the first is used, or copies of a validation sample would be trained on.
    Texts are chosen at random, up to the limit of their data set; the first of them are for
    validation, and a share of the others for counts.
    """
    uses = np.full(len(scan.hashes), UNUSED, np.uint8)
    is_first = np.zeros(len(scan.hashes), bool)
    is_first[np.unique(scan.hashes, return_index=True)[1]] = True

    start = 0
    for number, end in enumerate(scan.ends):
        distinct = start + np.flatnonzero(is_first[start:end])
        limit = key["dataset_limits"][number]
        seed = derive_seed(key["seed"], "samples", number)
        samples = _shuffle_texts(distinct, scan.texts, seed)[:limit]
        uses[samples] = _divide_samples(
            scan.texts[samples], key["val_splits"][number], key["counted_share"]
        )
        start = end
    return uses


def _divide_samples(texts: np.ndarray, val_split: float | None, counted_share: float) -> np.ndarray:
    """Chooses the uses of shuffled samples: uint8 [samples], one use per text.

    Args:
        texts: The number of the text of each sample; samples of a text are adjacent.
        val_split: See `count_held_out_samples`.
        counted_share: The share of the other samples for counts.
    """
    uses = np.full(len(texts), TRAIN, np.uint8)
    held_out = count_held_out_samples(val_split, len(texts))
    if held_out:
        uses[:held_out] = VALIDATION
        uses[texts == texts[held_out - 1]] = VALIDATION

    # The counted samples end before the text at which their share is reached.
    trained = np.flatnonzero(uses == TRAIN)
    if len(trained) and counted_share:
        next_text = texts[trained[int(counted_share * len(trained))]]
        counted = np.flatnonzero(texts[trained] == next_text)[0]
        uses[trained[:counted]] = COUNTED
    return uses


def _shuffle_texts(samples: np.ndarray, texts: np.ndarray, seed: int) -> np.ndarray:
    """Shuffles samples by text: the samples of a text stay together and in order."""
    distinct_texts, text_indices = np.unique(texts[samples], return_inverse=True)
    count = len(distinct_texts)
    ranks = np.empty(count, np.int64)
    ranks[permute(count, seed)] = range(count)
    return samples[np.argsort(ranks[text_indices], kind="stable")]


def count_held_out_samples(split: float | None, count: int) -> int:
    """Returns the number of samples for validation.

    Args:
        split: A number of samples from 1, or a share below 1; None: none.
        count: The number of all samples.
    """
    if split is None:
        return 0
    return min(int(split) if split >= 1 else math.ceil(split * count), count)


@dataclass(frozen=True)
class Pair:
    """A text and its correction, in words."""

    source: list[str]  # the words of the text, with errors
    correct: list[str]  # the same number, unless errors merge or split words
    name: str  # the file and the number of its text, for `log_documents`


def make_noise(config: SpellingConfig) -> Noise:
    """Makes the noise of a run.

    For detectors and the small model it keeps the number of words, because they compare each word
    with its correction.
    """
    noise = config.noise
    misspellings: Misspellings = {}
    if noise.method != "artificial":
        misspellings = load_misspellings(noise.misspellings)
    keep_word_count = isinstance(config, DetectionConfig) or is_small(config)
    return Noise(noise, misspellings, keep_word_count=keep_word_count)


def shorten_to_fit(pair: Pair, fits: Callable[[Sequence[str], int], bool], room: int) -> Pair:
    """Corrects errors of a text, from the last, until the text fits in a batch.

    If errors merge or split words, all of them are corrected together.

    Args:
        pair: A pair whose correct text fits.
        fits: Returns whether words have at most a number of tokens.
        room: The maximum number of tokens.
    """
    if fits(pair.source, room):
        return pair
    if len(pair.source) != len(pair.correct):
        return replace(pair, source=pair.correct)

    source = list(pair.source)
    for index in reversed(range(len(source))):
        source[index] = pair.correct[index]
        if fits(source, room):
            break
    return replace(pair, source=source)
