"""`prep_only=true`: reads the table into its database, shows what is in it, and stops."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bsmeta.config.classification import ClassificationConfig
from bsmeta.config.reporting import rank
from bsmeta.data.text.tokenizer import tokenizer_of
from bsmeta.tasks.classification.examples import Examples
from bsmeta.tasks.classification.splits import SPLITS
from bsmeta.tasks.classification.store import open_examples
from bsmeta.training.signals import release_signals

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
