"""An error that a rank reports to the others."""

from __future__ import annotations

from bsmeta.core.errors import DataError
from bsmeta.training.ranks.error_reports import rebuild_error, serialize_error


def test_reports_to_other_ranks_hold_no_secrets() -> None:
    """Other ranks may not know the secrets that this rank has read."""
    report = serialize_error(DataError("GET https://me:word@host.invalid/x?sig=1"))
    assert report == {"user": True, "message": "GET https://[redacted]@host.invalid/x?[redacted]"}
    assert str(rebuild_error(3, report)).startswith("rank 3: GET https://[redacted]@")
