"""Compares the two models on the held-out pages: differences, intervals, and needed pages.

Every reading of the held-out text is compared with the same one: the model that was trained on text
alone, reading text alone. Both models have trained on the same text, so the reading with metadata
differs from it by metadata in training and in reading. The controls show the trained model other
prefixes instead: the values of another page, junk words, or a bare separator. What the metadata
gains over its strongest control is due to its content; the rest is form.

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
"""Number of documents above which a difference counts as none."""

OWN = "all"
"""The comparison of a model's report in which it reads all metadata of a page."""

_TEXT_ALONE = "text alone"
_WITH_METADATA = "with metadata"


@dataclass(frozen=True)
class Reading:
    """A model that reads the held-out pages in some form.

    Attributes:
        trained_on: The text that the model was trained on, in words.
        reads: The prefix that it reads, in words.
        bits: float64 [documents], bits of each text.
        sizes: float64 [documents], bytes that are scored.
    """

    trained_on: str
    reads: str
    bits: np.ndarray
    sizes: np.ndarray

    @property
    def bits_per_byte(self) -> float:
        return float(self.bits.sum() / self.sizes.sum())


@dataclass(frozen=True)
class Difference:
    """Bits per byte of a reading minus bits per byte of another.

    Attributes:
        interval: Its 95% interval over the units; None for a single unit.
        unit_variance: Variance of the difference times the number of units.
        units: Number of documents, or hosts.
        better, worse: Units with fewer and with more bits per byte.
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
        own: The model trained with metadata, reading each page's own metadata.
        text: The same model, reading text alone.
        controls: The same model, reading each control, by its name in words.
        clusters: int64 [documents], the number of the host of each document; None: the units of
            intervals are documents.
        hosts: Number of known hosts.
    """

    base: Reading
    own: Reading
    text: Reading
    controls: Mapping[str, Reading]
    clusters: np.ndarray | None
    hosts: int

    @property
    def unit(self) -> str:
        """The plural of the units of intervals."""
        return "documents" if self.clusters is None else "hosts"

    @property
    def main(self) -> Difference:
        """Trained and read with metadata, minus trained and read without."""
        return self.compare(self.own, self.base)

    def compare(self, reading: Reading, other: Reading) -> Difference:
        """Compares two readings over the units of the result."""
        return compute_difference(reading, other, self.clusters)

    def find_strongest_control(self) -> str | None:
        """Returns the control that leaves the least to the content of the metadata."""
        return max(
            self.controls,
            key=lambda name: self.compare(self.own, self.controls[name]).value,
            default=None,
        )


def collect_readings(without: ModelReport, with_metadata: ModelReport) -> Result | None:
    """Collects the readings over the pages that have metadata, in every form.

    Returns:
        None if no page was read in all of them.
    """
    controls = {
        name: with_metadata.totals[f"{name}/{OWN}"]
        for name in CONTROL_WORDS
        if f"{name}/{OWN}" in with_metadata.totals
    }
    # Values of another page are no control where all pages have the same.
    controls = {name: totals for name, totals in controls.items() if totals[:, BYTES].any()}
    sums = {
        "base": without.totals[TEXT],
        "text": with_metadata.totals[TEXT],
        "own": with_metadata.totals[OWN],
        **controls,
    }
    assert without.digests == with_metadata.digests, "the models read different pages"
    is_read = np.all([totals[:, BYTES] > 0 for totals in sums.values()], axis=0)
    if not is_read.any():
        return None

    def make_reading(name: str, trained_on: str, reads: str) -> Reading:
        totals = sums[name][is_read]
        column = NATS_WITHOUT if reads == _TEXT_ALONE else NATS_WITH
        return Reading(trained_on, reads, totals[:, column] / math.log(2), totals[:, BYTES])

    hosts = [host for host, takes_part in zip(without.hosts, is_read, strict=True) if takes_part]
    known_hosts = len(set(hosts) - {""})
    has_enough_hosts = known_hosts >= FEW_CLUSTERS
    return Result(
        base=make_reading("base", _TEXT_ALONE, _TEXT_ALONE),
        own=make_reading("own", _WITH_METADATA, "its metadata"),
        text=make_reading("text", _WITH_METADATA, _TEXT_ALONE),
        controls={
            CONTROL_WORDS[name]: make_reading(name, _WITH_METADATA, CONTROL_WORDS[name])
            for name in controls
        },
        clusters=assign_host_clusters(hosts) if has_enough_hosts else None,
        hosts=known_hosts,
    )


def compute_difference(
    reading: Reading, other: Reading, clusters: np.ndarray | None = None
) -> Difference:
    """Compares two readings of the same documents, each over the bytes that it scored.

    Args:
        clusters: int64 [documents], the number of the cluster of each document; None: documents
            are the units.
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
    """Returns the units that would show this difference with a power of 80%.

    By the normal approximation, (z(1 - alpha/2) + z(power))² times the variance of a unit, over the
    squared difference. None: more than `MAX_NEEDED_UNITS`, or not known.
    """
    if difference.interval is None or difference.value == 0:
        return None
    quantiles = ndtri(1 - ALPHA / 2) + ndtri(POWER)
    num_needed = quantiles**2 * difference.unit_variance / difference.value**2
    return max(math.ceil(num_needed), 2) if num_needed <= MAX_NEEDED_UNITS else None


def count_needed_seeds_by_deviation(
    difference: Difference, ratios: Sequence[float] = (0.5, 1.0)
) -> list[int | None]:
    """Returns the seeds that would show this difference, if it deviates over seeds by these ratios.

    Args:
        ratios: Standard deviations over seeds, as shares of the difference: one seed does not show
            how large it is.
    """
    size = abs(difference.value)
    return [count_needed_seeds(size, ratio * size, 0.0, 1) if size else None for ratio in ratios]
