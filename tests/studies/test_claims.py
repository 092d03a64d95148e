"""Declared claims: what is compared, the verdicts, and the power that is predicted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from bsmeta.studies.claims import Claim, decide_claims
from bsmeta.studies.config import ArmConfig, ClaimConfig, MeasureConfig, StudyConfig
from bsmeta.studies.runs import Measurement
from tests.studies.simulated import flat, measured, measurement

SEEDS = [1, 2, 3, 4]


def claim(**changes: object) -> ClaimConfig:
    values = {"label": "URL beats text", "arm": "url", "smallest_difference": 0.1, **changes}
    return ClaimConfig(**values)  # type: ignore[arg-type]


def study(claims: dict[str, ClaimConfig], **changes: object) -> StudyConfig:
    values = {
        "title": "a study", "out_dir": "x", "config": "demo", "baseline": "none", "seeds": SEEDS,
        "arms": {"none": ArmConfig(label="text alone"), "url": ArmConfig(label="URL")},
        "measure": MeasureConfig(position_edges=[0]), "claims": claims, **changes,
    }  # fmt: skip
    return StudyConfig(**values)  # type: ignore[arg-type]


def runs(*bits: float, shown: tuple[float, ...] = (), noise: float = 0.0) -> list[Measurement]:
    """Returns a run of each seed; documents differ by `noise`, equally in all runs."""
    documents = np.random.default_rng(0).normal(0, noise, (1, 20, 1)) if noise else 0.0
    pairs = zip(bits, shown or [None] * len(bits), strict=True)
    return [
        measurement(flat(arm_runs) + documents, None if other is None else flat(other) + documents)
        for arm_runs, other in pairs
    ]


def only(claims: list[Claim]) -> Claim:
    (claim_result,) = claims
    return claim_result


def test_a_claim_is_a_paired_t_test_over_seeds() -> None:
    declared = study({"a": claim()})
    base, arm_runs = (2.0, 2.2, 1.9, 2.1), (1.9, 2.05, 1.85, 1.98)
    claim_result = only(
        decide_claims(declared, measured(declared, {"none": runs(*base), "url": runs(*arm_runs)}))
    )
    assert claim_result.effect is not None
    assert claim_result.effect.value == pytest.approx(-0.105)
    expected = ttest_1samp(np.subtract(arm_runs, base), 0).pvalue
    assert claim_result.p_value == pytest.approx(expected)
    assert claim_result.corrected_p_value == pytest.approx(expected)  # the only claim
    assert claim_result.verdict == "supported"
    assert claim_result.low < -0.105 < claim_result.high < 0


def test_a_contrast_between_two_pairs_of_arms_is_paired_by_seed() -> None:
    arms = {name: ArmConfig() for name in ("none", "url", "none_long", "url_long")}
    contrast = claim(minus_arm="url_long", minus_against="none_long")
    declared = study({"a": contrast}, arms=arms)
    bits = {
        "none": (2.0, 2.2, 1.9, 2.1),
        "url": (1.9, 2.05, 1.85, 1.98),
        "none_long": (1.8, 2.0, 1.7, 1.9),
        "url_long": (1.81, 2.02, 1.7, 1.93),
    }
    verdict = only(
        decide_claims(
            declared, measured(declared, {arm: runs(*arm_runs) for arm, arm_runs in bits.items()})
        )
    )
    short = np.subtract(bits["url"], bits["none"])
    long = np.subtract(bits["url_long"], bits["none_long"])
    assert verdict.effect is not None
    assert verdict.effect.seeds == pytest.approx(short - long)
    assert verdict.p_value == pytest.approx(ttest_1samp(short - long, 0).pvalue)

    del bits["url_long"]
    waiting = only(
        decide_claims(
            declared, measured(declared, {arm: runs(*arm_runs) for arm, arm_runs in bits.items()})
        )
    )
    assert (waiting.verdict, waiting.reason) == ("open", "url_long has not been measured")


def test_the_verdict_follows_from_the_interval() -> None:
    declared = study({"a": claim()})
    spread = np.array([-0.01, 0.0, 0.0, 0.01])
    verdicts = {
        shift: only(
            decide_claims(
                declared,
                measured(declared, {"none": runs(*[2.0] * 4), "url": runs(*(2 + shift + spread))}),
            )
        )
        for shift in (-0.2, 0.2, -0.005)
    }
    assert verdicts[-0.2].verdict == "supported"
    assert verdicts[0.2].verdict == "refuted"
    assert verdicts[-0.005].verdict == "undecided"
    assert verdicts[-0.005].excludes_smallest_difference  # 0.1 is far outside
    assert not verdicts[-0.2].excludes_smallest_difference


def test_a_supported_claim_may_be_too_small_to_matter() -> None:
    declared = study({"a": claim()})
    spread = np.array([-0.001, 0.0, 0.0, 0.001])
    bits = {"none": runs(*[2.0] * 4), "url": runs(*(1.99 + spread))}
    claim_result = only(decide_claims(declared, measured(declared, bits)))
    assert (claim_result.verdict, claim_result.excludes_smallest_difference) == ("supported", True)


def test_every_declared_claim_counts_in_the_correction() -> None:
    """One claim is measured; eight more, about an arm that is missing, make its p larger."""
    arms = {"none": ArmConfig(), "url": ArmConfig(), "title": ArmConfig()}
    several = {f"b{number}": claim(arm="title") for number in range(8)}
    declared = study({"a": claim(), **several}, arms=arms)
    base, arm_runs = (2.0, 2.2, 1.9, 2.1), (1.9, 2.05, 1.85, 1.98)
    claim_result = decide_claims(
        declared, measured(declared, {"none": runs(*base), "url": runs(*arm_runs)})
    )
    assert claim_result[0].corrected_p_value == pytest.approx(9 * claim_result[0].p_value)
    assert claim_result[0].verdict == "undecided"
    assert {claim.verdict for claim in claim_result[1:]} == {"open"}
    assert claim_result[1].reason == "title has not been measured"


def test_nothing_is_decided_before_the_declared_seeds_are_measured() -> None:
    declared = study({"a": claim()})
    bits = {"none": runs(2.0, 2.0, 2.0), "url": runs(1.0, 1.01, 1.02)}
    claim_result = only(decide_claims(declared, measured(declared, bits)))
    assert (claim_result.verdict, claim_result.reason) == ("open", "3 of 4 declared seeds")
    assert claim_result.effect is not None
    assert claim_result.corrected_p_value == 1.0


def test_a_single_seed_decides_nothing() -> None:
    declared = study({"a": claim()}, seeds=[1])
    bits = {"none": runs(2.0, noise=0.1), "url": runs(1.999, noise=0.1)}
    claim_result = only(decide_claims(declared, measured(declared, bits)))
    assert (claim_result.verdict, claim_result.reason) == (
        "open", "one seed, which shows no variation over seeds"
    )  # fmt: skip
    assert not claim_result.excludes_smallest_difference


def test_documents_are_a_source_of_error_too() -> None:
    """The seeds agree exactly, but a quarter of the documents make the whole difference."""
    declared = study({"a": claim()})
    gain = np.where(np.arange(20) < 5, -0.4, 0.1)[None, :, None]
    arm_runs = [measurement(flat(2.0) + gain) for _ in SEEDS]
    claim_result = only(
        decide_claims(declared, measured(declared, {"none": runs(*[2.0] * 4), "url": arm_runs}))
    )
    assert claim_result.effect is not None
    assert claim_result.effect.deviation == pytest.approx(0, abs=1e-12)
    assert claim_result.effect.document_error == pytest.approx(gain.std(ddof=1) / 20**0.5)
    assert claim_result.verdict == "undecided"


def test_a_claim_about_saved_data_compares_with_a_later_point_of_the_baseline() -> None:
    """The arm after 800 tokens is compared with text alone after 1,000: at least 20% is saved."""
    declared = study({"a": claim(at=0.8, saves=0.2)}, curve=[0.8, 1.0])

    def run(early: float, late: float) -> Measurement:
        return measurement(np.concatenate([flat(early), flat(late)]), targets=(800, 1000))

    base = [run(2.5 + 0.01 * seed, 2.0 + 0.01 * seed) for seed in SEEDS]
    arm_runs = [run(1.9 + 0.011 * seed, 1.0) for seed in SEEDS]
    claim_result = only(
        decide_claims(declared, measured(declared, {"none": base, "url": arm_runs}))
    )
    assert claim_result.effect is not None
    assert claim_result.effect.value == pytest.approx(-0.0975)
    assert claim_result.verdict == "supported"
    beyond = study({"a": claim(saves=0.2)}, curve=[0.8, 1.0])
    claim_result = only(decide_claims(beyond, measured(beyond, {"none": base, "url": arm_runs})))
    assert claim_result.verdict == "open"
    assert claim_result.reason == "none was trained on 1,000 text tokens, not on 1,250"


def test_a_contrast_of_positions_cancels_a_uniform_difference() -> None:
    """Worse by 0.3 below byte 128, better by 0.1 from byte 512 on: a contrast of -0.4."""
    measure = MeasureConfig(position_edges=[0, 128, 512])
    declared = study({"a": claim(bytes=[512], minus_bytes=[0, 128])}, measure=measure)
    change = np.array([0.3, 5.0, -0.1])
    base = [measurement(flat(2.0 + 0.1 * seed, bins=3)) for seed in SEEDS]
    arm_runs = [
        measurement(flat(2.0 - 0.2 * seed, bins=3) + change + 0.001 * seed) for seed in SEEDS
    ]
    claim_result = only(
        decide_claims(declared, measured(declared, {"none": base, "url": arm_runs}))
    )
    assert claim_result.effect is not None
    assert claim_result.effect.value == pytest.approx(-0.4)
    assert claim_result.effect.deviation == pytest.approx(
        0, abs=1e-12
    )  # the level of a seed cancels


def test_types_are_compared_over_documents_that_have_both() -> None:
    """Title gains 0.5 over url on the ten documents with both; other documents are huge."""
    declared = study({"a": claim(metadata="title", against="url", against_metadata="url")})
    title, url = flat(1.0)[0], flat(1.5)[0]
    title[10:15], url[15:] = np.nan, np.nan
    title[15:], url[10:15] = 99.0, -99.0
    arm_runs = [
        measurement(flat(2.0), flat(1.0), {"title": title + 0.01 * seed, "url": url})
        for seed in SEEDS
    ]
    claim_result = only(
        decide_claims(declared, measured(declared, {"none": runs(*[2.0] * 4), "url": arm_runs}))
    )
    assert claim_result.effect is not None
    assert claim_result.effect.units == 10
    assert claim_result.effect.value == pytest.approx(-0.475)
