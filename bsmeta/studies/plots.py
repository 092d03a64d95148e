"""The plots of a study: learning curves with bands over seeds and documents, effects, gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bsmeta.config.study import AXES, FLOPS, WITHOUT
from bsmeta.studies.results import Gain, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (
    "#222222",
    "#2166ac",
    "#1b7837",
    "#b2182b",
    "#e08214",
    "#762a83",
    "#8c8c8c",
    "#00838f",
    "#c51b7d",
    "#8c510a",
)
GRID = "#d9d9d9"


def plots_of(results: Results) -> dict[str, Figure]:
    """All plots by file name."""
    found = {f"curves-{axis.lower().replace(' ', '-')}": curve_plot(results, axis) for axis in AXES}
    if any(claim.effect is not None for claim in results.claims):
        found["claims"] = claim_plot(results)
    if any(arm.gains for arm in results.arms.values()):
        found["gains"] = gain_plot(results)
    return found


def curve_plot(results: Results, axis: str) -> Figure:
    """Bits per byte over what was used; each arm without metadata and, dashed, with it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.subplots()
    for arm, colour in zip(results.arms.values(), _colours(results), strict=True):
        for mode, by_axis in arm.curves.items():
            curve = by_axis[axis]
            label = arm.label if mode == WITHOUT else f"{arm.label}, with metadata"
            style = "-" if mode == WITHOUT else "--"
            values = [one.value for one in curve.points]
            axes.plot(curve.amounts, values, style, color=colour, marker="o", ms=3, label=label)
            low, high = zip(*((one.low, one.high) for one in curve.points), strict=True)
            axes.fill_between(curve.amounts, low, high, color=colour, alpha=0.08, linewidth=0)
    axes.set_xscale("log")
    axes.set_xlabel(f"{axis} used in training")
    axes.set_ylabel("bits per byte of held-out text")
    points = [one for arm in results.arms.values() for one in arm.curves[WITHOUT][axis].points]
    values = [one.value for one in points]
    margin = 0.08 * (max(values) - min(values))
    axes.set_ylim(min(values) - 3 * margin, max(values) + margin)
    axes.grid(color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    seeds = f"{len(results.seeds)} seeds" if len(results.seeds) > 1 else "1 seed"
    unit = "compute" if axis == FLOPS else "data"
    axes.set_title(f"{results.study.title}: {unit}, {seeds}, 95% bands", fontsize=10, loc="left")
    return figure


def claim_plot(results: Results) -> Figure:
    """The effect of each claim with its own interval, and the one for all claims at once."""
    from matplotlib.figure import Figure

    known = [claim for claim in results.claims if claim.effect is not None]
    figure = Figure(figsize=(11, 1.4 + 0.3 * len(known)), layout="constrained")
    axes = figure.subplots()
    colours = dict(zip(results.arms, _colours(results), strict=True))
    for place, claim in enumerate(known):
        effect = claim.effect
        assert effect is not None
        colour = colours[claim.config.arm]
        if not claim.reason:
            axes.plot([claim.low, claim.high], [place, place], color=colour, linewidth=1)
        axes.plot([effect.low, effect.high], [place, place], color=colour, linewidth=3)
        axes.plot([effect.value], [place], "o", color=colour, ms=5)
        interest = claim.config.smallest_difference
        assert interest is not None
        axes.plot([-interest], [place], "|", color="black", ms=10)
    axes.axvline(0, color="black", linewidth=0.8)
    labels = [f"{claim.config.label} ({claim.verdict})" for claim in known]
    axes.set_yticks(range(len(known)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("difference in bits per byte (left of 0: fewer bits, as claimed)")
    title = (
        "95% intervals (thick), for all claims at once (thin), smallest difference of interest |"
    )
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def gain_plot(results: Results) -> Figure:
    """The gain of each arm by length, site and position of the text, used with metadata."""
    from matplotlib.figure import Figure

    arms = [
        (arm, colour)
        for arm, colour in zip(results.arms.values(), _colours(results), strict=True)
        if arm.gains
    ]
    parts = [(one.by, one.name) for one in arms[0][0].gains if one.without is not None]
    figure = Figure(figsize=(9, 1.4 + 0.42 * len(parts)), layout="constrained")
    axes = figure.subplots()
    for number, (arm, colour) in enumerate(arms):
        by_part: dict[tuple[str, str], Gain] = {(one.by, one.name): one for one in arm.gains}
        offset = 0.7 * (number / max(len(arms) - 1, 1) - 0.5)
        for place, part in enumerate(parts):
            if part not in by_part:
                continue
            gain = by_part[part]
            shown, ending = gain.shown, ", with metadata"
            if shown is None:  # the arm has no metadata
                shown, ending = gain.without, ""
            assert shown is not None
            label = f"{arm.label}{ending}" if place == 0 else None
            at = place + offset
            axes.plot([shown.low, shown.high], [at, at], color=colour, linewidth=1.5)
            axes.plot([shown.value], [at], "o", color=colour, ms=4, label=label)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(parts)), [f"{by}: {name}" for by, name in parts], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"difference to {results.arms[results.study.baseline].label}, bits per byte")
    axes.set_title("Where the gain is: 95% intervals, each for itself", fontsize=10)
    axes.grid(axis="x", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _colours(results: Results) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(len(results.arms))]
