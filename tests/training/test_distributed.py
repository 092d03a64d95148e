"""Processes that do not come together."""

from __future__ import annotations

import subprocess
import sys

STUCK = """
import time
from bsmeta.training.distributed import time_limit
with time_limit(60, "what is quick"):
    pass
with time_limit(0.1, "connecting the processes"):
    time.sleep(100)
"""


def test_connecting_has_a_limit() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("connecting the processes took more than 0.1 s (distributed_")
    assert 'File "<string>", line 7 in <module>' in ended.stderr
