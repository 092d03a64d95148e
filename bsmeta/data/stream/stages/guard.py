"""Second stage: documents without text, and held-out documents, are left out."""

from __future__ import annotations

from collections import Counter

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io.shards import Shard, describe_position
from bsmeta.data.stream.held_out import HeldOutFingerprints
from bsmeta.data.stream.reasons import EMPTY_TEXT, TEST_OVERLAP
from bsmeta.data.stream.stages.items import ReadDocument


class Guard:
    """Decides which documents of a window are trained on.

    Args:
        held_out: Documents that must not be trained on; None if there are none.
        skipped: Counts the documents that are left out, by reason.
    """

    def __init__(
        self,
        config: DataConfig,
        shard: Shard,
        held_out: HeldOutFingerprints | None,
        skipped: Counter[str],
    ) -> None:
        self._config = config
        self._path = shard.path
        self._held_out = held_out
        self._skipped = skipped

    def admit(self, document: ReadDocument) -> ReadDocument | None:
        """Returns the document if it is trained on; otherwise counts it and returns None.

        Raises:
            DataError: If it is held out, and `on_test_overlap` is error.
        """
        if not document.document.text:
            self._skipped[EMPTY_TEXT] += 1
            return None

        overlap = self._held_out.find_overlap(document.document) if self._held_out else ""
        if not overlap:
            return document

        if self._config.on_test_overlap == "error":
            raise DataError(
                f"{self._path}, {describe_position(self._path, document.source.number)}: the "
                f"document has the {overlap} of one in data_config.validation_file="
                f"{self._config.validation_file}; leave the shard out (data_config.exclude), or "
                "set data_config.on_test_overlap=drop"
            )
        self._skipped[TEST_OVERLAP] += 1
        return None
