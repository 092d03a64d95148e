"""Schema of `predict.py`: which model, which records, where the results go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.keys import key


@dataclass(kw_only=True)
class PredictConfig:
    """The predictions of a trained model for new records."""

    checkpoint: str = key(
        "runs/classification",
        "a run folder (its model/, else its newest checkpoint), or a checkpoint folder",
        is_path=True,
    )
    overrides: dict[str, Any] = key(
        {},
        "keys of the training configuration to change, such as "
        "+overrides.data_config.text_column=body",
    )
    input: str | None = key(
        None,
        "records: .csv, .tsv or .jsonl, also .gz, with the columns of the training; or, for a "
        "spelling task, a text: any other file, or - for standard input",
        is_path=True,
    )
    output: str | None = key(
        None,
        "the records with their predictions: .csv or .jsonl. OUTPUT.part until it is complete; the "
        "same call continues it (for a text: null prints the result)",
        is_path=True,
    )
    show: str = key(
        "colour",
        "what is made of a text: colour: the text, with errors in red and corrections in green; "
        "json: each change with its character offsets; diff: the corrections, for `patch`",
        choices=("colour", "json", "diff"),
    )
    csv_separator: str = key("auto", "character between columns; auto: , ; tab or |")
    csv_encoding: str = key("auto", "encoding of a CSV file; auto: UTF-8, UTF-16 or Windows-1252")
    on_bad_row: str = key(
        "refuse",
        "a record without text, or that cannot be read; skip: leave it out, and count",
        choices=("refuse", "skip"),
    )
