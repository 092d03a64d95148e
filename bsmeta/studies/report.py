"""Writes the report of a study: Markdown, HTML, LaTeX, plots and the raw results as JSON."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import load_resolved
from bsmeta.config.study import StudyConfig
from bsmeta.evaluation.output import html_image, html_page, html_table
from bsmeta.evaluation.tables import Table
from bsmeta.studies.pairing import pairing
from bsmeta.studies.plots import plots_of
from bsmeta.studies.results import ArmResult, Results
from bsmeta.studies.runs import runs_of
from bsmeta.studies.statistics import Estimate
from bsmeta.studies.tables import latex, markdown_lines, sentences, tables_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(
    results: Results, file: Path, commands: Mapping[str, Sequence[str]], further: Sequence[Table]
) -> list[Path]:
    """Writes the report's files into the folder of the study.

    Args:
        results: The results.
        file: The file of the study.
        commands: The command of each run.
        further: Tables to add, of downstream tasks.

    Returns:
        The files.
    """
    folder = Path(results.study.out_dir)
    command = f"python experiments/study.py {file} --report"
    tables = [*tables_of(results), *further]
    words = sentences(results)
    paired = [*notes_of(results.study), *pairing(results.study, runs_of(results.study))]
    made_by = [f"{name}: {subprocess.list2cmdline(parts)}" for name, parts in commands.items()]
    plots = plots_of(results)
    raw = as_dict(results, further) | {"command": command, "runs": made_by}
    texts = {
        "report.md": _markdown(results, words, paired, tables, plots, [command, *made_by]),
        "report.html": _html(results, words, paired, tables, plots, [command, *made_by]),
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


def notes_of(study: StudyConfig) -> list[str]:
    """What the settings of the runs mean for the comparison."""
    configs = {
        run.arm: load_resolved(run.folder / "config.yaml", CausalLMConfig)
        for run in runs_of(study)
        if (run.folder / "config.yaml").exists()
    }
    found = []
    falling = [arm for arm, one in configs.items() if one.lr_scheduler_type != "constant"]
    if falling:
        found.append(
            f"The learning rate of {', '.join(falling)} falls during the run: a checkpoint before "
            "the end is worse than the end of a shorter run, so the curve of the baseline is too "
            "high before its end, and the data that an arm saves is not to be trusted."
        )
    lossy = [
        arm for arm, one in configs.items() if one.data_config.metadata_config.loss_on_metadata
    ]
    if lossy:
        found.append(f"The text tokens of {', '.join(lossy)} include metadata with a loss.")
    return found


def _markdown(
    results: Results,
    words: Sequence[str],
    paired: Sequence[str],
    tables: Sequence[Table],
    plots: Mapping[str, Figure],
    commands: Sequence[str],
) -> str:
    lines = [f"# {results.study.title}", "", *results.notes, *[""] * bool(results.notes)]
    lines += ["## What the data support", "", *(f"- {one}" for one in words), ""]
    lines += [f"![{name}]({name}.png)" for name in plots]
    lines += ["", *markdown_lines(tables)]
    lines += ["## What the arms share with the baseline", "", *(f"- {one}" for one in paired), ""]
    lines += ["## Commands", "", "```bash", *commands, "```", ""]
    return "\n".join(lines)


def _html(
    results: Results,
    words: Sequence[str],
    paired: Sequence[str],
    tables: Sequence[Table],
    plots: Mapping[str, Figure],
    commands: Sequence[str],
) -> str:
    parts = [f'<p class="lead">{escape(one)}</p>' for one in results.notes]
    parts.append("<h2>What the data support</h2>" + _items(words))
    parts += [html_image(name, plot) for name, plot in plots.items()]
    parts += [html_table(table) for table in tables]
    parts.append("<h2>What the arms share with the baseline</h2>" + _items(paired))
    listed = escape("\n".join(commands))
    parts.append(f"<h2>Commands</h2><pre>{listed}</pre>")
    return html_page(results.study.title, parts)


def _items(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(one.replace('**', ''))}</li>" for one in lines) + "</ul>"


def as_dict(results: Results, further: Sequence[Table]) -> dict[str, Any]:
    """The content of `results.json`."""
    return {
        "title": results.study.title,
        "seeds": results.seeds,
        "documents": results.documents,
        "bytes": results.bytes,
        "notes": results.notes,
        "arms": {name: _arm(arm) for name, arm in results.arms.items()},
        "claims": [
            {
                "arm": claim.arm,
                "claim": claim.words,
                "difference": _estimate(claim.effect),
                "simultaneous": [claim.low, claim.high] if claim.effect else None,
                "verdict": claim.verdict,
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
        "with_minus_without": _estimate(arm.inference),
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
    return {name: end if math.isfinite(end) else None for name, end in ends.items()}
