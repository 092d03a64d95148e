"""Finds the pages that copy an earlier page, or a held-out page.

The input is read twice. The first pass makes a signature of each page (`signatures`), by all
processes, and resumably. Then one process visits the pages in the order of the input files and
their records. A page that has the text of an earlier kept page is an exact duplicate; one whose
signature agrees with a kept page's in at least `duplicate_threshold` of its values is a near
duplicate; all others are kept. So no chain of small changes drops a page that is not similar to a
kept one, and the decisions follow from the input alone: not from the number of processes, nor from
interruptions. The second pass over the input makes the shards, by these decisions.

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
from bsmeta.annotate.bands import BandLayout, GroupTable, choose_bands, group_pages
from bsmeta.annotate.config import OFF, AnnotateConfig
from bsmeta.annotate.decisions import (
    EXACT,
    HELD_OUT,
    NEAR,
    Duplicate,
    read_identity,
    write_duplicates,
)
from bsmeta.annotate.shard import FOLDER, Counts, ShardFiles
from bsmeta.annotate.signatures import (
    NO_TEXT,
    SIGNED,
    Records,
    SignatureFile,
    SignedFile,
    make_signatures,
)
from bsmeta.annotate.sources import InputFile, identify_files, list_inputs
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import hold_write_lock

MAX_COMPARED_PAGES = 100
"""Kept pages of a group that a page is compared with, which bounds the time of hostile input."""

_HELD_OUT_FOLDER = "held_out"  # a subfolder of FOLDER, so no shard's file has the same path
_BLOCK_PAGES = 1 << 12  # pages whose groups are read at a time
_FORMAT = 1  # increment it when the decisions for the same input change
_HELD_OUT_BONUS = 3  # more than the similarity and the exactness of any other page


class Source(NamedTuple):
    """A file whose pages are compared.

    Attributes:
        is_held_out: Whether copies of its pages in other files are reported.
        is_exempt: Whether it is an input file that is held out itself, so none of its pages is
            reported.
    """

    signed: SignedFile
    is_held_out: bool = False
    is_exempt: bool = False


def list_held_out(config: AnnotateConfig) -> list[InputFile]:
    """Lists the files of `held_out`.

    Raises:
        ConfigurationError: If one is in the output, whose shards depend on it.
        DataError: If one is missing or cannot be read.
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
    """Makes the signatures and the decisions of all files that lack them or have old ones.

    Returns:
        A message for each damaged input file, which is not compared.

    Raises:
        DataError: If a held-out file is damaged, or the folder cannot be written.
        Stopped: If a signal arrives; the next run continues.
    """
    held_out = list_held_out(config)
    folder = output / FOLDER
    with hold_write_lock(folder / "duplicates", "duplicates", folder / "duplicates.lock"):
        sources = list(_list_sources(config, files, held_out, output))
        signed_files = _list_unique_files(sources)
        input_bytes = sum(file.bytes for file in files)
        held_out_bytes = sum(signed.file.bytes for signed in signed_files) - input_bytes

        def advance_input(done_bytes: int, counts: Counts) -> None:
            advance(max(done_bytes - held_out_bytes, 0), counts)  # held-out files come first

        problems = make_signatures(config, signed_files, advance_input)
        undamaged = [source for source in sources if source.signed.signatures.path not in problems]
        for source in sources:
            if source.is_held_out:
                _check_held_out(source, problems.get(source.signed.signatures.path))
        _write_decisions(config, files, undamaged, output)
    return list(problems.values())


def _check_held_out(source: Source, problem: str | None) -> None:
    """Refuses a held-out file with which other files cannot be compared completely.

    Args:
        problem: The message about damage, if the file is damaged.

    Raises:
        DataError: If the file is damaged, or no page has text.
    """
    if problem is not None:
        raise DataError(f"held_out: {problem}")
    records = source.signed.signatures.open_records()
    if not (records["state"] != NO_TEXT).any():
        raise DataError(
            f"held_out: no page of {source.signed.file.path} has text; expected pages in the form "
            "of `input`"
        )


def _list_sources(
    config: AnnotateConfig,
    files: Sequence[InputFile],
    held_out: Sequence[InputFile],
    output: Path,
) -> Iterator[Source]:
    """Yields the held-out files, then the input files: earlier pages are kept."""
    paths = {file.xxh3: ShardFiles(output, file.name).signatures for file in files}
    held_out_folder = output / FOLDER / _HELD_OUT_FOLDER
    for file in held_out:
        path = paths.get(file.xxh3, held_out_folder / f"{file.xxh3}.signatures")
        yield Source(SignedFile(file, SignatureFile(config, file, path)), is_held_out=True)

    held_out_hashes = {file.xxh3 for file in held_out}
    for file in files:
        signatures = SignatureFile(config, file, ShardFiles(output, file.name).signatures)
        yield Source(SignedFile(file, signatures), is_exempt=file.xxh3 in held_out_hashes)


def _list_unique_files(sources: Sequence[Source]) -> list[SignedFile]:
    """Lists each file once, although a held-out file may also be an input file."""
    return list({source.signed.signatures.path: source.signed for source in sources}.values())


def _write_decisions(
    config: AnnotateConfig, files: Sequence[InputFile], sources: Sequence[Source], output: Path
) -> None:
    """Writes the decisions of all input files, unless they are up to date."""
    layout = choose_bands(config.duplicate_threshold, config.duplicate_permutations)
    identity = _identify_decisions(config, sources, layout)
    paths = {file.path: ShardFiles(output, file.name).duplicates for file in files}
    if all(read_identity(path) == identity for path in paths.values()):
        return

    compares_inputs = config.duplicates != OFF
    records = [source.signed.signatures.open_records() for source in sources]
    with group_pages(records, layout, output / FOLDER / "bands") as groups:
        comparison = _Comparison(sources, records, groups, config.duplicate_threshold)
        pairs = comparison.visit_pages(compares_inputs)
        for file_path, pairs_of_file in groupby(pairs, lambda pair: pair[0].signed.file.path):
            duplicates = [duplicate for _, duplicate in pairs_of_file]
            write_duplicates(paths.pop(file_path), identity, duplicates)
    for path in paths.values():
        write_duplicates(path, identity, [])


def _identify_decisions(
    config: AnnotateConfig, sources: Sequence[Source], layout: BandLayout
) -> str:
    """Returns a hash of everything that the decisions depend on."""
    files = [
        (
            source.signed.file.name,
            source.signed.signatures.identity,
            source.is_held_out,
            source.is_exempt,
        )
        for source in sources
    ]
    content = [_FORMAT, float(config.duplicate_threshold), layout, config.duplicates != OFF, files]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(content))


class _Comparison:
    """Compares each page with the kept pages of its groups, in order.

    Pages are numbered consecutively over all sources.

    Args:
        records: The signatures of the pages of each source.
        threshold: Minimum similarity of near duplicates.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        records: Sequence[Records],
        groups: GroupTable,
        threshold: float,
    ) -> None:
        self._sources = sources
        self._records = records
        self._groups = groups
        self._threshold = threshold
        # The first page of each source, then the number of pages.
        self._starts = np.cumsum([0, *map(len, records)])
        # The first kept page of each group, -1 without one; most groups have no further ones.
        self._first_kept = np.full(groups.count + 1, -1, np.int64)
        self._more_kept: dict[int, list[int]] = {}

    def visit_pages(self, compares_inputs: bool) -> Iterator[tuple[Source, Duplicate]]:
        """Yields the duplicates with their sources, in the order of the pages.

        Args:
            compares_inputs: Whether pages are also compared with earlier input pages, not only
                with held-out ones.
        """
        for page, page_groups in self._iterate_grouped_pages():
            source, number = self._locate(page)
            if source.is_exempt:
                continue
            if source.is_held_out:
                self._keep(page, page_groups)
                continue

            duplicate = self._compare(page, number, page_groups)
            if duplicate is not None:
                yield source, duplicate
            elif compares_inputs:
                self._keep(page, page_groups)

    def _iterate_grouped_pages(self) -> Iterator[tuple[int, list[int]]]:
        """Yields each page that is in a group, with its groups."""
        pages = int(self._starts[-1])
        for start in range(0, pages, _BLOCK_PAGES):
            numbers = np.array(self._groups.numbers[:, start : start + _BLOCK_PAGES]).T
            for row in np.flatnonzero(numbers.any(axis=1)).tolist():
                yield start + row, numbers[row][numbers[row] > 0].tolist()

    def _locate(self, page: int) -> tuple[Source, int]:
        """Returns the source of a page, and its index in the source."""
        index = int(np.searchsorted(self._starts, page, "right")) - 1
        return self._sources[index], page - int(self._starts[index])

    def _keep(self, page: int, page_groups: Sequence[int]) -> None:
        """Adds a page to the kept pages of its groups, up to `MAX_COMPARED_PAGES` for each."""
        for group in page_groups:
            if self._first_kept[group] < 0:
                self._first_kept[group] = page
                continue
            more = self._more_kept.setdefault(group, [])
            if len(more) < MAX_COMPARED_PAGES - 1:
                more.append(page)

    def _compare(self, page: int, number: int, page_groups: Sequence[int]) -> Duplicate | None:
        """Finds the page that a page copies: a held-out one, or else the most similar one.

        Args:
            number: Index of the page in its source.
        """
        others = self._list_kept(page_groups)
        if not others:
            return None

        similarity, is_exact = self._measure_similarity(page, others)
        is_copy = is_exact | (similarity >= self._threshold)
        is_held_out = np.array([self._locate(other)[0].is_held_out for other in others])
        if not is_copy.any():
            return None

        # Held-out pages rank first, then pages with the same text, then by similarity; of equals,
        # argmax returns the first page.
        rank = np.where(is_copy, similarity + is_exact + _HELD_OUT_BONUS * is_held_out, -1)
        best = int(np.argmax(rank))
        kind = EXACT if is_exact[best] else NEAR
        kept_source, kept_number = self._locate(others[best])
        return Duplicate(
            number,
            HELD_OUT if is_held_out[best] else kind,
            f"{kept_source.signed.file.name}:{kept_number}",
            round(float(similarity[best]), 4),
        )

    def _list_kept(self, page_groups: Sequence[int]) -> list[int]:
        """Returns the kept pages of groups, sorted."""
        kept = {int(self._first_kept[group]) for group in page_groups} - {-1}
        for group in page_groups:
            kept.update(self._more_kept.get(group, ()))
        return sorted(kept)

    def _measure_similarity(
        self, page: int, others: Sequence[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Compares a page with others.

        Returns:
            float64 [others], the estimated similarity, 0 for texts that are too short to estimate;
            bool [others], whether the texts are equal.
        """
        record = self._read_record(page)
        other_records = np.stack([self._read_record(other) for other in others])
        is_exact = (other_records["text"] == record["text"]).all(axis=1)
        similarity = (other_records["signature"] == record["signature"]).mean(axis=1)
        is_signed = (other_records["state"] == SIGNED) & (record["state"] == SIGNED)
        return np.where(is_exact, 1.0, np.where(is_signed, similarity, 0.0)), is_exact

    def _read_record(self, page: int) -> np.void:
        index = int(np.searchsorted(self._starts, page, "right")) - 1
        return self._records[index][page - int(self._starts[index])]
