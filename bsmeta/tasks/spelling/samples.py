"""Files of texts, or of pairs of a text and its correction → samples, as they are read."""

from __future__ import annotations

import glob
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.progress import report_progress
from bsmeta.tasks.spelling.config import SpellingConfig
from bsmeta.tasks.spelling.text import cut

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
