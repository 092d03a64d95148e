"""Reports duplicates and copies of held-out pages without making shards (`duplicates_only=true`).

The input may also be finished shards. The duplicates are listed in `duplicates.jsonl`, and a
copy of a held-out page is an error, so that a script stops before it trains on the shards.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bsmeta.annotate.decisions import EXACT, HELD_OUT, NEAR, read_duplicates
from bsmeta.annotate.inputs.sources import InputFile, format_count
from bsmeta.annotate.shard import ShardFiles
from bsmeta.core.errors import DataError
from bsmeta.core.files import replace_atomically
from bsmeta.core.terminal import Console
from bsmeta.report.page import COUNT, Column, Table, print_table

LIST_FILE = "duplicates.jsonl"
_MAX_SHOWN_COPIES = 3  # in the error


def report_duplicates(
    files: Sequence[InputFile], output: Path, damaged: Sequence[str], console: Console
) -> None:
    """Prints the number of duplicates in each file, and lists the duplicates in `LIST_FILE`.

    Args:
        damaged: A message for each file that could not be read.

    Raises:
        DataError: If pages copy held-out pages, or files are damaged.
    """
    counts = _list_duplicates(files, output)
    columns = [Column("input"), *(Column(kind, COUNT) for kind in (EXACT, NEAR, HELD_OUT))]
    table = Table("Duplicates", "", columns)
    for name, file_counts in counts.items():
        table.rows.append([name, file_counts[EXACT], file_counts[NEAR], file_counts[HELD_OUT]])
    total = sum(counts.values(), Counter())
    table.rows.append(["all files", total[EXACT], total[NEAR], total[HELD_OUT]])
    print_table(console, table)
    console.print(f"written to {output / LIST_FILE}", highlight=False, soft_wrap=True)

    problems = list(damaged)
    if total[HELD_OUT]:
        problems.append(_describe_copies(files, output, total[HELD_OUT]))
    if problems:
        raise DataError("\n".join(problems))


def _list_duplicates(files: Sequence[InputFile], output: Path) -> dict[str, Counter[str]]:
    """Writes the duplicates of all files as JSON lines; returns the counts of kinds by file."""
    counts: dict[str, Counter[str]] = {}
    with replace_atomically(output / LIST_FILE) as part, part.open("w", encoding="utf-8") as lines:
        for file in files:
            _, duplicates = read_duplicates(ShardFiles(output, file.name).duplicates)
            counts[file.name] = Counter(duplicate.kind for duplicate in duplicates)
            for duplicate in duplicates:
                line = {
                    "page": f"{file.name}:{duplicate.number}",
                    "kind": duplicate.kind,
                    "kept": duplicate.kept,
                    "similarity": duplicate.similarity,
                }
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
    return counts


def _describe_copies(files: Sequence[InputFile], output: Path, count: int) -> str:
    """Returns the error message about copies of held-out pages, with the first few of them.

    Args:
        count: Total number of copies.
    """
    examples: list[str] = []
    for file in files:
        _, duplicates = read_duplicates(ShardFiles(output, file.name).duplicates)
        examples += [
            f"{file.name}:{duplicate.number} of {duplicate.kept} ({duplicate.similarity:.2f})"
            for duplicate in duplicates
            if duplicate.kind == HELD_OUT
        ]
        if len(examples) >= _MAX_SHOWN_COPIES:
            break

    copies = ", ".join(examples[:_MAX_SHOWN_COPIES])
    num_others = count - _MAX_SHOWN_COPIES
    if num_others > 0:
        copies += f" and {num_others:,} more"
    verb = "copies a page" if count == 1 else "copy pages"
    return (
        f"input: {format_count(count, 'page')} {verb} of held_out: {copies}; expected none. "
        f"{output / LIST_FILE} has them all; to make shards without them, annotate the input with "
        "the same held_out, and without duplicates_only"
    )
