"""Files on any file system that TensorFlow supports (`data_config.reader=tf`).

TensorFlow is imported when the first URL is listed. Its runtime is never started, because the
runtime's threads would not survive the fork of the loader processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.progress import report_each
from bsmeta.data.io.file_ref import FileRef, RemoteSettings
from bsmeta.data.io.remote.store import Pattern, Store, TransientError
from bsmeta.data.io.samples import hash_samples

BLOCK_BYTES = 1 << 20


@cache
def import_tensorflow() -> Any:
    """Imports TensorFlow without log output and without GPUs, which are reserved for training.

    Raises:
        ConfigurationError: If TensorFlow cannot be imported.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # 0 logs everything, 3 only fatal errors
    try:
        import tensorflow
    except ImportError as error:
        raise ConfigurationError(
            "data_config.reader=tf needs TensorFlow, which cannot be imported; "
            "pip install 'bsmeta[tf]' (with Python 3.13 or older), or use reader=native: "
            f"{error}"
        ) from error
    tensorflow.get_logger().setLevel("ERROR")
    tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow


class TensorFlowFiles(Store):
    """Reads files with `tf.io.gfile`.

    Like local files, they are identified by samples of their content, because not every file system
    has hashes or modification times.
    """

    syntax = "SCHEME://PLACE/PATH"
    version_advice = "and do not overwrite files while a run reads them"
    server = "TensorFlow's file system"

    def __init__(self) -> None:
        self._tf = import_tensorflow()
        self._checked: set[FileRef] = set()  # files already compared with their listing

    def parse_url(self, url: str, revision: str | None) -> Pattern:
        scheme, _, address = url.partition("://")
        container, _, path = address.partition("/")
        return Pattern(scheme, container, path.strip("/"))

    def list_files(self, pattern: Pattern, settings: RemoteSettings) -> list[FileRef]:
        root = f"{pattern.root}/{pattern.folder}".rstrip("/")
        refs: list[FileRef] = []
        with self._convert_errors(root):
            for folder, _, names in report_each(self._tf.io.gfile.walk(root)):
                folder_path = folder.removeprefix(pattern.root).strip("/")
                paths = [f"{folder_path}/{name}".lstrip("/") for name in names]
                refs += [
                    self._describe_file(pattern, path, settings)
                    for path in paths
                    if pattern.matches(path)
                ]
                if not pattern.is_deep:
                    break
        return refs

    def _describe_file(self, pattern: Pattern, path: str, settings: RemoteSettings) -> FileRef:
        """Returns a listed file with its size and the hash of its samples."""
        with self._tf.io.gfile.GFile(f"{pattern.root}/{path}", "rb") as file:
            size = file.size()
            samples_hash = hash_samples(file, size)
        return FileRef(size, samples_hash, settings, pattern.scheme, pattern.container, path)

    @contextlib.contextmanager
    def open_range(self, ref: FileRef, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        with self._convert_errors(str(ref)), self._tf.io.gfile.GFile(str(ref), "rb") as file:
            if ref not in self._checked:
                self._check_content(ref, file)
                self._checked.add(ref)
            file.seek(start)
            yield report_each(iter(lambda: file.read(BLOCK_BYTES), b""))

    def _check_content(self, ref: FileRef, file: Any) -> None:
        """Checks that an open file has the listed size and samples.

        Raises:
            DataError: If it has changed.
        """
        actual = f"{file.size()} bytes, xxh3 {hash_samples(file, file.size())}"
        expected = f"{ref.size} bytes, xxh3 {ref.etag}"
        if actual != expected:
            raise self.make_changed_error(ref, f"{actual} in samples", expected)

    def make_verifier(self, ref: FileRef) -> None:
        return None

    def format_advice(self) -> str:
        return "start again later, or raise data_config.hub_retries"

    @contextlib.contextmanager
    def _convert_errors(self, subject: str) -> Iterator[None]:
        """Converts errors of TensorFlow into errors of `store`.

        Args:
            subject: The file or folder, for messages.
        """
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
            raise DataError(f"{subject} cannot be read: {error.message}") from error
