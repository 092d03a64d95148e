"""The answer of `bsmeta quick`: one table and one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from bsmeta.quick.comparison import (
    Difference,
    Reading,
    Result,
    count_needed_seeds_by_deviation,
    count_needed_units,
)
from bsmeta.report.inference import FEW_UNITS, Interval
from bsmeta.report.page import COUNT, Cell, Column, Table

BITS = "{:.4f}".format
DIFFERENCE = "{:+.4f}".format

CHANCE_SHARE = 0.5
"""Share of the difference of both models, from which on it may be chance if it is already there
where both read text alone."""

NO_CONCLUSION = "No conclusion is possible: "
"""The beginning of the sentence about too few pages."""


def make_result_table(result: Result) -> Table:
    """Shows each reading, its difference from text alone, and what the metadata gains over it."""
    unit = result.unit
    columns = [
        Column("trained on"),
        Column("reads"),
        Column("bits per byte", BITS),
        Column("minus text alone", DIFFERENCE),
        Column("95% interval", DIFFERENCE),
        Column(f"{unit} better", COUNT),
        Column("worse", COUNT),
        Column("metadata minus this", DIFFERENCE),
        Column("its 95% interval", DIFFERENCE),
    ]
    sites = f" of {result.hosts:,} known sites" if result.clusters is None and result.hosts else ""
    note = (
        f"Bits to encode a byte of {len(result.base.bits):,} held-out pages; lower is better. "
        "Controls show the model trained with metadata something else before the text: what its "
        "metadata gains over them (below 0 in the last columns) is content, the rest is form. "
        f"Intervals are over {unit}{sites} (jackknife)."
    )
    table = Table("With and without metadata", note, columns)
    table.rows.append(_make_row(result, result.base))
    for reading in (result.own, result.text, *result.controls.values()):
        table.rows.append(_make_row(result, reading))
    return table


def _make_row(result: Result, reading: Reading) -> list[Cell]:
    cells: list[Cell] = [
        reading.trained_on, reading.reads, reading.bits_per_byte
    ]  # fmt: skip
    if reading is result.base:
        cells += [None] * 4
    else:
        difference = result.compare(reading, result.base)
        cells += [difference.value, difference.interval, difference.better, difference.worse]
    if reading is result.own:
        return [*cells, None, None]
    gain = result.compare(result.own, reading)
    return [*cells, gain.value, gain.interval]


def make_sentence(result: Result, types: Sequence[str], pages: int, held_out: int) -> str:
    """Says what the comparison shows: its interval, its strongest control, one seed, and the rest.

    Args:
        types: The metadata types.
        pages: Number of all pages, held out or not.
        held_out: Number of held-out pages.
    """
    main = result.main
    between_models = result.compare(result.text, result.base).value
    may_be_chance = abs(between_models) >= CHANCE_SHARE * abs(main.value) > 0
    parts = [
        _describe_main(result, main, types),
        _describe_control(result, main),
        _describe_chance(between_models, may_be_chance=may_be_chance),
        _describe_seeds(main) if may_be_chance else _describe_needs(result, main, pages, held_out),
    ]
    sentence = "; ".join(parts) + "."
    count = len(result.base.bits)
    if count < FEW_UNITS:
        few = f"{count} held-out pages are too few (expected: at least {FEW_UNITS}). "
        return NO_CONCLUSION + few + sentence
    return sentence


def _describe_main(result: Result, main: Difference, types: Sequence[str]) -> str:
    names = ", ".join(types)
    relative = abs(main.value) / result.base.bits_per_byte
    direction = "fewer" if main.value < 0 else "more"
    if main.interval is None:
        certainty = "from one page, so there is no interval"
    else:
        certainty = (
            f"95% interval over {main.units:,} {result.unit}: {_format_interval(main.interval)}"
        )
        if not main.interval.excludes_zero:
            certainty += ", which includes no difference"
    return (
        f"Trained and read with metadata ({names}), the model needs "
        f"{result.own.bits_per_byte:.4f} bits per byte of the {len(result.base.bits):,} held-out "
        f"pages, without it {result.base.bits_per_byte:.4f}: {abs(main.value):.4f} "
        f"({relative:.2%}) {direction} ({certainty})"
    )


def _describe_control(result: Result, main: Difference) -> str:
    """Says what the strongest control leaves to the content of the metadata."""
    control = result.find_strongest_control()
    if control is None:
        return "no control could be read, so this does not tell content from form"
    gain = result.compare(result.own, result.controls[control])
    if gain.interval is None:
        return "one page does not tell content from form"

    difference = f"{gain.value:+.4f}, {_format_interval(gain.interval)}"
    if gain.interval.high < 0:
        verdict = "the content of the metadata saves bits"
    elif gain.interval.low > 0:
        verdict = "the metadata does worse: not its content"
    elif main.excludes_zero:
        verdict = "the metadata does no better: form, not content"
    else:
        verdict = "no effect of the content shows"
    return f"compared with its strongest control ({control}), {verdict} ({difference})"


def _describe_chance(between_models: float, *, may_be_chance: bool) -> str:
    """Says how far apart the two models are without metadata to read, and what that means.

    Two models that were trained differently also differ by chance. What one model gains over its
    controls does not.

    Args:
        between_models: Difference of the two models where both read text alone.
    """
    if may_be_chance:
        return (
            f"both models have one seed, and much of their difference ({between_models:+.4f}) is "
            "already there where both read text alone: it may be chance, which the interval over "
            "held-out pages does not include"
        )
    return (
        "both models have one seed, and another may differ by more than metadata does (reading "
        f"text alone, these two differ by {between_models:+.4f})"
    )


def _describe_seeds(main: Difference) -> str:
    """Says how many seeds would show this difference, where more pages would not."""
    return (
        "more pages do not show whether it is; with a power of 80%, it would take "
        f"{_list_needed_seeds(main)}"
    )


def _list_needed_seeds(main: Difference) -> str:
    half, full = (_format_count(count) for count in count_needed_seeds_by_deviation(main))
    return (
        f"{half} seeds if it varies over seeds by half of its size (standard deviation), "
        f"{full} if by all of it (bsmeta study)"
    )


def _describe_needs(result: Result, main: Difference, pages: int, held_out: int) -> str:
    """Says how many pages and seeds would show this difference with a power of 80%."""
    over_seeds = _list_needed_seeds(main)
    needed_units = count_needed_units(main)
    if needed_units is None:
        return (
            "it is too small, or the pages are too few, to say how many would show it with a power "
            f"of 80%; and it would take {over_seeds}"
        )

    # Of hosts, the held-out ones; the share of pages that is held out stays the same.
    all_pages = round(needed_units / main.units * pages)
    if needed_units <= main.units:
        return (
            f"to show a difference of this size with a power of 80%, {needed_units:,} held-out "
            f"{result.unit} suffice, and it would take {over_seeds}"
        )
    return (
        f"to show a difference of this size with a power of 80%, it would take {needed_units:,} "
        f"held-out {result.unit} instead of {main.units:,} (about {all_pages:,} pages like these "
        f"{pages:,}, {held_out:,} of which were held out), and {over_seeds}"
    )


def _format_count(count: int | None) -> str:
    return "more than 1,000" if count is None else f"{count:,}"


def _format_interval(interval: Interval) -> str:
    return f"{interval.low:+.4f} to {interval.high:+.4f}"
