"""The report as one self-contained HTML page, with embedded tables and plots."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from bsmeta.evaluation.results import ModelReport, Report
from bsmeta.evaluation.tables import Table, summary, tables_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 88rem; margin: 2rem auto;
       padding: 0 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.lead { font-size: 1.05rem; background: #f4f6f4; border-left: 4px solid #1b7837;
        padding: .7rem 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .55rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #444; } td { border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
.note { color: #555; font-size: .85rem; max-width: 60rem; }
figure { display: inline-block; margin: .5rem 1rem .5rem 0; vertical-align: top; }
img { max-width: 100%; width: 40rem; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .8rem; }
"""


def page(report: Report, figures: Mapping[str, Figure]) -> str:
    """The page as HTML source.

    Args:
        report: The report.
        figures: Its plots by name.
    """
    names = ", ".join(model.checkpoint for model in report.models)
    parts = []
    for model in report.models:
        parts.append(f'<p class="lead">{escape(_lead(model, several=len(report.models) > 1))}</p>')
        parts.append(f"<p>{escape(described(model, report))}</p>")
    parts += [html_image(name, figure) for name, figure in figures.items()]
    parts += [html_table(table) for table in tables_of(report)]
    settings = json.dumps(report.settings, indent=1, ensure_ascii=False)
    parts.append(f"<h2>Settings</h2><details><summary>show</summary><pre>{escape(settings)}</pre>")
    parts.append("</details>")
    return html_page(f"Evaluation of {names}", parts)


def html_page(title: str, parts: Sequence[str]) -> str:
    """A self-contained page of HTML parts under a title."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{viewport}<style>{STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def described(model: ModelReport, report: Report) -> str:
    """Describes in a sentence what was scored with a model."""
    data = model.data
    left_out = ", ".join(f"{count} {reason}" for reason, count in data["left_out"].items())
    return (
        f"{data['documents']:,} documents of {data['file']}"
        + (f" (left out: {left_out})" if left_out else "")
        + f"; windows of {data['max_seq_len']:,} tokens: {report.settings['windows']}."
    )


def _lead(model: ModelReport, *, several: bool) -> str:
    return f"{model.checkpoint}: {summary(model)}" if several else summary(model)


def html_table(table: Table) -> str:
    """A table with its title and note as HTML."""
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f'<h2>{escape(table.title)}</h2>\n<div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f'<tbody>\n{rows}\n</tbody></table></div>\n<p class="note">{escape(table.note)}</p>'
    )


def html_image(name: str, figure: Figure) -> str:
    """A plot as HTML, embedded."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = escape(name)
    return f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></figure>'
