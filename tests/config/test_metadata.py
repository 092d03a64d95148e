"""The metadata configuration: the steps at which the phases of a schedule begin."""

from __future__ import annotations

from bsmeta.config.metadata import MetadataConfig, Phase, compute_phase_starts


def test_the_steps_at_which_phases_begin() -> None:
    config = MetadataConfig(schedule=[Phase(share=0.9), Phase(share=0.1)])
    assert compute_phase_starts(config, 100_000) == [0, 90_000]
    assert compute_phase_starts(MetadataConfig(), 100_000) == [0]
