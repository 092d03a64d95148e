"""The page about more GPUs: its tables are what the script prints, and the script can add up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "experiments/benchmarks/scaling.py"


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import scaling

    return scaling


def printed(*keys: str) -> str:
    command = [sys.executable, str(SCRIPT), *keys]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_page_shows_what_the_script_prints() -> None:
    page = Path(REPOSITORY / "docs/scaling.md").read_text()
    _, _, tables = printed().partition("\n\n")
    assert f"<!-- table: python experiments/benchmarks/scaling.py -->\n{tables}<!-- end" in page


def test_figures_by_hand(scaling: ModuleType) -> None:
    """10 billion parameters: 20 GB x 63/64 at 80% of 50 GB/s are 0.492 s one way."""
    setting = scaling.Setting(parameters=1e10, micro_batch_s=1.0, latency_us=0.0)
    assert scaling.one_way_s(setting, 64) == pytest.approx(0.4921875)
    assert scaling.one_way_s(setting, 8) == pytest.approx(20 * 7 / 8 / 360)
    assert scaling.state_gb(setting, 1, 4) == pytest.approx(20 + 20 + 30)
    assert scaling.state_gb(setting, 2, 4) == pytest.approx(20 + 5 + 30)
    assert scaling.state_gb(setting, 3, 4) == pytest.approx(5 + 5 + 30)
    c = 0.4921875
    assert scaling.step_s(setting, 1, 64, 4) == pytest.approx((4 + c, 4 + 2 * c))
    assert scaling.step_s(setting, 2, 64, 4) == pytest.approx((4 + c, 4 + 5 * c))
    assert scaling.step_s(setting, 3, 64, 4) == pytest.approx((4 + 12 * c - 4, 4 + 12 * c))


def test_a_measured_time_and_an_unknown_key() -> None:
    assert printed("micro_batch_s=0.28").startswith("one micro-batch on one GPU: 0.280 s")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "micro_batch=1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "micro_batch=1: expected key=value with a key of parameters" in done.stderr
