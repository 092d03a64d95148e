"""Compares the two models on the held-out pages: differences, intervals, and needed pages.

A reading is a model together with the prefix that it reads before each held-out text. Every reading
is compared with the same one: the model trained on text alone, reading text alone. Both models have
trained on the same text, so the reading with metadata differs from it only by metadata in training
and in reading. The controls show the model trained with metadata other prefixes: the values of
another page, junk words, or a bare separator. The gain of the metadata over its strongest control
is due to its content; the rest is form.

The interval is Student's, with the jackknife over documents or, if there are enough, over hosts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from bsmeta.report.inference import (
    ALPHA,
    FEW_CLUSTERS,
    ErrorSource,
    Interval,
    assign_host_clusters,
    compute_cluster_degrees,
    compute_half_width,
    compute_jackknife_variance,
    leave_one_out,
    sum_by_cluster,
)
from bsmeta.studies.power import POWER, count_needed_seeds
from bsmeta.tasks.causal_lm.evaluation.arms import TEXT
from bsmeta.tasks.causal_lm.evaluation.readings import BYTES, NATS_WITH, NATS_WITHOUT
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport
from bsmeta.tasks.causal_lm.evaluation.tables import CONTROL_WORDS

MAX_NEEDED_UNITS = 10_000_000
"""Number of units above which reports give no number."""

ALL_METADATA = "all"
"""The comparison of a model's report in which it reads all metadata of a page."""

_TEXT_ALONE = "text alone"
_WITH_METADATA = "with metadata"


@dataclass(frozen=True)
class Reading:
    """The bits of the held-out pages under a model that reads a certain prefix.

    Attributes:
        trained_on: What the model was trained on, for tables.
        reads: The prefix that it reads, for tables.
        bits: float64 [documents], bits of each text.
        sizes: float64 [documents], scored bytes of each text.
    """

    trained_on: str
    reads: str
    bits: np.ndarray
    sizes: np.ndarray

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte over all documents."""
        return float(self.bits.sum() / self.sizes.sum())


@dataclass(frozen=True)
class Difference:
    """Bits per byte of a reading minus those of another; negative if the first is better.

    Attributes:
        interval: Its 95% interval over the units; None for a single unit.
        unit_variance: Variance of the difference times the number of units.
        units: Number of documents, or hosts.
        better: Number of units with fewer bits per byte.
        worse: Number of units with more bits per byte.
    """

    value: float
    interval: Interval | None
    unit_variance: float
    units: int
    better: int
    worse: int

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval, and 0 lies outside."""
        return self.interval is not None and self.interval.excludes_zero


@dataclass(frozen=True)
class Result:
    """All readings of the held-out pages.

    Attributes:
        base: The model trained on text alone, reading text alone.
        with_metadata: The model trained with metadata, reading the metadata of each page.
        without_metadata: The model trained with metadata, reading text alone.
        controls: The model trained with metadata, reading each control, by its name in tables.
        clusters: int64 [documents], the index of each document's host; None if documents are the
            units of intervals.
        hosts: Number of known hosts.
    """

    base: Reading
    with_metadata: Reading
    without_metadata: Reading
    controls: Mapping[str, Reading]
    clusters: np.ndarray | None
    hosts: int

    @property
    def unit(self) -> str:
        """The plural noun for the units of intervals."""
        return "documents" if self.clusters is None else "hosts"

    @property
    def main_difference(self) -> Difference:
        """Metadata in training and in reading, compared with text alone in both."""
        return self.compare(self.with_metadata, self.base)

    def compare(self, reading: Reading, other: Reading) -> Difference:
        """Compares two readings over the units of the result."""
        return compute_difference(reading, other, self.clusters)

    def find_strongest_control(self) -> str | None:
        """Returns the name of the control with the fewest bits per byte; None if there is none.

        It attributes the least to the content of the metadata.
        """

        def compute_disadvantage(name: str) -> float:
            return self.compare(self.with_metadata, self.controls[name]).value

        return max(self.controls, key=compute_disadvantage, default=None)


def collect_readings(without: ModelReport, with_metadata: ModelReport) -> Result | None:
    """Collects the readings of both models, restricted to the pages that every reading has.

    Args:
        without: The report of the model trained on text alone.
        with_metadata: The report of the model trained with metadata.

    Returns:
        The readings; None if they have no page in common.
    """
    assert without.digests == with_metadata.digests, "the models read different pages"
    base_totals = without.totals[TEXT]
    text_totals = with_metadata.totals[TEXT]
    metadata_totals = with_metadata.totals[ALL_METADATA]
    control_totals = {}
    for name, words in CONTROL_WORDS.items():
        totals = with_metadata.totals.get(f"{name}/{ALL_METADATA}")
        # Values of another page are not a control if all pages have the same.
        if totals is not None and totals[:, BYTES].any():
            control_totals[words] = totals

    all_totals = [base_totals, text_totals, metadata_totals, *control_totals.values()]
    is_read = np.all([totals[:, BYTES] > 0 for totals in all_totals], axis=0)
    if not is_read.any():
        return None

    def make_reading(totals: np.ndarray, trained_on: str, reads: str) -> Reading:
        column = NATS_WITHOUT if reads == _TEXT_ALONE else NATS_WITH
        bits = totals[is_read, column] / math.log(2)
        return Reading(trained_on, reads, bits, totals[is_read, BYTES])

    hosts = [host for host, is_included in zip(without.hosts, is_read, strict=True) if is_included]
    known_hosts = len(set(hosts) - {""})
    has_enough_hosts = known_hosts >= FEW_CLUSTERS
    return Result(
        base=make_reading(base_totals, _TEXT_ALONE, _TEXT_ALONE),
        with_metadata=make_reading(metadata_totals, _WITH_METADATA, "its metadata"),
        without_metadata=make_reading(text_totals, _WITH_METADATA, _TEXT_ALONE),
        controls={
            words: make_reading(totals, _WITH_METADATA, words)
            for words, totals in control_totals.items()
        },
        clusters=assign_host_clusters(hosts) if has_enough_hosts else None,
        hosts=known_hosts,
    )


def compute_difference(
    reading: Reading, other: Reading, clusters: np.ndarray | None = None
) -> Difference:
    """Computes the difference of two readings of the same documents.

    Args:
        clusters: int64 [documents], the index of each document's cluster; None if documents are the
            units.
    """
    bits = np.stack([other.bits, reading.bits])
    sizes = np.stack([other.sizes, reading.sizes])
    if clusters is not None:
        bits = sum_by_cluster(bits, clusters)
        sizes = sum_by_cluster(sizes, clusters)

    unit_differences = bits[1] / sizes[1] - bits[0] / sizes[0]
    totals = bits.sum(axis=1) / sizes.sum(axis=1)
    value = float(totals[1] - totals[0])
    units = bits.shape[1]

    changes = leave_one_out(bits[1], sizes[1]) - leave_one_out(bits[0], sizes[0])
    variance = compute_jackknife_variance(changes, units)
    degrees = units - 1.0 if clusters is None else compute_cluster_degrees(sizes[0])
    interval = None
    if units > 1:
        half_width = compute_half_width([ErrorSource(variance, degrees)])
        interval = Interval(value - half_width, value + half_width)
    return Difference(
        value=value,
        interval=interval,
        unit_variance=variance * units,
        units=units,
        better=int((unit_differences < 0).sum()),
        worse=int((unit_differences > 0).sum()),
    )


def count_needed_units(difference: Difference) -> int | None:
    """Computes the number of units that would show this difference with a power of `POWER`.

    It is the normal approximation: (z(1 - alpha/2) + z(power))² times the variance of a unit, over
    the squared difference.

    Returns:
        The number; None if it exceeds `MAX_NEEDED_UNITS` or is unknown.
    """
    if difference.interval is None or difference.value == 0:
        return None

    quantiles = ndtri(1 - ALPHA / 2) + ndtri(POWER)
    num_needed = quantiles**2 * difference.unit_variance / difference.value**2
    return max(math.ceil(num_needed), 2) if num_needed <= MAX_NEEDED_UNITS else None


def count_needed_seeds_by_deviation(
    difference: Difference, ratios: Sequence[float] = (0.5, 1.0)
) -> list[int | None]:
    """Computes the numbers of seeds that would show this difference with a power of `POWER`.

    Args:
        ratios: Assumed standard deviations over seeds, as shares of the difference, because one
            seed does not show how large they are.

    Returns:
        The number of seeds for each ratio; None if it exceeds 1,000 or the difference is 0.
    """
    size = abs(difference.value)
    if not size:
        return [None] * len(ratios)
    return [
        count_needed_seeds(size, deviation=ratio * size, document_error=0.0, count=1)
        for ratio in ratios
    ]
