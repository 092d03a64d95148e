"""The report of a study: its page, with figures as PNG and PDF, and the results as JSON.

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

from bsmeta.config.command_line import pasteable
from bsmeta.report import figures, page
from bsmeta.report.figures import BAD, GOOD, INK, MUTED, Look, short_name
from bsmeta.report.inference import Interval
from bsmeta.report.page import COUNT, Cell, Column, Page, Section, Table
from bsmeta.studies.claim_report import answer, claim_tables, sentences
from bsmeta.studies.claims import OPEN, REFUTED, SUPPORTED, Claim, shown_at_once
from bsmeta.studies.conditions import condition_table
from bsmeta.studies.config import AXES, FLOPS, HOST, TEXT, TOKENS, WITH, WITHOUT, StudyConfig
from bsmeta.studies.results import ArmResult, Results, as_dict
from bsmeta.studies.statistics import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BITS, SIGNED = "{:.4f}".format, "{:+.4f}".format
AT = {TEXT: "at the same text tokens", TOKENS: "at the same tokens in all"}


CLAIMS, SHARED = "What the declared claims come to", "What the arms share with the baseline"
EXPLORATORY = "Exploratory: no claim was declared about what follows"
GAINS = "Exploratory: where the arms gain"
_LONGEST_LINE = 44  # characters of a line of a label in a figure
_LONGEST_LABEL = 160  # characters of a label in several lines
_CLOSEST_TICKS = 1.4  # ratio of two named amounts
_MANY = 5  # arms from which on only the last point of a curve has its interval


def about_intervals(study: StudyConfig) -> str:
    """A sentence about the intervals in brackets."""
    return (
        f"In brackets: 95% intervals over seeds (Student's t) and {study.cluster}s (jackknife), "
        "paired by seed and by document, each for itself."
    )


def exploratory_tables(results: Results) -> list[Table]:
    """What the arms reach, beside the baseline and their controls."""
    return [arm_table(results), effect_table(results), control_table(results)]


def arm_table(results: Results) -> Table:
    """One row per arm: what it was trained on, and its bits per byte."""
    note = (
        f"Bits per byte of the same {results.bytes:,} bytes of {results.documents:,} held-out "
        f"documents after training, without and with metadata at inference, as mean of "
        f"{len(results.seeds)} seeds. {about_intervals(results.study)}"
    )
    columns = [
        Column("arm"), Column("text tokens", COUNT), Column("all tokens", COUNT),
        Column("FLOPs", "{:.2e}".format), Column("without metadata", BITS),
        Column("with metadata", BITS), Column("with - without", SIGNED),
    ]  # fmt: skip
    table = Table("Bits per byte", note, columns)
    for arm in results.arms.values():
        shown = None if arm.inference is None else arm.last(WITH)
        amounts = [arm.amounts[axis] for axis in (TEXT, TOKENS, FLOPS)]
        table.rows.append([arm.label, *amounts, arm.last(WITHOUT), shown, arm.inference])
    return table


def effect_table(results: Results) -> Table:
    """One row per arm and mode: the difference to the baseline, and what it saves."""
    base = results.arms[results.study.baseline]
    note = (
        f"Differences in bits per byte to {base.label}, read from its curve (below 0: fewer bits). "
        "Text saved, tokens saved: 1 - what the arm has used / what the baseline needs for the "
        "same bits per byte (below 0: the arm needs more); a bound (above, below) where the "
        f"baseline's curve does not reach them. {about_intervals(results.study)}"
    )
    columns = [
        Column("arm"), Column("metadata"), *(Column(head, SIGNED) for head in AT.values()),
        Column("text saved", str), Column("tokens saved", str),
    ]  # fmt: skip
    table = Table(f"Against {base.label}", note, columns)
    for arm in results.arms.values():
        for mode, by_axis in arm.savings.items():
            effects = [arm.effects[mode][axis] for axis in (TEXT, TOKENS)]
            saved = [str(by_axis[axis]) for axis in (TEXT, TOKENS)]
            table.rows.append([arm.label, mode, *effects, *saved])
    return table.sorted_by(AT[TEXT])


def control_table(results: Results) -> Table:
    """One row per control and mode: the arm minus its control, at the end of both runs."""
    note = f"Bits per byte of the arm minus those of its control. {about_intervals(results.study)}"
    heads = (Column("arm"), Column("metadata"), Column("control"), Column("difference", SIGNED))
    rows: list[list[Cell]] = [
        [arm.label, mode, results.arms[control].label, effect]
        for arm in results.arms.values()
        for (control, mode), effect in arm.controls.items()
    ]
    return Table("Against controls", note, heads, rows).sorted_by("difference")


def gain_tables(results: Results) -> list[Table]:
    """For each arm, the gain by length, site and position; and by type."""
    base = results.arms[results.study.baseline].label
    part_columns = [
        Column("by"), Column("part"), Column("documents", COUNT), Column("used without", SIGNED),
        Column("used with", SIGNED),
    ]  # fmt: skip
    part_note = (
        f"Differences in bits per byte between the last checkpoint and that of {base}. "
        "Position: bytes of a document from this one up to the next. "
        f"{about_intervals(results.study)}"
    )
    if results.study.cluster == HOST:
        part_note += " Those of a site are over its documents."
    type_columns = [
        Column("type"), Column("documents", COUNT), Column("with - without", SIGNED)
    ]  # fmt: skip
    type_note = (
        "Bits per byte of the last checkpoint with this type alone, minus those without "
        f"metadata, over the documents that have it. {about_intervals(results.study)}"
    )
    found = []
    for arm in results.arms.values():
        parts: list[list[Cell]] = [
            [gain.by, gain.name, gain.documents, gain.without, gain.shown]
            for gain in arm.gains
            if gain.without is not None
        ]
        types: list[list[Cell]] = [
            [gain.name, gain.documents, gain.shown] for gain in arm.gains if gain.by == "type"
        ]
        if parts:
            found.append(Table(f"Where {arm.label} gains", part_note, part_columns, parts))
        if types:
            table = Table(f"{arm.label}: each type at inference", type_note, type_columns, types)
            found.append(table.sorted_by("with - without"))
    return found


def write_report(
    results: Results, file: Path, commands: Mapping[str, str], further: Sequence[Table]
) -> list[Path]:
    """Writes the report's files into the folder of the study, and returns them.

    Args:
        file: The file of the study.
        commands: The command of each run, as a line for a shell.
        further: Tables to add, of downstream tasks.
    """
    command = pasteable(["python", "experiments/study.py", str(file), "--report"])
    made_by = [f"{line}  # {name}" for name, line in commands.items()]
    content = as_dict(results) | {
        "further": [table.as_dict() for table in further],
        "command": command,
        "runs": made_by,
    }
    return page.write_report(
        page_of(results, further, [command, *made_by]),
        content,
        Path(results.study.out_dir),
        json_name="results.json",
        markdown_name="report.md",
        plot_endings=("png", "pdf"),
    )


def page_of(results: Results, further: Sequence[Table], commands: Sequence[str]) -> Page:
    """The report as a page."""
    study = results.study
    curves = {
        f"curves-{axis.lower().replace(' ', '-')}": partial(curve_plot, results, axis)
        for axis in AXES
    }
    has_effects = any(claim.effect is not None for claim in results.claims)
    has_gains = any(arm.gains for arm in results.arms.values())
    plots = {"gains": partial(gain_plot, results)} if has_gains else {}
    gains = Section(GAINS, [], gain_tables(results), plots)
    return Page(
        title=study.title,
        answers=[answer(results), *results.notes],
        facts={
            "arms": f"{len(results.arms)}, compared with {results.arms[study.baseline].label}",
            "seeds": f"{len(results.seeds)}: {', '.join(map(str, results.seeds))}",
            "held-out text": _held_out(results),
            "windows": study.measure.windows,
            "checkpoints": f"after {', '.join(f'{part:.0%}' for part in study.curve)} of each run",
            "configuration": study.config,
        },
        sections=[
            Section(
                CLAIMS, sentences(results) if results.claims else [], claim_tables(results),
                {"claims": partial(claim_plot, results)} if has_effects else {},
            ),
            Section(
                SHARED, results.shared,
                [condition_table(results.conditions)] if results.conditions else [],
            ),
            Section(EXPLORATORY, [], [*exploratory_tables(results), *further], curves),
            *([gains] if gains.tables else []),
        ],
        commands=commands,
    )  # fmt: skip


def _held_out(results: Results) -> str:
    hosts = f" of {results.hosts:,} hosts" if results.hosts else ""
    return f"{results.documents:,} documents{hosts}, {results.bytes:,} bytes"


@figures.styled
def curve_plot(results: Results, axis: str) -> Figure:
    """Bits per byte over what was used, and below them their difference to the baseline.

    A panel has the arms without metadata at inference, the other one with it; the baseline is in
    both. An arm is named in the last panel that has it.
    """
    arms = list(results.arms.values())
    modes = [mode for mode in (WITHOUT, WITH) if any(mode in arm.curves for arm in arms)]
    figure, panels = figures.canvas(
        2 * max(2.9, 0.19 * len(arms) + 1), panels=2 * len(modes), columns=len(modes),
        width=figures.NARROW if len(modes) == 1 else figures.WIDE + 1.2, shares_y=False,
    )  # fmt: skip
    has_bands = len(arms) < _MANY
    base = results.arms[results.study.baseline]
    for axes, mode in zip(panels, modes, strict=False):
        for number, arm in enumerate(arms):
            curve = _curve(results, arm, mode, axis)
            if curve is not None:
                _draw_curve(axes, curve, figures.look(number), has_band=has_bands)
        _scale(axes, results, axis)
        axes.set_title(f"used {mode} metadata", loc="left")
    for axes, mode in zip(panels[len(modes) :], modes, strict=True):
        ends = []
        for number, arm in enumerate(arms):
            curve, style = _curve(results, arm, mode, axis), figures.look(number)
            gain = None if curve is None else _minus(curve, base.curves[WITHOUT][axis])
            if gain is not None:
                _draw_curve(axes, gain, style, has_band=has_bands)
                if mode == modes[-1] or (modes[-1] not in arm.curves and arm is not base):
                    ends.append((gain.amounts[-1], gain.points[-1].value, arm.label, style))
        _scale_amounts(axes, results, axis)
        axes.set_xlabel(f"{axis} used in training")
        figures.label_ends(axes, ends)
    panels[0].set_ylabel("bits per byte")
    panels[len(modes)].set_ylabel(f"minus {short_name(base.label)}")
    unit = "compute" if axis == FLOPS else "data"
    seeds = f"{len(results.seeds)} seeds" if len(results.seeds) > 1 else "1 seed"
    what = "95% bands" if has_bands else "95% intervals of the last points"
    figure.suptitle(f"Held-out text by {unit}: {seeds}, {what}", x=0.01, ha="left")
    return figure


def _curve(results: Results, arm: ArmResult, mode: str, axis: str) -> Curve | None:
    """An arm's curve in a panel; None if it has none there."""
    mode = WITHOUT if arm.name == results.study.baseline else mode
    return arm.curves[mode][axis] if mode in arm.curves else None


def _minus(curve: Curve, base: Curve) -> Curve | None:
    """A curve minus another one at the same amounts; None if that one reaches none of them."""
    pairs = [
        (amount, point - there)
        for amount, point in zip(curve.amounts, curve.points, strict=True)
        if (there := base.at(float(amount))) is not None
    ]
    if not pairs:
        return None
    amounts, points = zip(*pairs, strict=True)
    return Curve(np.array(amounts), points)


def _draw_curve(axes: Axes, curve: Curve, style: Look, *, has_band: bool) -> None:
    if has_band:
        figures.draw_band(axes, list(curve.amounts), curve.points, style)
        return
    axes.plot(
        curve.amounts, [point.value for point in curve.points], linestyle=style.line,
        marker=style.marker, color=style.color, linewidth=1.6, markersize=4.5,
    )  # fmt: skip
    last = curve.points[-1]
    axes.plot([curve.amounts[-1]] * 2, [last.low, last.high], color=style.color, linewidth=1)


def _scale(axes: Axes, results: Results, axis: str) -> None:
    """Scales both axes; the vertical one fits the values without metadata, and all lower ones."""
    _scale_amounts(axes, results, axis)
    points = {
        mode: [point for curves in by_mode for point in curves[axis].points]
        for mode in (WITHOUT, WITH)
        if (by_mode := [arm.curves[mode] for arm in results.arms.values() if mode in arm.curves])
    }
    low = min(point.value for own in points.values() for point in own)
    high = max(point.value for point in points[WITHOUT])
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, high + margin)


def _scale_amounts(axes: Axes, results: Results, axis: str) -> None:
    """A logarithmic axis whose ticks are the points of the baseline."""
    from matplotlib.ticker import NullLocator

    ticks: list[float] = []
    for amount in reversed(results.arms[results.study.baseline].curves[WITHOUT][axis].amounts):
        if not ticks or ticks[-1] / amount >= _CLOSEST_TICKS:
            ticks.append(float(amount))
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [figures.short_number(tick) for tick in ticks])
    axes.grid()


@figures.styled
def claim_plot(results: Results) -> Figure:
    """The effect of each claim with its own interval, and the one for all claims at once.

    Claims whose differences have another unit are in a panel of their own.
    """
    known = [claim for claim in results.claims if claim.effect is not None]
    panels = [
        [claim for claim in known if claim.unit == unit]
        for unit in dict.fromkeys(claim.unit for claim in known)
    ]
    labels = [[_claim_label(claim) for claim in claims] for claims in panels]
    lines = [sum(max(label.count("\n") + 1, 2) for label in own) for own in labels]
    figure, all_axes = figures.canvas(
        0.5 + sum(0.8 + 0.21 * count for count in lines), panels=len(panels), columns=1,
        width=figures.WIDE, shares_y=False, row_heights=lines,
    )  # fmt: skip
    for axes, claims, names in zip(all_axes, panels, labels, strict=True):
        for place, claim in enumerate(claims):
            _draw_claim(axes, place, claim)
        figures.draw_zero(axes)
        figures.name_rows(axes, names)
        axes.set_xlabel(_difference_words(claims[0]))
    title = "95% intervals (thick), for all claims at once (thin), smallest of interest: |"
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def _claim_label(claim: Claim) -> str:
    name = short_name(claim.config.label, _LONGEST_LABEL)
    return textwrap.fill(f"{name} ({claim.verdict})", _LONGEST_LINE)


def _draw_claim(axes: Axes, place: int, claim: Claim) -> None:
    """Draws the difference of a claim in its own unit, and the smallest of interest."""
    colors = {SUPPORTED: GOOD, REFUTED: BAD}
    style = Look(colors.get(claim.verdict, MUTED))
    outer = None if claim.verdict == OPEN else shown_at_once(claim)
    assert claim.effect is not None
    figures.draw_interval(axes, place, claim.unit.shown(claim.effect), style, outer=outer)
    interest = claim.config.smallest_difference
    assert interest is not None
    end = claim.unit.shown(Interval(-interest, -interest)).low
    axes.plot([end], [place], "|", color=INK, markersize=12)


def _difference_words(claim: Claim) -> str:
    """The unit of a claim's difference, and its side as claimed, for an axis."""
    if claim.unit.is_higher_better:
        return f"difference in {claim.unit.name} (right of 0: higher, as claimed)"
    return f"difference in {claim.unit.name} (left of 0: fewer bits, as claimed)"


@figures.styled
def gain_plot(results: Results) -> Figure:
    """The gain of each arm by length, site and position of the text: a panel for each arm."""
    from matplotlib.ticker import MaxNLocator

    arms = [arm for arm in results.arms.values() if arm.gains]
    parts = [(gain.by, gain.name) for gain in arms[0].gains if gain.without is not None]
    looks = {"used without metadata": Look(MUTED, "o"), "used with metadata": Look(GOOD, "s")}
    columns = min(3, len(arms))
    figure, panels = figures.canvas(
        0.9 + -(-len(arms) // columns) * (0.8 + 0.3 * len(parts)), panels=len(arms),
        columns=columns, shares_x=True, width=figures.WIDE if columns > 1 else figures.NARROW,
    )  # fmt: skip
    ends: list[float] = [0.0]
    for axes, arm in zip(panels, arms, strict=False):
        by_part = {(gain.by, gain.name): gain for gain in arm.gains}
        for place, part in enumerate(parts):
            found = (by_part[part].without, by_part[part].shown) if part in by_part else ()
            for offset, estimate, style in zip((-0.16, 0.16), found, looks.values(), strict=False):
                if estimate is not None:
                    figures.draw_interval(axes, place + offset, estimate, style, size=4.5)
                    ends += [end for end in (estimate.low, estimate.high) if math.isfinite(end)]
        figures.draw_zero(axes)
        figures.name_rows(axes, [f"{by}: {name}" for by, name in parts])
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.tick_params(labelbottom=True)
        label = short_name(arm.label, _LONGEST_LABEL)
        axes.set_title(textwrap.fill(label, 24 if columns > 1 else 60), loc="left")
    margin = 0.05 * (max(ends) - min(ends))
    panels[0].set_xlim(min(ends) - margin, max(ends) + margin)
    base = short_name(results.arms[results.study.baseline].label)
    figure.suptitle(
        f"Bits per byte minus those of {base}, with 95% intervals", x=0.01, ha="left"
    )  # fmt: skip
    figures.legend_below(figure, looks.items())
    return figure
