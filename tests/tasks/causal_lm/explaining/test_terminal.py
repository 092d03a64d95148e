"""Documents in the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from bsmeta.tasks.causal_lm.explaining.terminal import show_legend, show_window
from tests.data.helpers import page
from tests.tasks.causal_lm.explaining.helpers import own_config, own_windows, small_texts


def print_documents(folder: Path, *, color: bool = False, **changes: Any) -> list[str]:
    config = own_config(
        folder, [page(7, 4), page(8, 3)], random_sample_metadata=False, max_seq_len=256, **changes
    )
    file = io.StringIO()
    console = Console(
        file=file, width=100, force_terminal=color, color_system="standard" if color else None
    )
    for window in own_windows(config):
        show_window(window, console, config, small_texts())
    show_legend(console, config)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_document_is_printed_with_its_packing(tmp_path: Path) -> None:
    assert print_documents(
        tmp_path, metadata_list=["title", "html"], metadata_dropout={"html": 1.0}
    ) == [
        "a.jsonl.gz:0 " + "─" * 87,
        "metadata: title; it also has html",
        "19 characters of text, 24 tokens in 1 chunk, loss on 6",
        "",
        "chunk 1 of 1: 24 tokens (prefix 17, text 6, end of the document 1), loss on 6; "
        "sequence 1 of 1",
        "Title: Page 7 ||| 7 lazy dog 12 cafés<eos>",
        "",
        "packing " + "─" * 92,
        "documents 0 to 1 of a.jsonl.gz are one window: 2 chunks in 1 sequence of 256 tokens, "
        "18.4% full",
        "the first sequences, and those with documents from above (bold):",
        "",
        "sequence  to scale                          padding  document (chunk): tokens",
        "       1  ███▒▒▒··························      209  0: 24 · 1: 23",
        "",
        "─" * 100,
        "metadata: title, html",
        "italic: prefix, suffix; bold: metadata in the text; faint: no loss is taken",
    ]


def test_token_boundaries_are_shown_on_request(tmp_path: Path) -> None:
    lines = print_documents(tmp_path, metadata_list=["title"], types=[], tokens=True, sequences=0)
    assert "7│ lazy│ dog│ 12│ cafés│<eos>" in lines
    assert not any(line.startswith("packing") for line in lines)
    assert "│ begins a token; · ends inside a character" in lines


def test_types_have_colors_and_parts_have_styles(tmp_path: Path) -> None:
    end, prefix, tag, no_loss = "\x1b[0m", "\x1b[2;3;", "\x1b[1;", "\x1b[2m"
    html, url = "36m", "32m"
    assert (
        f"{prefix}{html}html | {end}{prefix}{url}url: https://example.org/7 |||{end}{no_loss} {end}"
        f"{tag}{html}<b class:strong>{end}7 laz{tag}{html}</b>{end}"
        f"y dog 12 cafés\x1b[1m<eos>{end}"
    ) in print_documents(tmp_path, color=True, types=["html", "url"])


def test_requested_types_without_a_record_are_named(tmp_path: Path) -> None:
    config_types = {"metadata_list": ["title", "author"], "types": ["title", "author"]}
    assert "metadata: title; no record of author" in print_documents(tmp_path, **config_types)
