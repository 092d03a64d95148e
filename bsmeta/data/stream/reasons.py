"""The reasons why documents, or parts of documents, are left out of training.

`bsmeta.metadata` detects problems in a JSON object; the stages of a window detect problems in the
file and in the line. A metadata type may add reasons (`MetadataType.reasons`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bsmeta.data.io.lines import BYTE_ORDER_MARK, MAX_LINE_BYTES, OVERLONG
from bsmeta.metadata.processors import find_type
from bsmeta.metadata.records import BadDocument, Line

REASONS = (  # common to all metadata types
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
"""Documents that are held out of training."""

EMPTY_TEXT = "empty_text"
"""Documents without text: pages may be empty, which is not an error in the data."""

HALF_USED = "half_used_at_phase_switch"
"""Documents of which a part was dropped when the metadata schedule switched phases."""

GOOD_DOCUMENT_REASONS = (TEST_OVERLAP, EMPTY_TEXT, HALF_USED)
"""Reasons why good documents, or parts of them, are left out."""


def list_reasons(keys: Sequence[str]) -> list[str]:
    """Returns the reasons for bad documents: common reasons, then the reasons of metadata types.

    Args:
        keys: The metadata types of the run.
    """
    reasons = dict.fromkeys(REASONS)
    for key in keys:
        reasons |= dict.fromkeys(find_type(key).reasons)
    return list(reasons)


def count_bad(skipped: Counter[str]) -> int:
    """Counts the bad documents among all documents that were left out.

    Args:
        skipped: Number of documents left out, by reason.
    """
    return skipped.total() - sum(skipped[reason] for reason in GOOD_DOCUMENT_REASONS)


def refine_error(line: Line, error: BadDocument) -> BadDocument:
    """Returns a more specific error than `not_json` if the line has a recognized problem."""
    if error.reason != "not_json":
        return error

    line = bytes(line)
    if line == OVERLONG:
        return BadDocument("line_too_long", f"expected {MAX_LINE_BYTES:,} bytes at most")
    if not line.strip():
        return BadDocument("blank_line", "expected a JSON object")
    if line.startswith(BYTE_ORDER_MARK):
        return BadDocument("byte_order_mark", "the line begins with a UTF-8 byte order mark")
    try:
        line.decode()
    except UnicodeDecodeError as problem:
        return BadDocument("not_utf8", str(problem))
    return error
