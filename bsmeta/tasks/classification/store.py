"""The SQLite database of a table: its texts in chunks, with labels and splits; built once.

    CSV -> rows (bsmeta.data.table.csv_file) -> chunks (folding) -> splits -> database -> Examples

It is written to a temporary file and renamed, by one process of a machine while the others wait. It
holds everything that determines its content, and is refused for other settings. `prep_only=true`
builds it, shows what is in it, and stops.
"""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError, DataError, differing
from bsmeta.core.files import file_hash
from bsmeta.core.problems import refuse
from bsmeta.core.progress import exclusively, opaque_work
from bsmeta.core.reporting import log_once, rank
from bsmeta.core.signals import release_signals
from bsmeta.data.stream.fingerprint import tokenizer_fingerprint
from bsmeta.data.table.text_file import is_sqlite, open_bytes
from bsmeta.data.text.tokenizer import tokenizer_of
from bsmeta.tasks.classification.checks import fraction_problems
from bsmeta.tasks.classification.config import ClassificationConfig, ClassificationDataConfig
from bsmeta.tasks.classification.examples import Examples
from bsmeta.tasks.classification.folding import Folding
from bsmeta.tasks.classification.splits import SPLITS
from bsmeta.tasks.classification.table import CONTENT, build

log = logging.getLogger(__name__)

FORMAT = 2
_SHAPES_ROWS = (
    "text_column",
    "label_column",
    "csv_separator",
    "csv_encoding",
    "on_bad_row",
    "fold_by",
    "max_length",
    "split_by",
    "split_column",
    "split_fractions",
    "split_seed",
)
"""Keys of `data_config` that determine the content of the database."""


def open_examples(config: ClassificationDataConfig, tokenizer: PreTrainedTokenizerBase) -> Examples:
    """The examples of a table; its database is built first if there is none.

    Every process of a run calls it: one process per machine builds while the others wait.

    Raises:
        ConfigurationError: If the database was built from another CSV file or with other settings,
            or a column is missing.
        DataError: If the CSV file cannot be used, or the database is damaged.
    """
    csv = _path_of(config)
    refuse(fraction_problems(config.split_fractions))
    if is_sqlite(csv):
        return _checked(Examples(csv), _settings(config, tokenizer), "")
    database = database_of(config)
    if not csv.exists() and database.exists():
        raise DataError(
            f"{csv}: there is no such file; data_config.csv={database} uses the database that was "
            "built from it"
        )
    open_bytes(csv)[1].close()  # says what is wrong with it
    key = {CONTENT: file_hash(csv), **_settings(config, tokenizer)}
    if not database.exists():
        _build_once(csv, database, config, tokenizer, key)
    return _checked(Examples(database), key, f" from {csv}")


def database_of(config: ClassificationDataConfig) -> Path:
    """Where the database of a table is, or will be.

    Raises:
        ConfigurationError: If no table is named.
    """
    csv = _path_of(config)
    if config.database is not None:
        return Path(config.database)
    if is_sqlite(csv):
        return csv
    name = csv.name.removesuffix(".gz").removesuffix(".csv")
    return csv.with_name(f"{name}.sqlite")


def _path_of(config: ClassificationDataConfig) -> Path:
    if config.csv is None:
        raise ConfigurationError(
            "data_config.csv is not set; expected a CSV file with a text and a label column",
            ["data_config.csv"],
        )
    return Path(config.csv)


def _settings(
    config: ClassificationDataConfig, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    values = dataclasses.asdict(config)
    Folding(tokenizer, config.fold_by, config.max_length)  # encodes: no truncation in what follows
    return {
        "format": FORMAT,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        **{f"data_config.{name}": values[name] for name in _SHAPES_ROWS},
    }


def _checked(examples: Examples, key: dict[str, Any], source: str) -> Examples:
    saved = {name: examples.key.get(name, "absent") for name in key}
    differences = "\n".join(differing(saved, key, "in the database"))
    if differences:
        raise ConfigurationError(
            f"{examples.database} was built with other settings or from another file; restore "
            f"them, name another database (data_config.database=FILE), or delete it to build it "
            f"again{source}:\n{differences}"
        )
    if rank() == 0:
        for warning in examples.facts["warnings"]:
            log_once(log, logging.WARNING, f"{examples.facts['csv']}: {warning}")
    return examples


def _build_once(
    csv: Path,
    database: Path,
    config: ClassificationDataConfig,
    tokenizer: PreTrainedTokenizerBase,
    key: dict[str, Any],
) -> None:
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with exclusively(f"{database}.lock", f"the table {database}"), opaque_work():
            if not database.exists():
                build(csv, database, config, tokenizer, key)
    except (OSError, sqlite3.Error) as error:
        raise DataError(
            f"{database} cannot be written: {error}; data_config.database=FILE names another place"
        ) from error


_LISTED_LABELS = 20


def prepare(config: ClassificationConfig) -> None:
    """Builds the database, or opens it, and prints a table of its splits and labels.

    Raises:
        UserError: See `open_examples`.
    """
    release_signals()  # nothing to save: a signal ends the process, and the next build starts over
    tokenizer = tokenizer_of(config.tokenizer_name or config.model_name)
    examples = open_examples(config.data_config, tokenizer)
    if rank() == 0:
        console = Console()
        for line in facts(examples):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print(split_table(examples))


def facts(examples: Examples) -> list[str]:
    """What there is to know about a database, beside its splits."""
    skipped = examples.facts["skipped"]
    return [
        f"{examples.facts['csv']} -> {examples.database}",
        *examples.facts["notes"],
        *([f"{skipped:,} bad rows left out"] if skipped else []),
    ]


def split_table(examples: Examples) -> Table:
    """Source rows and chunks of each split, and the source rows of each label."""
    table = Table(title=f"{len(examples.labels):,} labels")
    for heading in ("", *SPLITS):
        table.add_column(heading, justify="right" if heading else "left")
    sizes = {
        "source rows": [len(examples.sources(split)) for split in SPLITS],
        "chunks": [len(examples.chunks(split)) for split in SPLITS],
    }
    if examples.key["data_config.split_by"] is not None:
        sizes["groups"] = [len({*examples.groups(split)}) for split in SPLITS]
    for name, values in sizes.items():
        table.add_row(name, *(f"{value:,}" for value in values))
    table.add_section()
    counts = [examples.label_counts(split) for split in SPLITS]
    for label in examples.labels[:_LISTED_LABELS]:
        table.add_row(escape(label), *(f"{count[label]:,}" for count in counts))
    if len(examples.labels) > _LISTED_LABELS:
        table.add_row(f"and {len(examples.labels) - _LISTED_LABELS:,} more labels")
    return table
