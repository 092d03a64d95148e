"""Documents as the log counts them: those used, by type, and those skipped, by reason.

`bad_documents` decides whether a document that cannot be used stops the run (strict), or is skipped
and counted. The metadata package has the reasons found in the JSON object; this module has those
found in the file and the line. The counts are an array, in the order of `count_names`, from the
window to the micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io.files import refuse_bad_copy
from bsmeta.data.io.lines import BYTE_ORDER_MARK, LONGEST_LINE, OVERLONG
from bsmeta.data.io.shards import Shard, numbered
from bsmeta.metadata.records import BadDocument, Line
from bsmeta.metadata.rendering import Rendered

REASONS = (
    "bad_content_spans",
    "blank_line",
    "byte_order_mark",
    "damaged_file",
    "document_too_long",
    "end_before_start",
    "html_attributes_mismatch",
    "line_too_long",
    "missing_position",
    "missing_text",
    "negative_position",
    "no_content_spans",
    "not_a_number",
    "not_a_timestamp",
    "not_an_object",
    "not_json",
    "not_utf8",
    "position_beyond_text",
    "relative_position_too_large",
    "text_not_string",
    "wrong_type",
)

TEST_OVERLAP = "test_overlap"
"""Training documents dropped because they are held out."""

EMPTY_TEXT = "empty_text"
"""Documents without text: pages may be empty, which is not an error in the data."""

HALF_USED = "half_used_at_phase_switch"
"""Documents whose unused rest was dropped when the metadata schedule switched phases."""

NOT_BAD = (TEST_OVERLAP, EMPTY_TEXT, HALF_USED)
"""Reasons why good documents, or parts of them, are left out."""

LEFT_OUT = "metadata_tokens_left_out"
"""Tokens of metadata for which a row had no room (`row_budget=text`)."""

WITH_METADATA = "documents_with_metadata"
"""Documents that got at least one metadata type."""

SOURCE_COUNTS = ("source_sequences", "source_tokens", "source_epochs")
"""What is counted for each source of a mixture; epochs on average over its streams."""


class Rejecter:
    """Applies `bad_documents` to the documents of one window.

    Attributes:
        counts: Number of documents skipped, by reason.
    """

    def __init__(self, config: DataConfig, shard: Shard) -> None:
        self._strict = config.bad_documents == "strict"
        self._shard = shard
        self.counts: Counter[str] = Counter()

    def reject(self, line: int, error: BadDocument) -> None:
        """Skips the document on a line, or in a row (counted from 0).

        Raises:
            DataError: In strict mode, naming file, line (or row) and reason.
        """
        if self._strict:
            refuse_bad_copy(self._shard.path)
            where = f"{self._shard.path}, {numbered(self._shard.path, line)}"
            raise DataError(
                f"{where}: {error.reason}: {error.detail} "
                "(data_config.bad_documents=skip counts such documents and continues)"
            )
        self.counts[error.reason] += 1


def reason_of(line: Line, error: BadDocument) -> BadDocument:
    """A more specific reason, if the line itself shows why it is not JSON."""
    if error.reason != "not_json":
        return error
    line = bytes(line)
    if line == OVERLONG:
        return BadDocument("line_too_long", f"expected {LONGEST_LINE:,} bytes at most")
    if not line.strip():
        return BadDocument("blank_line", "expected a JSON object")
    if line.startswith(BYTE_ORDER_MARK):
        return BadDocument("byte_order_mark", "the line begins with a UTF-8 byte order mark")
    try:
        line.decode()
    except UnicodeDecodeError as problem:
        return BadDocument("not_utf8", str(problem))
    return error


def check_length(rendered: Rendered, config: DataConfig) -> None:
    """Rejects a document that would take too much memory to encode."""
    length = sum(map(len, (rendered.prefix, rendered.body, rendered.suffix)))
    if length > config.max_document_chars:
        raise BadDocument(
            "document_too_long",
            f"text and metadata have {length:,} characters, more than "
            f"data_config.max_document_chars={config.max_document_chars}",
        )


def count_names(keys: Sequence[str]) -> list[str]:
    """Names of the counts; the same in every batch of a run."""
    types = [f"documents/{key}" for key in keys]
    bad = [f"bad_documents/{reason}" for reason in REASONS]
    return ["documents", WITH_METADATA, *types, *bad, *NOT_BAD, LEFT_OUT]


def source_count_names(sources: Sequence[str]) -> list[str]:
    """Names of the counts of a mixture, which follow those of `count_names`."""
    return [f"{what}/{name}" for name in sources for what in SOURCE_COUNTS]


def source_counts(source: int, sources: int, tokens: int, epochs: float) -> np.ndarray:
    """What a sequence adds to the counts of a mixture (float64).

    Args:
        epochs: The share of the source's documents whose next epoch begins with it.
    """
    counts = np.zeros((sources, len(SOURCE_COUNTS)))
    counts[source] = 1.0, tokens, epochs
    return counts.reshape(-1)


def document_counts(types: np.ndarray, opens: np.ndarray, keys: Sequence[str]) -> np.ndarray:
    """What each chunk adds to the counts: a document is counted with its first chunk.

    Args:
        types: int32[chunks], metadata types of each chunk's document (bit i: keys[i]).
        opens: bool[chunks], whether the chunk is its document's first.

    Returns:
        float64[chunks, counts].
    """
    counts = np.zeros((len(types), len(count_names(keys))))
    bits = np.arange(len(keys), dtype=np.int32)
    counts[:, 0] = opens
    counts[:, 1] = opens & (types != 0)
    counts[:, 2 : 2 + len(keys)] = (types[:, None] >> bits & 1) * opens[:, None]
    return counts


def skipped_counts(skipped: Counter[str], keys: Sequence[str]) -> np.ndarray:
    """The counts of skipped documents alone (float64[counts])."""
    reasons = [float(skipped[reason]) for reason in (*REASONS, *NOT_BAD)]
    return np.array([0.0] * (2 + len(keys)) + reasons + [0.0])
