"""Reads pages by the chosen columns, and drops copies of earlier pages.

A page that copies another one, exactly or nearly, is left out before pages are held out, so that no
held-out page has a copy in training. Near copies are found as `bsmeta annotate` finds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bsmeta.annotate.config import DROP, AnnotateConfig
from bsmeta.core.errors import ConfigurationError, DataError, explain_missing_extra
from bsmeta.core.foreign_json import decode_values
from bsmeta.core.progress import report_each
from bsmeta.data.stream.same_document import normalize_url
from bsmeta.metadata.decoding import TEXT_KEY
from bsmeta.metadata.metadata_type import make_url_readable
from bsmeta.metadata.processors import ADDRESS_KEY
from bsmeta.metadata.records import UNREADABLE
from bsmeta.quick.columns import read_value
from bsmeta.quick.pages import PageFiles, flatten_row

COPIES = "pages"
"""Name, without suffix, of the file of all pages for the search for near copies."""

MIN_REPEATED_SHARE = 0.5
"""Share of the pages with a type from which the report notes that texts begin with its value."""

_START_CHARACTERS = 500  # the beginning of a text, in which titles are often repeated


@dataclass(frozen=True)
class Page:
    """A page that is used.

    Attributes:
        values: Its metadata by type, URL included.
        address: The normalized URL, for comparison with other pages; "" without one.
        host: The host of the URL; "" if unknown.
    """

    text: str
    values: Mapping[str, str | int | float]
    address: str = ""
    host: str = ""

    def encode_line(self) -> bytes:
        """Returns the page as a line of JSON, which training and evaluation read."""
        return msgspec.json.encode({TEXT_KEY: self.text, **self.values}) + b"\n"


@dataclass
class PageSet:
    """The pages to train on and evaluate, and counts of the rows that were left out.

    Attributes:
        left_out: Number of rows that were left out, by reason.
        notes: Sentences about the pages for the report.
    """

    pages: list[Page] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def read_pages(files: PageFiles, columns: Mapping[str, str]) -> PageSet:
    """Reads all pages.

    Args:
        columns: The paths of the columns of text and metadata, by `text` and type.

    Raises:
        DataError: If no row has a text.
    """
    page_set = PageSet()
    top_level_names = {path.partition(".")[0] for path in columns.values()}
    for line in report_each(files.read_lines(set(columns.values()))):
        try:
            row = flatten_row(decode_values(line, top_level_names))
        except UNREADABLE:
            page_set.left_out["unreadable"] += 1
            continue

        text = read_value(TEXT_KEY, row.get(columns[TEXT_KEY]))
        if not isinstance(text, str):
            page_set.left_out["no text"] += 1
            continue
        page_set.pages.append(_make_page(text, row, columns))

    if not page_set.pages:
        raise DataError(f"pages: no row of {files.paths[0]} has a text in {columns[TEXT_KEY]}")
    return page_set


def _make_page(text: str, row: Mapping[str, object], columns: Mapping[str, str]) -> Page:
    """Makes the page of a row, with the values that fit their types."""
    values = {}
    for name, path in columns.items():
        value = read_value(name, row.get(path)) if name != TEXT_KEY else None
        if value is not None:
            values[name] = value

    url = str(values.get(ADDRESS_KEY, ""))
    host = make_url_readable(url, "host") or ""
    return Page(text, values, address=normalize_url(url), host=host)


def drop_copies(page_set: PageSet, folder: Path, *, near: bool | None) -> PageSet:
    """Leaves out the pages that copy an earlier page, exactly or nearly.

    Args:
        folder: Where signatures of the pages are cached for the next call.
        near: Whether to also leave out near copies; None: if the extra `annotate` is installed.

    Raises:
        ConfigurationError: If `near` is true, and the extra is not installed.
    """
    seen_texts: set[str] = set()
    distinct = PageSet([], Counter(page_set.left_out))
    for page in page_set.pages:
        if page.text in seen_texts:
            distinct.left_out["the text of an earlier page"] += 1
        else:
            seen_texts.add(page.text)
            distinct.pages.append(page)
    if near is False:
        return distinct

    try:
        near_copies = _find_near_copies(distinct.pages, folder)
    except MissingExtraError as error:
        if near:
            raise ConfigurationError(f"near_copies=true: {error}") from error
        distinct.notes.append(f"Near copies of a page were not looked for: {error}.")
        return distinct

    distinct.pages = [
        page for number, page in enumerate(distinct.pages) if number not in near_copies
    ]
    if near_copies:
        distinct.left_out["nearly the text of an earlier page"] = len(near_copies)
    return distinct


class MissingExtraError(ImportError):
    """A library of an extra is not installed; the message says how to install it."""


def _find_near_copies(pages: Sequence[Page], folder: Path) -> set[int]:
    """Returns the indices of the pages that nearly copy an earlier one.

    Raises:
        MissingExtraError: If the extra `annotate` is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{COPIES}.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode({TEXT_KEY: page.text}) + b"\n" for page in pages))
    config = AnnotateConfig(
        input=str(file), output=str(folder), duplicates=DROP, profile="all", workers=1
    )
    try:
        from bsmeta.annotate import pool
        from bsmeta.annotate.decisions import read_duplicates
        from bsmeta.annotate.duplicates.search import find_duplicates
        from bsmeta.annotate.inputs.sources import identify_files, list_inputs
        from bsmeta.annotate.shard import ShardFiles
    except ModuleNotFoundError as error:
        extra_error = explain_missing_extra(error)
        if extra_error is None:
            raise
        raise MissingExtraError(str(extra_error)) from error

    files = list(identify_files(list_inputs(str(file))))
    try:
        with pool.stop_at_signals():
            problems = find_duplicates(config, files, folder, lambda *_: None)
    except pool.Stopped as stopped:
        raise KeyboardInterrupt from stopped  # as the signal does elsewhere in the command
    assert not problems, problems  # the file has just been written
    _, duplicates = read_duplicates(ShardFiles(folder, COPIES).duplicates)
    return {duplicate.number for duplicate in duplicates}


def list_repeated_types(pages: Sequence[Page], types: Sequence[str]) -> list[str]:
    """Lists the given types whose values occur at the beginning of most texts.

    A gain from such a type may come from copying its value into the text.
    """
    num_repeated: Counter[str] = Counter()
    num_present: Counter[str] = Counter()
    for page in pages:
        start = _normalize_text(page.text[:_START_CHARACTERS])
        for name, value in page.values.items():
            num_present[name] += 1
            if _normalize_text(str(value)) in start:
                num_repeated[name] += 1
    return [
        name
        for name in types
        if num_present[name] and num_repeated[name] >= MIN_REPEATED_SHARE * num_present[name]
    ]


def _normalize_text(text: str) -> str:
    """Folds the case of a text, and replaces each run of white space with one blank."""
    return " ".join(text.casefold().split())
