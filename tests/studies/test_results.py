"""What is compared of an unfinished study, the verdicts, and how numbers read."""

from __future__ import annotations

import numpy as np
import pytest

from bsmeta.config.study import ArmConfig, StudyConfig
from bsmeta.studies.measured import TEXT, TOKENS, WITH, WITHOUT, Measured, largest_block
from bsmeta.studies.measuring import Measurement
from bsmeta.studies.results import ArmResult, Claim, Results, claims_of
from bsmeta.studies.statistics import Curve, Estimate, saving
from bsmeta.studies.tables import claim_table, effect_table, latex, sentences

AMOUNTS = np.array([1e4, 2e4, 4e4])
STUDY = StudyConfig(
    title="a_study", out_dir="x", config="demo", baseline="none", seeds=[1, 2, 3],
    arms={"none": ArmConfig(label="text alone"), "url": ArmConfig(label="URL"),
          "shuffled": ArmConfig(control_of="url")},
)  # fmt: skip


def estimate(value: float, error: float = 0.001) -> Estimate:
    return Estimate(value, value + np.random.default_rng(0).normal(0, error, 4000))


def arm(name: str, bits: list[float], shown: list[float], amounts: np.ndarray) -> ArmResult:
    curves = {
        mode: {axis: Curve(amounts, [estimate(one) for one in values]) for axis in (TEXT, TOKENS)}
        for mode, values in ((WITHOUT, bits), (WITH, shown))
    }
    last = {axis: float(amounts[-1]) for axis in (TEXT, TOKENS)}
    return ArmResult(name, STUDY.arms[name].label or name, curves, amounts=last)


@pytest.fixture
def arms() -> dict[str, ArmResult]:
    made = {
        "none": arm("none", [4.0, 3.0, 2.0], [4.0, 3.0, 2.0], AMOUNTS),
        "url": arm("url", [4.0, 3.1, 2.5], [3.9, 2.9, 1.9], AMOUNTS / 2),
        "shuffled": arm("shuffled", [4.1, 3.1, 3.0], [4.1, 3.1, 3.0], AMOUNTS / 2),
    }
    for one in (made["url"], made["shuffled"]):
        for mode in (WITHOUT, WITH):
            one.savings[mode] = {
                axis: saving(made["none"].curves[WITHOUT][axis], 2e4, one.last(mode))
                for axis in (TEXT, TOKENS)
            }
    return made


def test_the_largest_complete_block_is_compared() -> None:
    runs = [("none", seed) for seed in (1, 2, 3)] + [("url", seed) for seed in (1, 2, 3)]
    assert largest_block(STUDY, [*runs, ("shuffled", 1)]) == (["none", "url"], [1, 2, 3])
    assert largest_block(STUDY, [*runs[:5], ("shuffled", 1), ("shuffled", 2)]) == (
        ["none", "url", "shuffled"],
        [1, 2],
    )
    assert largest_block(STUDY, runs[:3])[0] == []
    assert largest_block(STUDY, runs[3:])[0] == []


def test_the_verdicts_of_an_arm_and_of_its_control(arms: dict[str, ArmResult]) -> None:
    claims = {(one.arm, one.mode, one.other, one.axis): one for one in claims_of(STUDY, arms)}
    assert claims["url", WITH, "none", TEXT].verdict == "supported"
    assert claims["url", WITH, "shuffled", None].verdict == "supported"
    assert claims["url", WITHOUT, "none", TEXT].verdict == "supported"
    assert claims["shuffled", WITH, "none", TEXT].verdict == "undecided"
    assert len(claims) == 10
    opposite = Claim("url", WITH, "none", TEXT, estimate(0.5), 0.4, 0.6)
    assert opposite.verdict == "refuted"
    assert Claim("url", WITH, "none", TEXT, None).verdict == "undecided"


def test_the_words_and_tables_of_a_study(arms: dict[str, ArmResult]) -> None:
    results = Results(STUDY, [1, 2, 3], 10, 1000, arms, claims_of(STUDY, arms), [])
    said = sentences(results)
    assert said[0].startswith(
        "**Supported**: URL, without metadata: fewer bits than text alone at the same text tokens "
        "(-0.5000 bits per byte, -0.50"
    )
    assert "**Undecided**: 4 of 10 claims (table below)." in said
    assert (
        "URL, with metadata: data saved: above 50%; text alone does not reach its bits per byte "
        "within 40,000 text tokens, this arm has used 20,000." in said
    )
    assert (
        "URL, without metadata: data saved: 29% [29% to 29%]; text alone reaches its bits per byte "
        "after 28,284 text tokens, this arm has used 20,000." in said
    )
    table = effect_table(results)
    assert [row[:2] for row in table.rows] == [
        ["URL", "without"], ["URL", "with"], ["shuffled", "without"], ["shuffled", "with"],
    ]  # fmt: skip
    assert table.rows[0][2].startswith("-0.5000 [-0.50")
    assert claim_table(results).rows[0][5] == "supported"
    source = latex(results, "the command")
    assert source.startswith("% the command\n\\begin{table}")
    assert "a\\_study" in source
    assert source.count(r" \\") == 5


def test_an_arm_without_metadata_is_not_used_with_it() -> None:
    def measurement(gain: float) -> Measurement:
        nats, digests = np.ones((3, 1)), np.arange(3, dtype=np.uint64)
        return Measurement(10, 100, 100, 1e6, digests, np.full((3, 1), 5.0), nats, nats - gain, {})

    found = {("none", 1): [measurement(0.0)], ("url", 1): [measurement(0.1)]}
    measured = Measured(STUDY, found)
    assert measured.modes("none") == (WITHOUT,)
    assert measured.modes("url") == (WITHOUT, WITH)
