"""Formats the answer of `bsmeta quick`: one table and one sentence."""

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
"""Share of the main difference that both models may already differ by where they read text alone;
from this share on, the report calls the difference possible chance."""

NO_CONCLUSION = "No conclusion is possible: "
"""Begins the sentence if there are too few pages."""


def make_result_table(result: Result) -> Table:
    """Makes the table of all readings, with their differences to text alone and to the metadata."""
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
        "Controls show the model trained with metadata something else before the text: the gain of "
        "its metadata over them (below 0 in the last columns) is content, the rest is form. "
        f"Intervals are over {unit}{sites} (jackknife)."
    )

    table = Table("With and without metadata", note, columns)
    table.rows.append(_make_row(result, result.base))
    for reading in (result.with_metadata, result.without_metadata, *result.controls.values()):
        table.rows.append(_make_row(result, reading))
    return table


def _make_row(result: Result, reading: Reading) -> list[Cell]:
    """Makes the row of a reading; cells that would compare it with itself are empty."""
    difference_cells: list[Cell] = [None, None, None, None]
    if reading is not result.base:
        difference = result.compare(reading, result.base)
        difference_cells = [
            difference.value,
            difference.interval,
            difference.better,
            difference.worse,
        ]

    gain_cells: list[Cell] = [None, None]
    if reading is not result.with_metadata:
        gain = result.compare(result.with_metadata, reading)
        gain_cells = [gain.value, gain.interval]

    bits = reading.bits_per_byte
    return [reading.trained_on, reading.reads, bits, *difference_cells, *gain_cells]


def summarize_result(result: Result, types: Sequence[str], pages: int, held_out: int) -> str:
    """Summarizes the comparison: main difference, strongest control, possible chance, and needs.

    Args:
        types: The metadata types.
        pages: Number of all pages, held out or not.
        held_out: Number of held-out pages.
    """
    main = result.main_difference
    between_models = result.compare(result.without_metadata, result.base).value
    may_be_chance = abs(between_models) >= CHANCE_SHARE * abs(main.value) > 0
    if may_be_chance:
        needs = _describe_seeds(main)
    else:
        needs = _describe_needs(result, main, pages, held_out)
    parts = [
        _describe_main(result, main, types),
        _describe_control(result, main),
        _describe_chance(between_models, may_be_chance=may_be_chance),
        needs,
    ]

    sentence = "; ".join(parts) + "."
    count = len(result.base.bits)
    if count < FEW_UNITS:
        warning = f"{count} held-out pages are too few (expected: at least {FEW_UNITS}). "
        return NO_CONCLUSION + warning + sentence
    return sentence


def _describe_main(result: Result, main: Difference, types: Sequence[str]) -> str:
    """Describes the main difference, with its interval."""
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
        f"{result.with_metadata.bits_per_byte:.4f} bits per byte of the {len(result.base.bits):,} "
        f"held-out pages, without it {result.base.bits_per_byte:.4f}: {abs(main.value):.4f} "
        f"({relative:.2%}) {direction} ({certainty})"
    )


def _describe_control(result: Result, main: Difference) -> str:
    """Describes how much of the difference the strongest control attributes to the content."""
    control = result.find_strongest_control()
    if control is None:
        return "no control could be read, so this does not tell content from form"

    gain = result.compare(result.with_metadata, result.controls[control])
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
    """Describes how much of the main difference may be chance.

    Models that were trained differently also differ by chance. The gain of one model over its
    controls has no such error.

    Args:
        between_models: Difference of the two models if both read text alone.
        may_be_chance: Whether it is a large share of the main difference.
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
    """Describes how many seeds the difference needs, if more pages would not be enough."""
    return (
        "more pages do not show whether it is; with a power of 80%, it would take "
        f"{_list_needed_seeds(main)}"
    )


def _list_needed_seeds(main: Difference) -> str:
    """Lists the numbers of seeds for two assumed deviations over seeds."""
    seeds_at_half, seeds_at_full = count_needed_seeds_by_deviation(main, (0.5, 1.0))
    return (
        f"{_format_count(seeds_at_half)} seeds if it varies over seeds by half of its size "
        f"(standard deviation), {_format_count(seeds_at_full)} if by all of it (bsmeta study)"
    )


def _describe_needs(result: Result, main: Difference, pages: int, held_out: int) -> str:
    """Describes how many pages and seeds would show the difference with a power of 80%.

    Args:
        pages: Number of all pages, held out or not.
        held_out: Number of held-out pages.
    """
    over_seeds = _list_needed_seeds(main)
    needed_units = count_needed_units(main)
    if needed_units is None:
        return (
            "it is too small, or the pages are too few, to say how many would show it with a power "
            f"of 80%; and it would take {over_seeds}"
        )

    if needed_units <= main.units:
        return (
            f"to show a difference of this size with a power of 80%, {needed_units:,} held-out "
            f"{result.unit} suffice, and it would take {over_seeds}"
        )

    # The same share of the pages is assumed to be held out.
    all_pages = round(needed_units / main.units * pages)
    return (
        f"to show a difference of this size with a power of 80%, it would take {needed_units:,} "
        f"held-out {result.unit} instead of {main.units:,} (about {all_pages:,} pages like these "
        f"{pages:,}, {held_out:,} of which were held out), and {over_seeds}"
    )


def _format_count(count: int | None) -> str:
    return "more than 1,000" if count is None else f"{count:,}"


def _format_interval(interval: Interval) -> str:
    return f"{interval.low:+.4f} to {interval.high:+.4f}"
