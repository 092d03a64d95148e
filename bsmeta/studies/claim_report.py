"""Formats the claims of a study for its report: their verdicts as sentences, and tables."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from bsmeta.report.cells import Cell
from bsmeta.report.page import Column, Table
from bsmeta.studies.claims import (
    Claim,
    compute_design_effect,
    compute_simultaneous_interval,
    is_over_hosts,
)
from bsmeta.studies.config import DOCUMENT, WITH, WITHOUT, ClaimConfig, StudyConfig
from bsmeta.studies.power import POWER, count_needed_seeds, predict_power
from bsmeta.studies.units import find_unit

if TYPE_CHECKING:
    from bsmeta.studies.results import Results

BITS = "{:.4f}".format
SIGNED = "{:+.4f}".format
NOTHING_DECLARED = "No claim was declared: nothing is tested, and everything below is exploratory."


def make_claim_tables(results: Results) -> list[Table]:
    """Makes all tables of claims, in their order in the report; none if there are no claims."""
    if not results.claims:
        return []

    tables = [make_claim_table(results)]
    if results.by_host:
        tables.append(make_host_table(results))
    return [*tables, make_declared_table(results.study), make_precision_table(results)]


def make_declared_table(study: StudyConfig) -> Table:
    """Makes the table of the declared claims and their power, before anything is measured."""
    seeds = len(study.seeds)
    count = len(study.claims)
    note = (
        "Pilot: standard deviation over seeds and standard error over documents of the difference. "
        f"Power: probability that the claim is supported, with {seeds} seeds and {count} claims, "
        "if the difference is the smallest of interest."
    )
    columns = [
        Column("claim"),
        *_make_unit_columns(study),
        Column("smallest difference", BITS),
        Column("pilot", str),
        Column("power", "{:.0%}".format),
        Column(f"{_name_measures(study)} of"),
        Column("minus those of"),
    ]

    table = Table("Declared claims", note, columns)
    for claim in study.claims.values():
        pilot = None
        if claim.pilot_deviation is not None:
            pilot = f"{claim.pilot_deviation:.4f}, {claim.pilot_document_error:.4f}"
        describe_sides = _describe_task_sides if claim.task else _describe_text_sides
        table.rows.append(
            [
                claim.label,
                *_make_unit_cells(study, claim),
                claim.smallest_difference,
                pilot,
                predict_power(claim, seeds, count),
                *describe_sides(study, claim),
            ]
        )
    return table


def _has_tasks(study: StudyConfig) -> bool:
    """Whether any claim is about a task, so that the claims differ in units."""
    return any(claim.task for claim in study.claims.values())


def _name_measures(study: StudyConfig) -> str:
    """Returns a name for the quantities that claims compare, for the head of a column."""
    return "scores" if _has_tasks(study) else "bits per byte"


def _make_unit_columns(study: StudyConfig) -> list[Column]:
    """Returns the column of the claims' units; [] if all claims have the same unit."""
    return [Column("unit")] if _has_tasks(study) else []


def _make_unit_cells(study: StudyConfig, claim: ClaimConfig) -> list[Cell]:
    """Returns a claim's cells in the columns of `_make_unit_columns`."""
    return [find_unit(claim).name] if _has_tasks(study) else []


def _describe_difference(study: StudyConfig) -> str:
    """Describes how differences are paired, and which sign supports a claim."""
    if not _has_tasks(study):
        return f"bits per byte, paired by seed and by {DOCUMENT}; below 0 as claimed"
    return (
        f"in its unit, paired by seed and by {DOCUMENT} (of a task: by question); as claimed it is "
        "below 0 for bits per byte, above 0 for accuracy"
    )


def _name_units_of_error(study: StudyConfig) -> str:
    """Names the sampling units of the error over held-out text and questions."""
    return f"{study.cluster}s" + (" (of a task: questions)" if _has_tasks(study) else "")


def make_claim_table(results: Results) -> Table:
    """Makes the table of the claims, with their differences, intervals and verdicts."""
    study = results.study
    note = (
        f"Difference: {_describe_difference(study)}; error over seeds and "
        f"{_name_units_of_error(study)}. The first "
        "interval is for the claim alone; the second (Bonferroni) and the p-value (Holm) are "
        f"corrected for all {len(results.claims)} declared claims. Supported, refuted: p ≤ 0.05; "
        "undecided: p > 0.05; open: the claim cannot be decided."
    )
    columns = [
        Column("claim"),
        *_make_unit_columns(study),
        Column("difference", SIGNED),
        Column("95% interval", SIGNED),
        Column("all at once", SIGNED),
        Column("p", describe_p_value),
        Column("verdict"),
    ]

    table = Table("Claims", note, columns)
    for claim in results.claims:
        effect_cells: list[Cell] = [None, None]
        corrected_cells: list[Cell] = [None, None]
        if claim.effect is not None:
            difference = claim.unit.convert_to_unit(claim.effect)
            effect_cells = [difference.value, difference.interval]
            if not claim.reason:
                interval = compute_simultaneous_interval(claim)
                corrected_cells = [interval, claim.corrected_p_value]

        units = _make_unit_cells(study, claim.config)
        table.rows.append(
            [claim.config.label, *units, *effect_cells, *corrected_cells, claim.verdict]
        )
    return table


def make_host_table(results: Results) -> Table:
    """Makes the table that compares each claim's declared verdict with its verdict over hosts."""
    study = results.study
    note = (
        "The verdicts are about other documents of the same hosts, as declared. Over hosts: the "
        f"jackknife that leaves out each of the {results.hosts:,} hosts with all of its documents, "
        "as for other hosts. Ratio: squared standard error over hosts / over documents, about 1 if "
        "the documents of a host are independent."
    )
    if _has_tasks(study):
        note += (
            " For a task, its questions are the documents; –: the hosts of its questions are not "
            "known, so that each question counts by itself."
        )
    columns = [
        Column("claim"),
        *_make_unit_columns(study),
        Column("over documents", SIGNED),
        Column("over hosts", SIGNED),
        Column("ratio", "{:.1f}".format),
        Column("p over hosts", describe_p_value),
        Column("as declared"),
        Column("with cluster: host"),
    ]

    table = Table("Are the documents of a host independent?", note, columns)
    for claim, host_claim in zip(results.claims, results.by_host, strict=True):
        effect = claim.effect
        host_effect = host_claim.effect
        cells: list[Cell] = [None, None, None, None]
        if effect is not None and host_effect is not None and is_over_hosts(host_claim):
            cells = [
                claim.unit.convert_to_unit(effect).interval,
                claim.unit.convert_to_unit(host_effect).interval,
                compute_design_effect(effect, host_effect),
                None if host_claim.reason else host_claim.corrected_p_value,
            ]

        units = _make_unit_cells(study, claim.config)
        verdicts = [claim.verdict, host_claim.verdict]
        table.rows.append([claim.config.label, *units, *cells, *verdicts])
    return table


def make_precision_table(results: Results) -> Table:
    """Makes the table of each claim's precision and the number of seeds that a new study needs."""
    study = results.study
    note = (
        "Standard deviation of the difference over seeds and its standard error over "
        f"{_name_units_of_error(study)}, as found here: for the power of a further study. "
        f"Seeds: for a power of {POWER:.0%} with the same number of claims, if the difference is "
        "the smallest of interest."
    )
    columns = [
        Column("claim"),
        *_make_unit_columns(study),
        Column("deviation over seeds", BITS),
        Column(f"error over {study.cluster}s", BITS),
        Column("seeds needed", str),
    ]

    table = Table("Precision", note, columns)
    for claim in results.claims:
        unit_cells = _make_unit_cells(study, claim.config)
        table.rows.append([claim.config.label, *unit_cells, *_make_precision_cells(claim)])
    return table


def _make_precision_cells(claim: Claim) -> list[Cell]:
    """Returns a claim's deviation, error and needed seeds; empty cells if they are unknown."""
    effect = claim.effect
    if effect is None or not math.isfinite(effect.deviation):
        return [None, None, None]

    smallest_difference = claim.config.smallest_difference
    assert smallest_difference is not None
    seeds = count_needed_seeds(
        smallest_difference, effect.deviation, effect.document_error, claim.count
    )
    seeds_cell = "above 1,000" if seeds is None else f"{seeds}"
    return [effect.deviation, effect.document_error, seeds_cell]


def answer_claims(results: Results) -> str:
    """Returns a sentence with the number of claims of each verdict."""
    count = len(results.claims)
    if not count:
        return NOTHING_DECLARED

    verdict_counts = Counter(claim.verdict for claim in results.claims)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in verdict_counts.items())
    return f"{count} {'claim is' if count == 1 else 'claims are'} declared: {counts}."


def _describe_text_sides(study: StudyConfig, claim: ClaimConfig) -> list[str]:
    """Describes both sides of the difference of a claim about held-out text."""
    against = claim.against or study.baseline
    share = min(claim.at / (1 - claim.saves), 1.0)
    side = _describe_text_side(study, claim.arm, claim.metadata, claim.at, claim.equal)
    other_side = _describe_text_side(study, against, claim.against_metadata, share, claim.equal)

    if claim.bytes or claim.minus_bytes:
        side += f", {_describe_bytes(claim.bytes)}"
    if claim.minus_bytes:
        side += f" minus {_describe_bytes(claim.minus_bytes)}"
    if claim.minus_arm:
        label = study.arms[claim.minus_arm].label or claim.minus_arm
        other_label = study.arms[claim.minus_against].label or claim.minus_against
        other_side += f"; and the same difference of {label} minus {other_label}"
    return [side, other_side]


def _describe_text_side(
    study: StudyConfig, arm: str, metadata: str, share: float, axis: str
) -> str:
    """Describes an arm, its metadata at inference, and the share of its run if not all of it."""
    parts = [study.arms[arm].label or arm]
    if metadata != WITHOUT:
        parts.append("with metadata" if metadata == WITH else f"with {metadata}")
    elif arm != study.baseline:
        parts.append("without metadata")
    if share < 1:
        parts.append(f"after {share:.0%} of the {axis}")
    return ", ".join(parts)


def _describe_task_sides(study: StudyConfig, claim: ClaimConfig) -> list[str]:
    """Describes both arms that a claim about a task compares."""
    against = claim.against or study.baseline
    descriptions = []
    for arm, has_prompt in ((claim.arm, claim.prompt), (against, claim.against_prompt)):
        description = f"{study.arms[arm].label or arm}, {claim.task}, {claim.shots} shots"
        if has_prompt:
            description += ", with the prompt"
        descriptions.append(description)
    return descriptions


def _describe_bytes(byte_range: list[int]) -> str:
    """Describes a range of bytes as in `ClaimConfig.bytes`."""
    if not byte_range:
        return "all bytes"
    first, *end = byte_range
    return f"bytes {first:,} to {end[0] - 1:,}" if end else f"bytes from {first:,} on"


def format_sentences(results: Results) -> list[str]:
    """Writes one sentence for each claim, with its verdict and difference."""
    if not results.claims:
        return [NOTHING_DECLARED]
    return [_format_sentence(claim, results.study.setting) for claim in results.claims]


def _format_sentence(claim: Claim, setting: str) -> str:
    """Writes the sentence of a claim, with its verdict in bold.

    Args:
        setting: `StudyConfig.setting`, named after the verdict; empty for none.
    """
    sentence = f"**{claim.verdict.capitalize()}**"
    if setting:
        sentence += f" ({setting})"
    sentence += f": {claim.config.label}"
    if claim.effect is None:
        return f"{sentence}: {claim.reason}."

    effect = claim.unit.convert_to_unit(claim.effect)
    interval = f"95% interval {effect.low:+.4f} to {effect.high:+.4f}"
    difference = f"{effect.value:+.4f} {claim.unit.name}, {interval}"
    if claim.unit.is_higher_better:
        difference += " (above 0: as claimed)"
    if claim.reason:
        return f"{sentence}: {claim.reason}; so far {difference}."

    p_value = describe_p_value(claim.corrected_p_value)
    sentence += f": {difference}; {p_value} after correction for {claim.count} claims"
    if claim.excludes_smallest_difference:
        sentence += f"; a gain of {claim.config.smallest_difference} or more is excluded"
    return f"{sentence}."


def describe_p_value(p_value: float) -> str:
    """Formats a p-value with two significant digits, or as below 0.0001."""
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"
