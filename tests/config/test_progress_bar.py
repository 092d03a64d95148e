"""The bar that shows how far an evaluation is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bsmeta.core import progress


def test_progress_without_a_terminal_is_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with progress.progress_bar("scoring", 1) as show:
        for second, share in ((1, 0.1), (11, 0.25), (12, 0.3), (40, 1.0)):
            clock[0] = 100.0 + second
            show(share)
    assert capsys.readouterr().err.splitlines() == [
        "scoring 25%, 11 s, 33 s left",
        "scoring 100%, 40 s, 0 s left",
    ]
    with progress.progress_bar("scoring", 1, shown=False) as show:
        clock[0] = 200.0
        show(0.5)
    assert capsys.readouterr().err == ""
