"""Files of texts → samples in a store on disk → pairs of a text and its correction, with noise.

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
from itertools import chain
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
from bsmeta.data.table.store import hash_files, open_store
from bsmeta.data.text.sentences import cut_text
from bsmeta.tasks.spelling.config import DetectionConfig, SpellingConfig
from bsmeta.tasks.spelling.lexicon import is_lexicon
from bsmeta.tasks.spelling.noise import Misspellings, Noise, load_misspellings
from bsmeta.training.task import split_into_lists

if TYPE_CHECKING:
    from datasets import Dataset

TEXT_COLUMNS = ("sequence", "text", "sentence")
SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
_PLAIN_WORD = re.compile(r"[\"'“‘(\[]*[^\W\d_]+(?:['’-][^\W\d_]+)*[\"'”’)\].,;:!?]*")
UNUSED, TRAIN, VALIDATION, COUNTED = range(4)  # the uses of a sample
USES = {"train": TRAIN, "validation": VALIDATION, "counted": COUNTED}
BATCH = 1000  # samples that are read or written at once
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

    source: str  # as it is read
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
    """Yields the samples of files, as they are cut; a text may occur more than once."""
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
    """Returns the share of words that consist of letters, with punctuation around them."""
    words = text.split()
    return sum(_PLAIN_WORD.fullmatch(word) is not None for word in words) / len(words)


def _read_texts(config: SpellingConfig, file: Path) -> Iterator[tuple[str, str | None]]:
    """Yields each text of a file, with the correct text if the file has it."""
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

    def numbers(self, split: str) -> np.ndarray:
        """Returns the numbers of the samples of a split: `train`, `validation` or `counted`."""
        return np.flatnonzero(self._uses == USES[split])

    def read(self, numbers: np.ndarray) -> list[Sample]:
        """Reads some samples, in the order of their numbers as given."""
        rows = self._rows[numbers.tolist()]
        report_progress()
        return [*map(Sample, rows["source"], rows["target"], rows["name"])]

    def _batches(self, split: str) -> Iterator[list[Sample]]:
        numbers = self.numbers(split)
        for start in range(0, len(numbers), BATCH):
            yield self.read(numbers[start : start + BATCH])

    def texts(self, split: str) -> Iterator[str]:
        """Yields the correct texts of a split."""
        for batch in self._batches(split):
            for sample in batch:
                yield sample.correct

    def lengths(self, key: Any, measure: Callable[[list[Sample]], np.ndarray]) -> np.ndarray:
        """Measures each training sample, int32 [samples], memory-mapped.

        Args:
            key: Any JSON value; the lengths are computed once for a key.
            measure: Returns a length for each of some samples.
        """
        file = self._folder / f"lengths-{_hash_key(key)}.npy"

        def compute(part: Path) -> None:
            lengths = [np.zeros(0, np.int32), *map(measure, self._batches("train"))]
            with part.open("wb") as output:
                np.save(output, np.concatenate(lengths).astype(np.int32))

        self._create_once(file, compute)
        return np.load(file, mmap_mode="r")

    def counted(self, key: Any, count: Callable[[Iterator[str], Path], None]) -> Path:
        """Returns the folder with the counts of the texts of the split `counted`.

        Args:
            key: Any JSON value; the texts are counted once for a key.
            count: Counts texts, and writes the result to a folder.
        """
        folder = self._folder / f"counts-{_hash_key(key)}"

        def write(part: Path) -> None:
            part.mkdir()
            count(self.texts("counted"), part)

        self._create_once(folder, write)
        return folder

    def _create_once(self, file: Path, write: Callable[[Path], None]) -> None:
        """Writes a file or folder next to the samples if there is none, in one process."""
        with hold_lock(f"{file}.lock", f"computing {file.name} of the samples"):
            if not file.exists():
                with build_atomically(file) as part:
                    write(part)


def make_open_table(config: SpellingConfig) -> Table:
    """Opens the samples of a configuration; builds the store first if there is none.

    Raises:
        ConfigurationError: If a data set is missing.
        DataError: If a data set cannot be read, or nothing remains to train on.
    """
    sets = [list_data_files(name) for name in config.datasets]
    all_files: list[Path] = []
    for files in sets:
        all_files += files
    hashes = hash_files(all_files, Path(config.store_dir))

    # Files are identified relative to their data set, so that it may be moved.
    set_hashes: list[dict[str, str]] = []
    for files in sets:
        common = os.path.commonpath([file.parent for file in files])
        set_hashes.append({os.path.relpath(file, common): hashes[file] for file in files})

    key = {
        "files": set_hashes,
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


def _hash_key(key: Any) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


def is_small(config: SpellingConfig) -> bool:
    """Whether the model of a run is the small one."""
    is_new = config.model_name is None and config.model_config_file is None
    return is_new or is_lexicon(config.model_name)


def _spread_over_datasets(values: list[Any], count: int) -> list[Any]:
    """Returns a value for each data set, from one for all, one for each, or none (None)."""
    if not values:
        return [None] * count
    return list(values) * count if len(values) == 1 else list(values)


def _build_rows(
    config: SpellingConfig, sets: Sequence[Sequence[Path]], key: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the store."""
    uses = _choose_uses(_scan_samples(config, sets), key)
    if not (uses == TRAIN).any():
        raise DataError(
            f"datasets: {(uses != UNUSED).sum():,} samples, and val_splits={config.val_splits} "
            "leaves none of them to train on (a text is for training or for validation, with all "
            "its samples)"
        )

    try:
        for batch in split_into_lists(_iterate_rows(config, sets, uses), BATCH):
            yield pa.RecordBatch.from_pylist(batch, _SCHEMA)
    except ValueError as error:
        raise DataError("datasets: a file has changed while it was read; begin again") from error


def _iterate_rows(
    config: SpellingConfig, sets: Sequence[Sequence[Path]], uses: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields a row for each sample that is used."""
    samples = chain.from_iterable(read_samples(config, files) for files in sets)
    for sample, use in zip(samples, uses, strict=True):
        if use != UNUSED:
            yield {**vars(sample), "use": use}


class _Scan(NamedTuple):
    """All samples of the data sets, in the order in which they are read."""

    hashes: np.ndarray  # uint64 [samples], of the correct text of each
    texts: np.ndarray  # uint64 [samples], the number of the text that each was cut from
    ends: list[int]  # where each data set ends


def _scan_samples(config: SpellingConfig, sets: Sequence[Sequence[Path]]) -> _Scan:
    """Reads all samples, to choose among them."""
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
    """Chooses the use of each sample, uint8 [samples].

    Of equal samples the first is used, or copies of a validation sample would be trained on. Texts
    are chosen at random, up to the limit of their data set; the first of them are for validation,
    and a share of the others for counts.
    """
    texts = scan.texts
    uses = np.full(len(scan.hashes), UNUSED, np.uint8)
    is_first = np.zeros(len(scan.hashes), bool)
    is_first[np.unique(scan.hashes, return_index=True)[1]] = True

    start = 0
    for number, end in enumerate(scan.ends):
        distinct = start + np.flatnonzero(is_first[start:end])
        limit = key["dataset_limits"][number]
        seed = derive_seed(key["seed"], "samples", number)
        samples = _shuffle_texts(distinct, texts, seed)[:limit]
        uses[samples] = TRAIN

        held_out = count_held_out_samples(key["val_splits"][number], len(samples))
        if held_out:
            last_text = texts[samples[held_out - 1]]
            uses[samples[:held_out]] = VALIDATION
            uses[samples[texts[samples] == last_text]] = VALIDATION

        # The counted samples end before a text that is trained on.
        trained = samples[uses[samples] == TRAIN]
        if len(trained) and key["counted_share"]:
            next_text = texts[trained[int(key["counted_share"] * len(trained))]]
            counted = np.flatnonzero(texts[trained] == next_text)[0]
            uses[trained[:counted]] = COUNTED
        start = end
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

    source: list[str]  # as they are read
    correct: list[str]  # the same number, unless the data set merges or splits words
    name: str  # the file and the number of its text, for `log_documents`


def make_noise(config: SpellingConfig) -> Noise:
    """Makes the errors of a run; detection needs a label for each word, so their number is kept."""
    noise = config.noise
    misspellings: Misspellings = {}
    if noise.method != "artificial":
        misspellings = load_misspellings(noise.misspellings)
    keep_word_count = isinstance(config, DetectionConfig) or is_small(config)
    return Noise(noise, misspellings, keep_word_count=keep_word_count)


def shorten_to_fit(pair: Pair, fits: Callable[[Sequence[str], int], bool], room: int) -> Pair:
    """Removes the last errors of a text until it fits.

    If errors merge or split words, all of them are removed.

    Args:
        pair: Its correct text fits.
        fits: Whether words have at most a number of tokens.
        room: The number of tokens.
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
