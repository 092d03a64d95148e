"""Compares designs of a study of metadata conditioning, and estimates what metadata is worth.

- The seeds that each design needs to find a difference of 0.01 bits per byte with a power of 80%,
  as a claim by itself, from the deviation over seeds that was measured with it.
- The effective-data factor of metadata: the model trained with it on D text tokens, then used
  without, is as good as one trained on factor * D tokens of text alone. One fit over all lengths.

`when_metadata.py` computes both from the committed measurements of `when_metadata.yaml` and of the
pilots, and writes them to its page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import chi2, t

from bsmeta.report.inference import ALPHA, Interval
from bsmeta.report.page import Column, Table
from bsmeta.studies.config import TEXT, WITHOUT
from bsmeta.studies.power import count_needed_seeds
from bsmeta.studies.statistics import Estimate, StudyMeasurements

Floats = NDArray[np.float64]

STUDIES = Path(__file__).parent / "studies"
DIFFERENCE = 0.01
"""The difference to be found, in bits per byte."""

FIRST_BYTE = 128
"""Differences are over the bytes of a document from here on: its beginning is another matter."""

PILOTS = {
    "pilot_rate": "360 steps, same text, rate 1e-3 (pilot)",
    "pilot_matched": "360 steps, same text, rate 3e-3 (pilot)",
    "pilot_unmatched": "360 steps, rows filled as usual, rate 3e-3 (pilot)",
}

LENGTHS = (360, 720, 1440)
"""Steps of the finished models of `when_metadata.yaml`."""

LOGGED = 12
"""Logged steps at the end of a run, whose training losses are compared: its decay."""


@dataclass(frozen=True)
class Design:
    """A way to measure what training with the URL changes, and the difference measured with it."""

    name: str
    difference: Estimate


@dataclass(frozen=True)
class Factor:
    """The effective-data factor of metadata, and its 95% interval over seeds."""

    value: float
    low: float
    high: float


def compare_designs(measured: StudyMeasurements) -> Iterator[Design]:
    """Yields the designs that one study allows to compare, on models of 1,440 steps."""
    bins = measured.select_bins([FIRST_BYTE])

    def compare(arm: str, against: str) -> Estimate:
        base = measured.estimate(against, WITHOUT, bins=bins)
        return measured.estimate(arm, WITHOUT, bins=bins) - base

    plain = compare("url_1440", "none_1440")
    yield Design("text alone as the baseline", plain)
    yield Design("a constant prefix as the baseline", compare("url_1440", "constant_1440"))
    yield Design("a decay over 40% of the steps", compare("url_1440_40", "none_1440_40"))
    yield Design("no decay", compare("url", "none"))
    averages = [
        measured.estimate_averaged_checkpoint(arm, bins) for arm in ("url_1440", "none_1440")
    ]
    yield Design("the mean of the last four checkpoints", averages[0] - averages[1])
    losses = average_late_losses(measured, "url_1440") - average_late_losses(measured, "none_1440")
    yield Design(
        "the training loss as a control variate (if its mean were known)",
        replace(plain, seeds=adjust_values(plain.seeds, losses)),
    )


def average_late_losses(measured: StudyMeasurements, arm: str) -> Floats:
    """Averages the training loss of the last logged steps: float64 [seeds], nats a token."""
    runs = [measured.find_run(arm, seed) for seed in measured.seeds]
    return np.array([np.mean(run.facts["losses"][-LOGGED:]) for run in runs])


def adjust_values(values: Floats, control: Floats) -> Floats:
    """Subtracts from the values their regression on a control variate; the mean stays."""
    centered = control - control.mean()
    slope = centered @ values / (centered @ centered)
    adjusted_values: Floats = values - slope * centered
    return adjusted_values


def make_design_table(designs: Sequence[Design]) -> Table:
    """Makes the table of the designs: their deviations over seeds, and the seeds they need."""
    note = (
        f"Bits per byte from byte {FIRST_BYTE} on, without metadata: the model trained with the "
        "URL minus the baseline. Deviation over seeds, with its 95% interval (chi-squared). Seeds: "
        f"for a difference of {DIFFERENCE} with a power of 80%, as a claim by itself."
    )
    columns = [
        Column("design"), Column("seeds", str), Column("difference", "{:+.4f}".format),
        Column("deviation", "{:.4f}".format), Column("95% interval", "{:.4f}".format),
        Column("error over documents", "{:.4f}".format), Column("seeds needed", str),
    ]  # fmt: skip
    table = Table("Seeds by design", note, columns)
    for design in designs:
        effect = design.difference
        degrees = len(effect.seeds) - 1
        tails = chi2.ppf([1 - ALPHA / 2, ALPHA / 2], degrees)
        low, high = effect.deviation * np.sqrt(degrees / tails)
        needed = count_needed_seeds(DIFFERENCE, effect.deviation, effect.document_error, count=1)
        table.rows.append(
            [
                design.name,
                degrees + 1,
                effect.value,
                effect.deviation,
                Interval(low, high),
                effect.document_error,
                needed,
            ]
        )
    return table


def estimate_bits_by_length(measured: StudyMeasurements) -> tuple[Floats, Floats]:
    """Estimates bits per byte by length of training, from byte 128 on, without metadata.

    Returns:
        Text tokens, float64 [lengths]; bits per byte of text alone and of training with the URL,
        float64 [seeds, 2 arms, lengths].
    """
    bins = measured.select_bins([FIRST_BYTE])
    tokens = [measured.compute_amounts(f"none_{steps}")[TEXT][-1] for steps in LENGTHS]
    bits = [
        [measured.estimate(f"{arm}_{steps}", WITHOUT, bins=bins).seeds for steps in LENGTHS]
        for arm in ("none", "url")
    ]
    return np.array(tokens, np.float64), np.moveaxis(np.array(bits), -1, 0)


def fit_effective_data_factor(tokens: Floats, bits: Floats) -> Factor:
    """Fits one power law to both arms, one of which has `factor` times its text tokens.

    bits[seed, arm, length] = level[seed] + scale * (factor ** arm * tokens[length]) ** -exponent:
    the level of a seed is a random effect, which the mean over its models removes. The interval is
    that of the jackknife over seeds, for the logarithm of the factor (Student's t).

    Args:
        tokens: float64 [lengths], at least three.
        bits: float64 [seeds, 2, lengths], text alone and with metadata.
    """
    centered = bits - bits.mean(axis=(1, 2), keepdims=True)
    relative = tokens / tokens[0]

    def fit(values: Floats) -> float:
        def residuals(parameters: Floats) -> Floats:
            log_scale, exponent, log_factor = parameters
            amounts = np.stack((relative, np.exp(log_factor) * relative))
            predicted = np.exp(log_scale) * amounts**-exponent
            difference: Floats = (predicted - predicted.mean() - values).ravel()
            return difference

        start = [np.log(np.ptp(values[0]) + 1e-6), 0.5, 0.0]
        return float(least_squares(residuals, start, x_scale=[1.0, 0.3, 0.1]).x[2])

    count = len(centered)
    whole = fit(centered.mean(axis=0))
    without = [fit(np.delete(centered, seed, axis=0).mean(axis=0)) for seed in range(count)]
    pseudo = count * whole - (count - 1) * np.array(without)
    half = t.ppf(1 - ALPHA / 2, count - 1) * pseudo.std(ddof=1) / np.sqrt(count)
    return Factor(*(float(np.exp(value)) for value in (whole, whole - half, whole + half)))
