"""Sixth stage: with `bad_documents=strict`, a bad line is an error; with `skip`, it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.file_start import refuse_other_format
from bsmeta.data.io.files import refuse_bad_copy
from bsmeta.data.io.shards import Shard, describe_position
from bsmeta.data.stream.reasons import list_reasons, refine_error
from bsmeta.data.stream.stages.items import BadLine, WindowDocument


class Rejecter:
    """Rejects the bad lines of a window.

    Args:
        skipped: Counts the rejected documents, by reason.
    """

    def __init__(self, config: DataConfig, shard: Shard, skipped: Counter[str]) -> None:
        self._is_strict = config.bad_documents == "strict"
        self._path = shard.path
        self._reasons = frozenset(list_reasons(config.metadata_config.metadata_list))
        self._skipped = skipped

    def reject_bad_lines(
        self, documents: Iterable[WindowDocument | BadLine]
    ) -> Iterator[WindowDocument | BadLine]:
        """Yields all items; counts each bad line before it is yielded.

        Raises:
            ConfigurationError: If a metadata type gives a reason that it does not list.
            DataError: In strict mode, at the first bad line.
        """
        for document in documents:
            if isinstance(document, BadLine):
                self._reject(document)
            yield document

    def _reject(self, bad: BadLine) -> None:
        """Counts a bad line by its reason.

        Raises:
            ConfigurationError: If a metadata type gives a reason that it does not list.
            DataError: In strict mode; the message names the file, the line or row, and the reason.
        """
        number = bad.source.number
        error = refine_error(bad.source.line, bad.error)
        if error.reason not in self._reasons:
            raise ConfigurationError(
                f"{self._path}, {describe_position(self._path, number)}: a metadata type refuses "
                f'the document with the reason "{error.reason}" ({error.detail}), for which there '
                f'is no count; add reasons = ("{error.reason}",) to the class of the type'
            )

        if self._is_strict:
            refuse_bad_copy(self._path)
            if number == 0:
                refuse_other_format(self._path, "data_config.train_file")
            raise DataError(
                f"{self._path}, {describe_position(self._path, number)}: {error.reason}: "
                f"{error.detail} (data_config.bad_documents=skip counts such documents and "
                "continues)"
            )

        self._skipped[error.reason] += 1
