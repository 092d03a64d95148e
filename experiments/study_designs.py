"""Compares designs of a study of metadata conditioning, and estimates what metadata is worth.

- The seeds that each design needs to find a difference of 0.01 bits per byte with a power of 80%,
  as a claim by itself, from the deviation over seeds that was measured with it.
- How much of that deviation the training loss shares.
- The effective-data factor of a prefix: the model trained with it on D text tokens, then used
  without, is as good as one trained on factor * D tokens of text alone.

`when_metadata.py` computes them from the committed measurements of `when_metadata.yaml` and of the
pilots, and writes them to its page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import chi2, linregress, norm, t

from bsmeta.report.inference import ALPHA, Interval
from bsmeta.report.page import Column, Table
from bsmeta.studies.config import TEXT, TOKENS, WITHOUT
from bsmeta.studies.power import count_needed_seeds
from bsmeta.studies.statistics import Estimate, StudyMeasurements

Floats = NDArray[np.float64]

DIFFERENCE = 0.01
"""The difference to be found, in bits per byte."""

FIRST_BYTE = 128
"""Differences are over the bytes of a document from here on: its beginning is another matter."""

PILOTS = {
    "pilot_rate": "360 steps, same text, rate 1e-3 (pilot)",
    "pilot_matched": "360 steps, same text, rate 3e-3 (pilot)",
    "pilot_unmatched": "360 steps, rows shared by prefix and text, rate 3e-3 (pilot)",
}

LENGTHS = (360, 720, 1440)
"""Steps of the finished models of `when_metadata.yaml`."""

LOGGED = 12
"""Logged steps at the end of a run, whose training losses are compared: its decay."""


@dataclass(frozen=True)
class Design:
    """A way to measure the effect of training with the host, and the measured difference."""

    name: str
    difference: Estimate


@dataclass(frozen=True)
class ControlVariate:
    """The regression of a difference on a control variate, over seeds.

    Attributes:
        correlation: Pearson's correlation of both.
        correlation_interval: Its 95% interval (Fisher's transformation).
        deviation: Standard deviation of the residuals.
        interval: Its 95% interval.
    """

    correlation: float
    correlation_interval: Interval
    deviation: float
    interval: Interval


@dataclass(frozen=True)
class Factor:
    """The effective-data factor of a prefix, and its 95% interval over seeds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def scale(self, scale: float) -> Factor:
        """Multiplies the factor by a known number."""
        return Factor(self.value * scale, self.low * scale, self.high * scale)


def compare_designs(measured: StudyMeasurements) -> Iterator[Design]:
    """Yields the designs that one study can compare, on its longest models."""

    def compare(arm: str, against: str) -> Estimate:
        return compare_later_bytes(measured, arm, against)

    yield Design("text alone as the baseline", compare("url_1440", "none_1440"))
    yield Design("a constant prefix as the baseline", compare("url_1440", "constant_1440"))
    yield Design("hosts of other pages as the baseline", compare("url_1440", "shuffled_1440"))
    yield Design("a decay over 40% of the steps", compare("url_1440_40", "none_1440_40"))
    yield Design("no decay (1,296 steps)", compare("url", "none"))

    bins = measured.select_bins([FIRST_BYTE])
    averages = [
        measured.estimate_averaged_checkpoint(arm, bins) for arm in ("url_1440", "none_1440")
    ]
    yield Design("the mean of the last four checkpoints", averages[0] - averages[1])

    for steps in LENGTHS[:-1]:
        yield Design(f"{steps} steps", compare(f"url_{steps}", f"none_{steps}"))


def compare_later_bytes(measured: StudyMeasurements, arm: str, against: str) -> Estimate:
    """Estimates the difference between two arms from `FIRST_BYTE` on, without metadata."""
    bins = measured.select_bins([FIRST_BYTE])
    base = measured.estimate(against, WITHOUT, bins=bins)
    return measured.estimate(arm, WITHOUT, bins=bins) - base


def regress_on_training_loss(measured: StudyMeasurements) -> ControlVariate:
    """Regresses the difference of the longest models on that of their training losses."""
    losses = average_late_losses(measured, "url_1440") - average_late_losses(measured, "none_1440")
    values = compare_later_bytes(measured, "url_1440", "none_1440").seeds
    line = linregress(losses, values)
    residuals = values - line.intercept - line.slope * losses
    degrees = len(values) - 2  # the line has two parameters
    deviation = float(np.sqrt(residuals @ residuals / degrees))
    return ControlVariate(
        correlation=float(line.rvalue),
        correlation_interval=estimate_correlation_interval(line.rvalue, len(values)),
        deviation=deviation,
        interval=estimate_deviation_interval(deviation, degrees),
    )


def average_late_losses(measured: StudyMeasurements, arm: str) -> Floats:
    """Averages the training loss of the last logged steps: float64 [seeds], nats a token."""
    runs = [measured.find_run(arm, seed) for seed in measured.seeds]
    return np.array([np.mean(run.facts["losses"][-LOGGED:]) for run in runs])


def estimate_correlation_interval(correlation: float, count: int) -> Interval:
    """Estimates the 95% interval of Pearson's correlation (Fisher's transformation).

    Args:
        count: Number of pairs.
    """
    half = norm.isf(ALPHA / 2) / np.sqrt(count - 3)
    low, high = np.tanh(np.arctanh(correlation) + np.array([-half, half]))
    return Interval(float(low), float(high))


def estimate_deviation_interval(deviation: float, degrees: int) -> Interval:
    """Estimates the 95% interval of a standard deviation (chi-squared)."""
    tails = chi2.ppf([1 - ALPHA / 2, ALPHA / 2], degrees)
    low, high = deviation * np.sqrt(degrees / tails)
    return Interval(float(low), float(high))


def make_design_table(designs: Sequence[Design]) -> Table:
    """Makes the table of the designs: their deviations over seeds, and the seeds they need."""
    note = (
        f"Bits per byte from byte {FIRST_BYTE} on, without metadata: the model trained with the "
        "host minus the baseline. Deviation: standard deviation of the difference over seeds, with "
        f"its 95% interval (chi-squared). Seeds needed: to find a difference of {DIFFERENCE} with "
        "a power of 80% in a single test at 5%, if the deviation is as measured (or at the ends of "
        "its interval). In the pilots, the prefix is the whole URL, there is no BOS token, and the "
        "learning rate falls to 0."
    )
    columns = [
        Column("design"), Column("seeds", str), Column("difference", "{:+.4f}".format),
        Column("deviation", "{:.4f}".format), Column("95% interval", "{:.4f}".format),
        Column("error over documents", "{:.4f}".format), Column("seeds needed", str),
    ]  # fmt: skip
    table = Table("Seeds by design", note, columns)
    for design in designs:
        effect = design.difference
        interval = estimate_deviation_interval(effect.deviation, len(effect.seeds) - 1)
        needed, fewest, most = (
            format_needed_seeds(deviation, effect.document_error)
            for deviation in (effect.deviation, interval.low, interval.high)
        )
        table.rows.append(
            [
                design.name,
                len(effect.seeds),
                effect.value,
                effect.deviation,
                interval,
                effect.document_error,
                f"{needed} ({fewest} to {most})",
            ]
        )
    return table


def format_needed_seeds(deviation: float, document_error: float) -> str:
    """Formats the number of seeds that find `DIFFERENCE` in a single test."""
    seeds = count_needed_seeds(DIFFERENCE, deviation, document_error, count=1)
    return "over 1,000" if seeds is None else str(seeds)


def make_factor_table(measured: StudyMeasurements, prefixes: Mapping[str, str]) -> Table:
    """Makes the table of the effective-data factors of each prefix at each length.

    Args:
        prefixes: The arms with a prefix, and what it contains.
    """
    note = (
        "From how many tokens of text alone, at each length of training, a model would have the "
        f"same bits per byte from byte {FIRST_BYTE} on, without metadata, relative to its own "
        "tokens: text tokens, or all tokens, which include the prefixes. "
        "1: the prefix is worth nothing; 1.1: the same bits per byte need one text token in eleven "
        "less. A power law through both curves (all seeds share its scale and exponent, each has "
        "an asymptote of its own), with 95% intervals over seeds (jackknife)."
    )
    columns = [
        Column("steps", "{:,}".format), Column("prefix"),
        Column("per text token", "{:.3f}".format), Column("per token read", "{:.3f}".format),
    ]  # fmt: skip
    table = Table("The effective-data factor", note, columns)
    factors = {
        prefix: fit_effective_data_factors(
            *estimate_bits_by_length(measured, prefix), by_length=True
        )
        for prefix in prefixes
    }
    for number, steps in enumerate(LENGTHS):
        for prefix, label in prefixes.items():
            factor = factors[prefix][number]
            overhead = compute_token_overhead(measured, prefix, steps)
            table.rows.append([steps, label, factor, factor.scale(1 / overhead)])
    return table


def compute_token_overhead(measured: StudyMeasurements, prefix: str, steps: int) -> float:
    """Computes the tokens that training with a prefix reads, divided by those of text alone."""
    prefixed, alone = (
        measured.compute_amounts(f"{arm}_{steps}")[TOKENS][-1] for arm in (prefix, "none")
    )
    return float(prefixed / alone)


def estimate_bits_by_length(measured: StudyMeasurements, prefix: str) -> tuple[Floats, Floats]:
    """Estimates bits per byte by length of training, from byte 128 on, without metadata.

    Args:
        prefix: The arm that is trained with a prefix.

    Returns:
        Text tokens, float64 [lengths]; bits per byte of text alone and of training with the prefix,
        float64 [seeds, 2 arms, lengths].
    """
    bins = measured.select_bins([FIRST_BYTE])
    tokens = [measured.compute_amounts(f"none_{steps}")[TEXT][-1] for steps in LENGTHS]
    bits = [
        [measured.estimate(f"{arm}_{steps}", WITHOUT, bins=bins).seeds for steps in LENGTHS]
        for arm in ("none", prefix)
    ]
    return np.array(tokens, np.float64), np.moveaxis(np.array(bits), -1, 0)


def fit_effective_data_factors(
    tokens: Floats, bits: Floats, *, by_length: bool = False
) -> list[Factor]:
    """Fits the factor of a prefix: one for all lengths, or one for each.

    Args:
        tokens: float64 [lengths], at least three.
        bits: float64 [seeds, 2, lengths], text alone and with the prefix.
        by_length: Fits a factor for each length; otherwise, one for all.
    """
    values, pseudo_values = jackknife_log_factors(tokens, bits, by_length=by_length)
    return [
        make_factor(value, column) for value, column in zip(values, pseudo_values.T, strict=True)
    ]


def compare_factors(tokens: Floats, bits: Floats) -> Factor:
    """Divides the factor at the first length by the factor at the last: 1 if they are equal.

    Takes the arguments of `fit_effective_data_factors`.
    """
    values, pseudo_values = jackknife_log_factors(tokens, bits, by_length=True)
    return make_factor(values[0] - values[-1], pseudo_values[:, 0] - pseudo_values[:, -1])


def make_factor(log_value: float, pseudo_values: Floats) -> Factor:
    """Makes a factor from its logarithm and the pseudo-values of the seeds (Student's t)."""
    count = len(pseudo_values)
    half = t.ppf(1 - ALPHA / 2, count - 1) * pseudo_values.std(ddof=1) / np.sqrt(count)
    return Factor(*np.exp([log_value, log_value - half, log_value + half]).tolist())


def jackknife_log_factors(
    tokens: Floats, bits: Floats, *, by_length: bool
) -> tuple[Floats, Floats]:
    """Fits one power law to both arms, one of which has `factor` times its text tokens.

    bits[seed, arm, length] = level[seed] + scale * (factor ** arm * tokens[length]) ** -exponent:
    each seed has a level, which subtracting the mean over its models removes.

    Takes the arguments of `fit_effective_data_factors`.

    Returns:
        The logarithm of each factor, float64 [factors], and its pseudo-values of the jackknife over
        seeds, float64 [seeds, factors].
    """
    centered = bits - bits.mean(axis=(1, 2), keepdims=True)
    relative = tokens / tokens[0]

    def fit(values: Floats) -> Floats:
        def residuals(parameters: Floats) -> Floats:
            log_scale, exponent, *log_factors = parameters
            amounts = np.stack((relative, np.exp(log_factors) * relative))
            predicted = np.exp(log_scale) * amounts**-exponent
            difference: Floats = (predicted - predicted.mean() - values).ravel()
            return difference

        log_factors = [0.0] * (len(tokens) if by_length else 1)
        start = [np.log(np.ptp(values[0]) + 1e-6), 0.5, *log_factors]
        scales = [1.0, 0.3, *(0.1 for _ in log_factors)]
        solution: Floats = least_squares(residuals, start, x_scale=scales).x
        return solution[2:]

    count = len(centered)
    whole = fit(centered.mean(axis=0))
    without = [fit(np.delete(centered, seed, axis=0).mean(axis=0)) for seed in range(count)]
    return whole, count * whole - (count - 1) * np.array(without)
