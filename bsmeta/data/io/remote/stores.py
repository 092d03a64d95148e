"""Chooses the store for a scheme, lists the files that a URL names, and reads byte ranges of them.

A store and its libraries are imported when the first URL of its scheme is read.
"""

from __future__ import annotations

import glob
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

from fsspec.utils import glob_translate

from bsmeta.core.errors import ConfigurationError, DataError, explain_missing_extra
from bsmeta.core.secrets import format_url
from bsmeta.data.io.file_ref import HUB, FileRef, RemoteSettings
from bsmeta.data.io.remote.store import Retries, Store


@cache
def find_store(scheme: str) -> Store:
    """Returns the store for a scheme; `tf` is the store of all files that TensorFlow reads.

    Raises:
        ConfigurationError: If the store's library is missing, or its configuration is wrong.
    """
    try:
        if scheme == HUB:
            from bsmeta.data.io.remote.hub import Hub

            return Hub()
        if scheme == "tf":
            from bsmeta.data.io.remote.tensorflow_files import TensorFlowFiles

            return TensorFlowFiles()
        if scheme == "az":
            from bsmeta.data.io.remote.azure_blobs import AzureBlobs

            return AzureBlobs()
        from bsmeta.data.io.remote.objects import S3, CloudStorage

        return S3() if scheme == "s3" else CloudStorage()
    except ModuleNotFoundError as error:
        remedy = explain_missing_extra(error)
        if remedy is None:
            raise
        raise ConfigurationError(f"{scheme}://… cannot be read: {remedy}") from error


def find_file_store(ref: FileRef) -> Store:
    """Returns the store that reads a file; raises the same errors as `find_store`."""
    return find_store("tf" if ref.settings.uses_tensorflow else ref.scheme)


def list_remote_files(
    url: str,
    revision: str | None,
    suffixes: tuple[str, ...],
    settings: RemoteSettings,
    key: str,
) -> list[FileRef]:
    """Lists the files that a URL names: a file, the files in a folder, or the matches of a glob.

    Args:
        revision: Revision of a data set if the URL has none; None is the main branch.
        suffixes: If the URL names a folder, its files with these suffixes are listed.
        key: The configuration key that contains the URL, for messages.

    Raises:
        ConfigurationError: If the URL is malformed.
        DataError: If the server refuses or cannot be reached, or nothing matches.
    """
    store = find_store("tf" if settings.uses_tensorflow else url.partition("://")[0])
    try:
        pattern = store.parse_url(url, revision)
        glob_translate(pattern.glob)
    except ValueError as error:
        raise ConfigurationError(
            f"{key}={format_url(url)}: expected {store.syntax}, where PATH is a file, a folder "
            f"or a glob ({error})"
        ) from error

    # As in local paths, wildcards are literal if there is a file with exactly this name.
    files = store.list_files(pattern, settings)
    matches = [ref for ref in files if ref.path == pattern.glob]
    if not matches and glob.has_magic(pattern.glob):
        matches = [ref for ref in files if pattern.matches(ref.path)]
    elif not matches and not pattern.glob.endswith(suffixes):
        folder = f"{pattern.glob}/*".lstrip("/")
        files = store.list_files(replace(pattern, glob=folder), settings)
        matches = [ref for ref in files if ref.path.endswith(suffixes)]

    if not matches:
        others = [ref.path for ref in files if ref.path.endswith(suffixes)]
        example = f"; there is, for example, {others[0]}" if others else ""
        raise DataError(
            f"{key}: {pattern.root}: nothing matches {pattern}{example}{store.no_match_hint}"
        )
    return matches


def read_range(ref: FileRef, start: int, stop: int, cancelled: threading.Event) -> Iterator[bytes]:
    """Yields bytes `start` to `stop` (exclusive) of a remote file; see `Retries.read`.

    Raises:
        DataError: If the server refuses or cannot be reached, or the file has changed.
        CancelledError: If reading was cancelled.
    """
    store = find_file_store(ref)
    attempts = Retries(ref.settings.retries, store.format_advice(), cancelled)
    return attempts.read(str(ref), partial(store.open_range, ref, stop=stop), start, stop, ref.size)
