"""The rank of a process, and whether it checks and reports for the others."""

from __future__ import annotations

import pytest

from bsmeta.core.rank import is_reporter, read_rank, runs_shared_checks

LAUNCHER = {"TORCHELASTIC_RUN_ID": "run"}


@pytest.mark.parametrize(
    ("environment", "number", "reports", "checks"),
    [
        ({}, 0, True, True),
        ({"RANK": "3", "LOCAL_RANK": "1"}, 3, True, True),
        ({**LAUNCHER, "RANK": "0", "LOCAL_RANK": "0"}, 0, True, True),
        ({**LAUNCHER, "RANK": "2", "LOCAL_RANK": "0"}, 2, True, False),
        ({**LAUNCHER, "RANK": "3", "LOCAL_RANK": "1"}, 3, False, False),
        ({"RANK": "first"}, 0, True, True),
    ],
)
def test_one_process_checks_and_one_process_per_machine_reports(
    environment: dict[str, str],
    number: int,
    reports: bool,
    checks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (read_rank(), is_reporter(), runs_shared_checks()) == (number, reports, checks)
