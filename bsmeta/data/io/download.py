"""Downloads files of known size and hash: resumable, verified, and never named before complete.

Bytes are appended to `FILE.part`, from http(s) or from the disk; the next call continues there. The
file gets its name when its hash is right. pooch would begin an interrupted download again at the
first byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx2

from bsmeta.core.errors import DataError
from bsmeta.data.io.remote import (
    CONTENT_RANGE,
    Retries,
    SlowError,
    TransientError,
    check_encoding,
    check_transient,
    shown_server,
    steady,
    transport_errors,
)

Advance = Callable[[int], None]

_BLOCK = 1 << 20
_ADVICE = "see whether the address can be reached from here, and start again: it continues"


@dataclass(frozen=True)
class Source:
    """A file to download.

    Attributes:
        address: http(s):// or file://.
        sha256: Its hash, in hexadecimal.
    """

    address: str
    bytes: int
    sha256: str

    def __str__(self) -> str:
        """The address without user and password."""
        parts = urlsplit(self.address)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def download(
    source: Source, path: Path, *, retries: int, timeout: float, advance: Advance = lambda _: None
) -> None:
    """Downloads a file, or the rest of it.

    Args:
        retries: Consecutive failures after which the download fails.
        timeout: Seconds without data that are a failure.
        advance: Called with the bytes that there are.

    Raises:
        DataError: If it cannot be had, or is another file than expected.
    """
    part = path.with_name(f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    resumed = part.exists() and part.stat().st_size > 0
    found = _complete(source, part, retries, timeout, advance)
    if found != source.sha256 and resumed:  # what an earlier call left may be of another file
        part.unlink()
        found = _complete(source, part, retries, timeout, advance)
    if found != source.sha256:
        part.unlink()
        raise DataError(
            f"{source} is another file than expected: its sha256 is {found}, not {source.sha256}; "
            "correct the manifest, or use another mirror"
        )
    part.replace(path)


def sha256_of(path: Path, advance: Advance = lambda _: None) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
            advance(file.tell())
    return found.hexdigest()


def _complete(source: Source, part: Path, retries: int, timeout: float, advance: Advance) -> str:
    """Appends what is missing of a file; returns its hash."""
    with open(part, "ab") as file:
        attempts = Retries(retries, _ADVICE)
        while (place := file.tell()) < source.bytes:
            try:
                with _opened(source, place, timeout) as blocks:
                    for block in blocks:
                        file.write(block[: source.bytes - file.tell()])
                        advance(file.tell())
                        if file.tell() == source.bytes:
                            break
                    else:
                        raise TransientError("the connection was closed before the end")
            except TransientError as error:
                if file.tell() > place and not isinstance(error, SlowError):
                    attempts.reset()
                attempts.wait(f"{source}, byte {file.tell():,} of {source.bytes:,}", error)
        file.flush()
        os.fsync(file.fileno())
    return sha256_of(part, advance)


@contextlib.contextmanager
def _opened(source: Source, start: int, timeout: float) -> Iterator[Iterator[bytes]]:
    """The content of a file from byte `start` on.

    Raises:
        TransientError: If opening or reading it may succeed when repeated.
        DataError: If not.
    """
    if urlsplit(source.address).scheme == "file":
        yield _local_blocks(source, start)
        return
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with (
        transport_errors(str(source), shown_server(source.address)),
        httpx2.stream(
            "GET", source.address, headers=headers, timeout=timeout, follow_redirects=True
        ) as response,
    ):
        skipped = _checked_start(response, source, start)
        yield steady(_without_first(response.iter_raw(), skipped), timeout)


def _local_blocks(source: Source, start: int) -> Iterator[bytes]:
    """The content of a file on the disk from byte `start` on.

    Raises:
        DataError: If it cannot be read, or has another size.
    """
    path = Path(unquote(urlsplit(source.address).path))
    try:
        size = path.stat().st_size
        if size != source.bytes:
            raise DataError(f"{source} has {size:,} bytes instead of {source.bytes:,}")
        with open(path, "rb") as file:
            file.seek(start)
            yield from iter(lambda: file.read(_BLOCK), b"")
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}") from error


def _without_first(blocks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for block in blocks:
        yield block[count:]
        count = max(0, count - len(block))


def _checked_start(response: httpx2.Response, source: Source, start: int) -> int:
    """How many bytes of a response are before `start`: all, if the server ignores ranges.

    Raises:
        TransientError: If it is not the file, but may be when the request is repeated.
        DataError: If it is another file.
    """
    check_transient(response)
    status = response.status_code
    if status == 416:
        raise DataError(f"{source} has fewer than {start:,} of {source.bytes:,} bytes")
    if status not in (200, 206):
        raise DataError(f"{source}: the server answers HTTP {status}; correct the address")
    check_encoding(response)
    length = response.headers.get("Content-Length")
    stated = response.headers.get("Content-Range", "")
    if status == 206:
        match = CONTENT_RANGE.fullmatch(stated)
        if match is None or int(match[1]) != start:
            raise TransientError(f"another part of the file than requested ({stated})")
        total, first = match[3], 0
    else:
        total, first = length or "*", start
    if total not in ("*", str(source.bytes)):
        content = response.headers.get("Content-Type", "no Content-Type")
        raise TransientError(f"{total} bytes ({content}) instead of {source.bytes}")
    return first
