"""Parses HTTP responses from WARC files, whose bodies may have been decoded already.

Many writers of WARC files store the decoded body, but keep the headers of the server. Therefore a
body is decoded only if it has the coding that its headers name.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import brotli

from bsmeta.annotate.inputs.warc import parse_fields
from bsmeta.data.io.compression import GZIP_MAGIC, GZIP_WBITS, RAW_DEFLATE_WBITS
from bsmeta.data.io.zstandard import zstd

MAX_HEADER_BYTES = 16 << 20
"""Maximum size of the header of a response."""

HTML_TYPES = ("text/html", "application/xhtml+xml")

_OK = 200
_STATUS = re.compile(rb"HTTP/\d+(?:\.\d+)?[ \t]+(\d{3})")
_HEADER_END = re.compile(rb"\n\r?\n")
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?+\s*+([^\s\"';,]++)", re.IGNORECASE)
_CHUNK_HEADER = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_NO_CODINGS = ("", "identity", "none")
_BLOCK_BYTES = 1 << 16  # decompressed at a time
_SAMPLE_BYTES = 512  # beginning of a body, by which text is recognized
_BINARY_BYTES = bytes({*range(32)} - {*b"\t\n\v\f\r\x1b"})  # rare in text
_UTF_16_STARTS = (b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")  # of text with zero bytes


@dataclass(frozen=True)
class Response:
    """A parsed response: a page, or the reason why it is not a page.

    Attributes:
        problem: The reason, such as `http_status`; empty for a page.
        body: The decoded body of a page.
        charset: The charset in `Content-Type`; None if it has none.
    """

    problem: str = ""
    body: bytes = b""
    charset: str | None = None


def parse_response(data: bytes, limit: int) -> Response:
    """Parses a response, and decodes the body of a page.

    Args:
        data: The stored response, starting with the status line.
        limit: Maximum size of a body in bytes, before and after decoding.
    """
    status = _STATUS.match(data)
    if status is None:
        return Response("not_http")
    header_end = _HEADER_END.search(data)
    if header_end is None:
        return Response("header_too_large" if len(data) > MAX_HEADER_BYTES else "not_http")
    if header_end.end() > MAX_HEADER_BYTES:
        return Response("header_too_large")

    fields = parse_fields(data[: header_end.start()])
    if int(status[1]) != _OK:
        return Response("http_status")
    content_type = fields.get("content-type", "")
    if not is_html(content_type):
        return Response("content_type")

    body = data[header_end.end() :]
    if len(body) > limit:
        return Response("too_large")
    if "chunked" in fields.get("transfer-encoding", "").lower():
        body = join_chunks(body)
    decoded = decode_content(body, fields.get("content-encoding", ""), limit)
    if decoded is None:
        return Response("content_encoding")
    if len(decoded) > limit:
        return Response("too_large")
    return Response(body=decoded, charset=find_charset(content_type))


def is_html(content_type: str) -> bool:
    """Whether the value of a `Content-Type` is HTML or empty.

    Repeated types and parameters are accepted: `text/html,text/html; charset=utf-8`.
    """
    media_type = re.split("[;,]", content_type)[0].strip().lower()
    return not media_type or media_type in HTML_TYPES


def find_charset(content_type: str) -> str | None:
    """Returns the charset in the value of a `Content-Type`; None if it has none."""
    match = _CHARSET.search(content_type)
    return None if match is None else match[1]


def join_chunks(body: bytes) -> bytes:
    """Joins the chunks of a body with `Transfer-Encoding: chunked` (RFC 9112, section 7.1).

    A body that does not begin with a chunk is returned unchanged. The result ends before the first
    chunk without a valid header.
    """
    header = _CHUNK_HEADER.match(body)
    if header is None:
        return body

    end = _find_chunk_end(header)
    if body[end : end + 1] not in (b"\r", b"\n", b""):  # b"": the body ends first
        return body

    chunks: list[bytes] = []
    while header is not None:
        end = _find_chunk_end(header)
        chunks.append(body[header.end() : end])
        if end == header.end():  # the last chunk is empty
            break
        line_end_size = 2 if body[end : end + 2] == b"\r\n" else 1
        header = _CHUNK_HEADER.match(body, end + line_end_size)
    return b"".join(chunks)


def _find_chunk_end(header: re.Match[bytes]) -> int:
    """Returns the position after a chunk, whose size in its header is hexadecimal."""
    return header.end() + int(header[1], 16)


def decode_content(body: bytes, content_encoding: str, limit: int) -> bytes | None:
    """Decodes a body, up to `limit + 1` bytes, so that callers can detect larger bodies.

    Args:
        content_encoding: The value of `Content-Encoding`. Unknown codings of a text, such as
            `utf-8`, are ignored.

    Returns:
        The decoded body, or the body itself if it is text already; None if it is neither.
    """
    names = [name.strip().lower() for name in content_encoding.split(",")]
    for name in reversed(names):
        if name in _NO_CODINGS:
            continue

        decode = _DECODERS.get(name)
        decoded = None if decode is None else decode(body, limit + 1)
        if decoded is not None:
            body = decoded
        elif not _is_text(body):
            return None
    return body


def _is_text(body: bytes) -> bool:
    """Whether a body is text and not compressed data, judged by its first bytes."""
    sample = body[:_SAMPLE_BYTES]
    binary_count = len(sample) - len(sample.translate(None, _BINARY_BYTES))
    max_binary_count = max(2, len(sample) // 50)  # 2%, for text with stray control characters
    return sample.startswith(_UTF_16_STARTS) or binary_count <= max_binary_count


def _decode_gzip(body: bytes, limit: int) -> bytes | None:
    """Decodes a gzip member; see `_select_content` for the result."""
    return _inflate(body, limit, GZIP_WBITS) if body.startswith(GZIP_MAGIC) else None


def _decode_deflate(body: bytes, limit: int) -> bytes | None:
    """Decodes zlib's format or bare deflate data, because servers send both as `deflate`."""
    content = _inflate(body, limit, zlib.MAX_WBITS)
    return _inflate(body, limit, RAW_DEFLATE_WBITS) if content is None else content


def _inflate(body: bytes, limit: int, wbits: int) -> bytes | None:
    """Decodes deflate data; `wbits` selects the container, as in zlib."""
    decompressor = zlib.decompressobj(wbits)
    content = bytearray()
    data = body
    with suppress(zlib.error):
        while data and not decompressor.eof and len(content) < limit:
            content += decompressor.decompress(data, min(limit - len(content), _BLOCK_BYTES))
            data = decompressor.unconsumed_tail
    return _select_content(content, limit, body, is_whole=decompressor.eof)


def _decode_brotli(body: bytes, limit: int) -> bytes | None:
    decompressor = brotli.Decompressor()
    content = bytearray()
    data = body
    is_whole = False
    with suppress(brotli.error):  # the content before the damage is used
        while not is_whole and len(content) < limit:
            block = decompressor.process(data, output_buffer_limit=_BLOCK_BYTES)
            if not block and decompressor.can_accept_more_data():
                break  # the body is cut off
            content += block
            data = b""
            is_whole = decompressor.is_finished()
    return _select_content(content[:limit], limit, body, is_whole=is_whole)


def _decode_zstd(body: bytes, limit: int) -> bytes | None:
    decompressor = zstd.ZstdDecompressor()
    content = bytearray()
    data = body
    with suppress(zstd.ZstdError):
        while not decompressor.eof and len(content) < limit:
            block = decompressor.decompress(data, min(limit - len(content), _BLOCK_BYTES))
            if not block and decompressor.needs_input:
                break  # the body is cut off
            content += block
            data = b""
    return _select_content(content, limit, body, is_whole=decompressor.eof)


def _select_content(content: bytearray, limit: int, body: bytes, *, is_whole: bool) -> bytes | None:
    """Decides whether to use decoded content; content before damage is used, as in browsers.

    Args:
        content: The decoded bytes, up to damage or the limit.
        body: The bytes before decoding.
        is_whole: Whether the body was decoded to its end.

    Returns:
        The content; None if nothing was decoded, or only a part of a body that is text already.
    """
    if is_whole or len(content) >= limit:
        return bytes(content)
    if content and not _is_text(body):
        return bytes(content)
    return None


_DECODERS: dict[str, Callable[[bytes, int], bytes | None]] = {
    "gzip": _decode_gzip,
    "x-gzip": _decode_gzip,
    "deflate": _decode_deflate,
    "br": _decode_brotli,
    "zstd": _decode_zstd,
}
