"""The declared claims of a study: the power to decide them, and what the data say to each.

A claim says that one reading of the held-out text (an arm, used with or without metadata) needs
fewer bits per byte than another, or that one arm answers the questions of a task better than
another. The difference is paired by seed and by document, or question; its p-value is corrected by
Holm's procedure for all declared claims of both kinds, those included that cannot be decided yet.
So at most 5% of studies without any effect give a verdict. A claim is decided when every declared
seed has been measured, and not before: looking again after each seed would give more false
verdicts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from bsmeta.report.inference import (
    ALPHA,
    Interval,
    few_clusters,
    holm,
    simultaneous_half_widths,
)
from bsmeta.report.page import Cell, Column, Table
from bsmeta.studies.config import DOCUMENT, HOST, WITH, WITHOUT, ClaimConfig, StudyConfig
from bsmeta.studies.statistics import NEAR, Estimate, Measured
from bsmeta.studies.task_scores import ScoredRuns, TaskEffect, task_effect
from bsmeta.studies.units import Unit, unit_of

if TYPE_CHECKING:
    from bsmeta.studies.results import Results

BITS, SIGNED = "{:.4f}".format, "{:+.4f}".format
NOTHING_DECLARED = "No claim was declared: nothing is tested, and everything below is exploratory."
SUPPORTED, REFUTED, UNDECIDED, OPEN = "supported", "refuted", "undecided", "open"
POWER = 0.8
"""The power that is asked for where a number of seeds, or a difference, is derived from it."""

_NODES = 1000
_MOST_SEEDS = 1000


@dataclass(frozen=True)
class Claim:
    """A declared claim and what the data say to it.

    Attributes:
        name: Its name in the file of the study.
        count: Number of declared claims.
        power: Probability that it is supported if the difference is the smallest of interest, at
            the declared seeds, by the pilot; None without a pilot.
        effect: The difference, below 0 as claimed; None if it has not been measured.
        reason: Why it cannot be decided; empty if it can.
        p_value: Of the hypothesis of no difference, for this claim alone.
        corrected: The p-value after Holm's correction for all declared claims.
        low, high: The interval that holds for all declared claims at once.
        seeds: The seeds of the difference, in its order.
        task: What the scores say, for a claim about a task; else None.
    """

    name: str
    config: ClaimConfig
    count: int
    power: float | None
    effect: Estimate | None
    reason: str
    p_value: float
    corrected: float
    low: float
    high: float
    seeds: list[int] = field(default_factory=list)
    task: TaskEffect | None = None

    @property
    def unit(self) -> Unit:
        """The unit of the difference."""
        return unit_of(self.config)

    @property
    def verdict(self) -> str:
        """Supported or refuted if the corrected p-value is at most 5%; else undecided, or open."""
        if self.reason:
            return OPEN
        if self.effect is None or self.corrected > ALPHA:
            return UNDECIDED
        return SUPPORTED if self.effect.value < 0 else REFUTED

    @property
    def excludes_interest(self) -> bool:
        """Whether a difference as large as the smallest of interest is excluded.

        False for a refuted claim, whose verdict says more than that.
        """
        assert self.config.smallest_difference is not None
        is_small = self.low > -self.config.smallest_difference
        return is_small and self.verdict in (SUPPORTED, UNDECIDED)


def decide(
    study: StudyConfig, measured: Measured, scored: ScoredRuns = MappingProxyType({})
) -> list[Claim]:
    """The verdict on every declared claim.

    Args:
        scored: The scores of the runs on the downstream tasks.

    Raises:
        DataError: If two runs answered different questions of a task.
    """
    count, seeds = len(study.claims), len(study.seeds)
    read = {name: _read(study, claim, measured, scored) for name, claim in study.claims.items()}
    decided = {
        name: reading.effect
        for name, reading in read.items()
        if reading.effect is not None and not reading.reason
    }
    sources = [effect.sources for effect in decided.values()]
    halves = dict(zip(decided, simultaneous_half_widths(sources, count), strict=True))
    p_values = [decided[name].p_value if name in decided else 1.0 for name in read]
    found = []
    for name, p_value, corrected in zip(read, p_values, holm(p_values), strict=True):
        config, reading = study.claims[name], read[name]
        effect, half = reading.effect, halves.get(name, math.inf)
        value = effect.value if effect else 0.0
        found.append(
            Claim(
                name, config, count, predicted_power(config, seeds, count), effect, reading.reason,
                p_value, corrected, value - half, value + half, reading.seeds, reading.task,
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class _Reading:
    """The difference that a claim is about, why it cannot be decided, and its seeds."""

    effect: Estimate | None
    reason: str
    seeds: list[int]
    task: TaskEffect | None = None


def _read(
    study: StudyConfig, claim: ClaimConfig, measured: Measured, scored: ScoredRuns
) -> _Reading:
    """What the measurements, or the scores, say to a claim."""
    if claim.task:
        task = task_effect(study, claim, scored, measured.cluster)
        return _Reading(task.effect, task.reason, task.seeds, task)
    return _Reading(*_effect(study, claim, measured), measured.seeds)


def _effect(
    study: StudyConfig, claim: ClaimConfig, measured: Measured
) -> tuple[Estimate | None, str]:
    """The difference that a claim is about, by itself, and why it cannot be decided."""
    compared = replace(claim, against=claim.against or study.baseline)
    effect, reason = _effect_of_pair(compared, measured)
    if effect is None:
        return None, reason
    if claim.minus_arm:
        others = replace(compared, arm=claim.minus_arm, against=claim.minus_against)
        subtracted, reason = _effect_of_pair(others, measured)
        if subtracted is None:
            return None, reason
        effect = effect - subtracted
    if len(measured.seeds) < len(study.seeds):
        return effect, f"{len(measured.seeds)} of {len(study.seeds)} declared seeds"
    if len(study.seeds) < 2:
        return effect, "one seed, which shows no variation over seeds"
    if measured.cluster == HOST and not measured.hosts:
        return effect, "the host of no held-out document is known (cluster: host)"
    if measured.cluster == HOST and effect.units < 2:
        return effect, "documents of one host, which show no variation over hosts"
    return effect, ""


def _effect_of_pair(claim: ClaimConfig, measured: Measured) -> tuple[Estimate | None, str]:
    """The difference between the claim's arm and the one that it is compared with.

    Returns:
        None and the reason, where it cannot be computed.
    """
    against = claim.against
    missing = [arm for arm in (claim.arm, against) if arm not in measured.arms]
    if missing:
        return None, f"{missing[0]} has not been measured"
    amount = float(measured.amounts(claim.arm)[claim.equal][measured.point(claim.arm, claim.at)])
    needed = amount / (1 - claim.saves)
    documents = measured.having(claim.arm, claim.metadata)
    documents = documents & measured.having(against, claim.against_metadata)
    if not documents.any():
        return None, "no held-out document has these types"
    effect = _difference(claim, against, measured, needed, claim.bytes, documents)
    if effect is None:
        reached = measured.amounts(against)[claim.equal][-1]
        return None, f"{against} was trained on {reached:,.0f} {claim.equal}, not on {needed:,.0f}"
    if claim.minus_bytes:
        other = _difference(claim, against, measured, needed, claim.minus_bytes, documents)
        assert other is not None
        effect = effect - other
    return effect, ""


def _difference(
    claim: ClaimConfig, against: str, measured: Measured, needed: float, part: Sequence[int],
    documents: np.ndarray,
) -> Estimate | None:  # fmt: skip
    """The difference over a part of the documents; None where the other curve does not reach it."""
    bins, point = measured.part(part), measured.point(claim.arm, claim.at)
    own = measured.estimate(claim.arm, claim.metadata, point, bins=bins, documents=documents)
    other: Estimate | None = None
    if claim.against_metadata in (WITHOUT, WITH):
        curves = measured.curves(against, claim.against_metadata, bins=bins, documents=documents)
        other = curves[claim.equal].at(needed)
    else:  # types are measured at the end of the run only
        last = float(measured.amounts(against)[claim.equal][-1])
        if math.isclose(last, needed, rel_tol=NEAR):
            metadata = claim.against_metadata
            other = measured.estimate(against, metadata, bins=bins, documents=documents)
    return None if other is None else own - other


def predicted_power(claim: ClaimConfig, seeds: int, count: int) -> float | None:
    """Probability that a claim is supported if its difference is the smallest of interest.

    At the first step of Holm's procedure: where other claims hold as well, it is larger. None if
    `pilot_deviation` is not set.
    """
    if claim.pilot_deviation is None or claim.smallest_difference is None:
        return None
    return power(
        claim.smallest_difference, claim.pilot_deviation, claim.pilot_document_error, seeds, count
    )


@lru_cache(maxsize=1024)
def power(
    difference: float, deviation: float, document_error: float, seeds: int, count: int
) -> float:
    """Probability that a difference is found, as one of `count` claims.

    The test is that of `bsmeta.report.inference`: the distribution of the variance over seeds
    is integrated numerically (without errors over documents, the result is the noncentral t).

    Args:
        difference: The true difference, in absolute value.
        deviation: Standard deviation of the difference over seeds.
        document_error: Standard error of the difference over documents.
    """
    if seeds < 2:
        return 0.0
    tail = ALPHA / count / 2
    shares = (np.arange(_NODES) + 0.5) / _NODES
    variance = deviation**2 / seeds
    estimated = variance * chdtri(seeds - 1, shares) / (seeds - 1)
    halves = np.sqrt(
        stdtrit(seeds - 1, tail) ** 2 * estimated + ndtri(tail) ** 2 * document_error**2
    )
    error = math.sqrt(variance + document_error**2)
    return float(ndtr((difference - halves) / error).mean())


def seeds_needed(
    difference: float, deviation: float, document_error: float, count: int
) -> int | None:
    """Seeds with which a difference is found with a power of 80%; None if 1,000 are too few."""
    tried = range(2, _MOST_SEEDS + 1)
    place = bisect_left(
        tried,
        True,
        key=lambda seeds: power(difference, deviation, document_error, seeds, count) >= POWER,
    )
    return tried[place] if place < len(tried) else None


def claim_tables(results: Results) -> list[Table]:
    """All tables, in order; none if there are no claims."""
    if not results.claims:
        return []
    tables = [claim_table(results)]
    if results.by_host:
        tables.append(host_table(results))
    return [*tables, declared_table(results.study), precision_table(results)]


def declared_table(study: StudyConfig) -> Table:
    """One row per declared claim: what would be found, before anything is measured."""
    seeds, count = len(study.seeds), len(study.claims)
    note = (
        "Pilot: standard deviation over seeds and standard error over documents of the difference. "
        f"Power: probability that the claim is supported, with {seeds} seeds and {count} claims, "
        "if the difference is the smallest of interest."
    )
    columns = [
        Column("claim"), *_unit_columns(study), Column("smallest difference", BITS),
        Column("pilot", str), Column("power", "{:.0%}".format), Column(f"{_measure(study)} of"),
        Column("minus those of"),
    ]  # fmt: skip
    table = Table("Declared claims", note, columns)
    for claim in study.claims.values():
        pilot = None
        if claim.pilot_deviation is not None:
            pilot = f"{claim.pilot_deviation:.4f}, {claim.pilot_document_error:.4f}"
        power = predicted_power(claim, seeds, count)
        sides = _task_sides(study, claim) if claim.task else _sides(study, claim)
        words = [claim.label, *_unit_cells(study, claim)]
        table.rows.append([*words, claim.smallest_difference, pilot, power, *sides])
    return table


def _has_tasks(study: StudyConfig) -> bool:
    """Whether a claim is about a task, so that units differ."""
    return any(claim.task for claim in study.claims.values())


def _measure(study: StudyConfig) -> str:
    """The head of a column for differences of all claims."""
    return "scores" if _has_tasks(study) else "bits per byte"


def _unit_columns(study: StudyConfig) -> list[Column]:
    """A column for the units, where they differ."""
    return [Column("unit")] if _has_tasks(study) else []


def _unit_cells(study: StudyConfig, claim: ClaimConfig) -> list[Cell]:
    return [unit_of(claim).name] if _has_tasks(study) else []


def _pairing(study: StudyConfig) -> str:
    """How differences are paired, and on which side of 0 they are as claimed."""
    if not _has_tasks(study):
        return f"bits per byte, paired by seed and by {DOCUMENT}; below 0 as claimed"
    return (
        f"in its unit, paired by seed and by {DOCUMENT} (of a task: by question); as claimed it is "
        "below 0 for bits per byte, above 0 for accuracy"
    )


def _units_of_error(study: StudyConfig) -> str:
    """The units of the error that is not over seeds."""
    return f"{study.cluster}s" + (" (of a task: questions)" if _has_tasks(study) else "")


def claim_table(results: Results) -> Table:
    """One row per claim, with its verdict."""
    note = (
        f"Difference: {_pairing(results.study)}; error over seeds and "
        f"{_units_of_error(results.study)}. The first "
        "interval is for the claim alone; the second (Bonferroni) and the p-value (Holm) are "
        f"corrected for all {len(results.claims)} declared claims. Supported, refuted: p ≤ 0.05; "
        "undecided: p > 0.05; open: the claim cannot be decided."
    )
    columns = [
        Column("claim"), *_unit_columns(results.study), Column("difference", SIGNED),
        Column("95% interval", SIGNED),
        Column("all at once", SIGNED), Column("p", p_words), Column("verdict"),
    ]  # fmt: skip
    table = Table("Claims", note, columns)
    for claim in results.claims:
        cells: list[Cell] = [None, None, None, None]
        if claim.effect is not None:
            shown = claim.unit.shown(claim.effect)
            cells[:2] = [shown.value, shown.interval]
            if not claim.reason:
                cells[2:] = [shown_at_once(claim), claim.corrected]
        words = [claim.config.label, *_unit_cells(results.study, claim.config)]
        table.rows.append([*words, *cells, claim.verdict])
    return table


def shown_at_once(claim: Claim) -> Interval:
    """The interval that holds for all claims at once, with the difference's own sign."""
    return claim.unit.shown(Interval(claim.low, claim.high)).interval


def host_table(results: Results) -> Table:
    """One row per claim: its verdict, and the interval and verdict with hosts as the units."""
    note = (
        "The verdicts are about other documents of the same hosts, as declared. Over hosts: the "
        f"jackknife that leaves out each of the {results.hosts:,} hosts with all of its documents, "
        "as for other hosts. Ratio: squared standard error over hosts / over documents, about 1 if "
        "the documents of a host are independent."
    )
    if _has_tasks(results.study):
        note += (
            " For a task, its questions are the documents; –: the hosts of its questions are not "
            "known, so that each question counts by itself."
        )
    columns = [
        Column("claim"), *_unit_columns(results.study), Column("over documents", SIGNED),
        Column("over hosts", SIGNED),
        Column("ratio", "{:.1f}".format), Column("p over hosts", p_words), Column("as declared"),
        Column("with cluster: host"),
    ]  # fmt: skip
    table = Table("Are the documents of a host independent?", note, columns)
    for claim, other in zip(results.claims, results.by_host, strict=True):
        cells: list[Cell] = [None, None, None, None]
        if claim.effect is not None and other.effect is not None and is_over_hosts(other):
            cells[:3] = [
                claim.unit.shown(claim.effect).interval,
                claim.unit.shown(other.effect).interval,
                error_ratio(claim.effect, other.effect),
            ]
            cells[3] = None if other.reason else other.corrected
        words = [claim.config.label, *_unit_cells(results.study, claim.config)]
        table.rows.append([*words, *cells, claim.verdict, other.verdict])
    return table


def is_over_hosts(claim: Claim) -> bool:
    """Whether hosts are the units of a claim decided with `cluster: host`.

    They are not for a task whose questions have no host that is known.
    """
    return claim.task is None or claim.task.unit == HOST


def error_ratio(effect: Estimate, by_host: Estimate) -> float | None:
    """Squared standard error over hosts / over documents; None without an error over documents."""
    if not effect.document_error:
        return None
    return (by_host.document_error / effect.document_error) ** 2


def host_notes(results: Results) -> list[str]:
    """Sentences about hosts as the units of the error over documents."""
    if results.study.cluster == HOST:
        notes = few_clusters(results.hosts, "hosts") if results.hosts else []
        if results.hosts and results.documents_without_host:
            notes.append(
                f"{results.documents_without_host:,} of {results.documents:,} documents have no "
                "host that is known: each of them counts as a host by itself."
            )
        return [*notes, *_notes_on_questions(results.claims)]
    changed = [
        f"{claim.config.label} ({claim.verdict}; {other.verdict} over hosts)"
        for claim, other in zip(results.claims, results.by_host, strict=False)
        if claim.verdict != other.verdict
    ]
    if not changed:
        return []
    return [
        "The declared verdicts are about other documents of the same hosts. For other hosts "
        f"(cluster: host), {'this one would' if len(changed) == 1 else 'these would'} differ: "
        f"{'; '.join(changed)}.",
        *few_clusters(results.hosts, "hosts"),
    ]


def task_notes(claims: Sequence[Claim]) -> list[str]:
    """A sentence for each task of a claim some of whose questions are left out."""
    left_out = {
        claim.config.task: claim.task
        for claim in claims
        if claim.task is not None and claim.task.left_out
    }
    return [
        f"{name}: bits per byte leave out {task.left_out:,} of {task.questions:,} questions, some "
        "of whose right answer a tokenizer loses."
        for name, task in left_out.items()
    ]


def _notes_on_questions(claims: Sequence[Claim]) -> list[str]:
    """Sentences about the hosts of the questions of each task, with `cluster: host`."""
    notes = []
    tasks = {
        claim.config.task: claim.task
        for claim in claims
        if claim.task is not None and claim.effect is not None
    }
    for name, task in tasks.items():
        if task.unit != HOST:
            notes.append(
                f"{name}: the hosts of its questions are not known, so the error of its claims is "
                "over questions, each by itself, in place of hosts."
            )
            continue
        notes += [f"{name}: {note}" for note in few_clusters(task.hosts, "hosts")]
        if task.without_host:
            notes.append(
                f"{name}: {task.without_host:,} questions have no host that is known: each of them "
                "counts as a host by itself."
            )
    return notes


def precision_table(results: Results) -> Table:
    """One row per claim: how precise the study is, and what a larger one would need."""
    note = (
        "Standard deviation of the difference over seeds and its standard error over "
        f"{_units_of_error(results.study)}, as found here: for the power of a further study. "
        f"Seeds: for a power of {POWER:.0%} with the same number of claims, if the difference is "
        "the smallest of interest."
    )
    columns = [
        Column("claim"), *_unit_columns(results.study), Column("deviation over seeds", BITS),
        Column(f"error over {results.study.cluster}s", BITS), Column("seeds needed", str),
    ]  # fmt: skip
    table = Table("Precision", note, columns)
    for claim in results.claims:
        cells: list[Cell] = [None, None, None]
        if claim.effect is not None and math.isfinite(claim.effect.deviation):
            spread = (claim.effect.deviation, claim.effect.document_error)
            assert claim.config.smallest_difference is not None
            seeds = seeds_needed(claim.config.smallest_difference, *spread, claim.count)
            needed = "above 1,000" if seeds is None else f"{seeds}"
            cells = [*spread, needed]
        words = [claim.config.label, *_unit_cells(results.study, claim.config)]
        table.rows.append([*words, *cells])
    return table


def answer(results: Results) -> str:
    """How many claims have which verdict, in one sentence."""
    count = len(results.claims)
    if not count:
        return NOTHING_DECLARED
    verdicts = Counter(claim.verdict for claim in results.claims)
    parts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    return f"{count} {'claim is' if count == 1 else 'claims are'} declared: {parts}."


def _sides(study: StudyConfig, claim: ClaimConfig) -> list[str]:
    """Both readings that a claim compares, in words."""
    share = min(claim.at / (1 - claim.saves), 1.0)
    own = _side(study, claim.arm, claim.metadata, claim.at, claim.equal)
    against = claim.against or study.baseline
    other = _side(study, against, claim.against_metadata, share, claim.equal)
    if claim.bytes or claim.minus_bytes:
        own += f", {_bytes_words(claim.bytes)}"
    if claim.minus_bytes:
        own += f" minus {_bytes_words(claim.minus_bytes)}"
    if claim.minus_arm:
        labels = [study.arms[arm].label or arm for arm in (claim.minus_arm, claim.minus_against)]
        other += f"; and the same difference of {labels[0]} minus {labels[1]}"
    return [own, other]


def _side(study: StudyConfig, arm: str, metadata: str, share: float, axis: str) -> str:
    words = [study.arms[arm].label or arm]
    if metadata != WITHOUT:
        words.append("with metadata" if metadata == WITH else f"with {metadata}")
    elif arm != study.baseline:
        words.append("without metadata")
    if share < 1:
        words.append(f"after {share:.0%} of the {axis}")
    return ", ".join(words)


def _task_sides(study: StudyConfig, claim: ClaimConfig) -> list[str]:
    """Both arms that a claim about a task compares, in words."""
    sides = ((claim.arm, claim.prompt), (claim.against or study.baseline, claim.against_prompt))
    return [
        f"{study.arms[arm].label or arm}, {claim.task}, {claim.shots} shots"
        + (", with the prompt" if has_prompt else "")
        for arm, has_prompt in sides
    ]


def _bytes_words(part: list[int]) -> str:
    if not part:
        return "all bytes"
    first, *end = part
    return f"bytes {first:,} to {end[0] - 1:,}" if end else f"bytes from {first:,} on"


def sentences(results: Results) -> list[str]:
    """One sentence for each claim."""
    setting = results.study.setting
    return [_sentence(claim, setting) for claim in results.claims] or [NOTHING_DECLARED]


def _sentence(claim: Claim, setting: str) -> str:
    words = f"**{claim.verdict.capitalize()}**"
    if setting:
        words += f" ({setting})"
    words += f": {claim.config.label}"
    effect = claim.effect
    if effect is None:
        return f"{words}: {claim.reason}."
    shown = claim.unit.shown(effect)
    found = (
        f"{shown.value:+.4f} {claim.unit.name}, 95% interval {shown.low:+.4f} to {shown.high:+.4f}"
    )
    if claim.unit.is_higher_better:
        found += " (above 0: as claimed)"
    if claim.reason:
        return f"{words}: {claim.reason}; so far {found}."
    words = (
        f"{words}: {found}; {p_words(claim.corrected)} after correction for {claim.count} claims"
    )
    if claim.excludes_interest:
        words += f"; a gain of {claim.config.smallest_difference} or more is excluded"
    return f"{words}."


def p_words(p_value: float) -> str:
    """A p-value as text."""
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"
