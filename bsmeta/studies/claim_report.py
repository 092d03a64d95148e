"""Claims in words and tables: verdicts and precision, for the report of a study."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from bsmeta.report.page import Cell, Column, Table
from bsmeta.studies.claims import Claim, error_ratio, is_over_hosts, shown_at_once
from bsmeta.studies.config import DOCUMENT, WITH, WITHOUT, ClaimConfig, StudyConfig
from bsmeta.studies.power import POWER, predicted_power, seeds_needed
from bsmeta.studies.units import unit_of

if TYPE_CHECKING:
    from bsmeta.studies.results import Results

BITS, SIGNED = "{:.4f}".format, "{:+.4f}".format
NOTHING_DECLARED = "No claim was declared: nothing is tested, and everything below is exploratory."


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
