"""Compressed files, entered in the middle."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from bsmeta.data.io import compression


@given(st.text("abc", min_size=1, max_size=300), st.integers(1, 7))
def test_a_stream_that_begins_inside_a_byte_is_aligned(text: str, bits: int) -> None:
    data = text.encode()
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = compressor.compress(data) + compressor.flush()
    shifted = int.from_bytes(stream, "little") << (8 - bits) | 0b1010101 >> (bits - 1)
    begun = compression.align_to_byte(shifted.to_bytes(len(stream) + 1, "little"), bits)
    for library in (zlib, isal_zlib):
        assert library.decompressobj(wbits=-15).decompress(begun) == data
