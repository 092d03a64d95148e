"""Makes signatures of pages, by which duplicates are found without reading any text again.

A first pass over the input makes a record of fixed size for each page: a hash of its text, and its
MinHash signature. The share of equal values in two signatures estimates the Jaccard similarity of
the texts' shingles (Broder 1997, "On the resemblance and containment of documents"). The records
of an input file are kept in `_annotation/NAME.signatures`. Each has a checksum: a killed pass
continues after the last whole record of the file that was being written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash
from datasketch import MinHash
from numpy.typing import NDArray

from bsmeta.annotate import pool
from bsmeta.annotate.annotator import Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.duplicates import shingles
from bsmeta.annotate.html.page import VERSION
from bsmeta.annotate.inputs.sources import InputFile, Item, decode_record
from bsmeta.annotate.shard import PART_SUFFIX, Counts

NO_TEXT = 0
ONLY_EXACT = 1  # too short for a signature
SIGNED = 2

_SEED = 1
_SCHEME = "affine32"  # fixed, because signatures of different schemes cannot be compared
_BATCH_SHINGLES = 1 << 14  # shingles that are permuted at a time, to bound the memory
_HEADER_BYTES = 128
_PROBE_WORDS = [
    str(number) for number in range(50)
]  # words whose signature identifies the algorithm

Records = NDArray[np.void]
"""Structured array of the type of `make_record_type`: a record for each page of an input file."""
Signature = NDArray[np.uint32]


def make_record_type(permutations: int) -> np.dtype[np.void]:
    """Returns the structured type of the record of a page.

    Its fields are a checksum of the other fields, the hash of the text (128 bits), the state
    (`NO_TEXT`, `ONLY_EXACT` or `SIGNED`), and the signature.
    """
    return np.dtype(
        [
            ("checksum", "<u8"),
            ("text", "<u8", 2),
            ("state", "<u8"),
            ("signature", "<u4", permutations),
        ]
    )


class Signer:
    """Computes MinHash signatures: the minima of permutations of 32-bit hashes."""

    def __init__(self, permutations: int) -> None:
        self._empty = MinHash(permutations, seed=_SEED, scheme=_SCHEME, hashfunc=int)

    def sign(self, hashes: shingles.Hashes) -> Signature:
        """Computes the signature of a set of 64-bit hashes, whose upper 32 bits are used."""
        minhash = self._empty.copy()
        for start in range(0, len(hashes), _BATCH_SHINGLES):
            batch = hashes[start : start + _BATCH_SHINGLES]
            minhash.update_batch((batch >> np.uint64(32)).tolist())
        return np.asarray(minhash.hashvalues, np.uint32)


class PageSigner:
    """Makes the signature records of chunks of pages, in the worker processes."""

    def __init__(self, config: AnnotateConfig) -> None:
        self._config = config
        self._page_bytes = int(config.page_mb * 1e6)
        self._signer = Signer(config.duplicate_permutations)
        self._type = make_record_type(config.duplicate_permutations)

    def __call__(self, chunk: pool.Chunk, failures: pool.Failures, status: pool.Status) -> bytes:
        """Returns the records of a chunk as bytes."""
        records = np.zeros(len(chunk.items), self._type)
        for number, item in enumerate(chunk.items):
            if (number, pool.PAGE_STEP) not in failures:
                status.begin_page(number)
                self._fill_record(records[number], item)
        status.end_page()

        for record in records:
            record["checksum"] = _compute_checksum(record)
        return records.tobytes()

    def _fill_record(self, record: np.void, item: Item) -> None:
        """Fills the record of a page; it stays `NO_TEXT` if the page has no text.

        A page that cannot be parsed also stays `NO_TEXT`; `Annotation` counts the reason.
        """
        try:
            page = decode_record(item, self._page_bytes)
            text = "" if page.problem else Row(page, self._config.profile).text
            signature = self._sign(text)
        except Exception:  # the parser may raise anything, and a large page a MemoryError
            return
        if not text:
            return

        digest = xxhash.xxh3_128_intdigest(text.encode("utf-8", "surrogatepass"))
        record["text"] = (digest >> 64, digest & ((1 << 64) - 1))
        record["state"] = ONLY_EXACT if signature is None else SIGNED
        if signature is not None:
            record["signature"] = signature

    def _sign(self, text: str) -> Signature | None:
        """Computes the signature of a text; None if it has too few words."""
        words = shingles.split_words(text)
        length = self._config.duplicate_shingle
        if len(words) < max(self._config.duplicate_min_words, length):
            return None
        return self._signer.sign(shingles.hash_shingles(words, length))


def _compute_checksum(record: np.void) -> int:
    """Computes the checksum of a record, over all fields but the checksum itself."""
    return xxhash.xxh3_64_intdigest(record.tobytes()[8:])


class SignatureFile:
    """The file with the signature records of an input file.

    Attributes:
        path: The path of the complete file.
        identity: Hash of everything that the records depend on.
    """

    def __init__(self, config: AnnotateConfig, file: InputFile, path: Path) -> None:
        self.path = path
        self.identity = _identify_signatures(config, file)
        self._part = path.with_name(f"{path.name}{PART_SUFFIX}")
        self._type = make_record_type(config.duplicate_permutations)
        self._header = f"signatures {self.identity}".ljust(_HEADER_BYTES - 1).encode() + b"\n"

    def is_complete(self) -> bool:
        """Whether the file has all records of the input with the current settings."""
        return _read_header(self.path) == self._header

    def recover(self) -> int:
        """Truncates an incomplete file after its last valid record.

        Returns:
            The number of valid records.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if _read_header(self._part) != self._header:
            self._part.write_bytes(self._header)
            return 0

        count = 0
        record_bytes = self._type.itemsize
        with open(self._part, "rb+") as file:
            file.seek(_HEADER_BYTES)
            while True:
                data = file.read(record_bytes)
                if len(data) < record_bytes:
                    break
                record = np.frombuffer(data, self._type)[0]
                if record["checksum"] != _compute_checksum(record):
                    break
                count += 1
            file.truncate(_HEADER_BYTES + count * record_bytes)
        return count

    def append(self, data: bytes) -> None:
        """Appends the records of a chunk, and waits until they are on the disk."""
        with open(self._part, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """Renames the file to its final path, which marks it as complete."""
        self._part.replace(self.path)

    def open_records(self) -> Records:
        """Maps the records of a complete file into memory."""
        count = (self.path.stat().st_size - _HEADER_BYTES) // self._type.itemsize
        if not count:
            return np.empty(0, self._type)
        return np.memmap(self.path, self._type, "r", _HEADER_BYTES, (count,))


def _identify_signatures(config: AnnotateConfig, file: InputFile) -> str:
    """Hashes everything that the records of a file depend on.

    The hash includes the signature of fixed words, so that all signatures are recomputed if another
    version of the library computes different ones.
    """
    length = config.duplicate_shingle
    content: list[Any] = [
        [file.bytes, file.xxh3],
        [VERSION, config.profile, int(config.page_mb * 1e6), config.on_bad_record],
        [shingles.VERSION, length, config.duplicate_min_words],
        _sign_probe(config.duplicate_permutations),
    ]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(content))


@lru_cache
def _sign_probe(permutations: int) -> list[int]:
    """Computes the signature of fixed words."""
    return Signer(permutations).sign(shingles.hash_shingles(_PROBE_WORDS, 1)).tolist()


def _read_header(path: Path) -> bytes:
    """Reads the header of a file; b"" if the file is missing."""
    try:
        with open(path, "rb") as file:
            return file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return b""


class SignedFile(NamedTuple):
    """An input file or a held-out file, and its signatures."""

    file: InputFile
    signatures: SignatureFile


def make_signatures(
    config: AnnotateConfig, signed_files: Sequence[SignedFile], advance: pool.Advance
) -> dict[Path, str]:
    """Makes the signatures of all files that lack them.

    Returns:
        A message for each damaged file, by the path of its signatures, which stay incomplete.

    Raises:
        OSError: If the signatures cannot be written.
        Stopped: If a signal arrives; the next call continues.
    """
    problems: dict[Path, str] = {}
    with pool.Pool(config, PageSigner(config)) as workers:
        results = workers.map(_read_chunks(config, signed_files))
        for number, results_of_file in groupby(results, lambda result: result[0].shard):
            signatures = signed_files[number].signatures
            for chunk, data in results_of_file:
                if data is not None:
                    signatures.append(data)
                elif chunk.problem:
                    problems[signatures.path] = chunk.problem
                else:
                    signatures.finish()
                advance(chunk.position, Counts(pages=len(chunk.items)))
    return problems


def _read_chunks(
    config: AnnotateConfig, signed_files: Sequence[SignedFile]
) -> Iterator[pool.Chunk]:
    """Yields the chunks whose pages are not yet signed."""
    end = 0
    for number, (file, signatures) in enumerate(signed_files):
        start = end
        end += file.bytes
        if not signatures.is_complete():
            template = pool.Chunk(number, position=start)
            yield from pool.read_chunks(config, template, file, signatures.recover())
