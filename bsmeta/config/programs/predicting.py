"""Schema of `predict.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.programs.building import READY_TASKS
from bsmeta.core.keys import key


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Settings to predict new records with a trained model."""

    checkpoint: str | None = key(None, is_path=True, takes_addresses=True)
    """a run folder (its model/, else the newest model/ of its checkpoints), or a checkpoint folder;
    also in a bucket (s3:// or gs://BUCKET/PREFIX); null: the ready-made model of task"""
    task: str | None = key(None, choices=tuple(READY_TASKS))
    """the ready-made model to use instead of a checkpoint, which `bsmeta build` makes; spelling
    corrects, spelling_words flags misspelled words, classification names the project that a
    paragraph of documentation is about"""
    overrides: dict[str, Any] = key({})
    """keys of the training configuration to change, such as
    +overrides.data_config.text_column=body"""
    input: str | None = key(None, is_path=True)
    """records: .csv, .tsv or .jsonl, also .gz, or .parquet, with the columns of the training; or,
    for a spelling task, a text: any other file, or - for standard input"""
    text: str | None = key(None)
    """a text to predict instead of an input; the result is printed, or written to output"""
    output: str | None = key(None, is_path=True)
    """file of the records with their predictions: .csv or .jsonl; named OUTPUT.part until it is
    complete, which the same call continues (for a text: null prints the result)"""
    show: str = key("auto", choices=("auto", "text", "color", "json", "diff"))
    """output for a text; text: the corrected text alone, or a prediction with the highest
    probabilities; color: the text, with errors in red and corrections in green; json: each change
    with its character offsets, or all columns of a prediction; diff: the corrections, for `patch`;
    auto: color on a terminal, otherwise text (a detector has neither text nor diff; tasks that do
    not change texts have only text and json)"""
    csv_separator: str = key("auto")
    """character between columns; auto: , ; tab or |"""
    csv_encoding: str = key("auto")
    """encoding of a CSV file; auto: UTF-8, UTF-16 or UTF-32"""
    on_bad_row: str = key("refuse", choices=("refuse", "skip"))
    """reaction to a record that has no text or cannot be read; skip: omit and count it"""
    spreadsheet_safe: bool = key(False)
    """put ' before cells of a .csv output that a spreadsheet would compute (=1+1); false: write
    cells unchanged"""
