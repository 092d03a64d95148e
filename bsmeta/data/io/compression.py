"""Decompresses files, from the beginning or from an access point on.

A Zstandard file can be read from any of its frames on. A gzip file can be read only from the start
of a deflate block, which may be inside a byte, and decompressing the block requires the preceding
32 KB of content. An `AccessPoint`, built by `lines`, stores the position and that content. isal
cannot start inside a byte, so empty deflate blocks that end at the required bit are put before the
data.

Each Zstandard frame has a window: the preceding content to which it may refer, which is kept in
memory. All sizes that the library supports are accepted (up to `zstd --long=31`, as in Pushshift
dumps); most windows are 8 MiB or less.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, BinaryIO, NamedTuple

from isal import isal_zlib

from bsmeta.core.errors import DataError

BLOCK_BYTES = 1 << 18  # of content, yielded at a time
COMPRESSED_BLOCK_BYTES = 1 << 18  # of a file, read at a time
GZIP_WBITS = 31  # zlib's `wbits` for a gzip header, a deflate stream and a checksum
RAW_DEFLATE_WBITS = -15  # zlib's `wbits` for a bare deflate stream
GZIP_TRAILER_BYTES = 8  # after the deflate stream of a gzip member: checksum and size
TRUNCATED_MESSAGE = "the file ends in the middle of its data"
TRAILING_MESSAGE = (
    "the data cannot be decompressed: no gzip data follows the end of a member; the file is "
    "damaged, or other data was appended (gzip -dc FILE | gzip > COPY leaves it out)"
)
EMPTY_MESSAGE = (
    "the file is empty, without even a compression header: it was not written completely"
)
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LFS_MESSAGE = "the file is a Git LFS pointer; fetch its content with git lfs pull"
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

MAX_WINDOW_LOG = 31
"""Binary logarithm of the maximum window size of a Zstandard frame (2 GiB)."""

_DEFAULT_MAX_WINDOW_BYTES = 1 << 27  # accepted by the zstd program without options
_MAX_FRAME_HEADER_BYTES = 18

# An empty block with the fixed code is 10 bits long: not the last block (0), type 1 (1, 0), end of
# block (7 zeros). RFC 1951, sections 3.2.3 and 3.2.6; bits are written in the order of the stream.
FIXED_BLOCK = "0100000000"

# An empty block with dynamic codes can have an odd length. This one is 95 bits long. RFC 1951,
# section 3.2.7: the codes of the byte 0, of the end of a block, and of two distances have 1 bit.
DYNAMIC_BLOCK = (
    "0" "01"  # not the last block, type 2
    "00000" "10000" "1111"  # 257 codes of bytes and lengths, 2 of distances, 19 of code lengths
    # Lengths of the 19 codes, in the order of the RFC: 18 (a run of zeros) and 1 have one bit.
    + "000" * 2 + "100" + "000" * 14 + "100" + "000"
    + "0"  # the byte 0: length 1
    + "1" + "1111111"  # 138 zeros
    + "1" + "0101011"  # 11 + 106 = 117 zeros
    + "0" "0" "0"  # end of block and both distances: length 1
    + "1"  # the end of the block
)  # fmt: skip


class DamagedFileError(Exception):
    """A compressed file is truncated, damaged, or in a different format."""


class AccessPoint(NamedTuple):
    """A point at which reading a shard can start.

    Attributes:
        content_offset: Offset of the point in the decompressed content.
        line: Number of line ends before the point.
        file_offset: Offset in the file of the first whole byte after the point.
        bits: Number of bits of the previous byte that also belong to the block (0 to 7).
        window: The content before the point to which the block may refer (up to 32 KB).
    """

    content_offset: int
    line: int
    file_offset: int
    bits: int
    window: bytes


def read_content(path: str, file: BinaryIO, point: AccessPoint | None = None) -> Iterator[bytes]:
    """Yields the content of a shard in blocks of about `BLOCK_BYTES` bytes.

    Args:
        path: Path of the file. Its suffix determines the format: `.gz`, `.zst`, or otherwise plain.
        point: The point to start from; None starts at the beginning.

    Raises:
        DamagedFileError: If the file is damaged, once the content before the damage is yielded.
        DataError: If a Zstandard frame needs too much memory.
    """
    if path.endswith(".gz"):
        return decompress_gzip(file) if point is None else _inflate_from(file, point)

    file.seek(0 if point is None else point.file_offset)
    if path.endswith(".zst"):
        return (block for _, block in read_zst_blocks(path, file))
    return iter(lambda: file.read(BLOCK_BYTES), b"")


def _read_first_block(file: BinaryIO) -> bytes:
    """Returns the first bytes of a compressed file.

    Raises:
        DamagedFileError: If the file is empty, or a Git LFS pointer.
    """
    data = file.read(COMPRESSED_BLOCK_BYTES)
    if not data:
        raise DamagedFileError(EMPTY_MESSAGE)
    if data.startswith(LFS_POINTER):
        raise DamagedFileError(LFS_MESSAGE)
    return data


def decompress_gzip(file: BinaryIO) -> Iterator[bytes]:
    """Yields the content of a gzip file with any number of members.

    Raises:
        DamagedFileError: If it is damaged or not a gzip file.
    """
    data = _read_first_block(file)
    if not data.startswith(GZIP_MAGIC):
        raise DamagedFileError(
            "the file is not compressed with gzip, although its name ends in .gz; rename or "
            "compress it"
        )
    yield from _inflate_members(file, data)


def _inflate_members(file: BinaryIO, data: bytes) -> Iterator[bytes]:
    """Yields the content of the remaining members of a gzip file.

    Args:
        data: The compressed bytes that were already read, from the end of a member on.
    """
    while data := _skip_padding(file, data):
        if not GZIP_MAGIC.startswith(data[:2]):
            raise DamagedFileError(TRAILING_MESSAGE)
        data = yield from _inflate_member(file, data, isal_zlib.decompressobj(wbits=GZIP_WBITS))


def _skip_padding(file: BinaryIO, data: bytes) -> bytes:
    """Skips the zeros that pad a gzip member to a full tape block; returns b"" at the end.

    Args:
        data: The compressed bytes that were already read.
    """
    data = data.lstrip(b"\0")
    while len(data) < len(GZIP_MAGIC) and (block := file.read(COMPRESSED_BLOCK_BYTES)):
        data = (data + block).lstrip(b"\0")
    return data


def _inflate_from(file: BinaryIO, point: AccessPoint) -> Iterator[bytes]:
    """Yields the content of a gzip file from an access point on."""
    if point.bits == 0:
        file.seek(point.file_offset)
        data = file.read(COMPRESSED_BLOCK_BYTES)
    else:
        file.seek(point.file_offset - 1)
        data = align_to_byte(file.read(COMPRESSED_BLOCK_BYTES), point.bits)

    member = isal_zlib.decompressobj(wbits=RAW_DEFLATE_WBITS, zdict=point.window)
    data = yield from _inflate_member(file, data, member)
    data += file.read(max(GZIP_TRAILER_BYTES - len(data), 0))
    yield from _inflate_members(file, data[GZIP_TRAILER_BYTES:])


def _inflate_member(file: BinaryIO, data: bytes, member: Any) -> Generator[bytes, None, bytes]:
    """Yields the content of a gzip member or deflate stream; returns the data after its end.

    Args:
        data: The compressed bytes that were already read.
        member: The decompressor of the member or stream.
    """
    while not member.eof:
        try:
            block = member.decompress(data, BLOCK_BYTES)
        except isal_zlib.error as error:  # type: ignore[misc]
            raise DamagedFileError(f"the data cannot be decompressed: {error}") from error
        if block:
            yield block

        # After a full block, the decompressor may yield more content without more data.
        data = member.unconsumed_tail
        if not data and not member.eof and len(block) < BLOCK_BYTES:
            data = file.read(COMPRESSED_BLOCK_BYTES)
            if not data:
                raise DamagedFileError(TRUNCATED_MESSAGE)
    return member.unused_data


def read_zst_blocks(path: str, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields the content of a Zstandard file in blocks, each after the offset of its frame.

    Skippable frames, such as the seek table of the seekable format, have no content.

    Args:
        path: The file's path, for messages.

    Raises:
        DamagedFileError: If the file is damaged.
        DataError: If the file is intact, but the window of a frame is too large.
    """
    from bsmeta.data.io.zstandard import zstd

    options = {int(zstd.DecompressionParameter.window_log_max): MAX_WINDOW_LOG}
    data = _read_first_block(file)
    offset = file.tell() - len(data)
    while data:
        if len(data) < _MAX_FRAME_HEADER_BYTES:
            data += file.read(_MAX_FRAME_HEADER_BYTES - len(data))
        window_bytes = read_window_size(data)
        if window_bytes > 1 << MAX_WINDOW_LOG:
            raise DataError(
                f"{path}: a frame needs a window of {_format_size(window_bytes)}; expected at most "
                f"{_format_size(1 << MAX_WINDOW_LOG)}. The file is intact: ask for its content "
                "compressed with a smaller window"
            )

        frame = zstd.ZstdDecompressor(options=options)
        while not frame.eof:
            if frame.needs_input and not data:
                data = file.read(COMPRESSED_BLOCK_BYTES)
                if not data:
                    raise DamagedFileError(TRUNCATED_MESSAGE)
            try:
                block = frame.decompress(data, BLOCK_BYTES)
            except zstd.ZstdError as error:
                raise _make_frame_error(path, window_bytes, error) from error
            data = b""
            if block:
                yield offset, block

        data = frame.unused_data or file.read(COMPRESSED_BLOCK_BYTES)
        offset = file.tell() - len(data)


def _make_frame_error(
    path: str, window_bytes: int, error: Exception
) -> DataError | DamagedFileError:
    """Returns the error for a Zstandard frame that cannot be decompressed.

    Args:
        window_bytes: Size of the frame's window.
        error: The error of the decompressor.
    """
    if window_bytes > _DEFAULT_MAX_WINDOW_BYTES and "not enough memory" in str(error):
        return DataError(
            f"{path}: a frame needs a window of {_format_size(window_bytes)}, and there is not "
            "enough memory. The file is intact: give the process more memory, or compress the "
            "content again with a smaller window: zstd -dc --long=31 OLD | zstd -o NEW"
        )
    return DamagedFileError(f"the data cannot be decompressed: {error}")


def read_window_size(data: bytes) -> int:
    """Returns the window size of a Zstandard frame in bytes; 0 if the data is not a frame.

    See RFC 8878, section 3.1.1.1. A frame without a window descriptor is a single segment: its
    window is its whole content.

    Args:
        data: The beginning of the frame, with the whole header.
    """
    from bsmeta.data.io.zstandard import zstd

    if not data.startswith(ZSTD_MAGIC) or len(data) <= len(ZSTD_MAGIC) + 1:
        return 0
    descriptor = data[len(ZSTD_MAGIC)]
    has_single_segment = descriptor & 1 << 5
    if has_single_segment:
        try:
            return zstd.get_frame_info(data).decompressed_size or 0
        except zstd.ZstdError:  # reported when the frame is decompressed
            return 0

    exponent, mantissa = divmod(data[len(ZSTD_MAGIC) + 1], 1 << 3)
    base = 1 << (10 + exponent)
    return base + base // 8 * mantissa


def _format_size(size: int) -> str:
    """Formats a number of bytes as MiB or GiB."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):,.4g} GiB"
    return f"{size / (1 << 20):,.4g} MiB"


def align_to_byte(data: bytes, bits: int) -> bytes:
    """Prepends empty blocks to a deflate stream that begins inside a byte, and returns the stream.

    Args:
        data: The stream; its first bits are the highest `bits` bits of the first byte.
        bits: From 1 to 7.
    """
    missing_bits = 8 - bits
    filler = DYNAMIC_BLOCK if missing_bits % 2 else ""
    while len(filler) % 8 != missing_bits:
        filler += FIXED_BLOCK

    prefix = int(filler[::-1], 2)  # the first bit is the lowest
    prefix |= data[0] >> missing_bits << len(filler)
    return prefix.to_bytes((len(filler) + bits) // 8, "little") + data[1:]
