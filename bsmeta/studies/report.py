"""Writes the report of a study: Markdown, HTML, LaTeX, plots and the raw results as JSON.

The declared claims come first; everything else is marked as exploratory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.config.command_line import pasteable
from bsmeta.evaluation.output import html_image, html_page, html_table
from bsmeta.evaluation.tables import Table
from bsmeta.studies.claim_tables import claim_tables, sentences
from bsmeta.studies.plots import plots_of
from bsmeta.studies.results import ArmResult, Results
from bsmeta.studies.statistics import Estimate
from bsmeta.studies.tables import exploratory_tables, latex, markdown_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIMS, SHARED, EXPLORATORY = (
    "What the declared claims come to",
    "What the arms share with the baseline",
    "Exploratory: no claim was declared about what follows",
)


def write_report(
    results: Results, file: Path, commands: Mapping[str, str], further: Sequence[Table]
) -> list[Path]:
    """Writes the report's files into the folder of the study.

    Args:
        results: The results.
        file: The file of the study.
        commands: The command of each run, as a line for a shell.
        further: Tables to add, of downstream tasks.

    Returns:
        The files.
    """
    folder = Path(results.study.out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    command = pasteable(["python", "experiments/study.py", str(file), "--report"])
    made_by = [f"{line}  # {name}" for name, line in commands.items()]
    plots = plots_of(results)
    raw = as_dict(results, further) | {"command": command, "runs": made_by}
    texts = {
        "report.md": _markdown(results, further, plots, [command, *made_by]),
        "report.html": _html(results, further, plots, [command, *made_by]),
        "effects.tex": latex(results, command),
        "results.json": json.dumps(raw, indent=1, allow_nan=False, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, plot in plots.items():
        for ending in ("png", "pdf"):
            plot.savefig(folder / f"{name}.{ending}", dpi=130)
    names = [*texts, *(f"{name}.{ending}" for name in plots for ending in ("png", "pdf"))]
    return [folder / name for name in names]


def _markdown(
    results: Results,
    further: Sequence[Table],
    plots: Mapping[str, Figure],
    commands: Sequence[str],
) -> str:
    lines = [f"# {results.study.title}", "", *results.notes, *[""] * bool(results.notes)]
    lines += [f"## {CLAIMS}", "", *(f"- {sentence}" for sentence in sentences(results)), ""]
    lines += markdown_lines(claim_tables(results), level=3)
    lines += [f"## {SHARED}", "", *(f"- {sentence}" for sentence in results.shared), ""]
    lines += [f"## {EXPLORATORY}", "", *(f"![{name}]({name}.png)" for name in plots), ""]
    lines += markdown_lines([*exploratory_tables(results), *further], level=3)
    lines += ["## Commands", "", "```bash", *commands, "```", ""]
    return "\n".join(lines)


def _html(
    results: Results,
    further: Sequence[Table],
    plots: Mapping[str, Figure],
    commands: Sequence[str],
) -> str:
    parts = [f'<p class="lead">{escape(note)}</p>' for note in results.notes]
    parts.append(f"<h2>{CLAIMS}</h2>" + _items(sentences(results)))
    parts += [html_table(table) for table in claim_tables(results)]
    parts.append(f"<h2>{SHARED}</h2>" + _items(results.shared))
    parts.append(f"<h2>{EXPLORATORY}</h2>")
    parts += [html_image(name, plot) for name, plot in plots.items()]
    parts += [html_table(table) for table in (*exploratory_tables(results), *further)]
    listed = escape("\n".join(commands))
    parts.append(f"<h2>Commands</h2><pre>{listed}</pre>")
    return html_page(results.study.title, parts)


def _items(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line.replace('**', ''))}</li>" for line in lines)
    return f"<ul>{items}</ul>"


def as_dict(results: Results, further: Sequence[Table]) -> dict[str, Any]:
    """The content of `results.json`."""
    return {
        "title": results.study.title,
        "seeds": results.seeds,
        "documents": results.documents,
        "bytes": results.bytes,
        "notes": results.notes,
        "shared": results.shared,
        "arms": {name: _arm(arm) for name, arm in results.arms.items()},
        "claims": [
            {
                "name": claim.name,
                **asdict(claim.config),
                "difference": _estimate(claim.effect),
                "deviation": _finite(claim.effect.deviation) if claim.effect else None,
                "document_error": _finite(claim.effect.document_error) if claim.effect else None,
                "at_once": [_finite(claim.low), _finite(claim.high)],
                "p": claim.p_value,
                "p_corrected": claim.corrected,
                "power": claim.power,
                "verdict": claim.verdict,
                "reason": claim.reason,
            }
            for claim in results.claims
        ],
        "further": [asdict(table) for table in further],
    }


def _arm(arm: ArmResult) -> dict[str, Any]:
    return {
        "label": arm.label,
        "used": arm.amounts,
        "curves": {
            mode: {
                axis: [
                    {"at": float(at), **(_estimate(one) or {})}
                    for at, one in zip(curve.amounts, curve.points, strict=True)
                ]
                for axis, curve in by_axis.items()
            }
            for mode, by_axis in arm.curves.items()
        },
        "savings": {
            mode: {axis: asdict(one) for axis, one in by_axis.items()}
            for mode, by_axis in arm.savings.items()
        },
        "effects": {
            mode: {axis: _estimate(effect) for axis, effect in by_axis.items()}
            for mode, by_axis in arm.effects.items()
        },
        "with_minus_without": _estimate(arm.inference),
        "controls": [
            {"control": control, "mode": mode, "difference": _estimate(effect)}
            for (control, mode), effect in arm.controls.items()
        ],
        "gains": [
            {
                "by": gain.by,
                "part": gain.name,
                "documents": gain.documents,
                "without": _estimate(gain.without),
                "with": _estimate(gain.shown),
            }
            for gain in arm.gains
        ],
    }


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    ends = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: _finite(end) for name, end in ends.items()}


def _finite(value: float | None) -> float | None:
    """The number, or None for one that JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
