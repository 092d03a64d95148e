"""The stores by scheme: the files that a URL names, and ranges of bytes of them.

A store is imported, with its libraries, when the first of its files is named.
"""

from __future__ import annotations

import glob
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

from fsspec.utils import glob_translate

from bsmeta.core.errors import ConfigurationError, DataError, missing_extra
from bsmeta.core.secrets import shown_url
from bsmeta.data.io.file_ref import HUB, FileRef, RemoteSettings
from bsmeta.data.io.remote import Retries, Store


@cache
def store_of(scheme: str) -> Store:
    """The store of a scheme; `tf` is that of all schemes that TensorFlow reads.

    Raises:
        ConfigurationError: If its library is missing, or its configuration is wrong.
    """
    try:
        if scheme == HUB:
            from bsmeta.data.io.hub import Hub

            return Hub()
        if scheme == "tf":
            from bsmeta.data.io.tensorflow_files import TensorFlowFiles

            return TensorFlowFiles()
        from bsmeta.data.io.objects import S3, CloudStorage

        return S3() if scheme == "s3" else CloudStorage()
    except ModuleNotFoundError as error:
        named = missing_extra(error)
        if named is None:
            raise
        raise ConfigurationError(f"{scheme}://… cannot be read: {named}") from error


def store_of_file(ref: FileRef) -> Store:
    """The store that reads a file; raises as `store_of`."""
    return store_of("tf" if ref.settings.by_tensorflow else ref.scheme)


def remote_files(
    url: str, revision: str | None, suffixes: tuple[str, ...], settings: RemoteSettings, key: str
) -> list[FileRef]:
    """The files that a URL names: a file, those of a folder, or those of a glob.

    Args:
        revision: The revision of a data set, if the URL has none; None is the main branch.
        suffixes: File name suffixes of the files to take from a folder.
        key: The key that contains the URL, for the message.

    Raises:
        ConfigurationError: If the URL is malformed.
        DataError: If the server refuses or cannot be reached, or nothing matches.
    """
    store = store_of("tf" if settings.by_tensorflow else url.partition("://")[0])
    try:
        pattern = store.parse(url, revision)
        glob_translate(pattern.pattern)
    except ValueError as error:
        raise ConfigurationError(
            f"{key}={shown_url(url)}: expected {store.form}, where PATH is a file, a folder or a "
            f"glob ({error})"
        ) from error
    files = store.list_files(pattern, settings)
    # As a local path: a name with [x] in it is a name, if there is such a file.
    chosen = [ref for ref in files if ref.path == pattern.pattern]
    if not chosen and glob.has_magic(pattern.pattern):
        chosen = [ref for ref in files if pattern.matches(ref.path)]
    elif not chosen and not pattern.pattern.endswith(suffixes):
        folder = f"{pattern.pattern}/*".lstrip("/")
        files = store.list_files(replace(pattern, pattern=folder), settings)
        chosen = [ref for ref in files if ref.path.endswith(suffixes)]
    if not chosen:
        others = [ref.path for ref in files if ref.path.endswith(suffixes)]
        found = f"; there is, for example, {others[0]}" if others else ""
        raise DataError(f"{key}: {pattern.root}: nothing matches {pattern}{found}{store.hint}")
    return chosen


def range_parts(ref: FileRef, start: int, stop: int, cancelled: threading.Event) -> Iterator[bytes]:
    """Bytes `start` to `stop` (exclusive) of a remote file, in parts; see `Retries.read`.

    Raises:
        DataError: If the server refuses, now has a different file, or cannot be reached.
        CancelledError: If it was cancelled.
    """
    store = store_of_file(ref)
    attempts = Retries(ref.settings.retries, store.advice(), cancelled)
    return attempts.read(str(ref), partial(store.open_range, ref, stop=stop), start, stop, ref.size)
