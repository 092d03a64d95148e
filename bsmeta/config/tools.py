"""Schemas of the tools beside training: `download.py`, `entities.py`, `predict.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.keys import key


@dataclass(kw_only=True)
class DownloadConfig:
    """Downloads the files of a manifest, verifies and unpacks them."""

    manifest: str | None = key(
        None,
        "JSON or YAML file with `files`: each `path`, `address`, `bytes`, `sha256`, and of an "
        "archive `unpack` (a folder) and `unpacked_bytes`",
        is_path=True,
    )
    folder: str | None = key(None, "where the files go", is_path=True)
    mirror: str | None = key(
        None,
        "what relative addresses begin with: http(s):// or file://; null: the folder of the "
        "manifest",
    )
    keep_archives: bool = key(False, "keep archives that were unpacked")
    retries: int = key(
        8, "failures in a row after which a download is given up; progress starts over", at_least=0
    )
    timeout: float = key(60.0, "seconds without data after which a request is repeated", above=0)


@dataclass(kw_only=True)
class EntitiesConfig:
    """The table of the entities that mentions may mean: built, added to, or described."""

    table: str | None = key(None, "folder of the table", is_path=True)
    profiles: str | None = key(
        None, "build the table from profiles: .jsonl(.gz, .zst), an entity each line", is_path=True
    )
    entity_dir: str | None = key(
        None,
        "build the table from files of the first generation: the folder that has entity_mappings/",
        is_path=True,
    )
    emb_dir: str | None = key(
        None,
        "their types and relations: the folder of qid2types.json, type_vocab.json, "
        "qid2relations.json, kg_conn.txt",
        is_path=True,
    )
    max_candidates: int | None = key(
        None,
        "candidates that an alias keeps: those with the highest scores; null: 30, or what the "
        "first generation's config.json says",
        at_least=1,
    )
    add: str | None = key(
        None, "profiles of entities to add to the table, which keeps its numbers", is_path=True
    )
    checkpoint: str | None = key(
        None,
        "a run folder or a checkpoint, whose model encodes the added entities at once; null: each "
        "when it is first a candidate",
        is_path=True,
    )


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
