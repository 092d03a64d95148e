"""Finds the pages that copy an earlier page, or a held-out page.

The input is read twice. In the first pass, all processes make the signatures of the pages
(`signatures`); it can be interrupted and resumed. Then one process visits the pages in the order of
the input files and their records. A page with the text of an earlier kept page is an exact
duplicate; a page whose signature agrees with a kept page's in at least `duplicate_threshold` of its
values is a near duplicate; all others are kept. Therefore every dropped page is similar to a kept
one, not only to other dropped ones; and the decisions depend on the input alone, not on the number
of processes or on interruptions. The second pass makes the shards by these decisions.

The similarity is estimated from signatures, not computed from the texts, which would have to be
read again in random order. With n permutations its standard error at the similarity s is
sqrt(s * (1 - s) / n): 0.035 at 0.8 with 128.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from bsmeta.annotate import pool
from bsmeta.annotate.config import OFF, AnnotateConfig
from bsmeta.annotate.decisions import (
    EXACT,
    HELD_OUT,
    NEAR,
    Duplicate,
    read_identity,
    write_duplicates,
)
from bsmeta.annotate.duplicates.bands import BandLayout, GroupTable, choose_bands, group_pages
from bsmeta.annotate.duplicates.signatures import (
    NO_TEXT,
    SIGNED,
    Records,
    SignatureFile,
    SignedFile,
    make_signatures,
)
from bsmeta.annotate.inputs.sources import InputFile, identify_files, list_inputs
from bsmeta.annotate.shard import FOLDER, Counts, ShardFiles
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import hold_write_lock

MAX_COMPARED_PAGES = 100
"""Maximum number of kept pages per group to compare a page with; bounds the time of any input."""

_HELD_OUT_FOLDER = "held_out"  # a subfolder of FOLDER, so no shard's file has the same path
_BLOCK_PAGES = 1 << 12  # pages whose groups are read at a time
_FORMAT = 1  # increment it when the decisions for the same input change
_HELD_OUT_BONUS = 3  # more than the similarity and the exactness of any other page


class ComparedFile(NamedTuple):
    """A file whose pages are compared.

    Attributes:
        signed: The file with its signatures.
        is_held_out: Whether it is a held-out file, whose copies in other files are reported.
        is_exempt: Whether it is an input file that is held out itself, so that none of its pages is
            reported.
    """

    signed: SignedFile
    is_held_out: bool = False
    is_exempt: bool = False


def list_held_out(config: AnnotateConfig) -> list[InputFile]:
    """Lists the files of `held_out`.

    Raises:
        ConfigurationError: If one of them is in the output, whose shards depend on it.
        DataError: If one of them is missing or cannot be read.
    """
    if not config.held_out:
        return []

    inputs = list_inputs(config.held_out, "held_out")
    output = Path(config.output or "").resolve()
    for path, _ in inputs:
        if Path(path).resolve().is_relative_to(output):
            raise ConfigurationError(
                f"held_out: {path} is in output={config.output}, whose shards depend on it; name "
                "the input file that it is made from, or copy it to another folder"
            )
    return list(identify_files(inputs))


def find_duplicates(
    config: AnnotateConfig, files: Sequence[InputFile], output: Path, advance: pool.Advance
) -> list[str]:
    """Makes the signatures and the decisions of all files, unless they are up to date.

    Returns:
        A message for each damaged input file, whose pages are not compared.

    Raises:
        DataError: If a held-out file is damaged, or the folder cannot be written.
        Stopped: If a signal arrives; the next call continues.
    """
    held_out = list_held_out(config)
    folder = output / FOLDER
    with hold_write_lock(folder / "duplicates", "duplicates", folder / "duplicates.lock"):
        compared_files = list(_list_compared_files(config, files, held_out, output))
        signed_files = _list_unique_files(compared_files)
        input_bytes = sum(file.bytes for file in files)
        held_out_bytes = sum(signed.file.bytes for signed in signed_files) - input_bytes

        def advance_input(done_bytes: int, counts: Counts) -> None:
            advance(max(done_bytes - held_out_bytes, 0), counts)  # held-out files come first

        problems = make_signatures(config, signed_files, advance_input)
        undamaged = []
        for compared_file in compared_files:
            problem = problems.get(compared_file.signed.signatures.path)
            if compared_file.is_held_out:
                _check_held_out(compared_file, problem)
            if problem is None:
                undamaged.append(compared_file)
        _write_decisions(config, files, undamaged, output)
    return list(problems.values())


def _check_held_out(held_out_file: ComparedFile, problem: str | None) -> None:
    """Refuses a held-out file whose pages cannot all be compared.

    Args:
        problem: The message about its damage; None if it is intact.

    Raises:
        DataError: If the file is damaged, or no page has text.
    """
    if problem is not None:
        raise DataError(f"held_out: {problem}")

    records = held_out_file.signed.signatures.open_records()
    if not (records["state"] != NO_TEXT).any():
        raise DataError(
            f"held_out: no page of {held_out_file.signed.file.path} has text; expected pages in "
            "the form of `input`"
        )


def _list_compared_files(
    config: AnnotateConfig,
    files: Sequence[InputFile],
    held_out: Sequence[InputFile],
    output: Path,
) -> Iterator[ComparedFile]:
    """Yields the held-out files before the input files, because earlier pages are kept."""
    paths = {file.xxh3: ShardFiles(output, file.name).signatures for file in files}
    held_out_folder = output / FOLDER / _HELD_OUT_FOLDER
    for file in held_out:
        path = paths.get(file.xxh3, held_out_folder / f"{file.xxh3}.signatures")
        yield ComparedFile(SignedFile(file, SignatureFile(config, file, path)), is_held_out=True)

    held_out_hashes = {file.xxh3 for file in held_out}
    for file in files:
        signatures = SignatureFile(config, file, ShardFiles(output, file.name).signatures)
        yield ComparedFile(SignedFile(file, signatures), is_exempt=file.xxh3 in held_out_hashes)


def _list_unique_files(compared_files: Sequence[ComparedFile]) -> list[SignedFile]:
    """Lists each file once, although a held-out file may also be an input file."""
    files_by_path = {file.signed.signatures.path: file.signed for file in compared_files}
    return list(files_by_path.values())


def _write_decisions(
    config: AnnotateConfig,
    files: Sequence[InputFile],
    compared_files: Sequence[ComparedFile],
    output: Path,
) -> None:
    """Writes the decisions on all input files, unless they are up to date.

    Args:
        files: All input files.
        compared_files: The undamaged files.
    """
    layout = choose_bands(config.duplicate_threshold, config.duplicate_permutations)
    identity = _identify_decisions(config, compared_files, layout)
    paths = {file.path: ShardFiles(output, file.name).duplicates for file in files}
    if all(read_identity(path) == identity for path in paths.values()):
        return

    compares_inputs = config.duplicates != OFF
    records = [file.signed.signatures.open_records() for file in compared_files]
    with group_pages(records, layout, output / FOLDER / "bands") as groups:
        comparison = _Comparison(compared_files, records, groups, config.duplicate_threshold)
        pairs = comparison.find_duplicates(compares_inputs=compares_inputs)
        for file_path, pairs_of_file in groupby(pairs, lambda pair: pair[0].signed.file.path):
            duplicates = [duplicate for _, duplicate in pairs_of_file]
            write_duplicates(paths.pop(file_path), identity, duplicates)
    for path in paths.values():
        write_duplicates(path, identity, [])


def _identify_decisions(
    config: AnnotateConfig, compared_files: Sequence[ComparedFile], layout: BandLayout
) -> str:
    """Hashes everything that the decisions depend on."""
    files = [
        (
            file.signed.file.name,
            file.signed.signatures.identity,
            file.is_held_out,
            file.is_exempt,
        )
        for file in compared_files
    ]
    content = [_FORMAT, float(config.duplicate_threshold), layout, config.duplicates != OFF, files]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(content))


class _Comparison:
    """Compares each page with the kept pages of its groups, in order.

    Pages are numbered consecutively over all files.

    Args:
        files: The compared files.
        records: The signatures of the pages of each file.
        groups: The groups of each page.
        threshold: Minimum similarity of near duplicates.
    """

    def __init__(
        self,
        files: Sequence[ComparedFile],
        records: Sequence[Records],
        groups: GroupTable,
        threshold: float,
    ) -> None:
        self._files = files
        self._records = records
        self._groups = groups
        self._threshold = threshold
        # The first page of each file, then the number of pages.
        self._starts = np.cumsum([0, *(len(file_records) for file_records in records)])
        # The first kept page of each group, -1 without one; most groups have no further ones.
        self._first_kept = np.full(groups.count + 1, -1, np.int64)
        self._more_kept: dict[int, list[int]] = {}

    def find_duplicates(self, *, compares_inputs: bool) -> Iterator[tuple[ComparedFile, Duplicate]]:
        """Yields the duplicates with their files, in the order of the pages.

        Args:
            compares_inputs: Whether pages are also compared with earlier input pages, not only
                with held-out ones.
        """
        for page, page_groups in self._iterate_grouped_pages():
            file, number = self._locate_page(page)
            if file.is_exempt:
                continue
            if file.is_held_out:
                self._keep_page(page, page_groups)
                continue

            duplicate = self._find_original(page, number, page_groups)
            if duplicate is not None:
                yield file, duplicate
            elif compares_inputs:
                self._keep_page(page, page_groups)

    def _iterate_grouped_pages(self) -> Iterator[tuple[int, list[int]]]:
        """Yields each page that is in a group, with its groups."""
        pages = int(self._starts[-1])
        for start in range(0, pages, _BLOCK_PAGES):
            numbers = np.array(self._groups.numbers[:, start : start + _BLOCK_PAGES]).T
            for row in np.flatnonzero(numbers.any(axis=1)).tolist():
                yield start + row, numbers[row][numbers[row] > 0].tolist()

    def _locate_page(self, page: int) -> tuple[ComparedFile, int]:
        """Returns the file of a page, and the index of the page in it."""
        index = int(np.searchsorted(self._starts, page, "right")) - 1
        return self._files[index], page - int(self._starts[index])

    def _keep_page(self, page: int, page_groups: Sequence[int]) -> None:
        """Adds a page to the kept pages of its groups, up to `MAX_COMPARED_PAGES` in each."""
        for group in page_groups:
            if self._first_kept[group] < 0:
                self._first_kept[group] = page
                continue

            more_kept = self._more_kept.setdefault(group, [])
            if len(more_kept) < MAX_COMPARED_PAGES - 1:
                more_kept.append(page)

    def _find_original(
        self, page: int, number: int, page_groups: Sequence[int]
    ) -> Duplicate | None:
        """Finds the kept page that a page copies: a held-out one, or else the most similar one.

        Args:
            number: Index of the page in its file.

        Returns:
            The decision on the page; None if it copies no kept page.
        """
        others = self._list_kept(page_groups)
        if not others:
            return None

        similarity, is_exact = self._measure_similarity(page, others)
        is_copy = is_exact | (similarity >= self._threshold)
        is_held_out = np.array([self._locate_page(other)[0].is_held_out for other in others])
        if not is_copy.any():
            return None

        # Held-out pages rank first, then pages with the same text, then by similarity; among
        # equals, argmax returns the first page.
        rank = np.where(is_copy, similarity + is_exact + _HELD_OUT_BONUS * is_held_out, -1)
        best = int(np.argmax(rank))
        kind = EXACT if is_exact[best] else NEAR
        kept_file, kept_number = self._locate_page(others[best])
        return Duplicate(
            number,
            kind=HELD_OUT if is_held_out[best] else kind,
            kept=f"{kept_file.signed.file.name}:{kept_number}",
            similarity=round(float(similarity[best]), 4),
        )

    def _list_kept(self, page_groups: Sequence[int]) -> list[int]:
        """Lists the kept pages of groups, ascending."""
        kept_pages = {int(self._first_kept[group]) for group in page_groups} - {-1}
        for group in page_groups:
            kept_pages.update(self._more_kept.get(group, ()))
        return sorted(kept_pages)

    def _measure_similarity(
        self, page: int, others: Sequence[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Compares a page with others.

        Returns:
            The estimated similarity to each, float64 [others], 0 if a text is too short for an
            estimate; and whether the texts are equal, bool [others].
        """
        record = self._read_record(page)
        other_records = np.stack([self._read_record(other) for other in others])
        is_exact = (other_records["text"] == record["text"]).all(axis=1)
        similarity = (other_records["signature"] == record["signature"]).mean(axis=1)
        is_signed = (other_records["state"] == SIGNED) & (record["state"] == SIGNED)
        return np.where(is_exact, 1.0, np.where(is_signed, similarity, 0.0)), is_exact

    def _read_record(self, page: int) -> np.void:
        """Reads the signature of a page."""
        index = int(np.searchsorted(self._starts, page, "right")) - 1
        return self._records[index][page - int(self._starts[index])]
