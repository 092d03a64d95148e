"""A process that takes longer than its limit ends with its stacks."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import STUCK_S

STUCK = """
import time
from bsmeta.training.ranks.time_limits import limit_time
with limit_time(1800, "what is quick"):
    pass
with limit_time(0.1, "connecting the processes"):
    time.sleep(100)
"""


def test_connecting_has_a_time_limit() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=STUCK_S, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("connecting the processes took more than 0.1 s (distributed_")
    assert 'File "<string>", line 7 in <module>' in ended.stderr
