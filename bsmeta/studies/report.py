"""Writes the report of a study: its page, with figures as PNG and PDF, and the results as JSON.

The declared claims come first; everything else is marked as exploratory, and tests nothing.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bsmeta.config.composing.command_line import format_pasteable_command
from bsmeta.report import figures, page
from bsmeta.report.figures import SeriesStyle, shorten_name
from bsmeta.report.inference import Interval
from bsmeta.report.page import COUNT, Column, Page, Section, Table
from bsmeta.report.palette import BAD, GOOD, INK, MUTED
from bsmeta.studies.claim_report import answer_claims, format_sentences, make_claim_tables
from bsmeta.studies.claims import OPEN, REFUTED, SUPPORTED, Claim, compute_simultaneous_interval
from bsmeta.studies.conditions import make_condition_table
from bsmeta.studies.config import AXES, FLOPS, HOST, TEXT, TOKENS, WITH, WITHOUT, StudyConfig
from bsmeta.studies.results import ArmResult, Results, results_as_dict
from bsmeta.studies.statistics import Curve
from bsmeta.studies.units import Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BITS = "{:.4f}".format
SIGNED = "{:+.4f}".format
DIFFERENCE_HEADINGS = {TEXT: "at the same text tokens", TOKENS: "at the same tokens in all"}


CLAIMS_TITLE = "What the declared claims come to"
SHARED_TITLE = "What the arms share with the baseline"
EXPLORATORY_TITLE = "Exploratory: no claim was declared about what follows"
GAINS_TITLE = "Exploratory: where the arms gain"
_MAX_LINE_CHARS = 44  # characters of a line of a label in a figure
_MAX_LABEL_CHARS = 160  # characters of a label in several lines
_MIN_TICK_RATIO = 1.4  # ratio of successive labeled amounts
_TOO_MANY_BANDS = 5  # number of arms from which only the last points of curves have intervals
_GAIN_STYLES = {
    "used without metadata": SeriesStyle(MUTED, "o"),
    "used with metadata": SeriesStyle(GOOD, "s"),
}


def describe_intervals(study: StudyConfig) -> str:
    """Returns the sentence that explains the intervals in brackets, for the note of a table."""
    return (
        f"In brackets: 95% intervals over seeds (Student's t) and {study.cluster}s (jackknife), "
        "paired by seed and by document, each for itself."
    )


def make_exploratory_tables(results: Results) -> list[Table]:
    """Makes the tables of all arms, of their effects, and of the differences to their controls."""
    return [make_arm_table(results), make_effect_table(results), make_control_table(results)]


def make_arm_table(results: Results) -> Table:
    """Makes the table of the tokens and FLOPs that each arm used, and of its bits per byte."""
    note = (
        f"Bits per byte of the same {results.bytes:,} bytes of {results.documents:,} held-out "
        f"documents after training, without and with metadata at inference, as mean of "
        f"{len(results.seeds)} seeds. {describe_intervals(results.study)}"
    )
    columns = [
        Column("arm"),
        Column("text tokens", COUNT),
        Column("all tokens", COUNT),
        Column("FLOPs", "{:.2e}".format),
        Column("without metadata", BITS),
        Column("with metadata", BITS),
        Column("with - without", SIGNED),
    ]

    table = Table("Bits per byte", note, columns)
    for arm in results.arms.values():
        bits_with = None if arm.with_minus_without is None else arm.get_last_bits(WITH)
        amounts = [arm.amounts[axis] for axis in (TEXT, TOKENS, FLOPS)]
        bits = [arm.get_last_bits(WITHOUT), bits_with, arm.with_minus_without]
        table.rows.append([arm.label, *amounts, *bits])
    return table


def make_effect_table(results: Results) -> Table:
    """Makes the table of each arm's differences to the baseline and savings, for each mode."""
    base = results.arms[results.study.baseline]
    note = (
        f"Differences in bits per byte to {base.label}, read from its curve (below 0: fewer bits). "
        "Text saved, tokens saved: 1 - what the arm has used / what the baseline needs for the "
        "same bits per byte (below 0: the arm needs more); a bound (above, below) where the "
        f"baseline's curve does not reach them. {describe_intervals(results.study)}"
    )
    columns = [
        Column("arm"),
        Column("metadata"),
        *(Column(head, SIGNED) for head in DIFFERENCE_HEADINGS.values()),
        Column("text saved", str),
        Column("tokens saved", str),
    ]

    table = Table(f"Against {base.label}", note, columns)
    for arm in results.arms.values():
        for mode, savings in arm.savings.items():
            effects = [arm.effects[mode][axis] for axis in (TEXT, TOKENS)]
            saved_shares = [str(savings[axis]) for axis in (TEXT, TOKENS)]
            table.rows.append([arm.label, mode, *effects, *saved_shares])
    return table.sort_by(DIFFERENCE_HEADINGS[TEXT])


def make_control_table(results: Results) -> Table:
    """Makes the table of the differences between arms and their controls after training."""
    note = (
        f"Bits per byte of the arm minus those of its control. {describe_intervals(results.study)}"
    )
    columns = (Column("arm"), Column("metadata"), Column("control"), Column("difference", SIGNED))
    table = Table("Against controls", note, columns)
    for arm in results.arms.values():
        for (control, mode), effect in arm.controls.items():
            table.rows.append([arm.label, mode, results.arms[control].label, effect])
    return table.sort_by("difference")


def make_gain_tables(results: Results) -> list[Table]:
    """Makes two tables for each arm: gains by length, site and position, and gains by type."""
    tables = []
    for arm in results.arms.values():
        for table in (_make_part_table(results, arm), _make_type_table(results, arm)):
            if table.rows:
                tables.append(table)
    return tables


def _make_part_table(results: Results, arm: ArmResult) -> Table:
    """Makes the table of an arm's gains by length, site and position, against the baseline."""
    base = results.arms[results.study.baseline].label
    note = (
        f"Differences in bits per byte between the last checkpoint and that of {base}. "
        "Position: bytes of a document from this one up to the next. "
        f"{describe_intervals(results.study)}"
    )
    if results.study.cluster == HOST:
        note += " The intervals of a site are over its documents."
    columns = [
        Column("by"),
        Column("part"),
        Column("documents", COUNT),
        Column("used without", SIGNED),
        Column("used with", SIGNED),
    ]

    table = Table(f"Where {arm.label} gains", note, columns)
    for gain in arm.gains:
        if gain.effect_without is not None:
            effects = [gain.effect_without, gain.effect_with]
            table.rows.append([gain.by, gain.name, gain.documents, *effects])
    return table


def _make_type_table(results: Results, arm: ArmResult) -> Table:
    """Makes the table of the effect of each metadata type at inference."""
    note = (
        "Bits per byte of the last checkpoint with this type alone, minus those without "
        f"metadata, over the documents that have it. {describe_intervals(results.study)}"
    )
    columns = [Column("type"), Column("documents", COUNT), Column("with - without", SIGNED)]
    table = Table(f"{arm.label}: each type at inference", note, columns)
    for gain in arm.gains:
        if gain.by == "type":
            table.rows.append([gain.name, gain.documents, gain.effect_with])
    return table.sort_by("with - without")


def write_report(
    results: Results, file: Path, commands: Mapping[str, str], task_tables: Sequence[Table]
) -> list[Path]:
    """Writes the report's files into the folder of the study, and returns them.

    Args:
        file: The file of the study.
        commands: The command of each run by its name, as a line for a shell.
        task_tables: Tables of downstream tasks.
    """
    command = format_pasteable_command(["python", "experiments/study.py", str(file), "--report"])
    run_commands = [f"{line}  # {name}" for name, line in commands.items()]
    content = results_as_dict(results) | {
        "further": [table.as_dict() for table in task_tables],
        "command": command,
        "runs": run_commands,
    }
    return page.write_report(
        make_page(results, task_tables, [command, *run_commands]),
        content,
        Path(results.study.out_dir),
        json_name="results.json",
        markdown_name="report.md",
        plot_endings=("png", "pdf"),
    )


def make_page(results: Results, task_tables: Sequence[Table], commands: Sequence[str]) -> Page:
    """Makes the page of the report.

    Args:
        task_tables: Tables of downstream tasks.
        commands: The commands that reproduce the study, as lines for a shell.
    """
    study = results.study
    shares = ", ".join(f"{share:.0%}" for share in study.curve)
    seeds = ", ".join(str(seed) for seed in results.seeds)
    return Page(
        title=study.title,
        answers=[answer_claims(results), *results.notes],
        facts={
            "arms": f"{len(results.arms)}, compared with {results.arms[study.baseline].label}",
            "seeds": f"{len(results.seeds)}: {seeds}",
            "held-out text": _describe_text(results),
            "windows": study.measure.windows,
            "checkpoints": f"after {shares} of each run",
            "configuration": study.config,
        },
        sections=_make_sections(results, task_tables),
        commands=commands,
    )


def _make_sections(results: Results, task_tables: Sequence[Table]) -> list[Section]:
    """Makes the sections: claims, shared conditions, exploratory tables, and gains if any."""
    claim_sentences = format_sentences(results) if results.claims else []
    has_effects = any(claim.effect is not None for claim in results.claims)
    claim_plots = {"claims": partial(draw_claim_plot, results)} if has_effects else {}
    shared_tables = [make_condition_table(results.conditions)] if results.conditions else []
    exploratory_tables = [*make_exploratory_tables(results), *task_tables]
    curve_plots = {
        f"curves-{axis.lower().replace(' ', '-')}": partial(draw_curve_plot, results, axis)
        for axis in AXES
    }
    sections = [
        Section(CLAIMS_TITLE, claim_sentences, make_claim_tables(results), claim_plots),
        Section(SHARED_TITLE, results.shared, shared_tables),
        Section(EXPLORATORY_TITLE, [], exploratory_tables, curve_plots),
    ]

    has_gains = any(arm.gains for arm in results.arms.values())
    gain_plots = {"gains": partial(draw_gain_plot, results)} if has_gains else {}
    gains = Section(GAINS_TITLE, [], make_gain_tables(results), gain_plots)
    if gains.tables:
        sections.append(gains)
    return sections


def _describe_text(results: Results) -> str:
    """Describes the size of the held-out text."""
    hosts = f" of {results.hosts:,} hosts" if results.hosts else ""
    return f"{results.documents:,} documents{hosts}, {results.bytes:,} bytes"


@figures.style_figure
def draw_curve_plot(results: Results, axis: str) -> Figure:
    """Draws bits per byte over the amount of training, and below them differences to the baseline.

    The left panels have the arms without metadata at inference, the right ones with it; the
    baseline is in both. An arm is named in the last panel that has it.

    Args:
        axis: The unit of the amount, one of `AXES`.
    """
    arms = list(results.arms.values())
    has_metadata = any(WITH in arm.curves for arm in arms)
    modes = [WITHOUT, WITH] if has_metadata else [WITHOUT]
    figure, panels = figures.create_figure(
        2 * max(2.9, 0.19 * len(arms) + 1),
        panels=2 * len(modes),
        columns=len(modes),
        width=figures.PANEL_WIDTH if len(modes) == 1 else figures.FULL_WIDTH + 1.2,
        shares_y=False,
    )
    has_bands = len(arms) < _TOO_MANY_BANDS

    for axes, mode in zip(panels, modes, strict=False):
        for number, arm in enumerate(arms):
            curve = _find_curve_in_panel(results, arm, mode, axis)
            if curve is not None:
                with figures.draw_series(axes, arm.label):
                    _draw_curve(
                        axes, curve, figures.choose_series_style(number), has_band=has_bands
                    )
        _scale_axes(axes, results, axis)
        axes.set_title(f"used {mode} metadata", loc="left")

    for axes, mode in zip(panels[len(modes) :], modes, strict=True):
        _draw_differences(axes, results, axis, mode, is_last=mode == modes[-1])

    base = results.arms[results.study.baseline]
    panels[0].set_ylabel("bits per byte")
    panels[len(modes)].set_ylabel(f"minus {shorten_name(base.label)}")
    figure.suptitle(_format_curve_title(results, axis, has_bands=has_bands), x=0.01, ha="left")
    return figure


def _format_curve_title(results: Results, axis: str, *, has_bands: bool) -> str:
    """Formats the title of a curve plot: its axis, the seeds, and what the intervals cover."""
    unit = "compute" if axis == FLOPS else "data"
    seeds = f"{len(results.seeds)} seeds" if len(results.seeds) > 1 else "1 seed"
    intervals = "95% bands" if has_bands else "95% intervals of the last points"
    return f"Held-out text by {unit}: {seeds}, {intervals}"


def _draw_differences(axes: Axes, results: Results, axis: str, mode: str, *, is_last: bool) -> None:
    """Draws the difference of each arm to the baseline in a panel.

    Args:
        is_last: Whether this is the last panel, which names all its arms; the others name only the
            arms that it lacks.
    """
    arms = list(results.arms.values())
    base = results.arms[results.study.baseline]
    ends = []
    for number, arm in enumerate(arms):
        curve = _find_curve_in_panel(results, arm, mode, axis)
        difference = None if curve is None else _subtract_curve(curve, base.curves[WITHOUT][axis])
        if difference is None:
            continue

        style = figures.choose_series_style(number)
        with figures.draw_series(axes, arm.label):
            _draw_curve(axes, difference, style, has_band=len(arms) < _TOO_MANY_BANDS)
        if is_last or (WITH not in arm.curves and arm is not base):
            end = difference.points[-1].value
            ends.append((difference.amounts[-1], end, arm.label, style))

    _scale_amounts(axes, results, axis)
    axes.set_xlabel(f"{axis} used in training")
    figures.label_ends(axes, ends)


def _find_curve_in_panel(results: Results, arm: ArmResult, mode: str, axis: str) -> Curve | None:
    """Returns the curve of an arm in the panel of a mode; None if it has none there."""
    if arm.name == results.study.baseline:
        mode = WITHOUT
    return arm.curves[mode][axis] if mode in arm.curves else None


def _subtract_curve(curve: Curve, base: Curve) -> Curve | None:
    """Returns a curve minus a base curve, at the amounts where both exist; None if nowhere."""
    amounts = []
    differences = []
    for amount, point in zip(curve.amounts, curve.points, strict=True):
        base_point = base.interpolate_at(float(amount))
        if base_point is not None:
            amounts.append(amount)
            differences.append(point - base_point)
    return Curve(np.array(amounts), differences) if amounts else None


def _draw_curve(axes: Axes, curve: Curve, style: SeriesStyle, *, has_band: bool) -> None:
    """Draws a curve, with the band of its intervals or only the interval of its last point."""
    if has_band:
        figures.draw_band(axes, list(curve.amounts), curve.points, style)
        return

    (line,) = axes.plot(
        curve.amounts,
        [point.value for point in curve.points],
        linestyle=style.line,
        marker=style.marker,
        color=style.color,
        linewidth=1.6,
        markersize=4.5,
    )
    figures.describe_points(line, curve.points)
    last_point = curve.points[-1]
    bounds = [last_point.low, last_point.high]
    axes.plot([curve.amounts[-1]] * 2, bounds, color=style.color, linewidth=1)


def _scale_axes(axes: Axes, results: Results, axis: str) -> None:
    """Scales both axes.

    The vertical axis ends just above the highest value without metadata; higher values with
    metadata are cut off.
    """
    _scale_amounts(axes, results, axis)
    values_by_mode: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    for arm in results.arms.values():
        for mode, curves in arm.curves.items():
            values_by_mode[mode] += [point.value for point in curves[axis].points]

    low = min(values_by_mode[WITHOUT] + values_by_mode[WITH])
    high = max(values_by_mode[WITHOUT])
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, high + margin)


def _scale_amounts(axes: Axes, results: Results, axis: str) -> None:
    """Makes the horizontal axis logarithmic, with ticks at the points of the baseline."""
    from matplotlib.ticker import NullLocator

    base = results.arms[results.study.baseline]
    ticks: list[float] = []
    for amount in reversed(base.curves[WITHOUT][axis].amounts):
        if not ticks or ticks[-1] / amount >= _MIN_TICK_RATIO:
            ticks.append(float(amount))

    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [figures.shorten_number(tick) for tick in ticks])
    axes.grid()


@figures.style_figure
def draw_claim_plot(results: Results) -> Figure:
    """Draws the difference of each claim, with its own interval and the one for all claims at once.

    Each unit of differences has its own panel.
    """
    claims_by_unit: dict[Unit, list[Claim]] = {}
    for claim in results.claims:
        if claim.effect is not None:
            claims_by_unit.setdefault(claim.unit, []).append(claim)

    # The height of a panel follows from the lines of its labels.
    panel_labels = []
    panel_lines = []
    for claims in claims_by_unit.values():
        labels = [_label_claim(claim) for claim in claims]
        panel_labels.append(labels)
        panel_lines.append(sum(max(label.count("\n") + 1, 2) for label in labels))

    # In inches: the title, and for each panel its axis and its lines.
    height = 0.5 + sum(0.8 + 0.21 * lines for lines in panel_lines)
    figure, panels = figures.create_figure(
        height,
        panels=len(panel_lines),
        columns=1,
        width=figures.FULL_WIDTH,
        shares_y=False,
        row_heights=panel_lines,
    )

    for axes, (unit, claims), labels in zip(
        panels, claims_by_unit.items(), panel_labels, strict=True
    ):
        for row, claim in enumerate(claims):
            _draw_claim(axes, row, claim)
        figures.draw_zero(axes)
        figures.name_rows(axes, labels)
        axes.set_xlabel(_describe_unit(unit))

    figure.suptitle(_format_claim_title(results.claims), x=0.01, ha="left")
    return figure


def _format_claim_title(claims: Sequence[Claim]) -> str:
    """Formats the title of the claim plot; open claims have no thin line."""
    title = "95% intervals (thick), "
    if any(claim.verdict != OPEN for claim in claims):
        title += "for all claims at once (thin), "
    return f"{title}smallest of interest: |"


def _label_claim(claim: Claim) -> str:
    """Returns the label of a claim and its verdict, in several lines."""
    name = shorten_name(claim.config.label, _MAX_LABEL_CHARS)
    return textwrap.fill(f"{name} ({claim.verdict})", _MAX_LINE_CHARS)


def _draw_claim(axes: Axes, row: int, claim: Claim) -> None:
    """Draws the difference of a claim in its unit, and marks the smallest of interest."""
    colors = {SUPPORTED: GOOD, REFUTED: BAD}
    style = SeriesStyle(colors.get(claim.verdict, MUTED))
    outer = None if claim.verdict == OPEN else compute_simultaneous_interval(claim)
    assert claim.effect is not None
    figures.draw_interval(axes, row, claim.unit.convert_to_unit(claim.effect), style, outer=outer)

    smallest = claim.config.smallest_difference
    assert smallest is not None
    smallest_in_unit = claim.unit.convert_to_unit(Interval(-smallest, -smallest)).low
    axes.plot([smallest_in_unit], [row], "|", color=INK, markersize=12)


def _describe_unit(unit: Unit) -> str:
    """Returns the label of an axis of differences, with the side of 0 that supports a claim."""
    if unit.is_higher_better:
        return f"difference in {unit.name} (right of 0: higher, as claimed)"
    return f"difference in {unit.name} (left of 0: fewer bits, as claimed)"


@figures.style_figure
def draw_gain_plot(results: Results) -> Figure:
    """Draws the gains of each arm by length, site and position of the text, in its own panel."""
    from matplotlib.ticker import MaxNLocator

    arms = [arm for arm in results.arms.values() if arm.gains]
    parts = [(gain.by, gain.name) for gain in arms[0].gains if gain.effect_without is not None]
    columns = min(3, len(arms))
    rows = math.ceil(len(arms) / columns)
    figure, panels = figures.create_figure(
        0.9 + rows * (0.8 + 0.3 * len(parts)),
        panels=len(arms),
        columns=columns,
        shares_x=True,
        width=figures.FULL_WIDTH if columns > 1 else figures.PANEL_WIDTH,
    )

    limits: list[float] = [0.0]
    for axes, arm in zip(panels, arms, strict=False):
        limits += _draw_gains(axes, arm, parts)
        figures.draw_zero(axes)
        figures.name_rows(axes, [f"{by}: {name}" for by, name in parts])
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.tick_params(labelbottom=True)
        label = shorten_name(arm.label, _MAX_LABEL_CHARS)
        axes.set_title(textwrap.fill(label, 24 if columns > 1 else 60), loc="left")

    margin = 0.05 * (max(limits) - min(limits))
    panels[0].set_xlim(min(limits) - margin, max(limits) + margin)
    base = shorten_name(results.arms[results.study.baseline].label)
    figure.suptitle(f"Bits per byte minus those of {base}, with 95% intervals", x=0.01, ha="left")
    figures.add_legend_below(figure, _GAIN_STYLES.items())
    return figure


def _draw_gains(axes: Axes, arm: ArmResult, parts: Sequence[tuple[str, str]]) -> list[float]:
    """Draws the gains of an arm over parts of the text, one row each.

    Returns:
        The finite ends of the intervals.
    """
    gains = {(gain.by, gain.name): gain for gain in arm.gains}
    ends: list[float] = []
    for row, part in enumerate(parts):
        if part not in gains:
            continue

        gain = gains[part]
        marks = ((row - 0.16, gain.effect_without), (row + 0.16, gain.effect_with))
        for (position, estimate), (name, style) in zip(marks, _GAIN_STYLES.items(), strict=True):
            if estimate is not None:
                with figures.draw_series(axes, name):
                    figures.draw_interval(axes, position, estimate, style, size=4.5)
                ends += [end for end in (estimate.low, estimate.high) if math.isfinite(end)]
    return ends
