"""The content of compressed files, from the beginning or from an access point on.

A Zstandard file can be entered at any of its frames. Decompression of a gzip file can only start
where a deflate block begins, which may be inside a byte, and it needs the preceding 32 KB of
decompressed data. An `AccessPoint`, built by `lines`, stores all this. isal cannot start inside a
byte, so empty deflate blocks that end at the required bit are put before the data.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, BinaryIO, NamedTuple

from isal import isal_zlib

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
