"""Reasons why a document cannot be used, and the policy for such documents.

The metadata package has the reasons found in the JSON object; this module has those found in the
file and the line, and the policy: stop at the first bad document (strict), or skip and count.
"""

from __future__ import annotations

from collections import Counter

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import DataError
from bsmeta.data.io.files import refuse_bad_copy
from bsmeta.data.io.lines import LONGEST_LINE, OVERLONG
from bsmeta.data.io.shards import Shard, numbered
from bsmeta.metadata.records import BadDocument
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


def reason_of(line: bytes | memoryview, error: BadDocument) -> BadDocument:
    """A more specific reason, if the line itself shows why it is not JSON."""
    if error.reason != "not_json":
        return error
    line = bytes(line)
    if line == OVERLONG:
        return BadDocument("line_too_long", f"expected {LONGEST_LINE:,} bytes at most")
    if not line.strip():
        return BadDocument("blank_line", "expected a JSON object")
    if line.startswith(b"\xef\xbb\xbf"):
        return BadDocument("byte_order_mark", "the line begins with a UTF-8 byte order mark")
    try:
        line.decode()
    except UnicodeDecodeError as problem:
        return BadDocument("not_utf8", str(problem))
    return error


def check_length(rendered: Rendered, config: DataConfig) -> None:
    """Rejects a document that would take too much memory to encode.

    Raises:
        BadDocument: `document_too_long`.
    """
    length = sum(map(len, (rendered.prefix, rendered.body, rendered.suffix)))
    if length > config.max_document_chars:
        raise BadDocument(
            "document_too_long",
            f"text and metadata have {length:,} characters, more than "
            f"data_config.max_document_chars={config.max_document_chars}",
        )
