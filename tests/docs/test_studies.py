"""The statements of docs/studies.md follow from the committed measurements."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, t

from bsmeta.studies.claim_report import format_sentences
from bsmeta.studies.claims import decide_claims
from bsmeta.studies.config import WITH, WITHOUT, StudyConfig, load_study
from bsmeta.studies.power import count_needed_seeds
from bsmeta.studies.results import StudyMeasurements, compute_results, load_measurements
from bsmeta.studies.statistics import Estimate
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/studies.md").read_text(encoding="utf-8")
VERDICTS = (REPOSITORY / "docs/verdicts.md").read_text(encoding="utf-8")
RECOMPUTING = VERDICTS.partition("## Recompute a verdict\n")[2].partition("\n## ")[0]
SECTION = PAGE.partition("## What `meco_small` found\n")[2]
BEGINNING, REST, LAST, ALL = slice(0, 1), slice(2, 4), slice(3, 4), slice(0, 4)
"""Bins of `measure.position_edges`: bytes 0 to 127, from 512 on, from 2,048 on, all."""

OTHER_FACTS = {"13.3", "13.2", "1.3", "5.8", "2504.17562"}
"""Figures of the section that are not results: perplexities of MeCo, sizes of the runs, a paper."""

Phrases = Iterator[str]
"""Parts of sentences, computed as the page has them."""


@pytest.fixture(scope="module")
def study() -> Iterator[StudyConfig]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPOSITORY)  # of its `results_dir`
        yield load_study(REPOSITORY / "experiments/studies/meco_small.yaml")


@pytest.fixture(scope="module")
def measured(study: StudyConfig) -> StudyMeasurements:
    return load_measurements(study)[0]


@pytest.fixture
def pilots(monkeypatch: pytest.MonkeyPatch) -> dict[str, Estimate]:
    """Returns the effect of training with the URL in each pilot."""
    monkeypatch.chdir(REPOSITORY)
    differences = {}
    for name in ("pilot_matched", "pilot_rate"):
        measured = load_measurements(load_study(REPOSITORY / f"experiments/studies/{name}.yaml"))[0]
        differences[name] = measured.estimate("url", WITHOUT) - measured.estimate("none", WITHOUT)
    return differences


def test_the_page_has_the_verdicts_of_meco_small(study: StudyConfig) -> None:
    computed_sentences = format_sentences(compute_results(study))
    assert len(computed_sentences) == 4
    assert [line[2:] for line in SECTION.splitlines() if line.startswith("- ")][
        :4
    ] == computed_sentences


def test_the_page_recomputes_the_verdicts_of_meco_small_without_this_package(
    study: StudyConfig,
) -> None:
    (script,) = re.findall(r"^```python\n(.*?)^```$", RECOMPUTING, re.M | re.S)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", RECOMPUTING, re.M | re.S)
    assert "bsmeta" not in script
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert output.stdout == shown

    effects = [claim.effect for claim in compute_results(study).claims]
    assert shown.splitlines() == [
        f"{effect.value:+.4f}, {effect.low:+.4f} to {effect.high:+.4f}, p = {effect.p_value:.2g}"
        for effect in effects
        if effect is not None
    ]


def test_the_page_names_every_array_of_a_measurement() -> None:
    names = set()
    for line in RECOMPUTING.splitlines():
        if line.startswith("| `"):
            names |= set(re.findall(r"`(\w+)`", line.split("|")[1]))
    for path in (REPOSITORY / "experiments/studies/results").glob("*/*-seed*.npz"):
        with np.load(path) as archive:
            arrays = {name for name in archive.files if not name.startswith("types/")}
        assert arrays <= names, path


def test_every_number_of_the_prose_follows_from_the_measurements(
    study: StudyConfig, measured: StudyMeasurements, pilots: dict[str, Estimate]
) -> None:
    phrases = [
        *differences(measured),
        *shares(measured),
        *halves(measured),
        *lengths(measured, pilots["pilot_rate"]),
        *cooldown(),
        *hosts(study, measured),
    ]
    assert [phrase for phrase in phrases if phrase not in SECTION] == []

    verdicts = [f"- {sentence}" for sentence in format_sentences(compute_results(study))]
    prose = "\n".join(line for line in SECTION.splitlines() if line not in verdicts)
    computed = {number for phrase in phrases for number in list_decimals(phrase)}
    assert set(list_decimals(prose)) - computed - OTHER_FACTS == set()


def test_the_page_has_the_number_of_seeds_that_a_claim_needs(pilots: dict[str, Estimate]) -> None:
    high, low = (
        [count_needed_seeds(0.01, pilot.deviation, pilot.document_error, count) for count in (2, 4)]
        for pilot in (pilots["pilot_matched"], pilots["pilot_rate"])
    )
    assert (
        f"With two claims, a difference of 0.01 bits per byte would need about {high[0]} seeds at "
        f"the higher rate, and {low[0]} at the lower one; with four claims, as `meco_small.yaml` "
        f"declares, {high[1]} and {low[1]}."
    ) in PAGE


def list_decimals(text: str) -> list[str]:
    """Returns the numbers of a text with a decimal point or a percent sign."""
    return re.findall(r"\d[\d,]*\.\d+|\d+%", text)


def format_in_words(estimate: Estimate, digits: int = 4) -> str:
    """Formats a difference with its interval, with a minus sign as on the page."""
    low, high = (f"{end:+.{digits}f}" for end in (estimate.low, estimate.high))
    return f"{estimate.value:+.{digits}f} ({low} to {high})".replace("-", "−")


def differences(measured: StudyMeasurements) -> Phrases:
    """Yields the differences between arms, in all bytes and in parts of the pages."""

    def minus(mode: str, arm: str, other: str, bins: slice) -> Estimate:
        other_arm = measured.estimate(other, WITHOUT, bins=bins)
        return measured.estimate(arm, mode, bins=bins) - other_arm

    yield f"from byte 512 on: {format_in_words(minus(WITHOUT, 'url', 'none', REST))}"
    yield f"from byte 2,048 on, {format_in_words(minus(WITHOUT, 'url', 'none', LAST))}"
    yield f"without them: {format_in_words(minus(WITHOUT, 'shuffled', 'none', BEGINNING), 3)}"
    yield f"it loses {format_in_words(minus(WITH, 'shuffled', 'none', BEGINNING), 3)}"
    yield f"those of other pages: {format_in_words(minus(WITHOUT, 'url', 'shuffled', BEGINNING))}"

    beginning = minus(WITHOUT, "url", "none", BEGINNING)
    yield f"needs {beginning.value:.3f} bits per byte more"
    yield f"({beginning.low:.3f} to {beginning.high:.3f}), which is"

    shown = minus(WITH, "url", "none", BEGINNING)
    ends = f"({shown.low:.3f} to {shown.high:.3f})".replace("-", "−")
    yield f"cost {-shown.value:.3f} less than text alone {ends}"

    inference = minus(WITH, "url", "url", ALL)
    yield f"{-inference.value:.4f} bits per byte less than without"
    yield f"({-inference.high:.4f} to {-inference.low:.4f})"
    whole = minus(WITH, "url", "none", ALL)
    ends = f"{whole.low:+.4f} to {whole.high:+.4f}".replace("-", "−")
    yield f"({whole.value:+.4f}, {ends})"


def shares(measured: StudyMeasurements) -> Phrases:
    """Yields the scored bytes, the loss at the beginnings, the share of the form, and the hosts."""
    sizes = measured.find_first_run("none").sizes.sum(axis=0)
    yield f"{sizes.sum():,.0f} bytes, {sizes.sum() / measured.lengths.sum():.0%} of their text"

    def loss(mode: str, arm: str, bins: slice) -> float:
        text = measured.estimate("none", WITHOUT, bins=bins)
        return (measured.estimate(arm, mode, bins=bins) - text).value

    parts = [size * loss(WITHOUT, "url", slice(part, part + 1)) for part, size in enumerate(sizes)]
    yield f"which is {parts[0] / sum(parts):.0%} of all that it loses"

    left = loss(WITH, "shuffled", BEGINNING) / loss(WITHOUT, "shuffled", BEGINNING)
    yield f"removes {1 - left:.0%} of the loss"

    relative = loss(WITHOUT, "url", ALL) / measured.estimate("none", WITHOUT).value
    yield f"by {relative:.1%} of its bits"

    hosts = np.array([*Counter(measured.sites).values()]) / len(measured.sites)
    yield f"the host tells {-(hosts * np.log2(hosts)).sum():.1f} bits"
    yield f"the right host in {(hosts**2).sum():.0%} of the documents"


def halves(measured: StudyMeasurements) -> Phrases:
    """Yields the results of the two halves of the seeds."""
    effect = measured.estimate("url", WITHOUT) - measured.estimate("none", WITHOUT)
    for half, name in ((effect.seeds[:6], "first"), (effect.seeds[6:], "second")):
        error = t.ppf(0.975, 5) * half.std(ddof=1) / math.sqrt(6)
        ends = f"({half.mean() - error:+.4f} to {half.mean() + error:+.4f}".replace("-", "−")
        yield f"{half.mean():+.4f} in the {name}"
        yield ends

    alone = measured.estimate("none", WITHOUT).seeds
    assert alone[:6].min() > alone[6:].max()
    yield f"(p = {mannwhitneyu(alone[:6], alone[6:], method='exact').pvalue:.3f})"


def lengths(measured: StudyMeasurements, quarter: Estimate) -> Phrases:
    """Yields the effect of the URL after a quarter of the steps and after all steps."""
    effect = measured.estimate("url", WITHOUT) - measured.estimate("none", WITHOUT)
    yield f"was {quarter.value:+.4f}".replace("-", "−")
    yield f"after the whole run it is {effect.value:+.4f}"
    error = math.hypot(
        effect.deviation / math.sqrt(len(effect.seeds)),
        quarter.deviation / math.sqrt(len(quarter.seeds)),
    )
    yield f"{(effect.value - quarter.value) / error:.1f} standard errors apart"


def hosts(study: StudyConfig, measured: StudyMeasurements) -> Phrases:
    """Yields the four claims with hosts as the unit of the error."""
    by_host = replace(study, cluster="host")
    declared = decide_claims(study, measured)
    clustered = decide_claims(by_host, measured.cluster_by("host"))
    factors = []
    for claim, other in zip(declared, clustered, strict=True):
        assert claim.effect is not None
        assert other.effect is not None
        assert claim.verdict == other.verdict
        factors.append((other.effect.document_error / claim.effect.document_error) ** 2)
        yield f"{format_in_words(other.effect)}, p = {other.corrected_p_value:.2g}"
    *first, last = (f"{factor:.1f}" for factor in factors)
    yield f"are {', '.join(first)} and {last} times as large"


def cooldown() -> Phrases:
    """Yields the cooldown's share of the area under the learning rate, here and in MeCo.

    Here the rate rises for 90 of 1,440 steps and falls to 0; MeCo's falls on a cosine to a tenth.
    """
    steps = np.arange(1440)
    rate = np.minimum((steps + 1) / 90, (1440 - steps) / 1350)
    yield f"so {rate[-144:].sum() / rate.sum():.1%} of the area"
    cosine = 0.1 + 0.9 * (1 + np.cos(np.pi * np.linspace(0, 1, 10_001))) / 2
    yield f"({cosine[-1000:].sum() / cosine.sum():.1%} in MeCo"
