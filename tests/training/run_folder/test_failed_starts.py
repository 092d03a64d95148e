"""When a launcher that restarts a run does so in vain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bsmeta.config.launch import Launch
from bsmeta.core.errors import TrainingError
from bsmeta.training.run_folder.events import ENVIRONMENT
from bsmeta.training.run_folder.failed_starts import check_failed_starts
from bsmeta.training.run_folder.status import STATUS, write_status

ELASTIC = Launch(source="the environment", num_processes=2, restarts=True)


def write_starts(folder: Path, *starts: tuple[int, bool]) -> None:
    """Writes starts: the step that each resumed from, and whether it ended without a failure."""
    events = []
    for step, ended in starts:
        events.append({"event": "start", "step": step})
        if ended:
            events.append({"event": "end", "step": step + 1, "ended": "now"})
    (folder / ENVIRONMENT).write_text("".join(json.dumps(event) + "\n" for event in events))


def test_starts_that_fail_at_one_step_end_with_the_last_failure(tmp_path: Path) -> None:
    check_failed_starts(tmp_path, ELASTIC, 3)  # the first start
    write_starts(tmp_path, (0, False), (5, False), (5, False), (5, False))
    write_status(tmp_path, "failed", 7, 1, "rank 1: the disk is gone")
    check_failed_starts(tmp_path, ELASTIC, 4)
    with pytest.raises(TrainingError) as refused:
        check_failed_starts(tmp_path, ELASTIC, 3)
    assert str(refused.value).startswith(
        f"max_failed_starts=3: the last 3 starts of {tmp_path} resumed from step 5 and failed "
    )
    assert str(refused.value).endswith("The last failure: rank 1: the disk is gone")


@pytest.mark.parametrize(
    "starts",
    [
        [(5, False), (5, False), (8, False)],
        [(5, False), (5, True), (5, False), (5, False)],
    ],
    ids=["a new checkpoint", "a stop in between"],
)
def test_progress_or_a_stop_begins_a_new_count(
    starts: list[tuple[int, bool]], tmp_path: Path
) -> None:
    write_starts(tmp_path, *starts)
    check_failed_starts(tmp_path, ELASTIC, 3)


def test_a_damaged_status_does_not_hide_that_starts_fail(tmp_path: Path) -> None:
    write_starts(tmp_path, (5, False), (5, False))
    (tmp_path / STATUS).write_text('{"state": "fai')
    with pytest.raises(TrainingError, match="The last failure: unknown$"):
        check_failed_starts(tmp_path, ELASTIC, 2)


def test_a_start_by_a_user_is_never_refused(tmp_path: Path) -> None:
    write_starts(tmp_path, *[(5, False)] * 9)
    check_failed_starts(tmp_path, Launch(source="the environment", num_processes=2), 3)
