"""The metadata configuration: the steps at which the phases of a schedule begin, separators."""

from __future__ import annotations

import re
from pathlib import Path

from bsmeta.config.metadata import (
    MetadataConfig,
    Phase,
    Separators,
    choose_separators,
    compute_phase_starts,
)

PACKAGE = Path(__file__).resolve().parents[2] / "bsmeta"


def test_the_shares_of_a_schedule_give_the_first_step_of_each_phase() -> None:
    config = MetadataConfig(schedule=[Phase(share=0.9), Phase(share=0.1)])
    assert compute_phase_starts(config, 100_000) == [0, 90_000]
    assert compute_phase_starts(MetadataConfig(), 100_000) == [0]


def test_the_boundary_token_replaces_the_separators() -> None:
    assert choose_separators(MetadataConfig()) == Separators(" |||", " ", " ||| ")
    config = MetadataConfig(metadata_boundary_token="<|text|>", metadata_text_sep="\n")
    assert choose_separators(config) == Separators("<|text|>", "", "<|text|>")


def test_only_two_modules_read_the_separators() -> None:
    pattern = re.compile(r"\.metadata_(prefix_sep|text_sep|suffix_start_seq)\b")
    readers = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert readers == ["config/metadata.py", "tasks/causal_lm/evaluation/arms.py"]
    # The prompt style has separators of its own, and no boundary token.
    arms = (PACKAGE / "tasks/causal_lm/evaluation/arms.py").read_text(encoding="utf-8")
    assert len(pattern.findall(arms)) == 1
    assert 'metadata_boundary_token=""' in arms
