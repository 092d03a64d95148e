"""Annotates duplicates with the page that they copy."""

from __future__ import annotations

from bsmeta.annotate.annotator import Annotator, Columns, Row, make_global_record


class DuplicateMark(Annotator):
    """Records the earlier or held-out page that a page copies.

    It runs with `duplicates=mark` or `held_out_copies=mark`. Its records depend on the decisions
    about the input file; `plan` adds them to the fingerprint.
    """

    name = "duplicate"
    columns = ("metadata_duplicate",)

    def annotate(self, row: Row) -> Columns:
        """Returns a record with the other page, the kind of copy (`source`) and the similarity."""
        if row.duplicate is None:
            return {}
        record = make_global_record(
            "duplicate",
            row.duplicate.kept,
            source=row.duplicate.kind,
            similarity=row.duplicate.similarity,
        )
        return {"metadata_duplicate": [record]}
