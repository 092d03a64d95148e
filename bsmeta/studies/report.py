"""Writes the report of a study: Markdown, HTML, LaTeX, plots and the raw results as JSON.

It also says what the arms share with the baseline of the same seed: weights, documents, order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.command_line import pasteable
from bsmeta.config.compose import load_resolved
from bsmeta.config.study import StudyConfig
from bsmeta.data.text.tokenizer import load_tokenizer
from bsmeta.evaluation.output import html_image, html_page, html_table
from bsmeta.evaluation.tables import Table
from bsmeta.studies.plots import plots_of
from bsmeta.studies.results import ArmResult, Results
from bsmeta.studies.runs import DONE, Run, progress_of, runs_of
from bsmeta.studies.statistics import Estimate
from bsmeta.studies.tables import claim_words, latex, markdown_lines, sentences, tables_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INITIAL = ("seed", "model_name", "model_config_file", "attn_implementation")
"""Keys that decide the initial weights, beside the number of tokens."""


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
    command = pasteable(["python", "experiments/study.py", str(file), "--report"])
    tables = [*tables_of(results), *further]
    words = sentences(results)
    paired = [*notes_of(results.study), *pairing(results.study, runs_of(results.study))]
    made_by = [f"{line}  # {name}" for name, line in commands.items()]
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
        run.arm: _config(run.folder)
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
                "claim": claim_words(results, claim),
                "mode": claim.mode,
                "other": claim.other,
                "axis": claim.axis,
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


def pairing(study: StudyConfig, runs: Sequence[Run]) -> Iterator[str]:
    """A sentence about each arm, from the configurations and logs of its finished runs."""
    finished = {(run.arm, run.seed): run for run in runs if progress_of(run).state == DONE}
    for arm in study.arms:
        pairs = [
            (finished[study.baseline, seed], finished[arm, seed])
            for seed in study.seeds
            if (study.baseline, seed) in finished and (arm, seed) in finished
        ]
        if arm != study.baseline and pairs:
            label = study.arms[arm].label or arm
            weights = _weights(*pairs[0])
            yield f"{label}: {weights}; {_documents(pairs)}."


def _weights(base: Run, own: Run) -> str:
    first, second = (_config(run.folder) for run in (base, own))
    differing = [key for key in INITIAL if getattr(first, key) != getattr(second, key)]
    if differing:
        return f"other initial weights ({', '.join(differing)} differ)"
    sizes = [len(load_tokenizer(one)) for one in (first, second)]
    if sizes[0] != sizes[1]:
        return (
            f"the same initial weights but for the embeddings of {sizes[1] - sizes[0]:+,} special "
            "tokens, which shift the random numbers of what is drawn after them"
        )
    return "the same initial weights as the baseline of its seed"


def _documents(pairs: Sequence[tuple[Run, Run]]) -> str:
    shared = own_count = alike = steps = 0
    for base, own in pairs:
        first, second = _steps(base.folder), _steps(own.folder)
        alike += sum(a == b for a, b in zip(first, second, strict=False))
        steps += min(len(first), len(second))
        seen, seen_too = (set().union(*one) if one else set() for one in (first, second))
        shared += len(seen & seen_too)
        own_count += len(seen_too)
    if not steps:
        return "its documents are not logged"
    words = f"{shared / max(own_count, 1):.0%} of its documents are also the baseline's"
    if alike == steps:
        return f"{words}, and every step has the same ones"
    return f"{words}; {alike / steps:.0%} of the steps have the same ones"


def _steps(folder: Path) -> list[set[str]]:
    """The documents of each step, of all ranks."""
    found: dict[int, set[str]] = {}
    for path in sorted(folder.glob("documents-rank*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("}\n"):
                    entry = json.loads(line)
                    found.setdefault(entry["step"], set()).update(entry["documents"])
    return [found[step] for step in sorted(found)]


def _config(folder: Path) -> CausalLMConfig:
    return load_resolved(folder / "config.yaml", CausalLMConfig)
