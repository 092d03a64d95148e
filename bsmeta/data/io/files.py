"""Files of documents, local (`str`) or remote (`FileRef`): opened, unpacked, and facts about them.

A Zstandard file can be entered at any of its frames. Decompression of a gzip file can only start
where a deflate block begins, which may be inside a byte, and it needs the preceding 32 KB of
decompressed data. An `AccessPoint`, built by `lines`, stores all this. isal cannot start inside a
byte, so empty deflate blocks that end at the required bit are put before the data.

A `Cache` on disk, which all processes of a machine share, holds facts about a file that take a full
pass over it to compute. The name of their file derives from the size, the modification time and the
first bytes of the file described (a remote one: from its size and hash), so it never describes
other content.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np
import xxhash
from isal import isal_zlib

from bsmeta.core.files import replacing, sync
from bsmeta.core.progress import exclusively, reporting

if TYPE_CHECKING:
    from bsmeta.data.io.remote import Store

log = logging.getLogger(__name__)

HUB = "hf"
EVERYWHERE = "**/*.jsonl.gz"  # the files of a data set of which no path is given

BLOCK = 1 << 18
COMPRESSED_BLOCK = 1 << 18
GZIP_MEMBER = 31  # window bits that mean: a gzip header, a deflate stream, a checksum
BARE_DEFLATE = -15  # ... and: a deflate stream alone
TRAILER = 8  # bytes of checksum and size after the deflate stream of a gzip member
CUT = "the file ends in the middle of its data"
EMPTY = "the file is empty, and not even compressed: it was not written to its end"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LFS = "the file is a pointer of Git LFS; fetch its content with git lfs pull"
GZIP_MARK = b"\x1f\x8b"

# An empty block with the fixed code is 10 bits long: not the last block (0), type 1 (1, 0), end of
# block (7 zeros). RFC 1951, sections 3.2.3 and 3.2.6; bits are written in the order of the stream.
FIXED_BLOCK = "0100000000"

# An empty block with dynamic codes can have an odd length. This one is 95 bits long. RFC 1951,
# section 3.2.7: the codes of the byte 0, of the end of a block, and of two distances have 1 bit.
OWN_BLOCK = (
    "0" "01"  # not the last block, type 2
    "00000" "10000" "1111"  # 257 codes of bytes and lengths, 2 of distances, 19 of code lengths
    # Lengths of the 19 codes, in their odd order: 18 (a run of zeros) and 1 have one bit.
    + "000" * 2 + "100" + "000" * 14 + "100" + "000"
    + "0"  # the byte 0: length 1
    + "1" + "1111111"  # 138 zeros
    + "1" + "0101011"  # 11 + 106 = 117 zeros
    + "0" "0" "0"  # end of block and both distances: length 1
    + "1"  # the end of the block
)  # fmt: skip

_HEAD = 1 << 16  # bytes of a file that identify it, with its size and time
_FACTS_VERSION = 2
_LONGEST_NAME = 128  # bytes of a file's name that go into the name of its cache file

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How remote files are read.

    Attributes:
        folder: Where listings and blocks of files are kept.
        cache_bytes: Maximum bytes of blocks to keep.
        retries: Number of consecutive failures after which reading is abandoned.
        by_tensorflow: Whether TensorFlow reads them, whatever their scheme.
    """

    folder: str
    cache_bytes: int
    retries: int
    by_tensorflow: bool = False


@dataclass(frozen=True, slots=True)
class FileRef:
    """A remote file as it was when it was listed; its string is its URL.

    Attributes:
        size: In bytes.
        etag: Identifies its content. On the Hub it is the SHA-256 of a large file and the Git hash
            (SHA-1) of others, on S3 the ETag, on Cloud Storage the MD5 or the CRC32C, by TensorFlow
            the hash of samples.
        scheme: The store: `hf`, `s3`, `gs`, or a file system of TensorFlow.
        container: The data set (`owner/name`), or the bucket.
        path: Its path in the data set, or its name in the bucket.
        version: The commit of the data set; the generation on Cloud Storage; "" on S3.
    """

    size: int
    etag: str
    settings: RemoteSettings
    scheme: str
    container: str
    path: str
    version: str = ""

    def __str__(self) -> str:
        commit = f"@{self.version}" if self.scheme == HUB else ""
        return f"{root_of(self.scheme, self.container)}{commit}/{self.path}"

    @property
    def store(self) -> Store:
        """Reads it."""
        from bsmeta.data.io.remote import store_of

        return store_of("tf" if self.settings.by_tensorflow else self.scheme)

    @property
    def place(self) -> str:
        """An absolute path that identifies it among the files of its store."""
        return f"/{self.container}/{self.path}"

    @property
    def content_id(self) -> str:
        """What identifies its content in the cache, together with the size.

        The hash on the Hub, so that copies share their blocks; an ETag is not always a hash.
        """
        return self.etag if self.scheme == HUB else f"{self} {self.etag} {self.version}"

    def identity(self, name: str) -> dict[str, Any]:
        """What must not change before a run is resumed; JSON-serializable.

        Args:
            name: The name of the shard that it is.
        """
        if self.scheme == HUB:
            return {root_of(self.scheme, self.container): self.version, name: self.size}
        return {name: {"bytes": self.size, "etag": self.etag}}


def root_of(scheme: str, container: str) -> str:
    """The URL of a data set or a bucket."""
    return f"{scheme}://datasets/{container}" if scheme == HUB else f"{scheme}://{container}"


def open_file(path: str | FileRef, blocks: int = 1) -> BinaryIO:
    """Opens a file for reading.

    Args:
        blocks: Number of the most recently read blocks to keep in memory, if it is remote.
    """
    if not isinstance(path, FileRef):
        return open(path, "rb")
    from bsmeta.data.io.remote_file import RemoteFile

    return cast(BinaryIO, RemoteFile(path, blocks))


def size_of(path: str | FileRef) -> int:
    """Size of a file in bytes."""
    return path.size if isinstance(path, FileRef) else os.path.getsize(path)


def refuse_bad_copy(path: str | FileRef) -> None:
    """Raises if a rejected document may come from a bad cached copy of a remote file."""
    if isinstance(path, FileRef):
        from bsmeta.data.io.remote_file import refuse_bad_copy_of

        refuse_bad_copy_of(path)


class DamagedFileError(Exception):
    """A compressed file is truncated, damaged, or of a different format."""


class AccessPoint(NamedTuple):
    """A place where reading a shard can start.

    Attributes:
        raw: Bytes of content before it.
        line: Number of line ends before it.
        offset: Offset in the file of the first whole byte after it.
        bits: Number of bits of the previous byte that also belong to the block (0 to 7).
        window: The content before it that the block refers to (up to 32 KB).
    """

    raw: int
    line: int
    offset: int
    bits: int
    window: bytes


def shard_content(
    path: str | FileRef, file: BinaryIO, point: AccessPoint | None = None
) -> Generator[bytes, None, None]:
    """The content of a shard in blocks; see `content`.

    If a remote file is damaged, its cached copy is checked and, if it is bad, downloaded again;
    reading then resumes at the same byte.

    Raises:
        DamagedFileError: If the file itself is damaged; everything before the damage is yielded
            first.
        DataError: If the content read before the damage differs from the content of the server.
    """
    if isinstance(path, FileRef):
        from bsmeta.data.io.remote_file import remote_content

        yield from remote_content(path, file, point)
    else:
        yield from reporting(content(path, file, point))


def content(path: str, file: BinaryIO, point: AccessPoint | None = None) -> Iterator[bytes]:
    """The content of a shard in blocks of about `BLOCK` bytes.

    Args:
        path: Its suffix determines the format: `.gz`, `.zst`, or plain.
        point: Where to start; None starts at the beginning.

    Raises:
        DamagedFileError: If the file is damaged, after everything before the damage is yielded.
    """
    if path.endswith(".gz"):
        return inflate(file) if point is None else _inflate_from(file, point)
    file.seek(0 if point is None else point.offset)
    if path.endswith(".zst"):
        return (block for _, block in zst_blocks(file))
    return iter(lambda: file.read(BLOCK), b"")


def _first_block(file: BinaryIO) -> bytes:
    """The beginning of a compressed file, which has a header even if its content is empty."""
    data = file.read(COMPRESSED_BLOCK)
    if not data:
        raise DamagedFileError(EMPTY)
    if data.startswith(LFS_POINTER):
        raise DamagedFileError(LFS)
    return data


def inflate(file: BinaryIO) -> Iterator[bytes]:
    """The content of a gzip file of any number of members."""
    data = _first_block(file)
    if not data.startswith(GZIP_MARK):
        raise DamagedFileError(
            "the file is not compressed with gzip, although its name ends in .gz; rename or "
            "compress it"
        )
    yield from _inflate_members(file, data)


def _inflate_members(file: BinaryIO, data: bytes) -> Iterator[bytes]:
    """The content of the remaining members of a gzip file; `data` is what was already read."""
    data = data or file.read(COMPRESSED_BLOCK)
    while data:
        data = yield from _inflate_member(file, data, isal_zlib.decompressobj(wbits=GZIP_MEMBER))
        # After a member: another member, or zero padding to a full tape block.
        data = data.lstrip(b"\0")
        while not data and (more := file.read(COMPRESSED_BLOCK)):
            data = more.lstrip(b"\0")


def _inflate_from(file: BinaryIO, point: AccessPoint) -> Iterator[bytes]:
    file.seek(point.offset - (point.bits > 0))
    data = file.read(COMPRESSED_BLOCK)
    if point.bits:
        data = aligned(data, point.bits)
    member = isal_zlib.decompressobj(wbits=BARE_DEFLATE, zdict=point.window)
    data = yield from _inflate_member(file, data, member)
    data += file.read(max(TRAILER - len(data), 0))
    yield from _inflate_members(file, data[TRAILER:])


def _inflate_member(file: BinaryIO, data: bytes, member: Any) -> Generator[bytes, None, bytes]:
    """Yields the content of one deflate stream; returns the data read beyond its end."""
    while not member.eof:
        try:
            block = member.decompress(data, BLOCK)
        except isal_zlib.error as error:  # type: ignore[misc]
            raise DamagedFileError(f"the data cannot be decompressed: {error}") from error
        if block:
            yield block
        data = member.unconsumed_tail
        if not data and not member.eof and len(block) < BLOCK:  # otherwise it may hold more
            data = file.read(COMPRESSED_BLOCK)
            if not data:
                raise DamagedFileError(CUT)
    return member.unused_data


def zst_blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The content of a Zstandard file, each block with the offset of the frame that contains it.

    Skippable frames, such as the seek table of the seekable format, have no content.
    """
    from backports import zstd

    data = _first_block(file)
    offset = file.tell() - len(data)
    while data:
        frame = zstd.ZstdDecompressor()
        while not frame.eof:
            if frame.needs_input and not data:
                data = file.read(COMPRESSED_BLOCK)
                if not data:
                    raise DamagedFileError(CUT)
            try:
                block = frame.decompress(data, BLOCK)
            except zstd.ZstdError as error:
                raise DamagedFileError(f"the data cannot be decompressed: {error}") from error
            data = b""
            if block:
                yield offset, block
        data = frame.unused_data or file.read(COMPRESSED_BLOCK)
        offset = file.tell() - len(data)


def aligned(data: bytes, bits: int) -> bytes:
    """Realigns a deflate stream from the highest `bits` bits of `data[0]` to begin at bit 0.

    Empty blocks fill the bits before it.
    """
    wanted = 8 - bits
    filler = OWN_BLOCK if wanted % 2 else ""
    while len(filler) % 8 != wanted:
        filler += FIXED_BLOCK
    number = int(filler[::-1], 2)  # the first bit is the lowest
    number |= data[0] >> wanted << len(filler)
    return number.to_bytes((len(filler) + bits) // 8, "little") + data[1:]


class Cache:
    """A cache folder.

    Args:
        folder: The folder; None is `bsmeta` in the user's cache folder.
    """

    def __init__(self, folder: str | None = None) -> None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = Path(folder) if folder else Path(caches) / "bsmeta"

    def load(self, path: str | FileRef, kind: str) -> Arrays | None:
        """The facts of a kind about the current content of a file; None if not cached."""
        return read_arrays(self._file(path, kind))

    def make(self, path: str | FileRef, kind: str, facts: Callable[[], Arrays]) -> None:
        """Caches the result of `facts`, unless a readable result is already cached.

        Raises:
            OSError: If the folder cannot be written, or `facts` cannot read the file.
        """
        kept = self._file(path, kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusively(f"{kept}.lock", f"{kind} of {path}"):
            if read_arrays(kept) is None:
                write_arrays(kept, facts())

    def _file(self, path: str | FileRef, kind: str) -> Path:
        if isinstance(path, FileRef):  # its hash is in the listing
            key = xxhash.xxh3_64(f"{_FACTS_VERSION} {path.size} {path.content_id}".encode())
        else:
            status = os.stat(path)
            with open(path, "rb") as file:
                key = xxhash.xxh3_64(file.read(_HEAD))
            key.update(f"{_FACTS_VERSION} {status.st_size} {status.st_mtime_ns}".encode())
        # The name is only for readability: a remote one may have any characters, at any length.
        name = os.path.basename(str(path)).encode(errors="replace")[:_LONGEST_NAME]
        readable = "".join(
            character if character.isprintable() else "_"
            for character in name.decode(errors="ignore")
        )
        return self.folder / f"{readable}-{key.hexdigest()}.{kind}.npz"


def read_arrays(path: Path) -> Arrays | None:
    """The arrays of a file in the cache; None if there is none, or it is damaged."""
    try:
        with np.load(path) as saved:
            return dict(saved)
    except FileNotFoundError:
        return None
    except Exception as error:  # numpy and zipfile raise many kinds for damaged content
        log.warning("%s cannot be read and is rebuilt: %s", path, error or type(error).__name__)
        return None


@contextlib.contextmanager
def kept_if_possible(what: str) -> Iterator[None]:
    """Logs that something is not kept if it cannot be written, which only costs time."""
    try:
        yield
    except OSError as error:
        log.warning("%s not kept: %s", what, error)


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays to a file atomically, even if the machine crashes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        np.savez(part, **arrays)  # type: ignore[arg-type]
        sync(part)
