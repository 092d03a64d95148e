"""What would decide a study of metadata conditioning with fewer seeds, and what metadata is worth.

    WEBDOCS=webdocs python experiments/study_designs.py

Reads the committed measurements of `when_metadata.yaml` and of the pilots, and prints two tables:

- the seeds that each design needs to find a difference of 0.01 bits per byte with a power of 80%,
  as a claim by itself, from the deviation over seeds that was measured with it;
- the effective-data factor of metadata: the model trained with it on D text tokens, then used
  without, is as good as one trained on factor * D tokens of text alone. One fit over all lengths.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import chi2, t

from bsmeta.core.process import run_and_report
from bsmeta.report.inference import ALPHA, Interval
from bsmeta.report.page import Column, Table, create_report_console, print_table
from bsmeta.studies.config import TEXT, WITHOUT, load_study
from bsmeta.studies.power import count_needed_seeds
from bsmeta.studies.results import load_measurements
from bsmeta.studies.statistics import Estimate, Measured

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


def designs_of(measured: Measured) -> Iterator[Design]:
    """The designs that one study allows to compare, on models of 1,440 steps."""
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
    losses = late_losses(measured, "url_1440") - late_losses(measured, "none_1440")
    yield Design(
        "the training loss as a control variate (if its mean were known)",
        replace(plain, seeds=adjusted(plain.seeds, losses)),
    )


def late_losses(measured: Measured, arm: str) -> Floats:
    """The mean training loss in the last logged steps: float64 [seeds], nats a token."""
    runs = [measured.find_run(arm, seed) for seed in measured.seeds]
    return np.array([np.mean(run.facts["losses"][-LOGGED:]) for run in runs])


def adjusted(values: Floats, control: Floats) -> Floats:
    """The values less what a line in the control predicts, with the same mean."""
    centered = control - control.mean()
    slope = centered @ values / (centered @ centered)
    adjusted_values: Floats = values - slope * centered
    return adjusted_values


def design_table(designs: Sequence[Design]) -> Table:
    """One row per design: its deviation over seeds, and the seeds that it needs."""
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


def bits_by_length(measured: Measured) -> tuple[Floats, Floats]:
    """Text tokens of each length, and bits per byte: float64 [seeds, 2 arms, lengths]."""
    bins = measured.select_bins([FIRST_BYTE])
    tokens = [measured.compute_amounts(f"none_{steps}")[TEXT][-1] for steps in LENGTHS]
    bits = [
        [measured.estimate(f"{arm}_{steps}", WITHOUT, bins=bins).seeds for steps in LENGTHS]
        for arm in ("none", "url")
    ]
    return np.array(tokens, np.float64), np.moveaxis(np.array(bits), -1, 0)


def effective_data_factor(tokens: Floats, bits: Floats) -> Factor:
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


def main() -> int:
    """Print the tables; returns the exit code."""
    console = create_report_console()
    measured, missing = load_measurements(load_study(STUDIES / "when_metadata.yaml"))
    print(*missing, sep="\n")
    designs = [*designs_of(measured)]
    for name, words in PILOTS.items():
        pilot, _ = load_measurements(load_study(STUDIES / f"{name}.yaml"))
        bins = pilot.select_bins([FIRST_BYTE])
        url, none = (pilot.estimate(arm, WITHOUT, bins=bins) for arm in ("url", "none"))
        designs.append(Design(words, url - none))
    print_table(console, design_table(designs))
    factor = effective_data_factor(*bits_by_length(measured))
    print(
        f"Effective-data factor of the URL over {LENGTHS[0]} to {LENGTHS[-1]:,} steps: "
        f"{factor.value:.2f} (95% interval {factor.low:.2f} to {factor.high:.2f})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(run_and_report(main))
