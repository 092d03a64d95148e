"""Files on any file system that TensorFlow knows (`data_config.reader=tf`).

TensorFlow is imported when the first address is listed. Nothing starts its runtime, whose threads
would not survive the fork of the loader processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.progress import reporting
from bsmeta.data.io.file_ref import FileRef, RemoteSettings
from bsmeta.data.io.remote import Pattern, Store, TransientError
from bsmeta.data.io.samples import hash_of_samples

BLOCK = 1 << 20


@cache
def tensorflow() -> Any:
    """Import TensorFlow without log output and without GPUs, which are reserved for training.

    Raises:
        ConfigurationError: If it is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # 0 logs everything, 3 only fatal errors
    try:
        import tensorflow
    except ImportError as error:
        raise ConfigurationError(
            "data_config.reader=tf needs TensorFlow, which cannot be imported; "
            f"pip install tensorflow-cpu, or use reader=native: {error}"
        ) from error
    tensorflow.get_logger().setLevel("ERROR")
    tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow


class TensorFlowFiles(Store):
    """Reads files with `tf.io.gfile`.

    A file is recognized by samples of its content, like a local one: not every file system has
    hashes, or the time of a change.
    """

    form = "SCHEME://PLACE/PATH"
    fixed_version = "and do not overwrite files while a run reads them"
    server = "TensorFlow's file system"

    def __init__(self) -> None:
        self._tf = tensorflow()
        self._checked: set[FileRef] = set()  # those found to have their listed content

    def parse(self, url: str, revision: str | None) -> Pattern:
        scheme, _, address = url.partition("://")
        container, _, path = address.partition("/")
        return Pattern(scheme, container, path.strip("/"))

    def list_files(self, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
        gfile, found = self._tf.io.gfile, []
        folder = f"{pattern.root}/{pattern.folder}".rstrip("/")
        with self._errors(folder):
            for place, _, names in reporting(gfile.walk(folder)):
                inside = place.removeprefix(pattern.root).strip("/")
                paths = [f"{inside}/{name}".lstrip("/") for name in names]
                for path in filter(pattern.matches, paths):
                    with gfile.GFile(f"{pattern.root}/{path}", "rb") as file:
                        size, samples = file.size(), hash_of_samples(file, file.size())
                    where = pattern.scheme, pattern.container, path
                    found.append(FileRef(size, samples, settings, *where))
                if not pattern.is_deep:
                    break
        return found

    @contextlib.contextmanager
    def open_range(self, ref: FileRef, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        with self._errors(str(ref)), self._tf.io.gfile.GFile(str(ref), "rb") as file:
            if ref not in self._checked:
                found = f"{file.size()} bytes, xxh3 {hash_of_samples(file, file.size())}"
                expected = f"{ref.size} bytes, xxh3 {ref.etag}"
                if found != expected:
                    raise self.changed(ref, f"{found} in samples", expected)
                self._checked.add(ref)
            file.seek(start)
            yield reporting(iter(lambda: file.read(BLOCK), b""))

    def verifier(self, ref: FileRef) -> None:
        return None

    def advice(self) -> str:
        return "start again later, or raise data_config.hub_retries"

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turns TensorFlow's errors into those of `remote`."""
        errors = self._tf.errors
        try:
            yield
        except (
            errors.UnavailableError,
            errors.DeadlineExceededError,
            errors.AbortedError,
        ) as error:
            raise TransientError(error.message) from None
        except errors.OpError as error:
            raise DataError(f"{what} cannot be read: {error.message}") from error
