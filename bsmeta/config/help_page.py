"""`--help`: every key of a schema with its type, default, meaning and DeepSpeed counterpart.

docs/configuration.md shows the same (`bsmeta.reference`).
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bsmeta.config.groups import list_group_options
from bsmeta.config.schema_types import describe_type, find_entry_schema
from bsmeta.core.keys import (
    Declaration,
    get_declaration,
    iterate_leaves,
    read_meanings,
    read_type_hints,
)

_MIN_COLUMNS = 40  # columns of a page of help

MAIN_KEYS = (
    "data_config.train_file",
    "data_config.validation_file",
    "data_config.metadata_config.metadata_list",
    "data_config.metadata_config.metadata_probability",
    "data_config.metadata_config.max_seq_len",
    "data_config.per_device_train_batch_size",
    "data_config.num_workers",
    "model_name",
    "model_config_file",
    "learning_rate",
    "num_warmup_steps",
    "max_train_steps",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "mixed_precision",
    "seed",
    "out_dir",
    "resume_from_checkpoint_dir",
    "eval_steps",
    "save_steps",
)
"""The keys that `--help` shows without `all`: most runs set them."""


@dataclass(frozen=True)
class Key:
    """A key of a schema.

    Attributes:
        name: The dotted name.
        type: The type as text.
        default: The default as text.
        entries: The schema of the entries of a list; None if they have none.
    """

    name: str
    type: str
    default: str
    meaning: str
    declaration: Declaration
    entries: Any


def list_keys(schema: type) -> Iterator[Key]:
    """Yields the leaves of the schema, in declaration order."""
    for name, section, field in iterate_leaves(schema()):
        owner: Any = type(section)
        value_type = read_type_hints(owner)[field.name]
        declaration = get_declaration(field)
        yield Key(
            name=name,
            type=describe_type(value_type),
            default=_format_yaml(getattr(section, field.name)),
            meaning=declaration.meaning or read_meanings(owner).get(field.name, ""),
            declaration=declaration,
            entries=find_entry_schema(value_type),
        )


def list_sections(schema: type) -> list[tuple[str, list[Key]]]:
    """Lists the keys under headings: the outermost ones by topic, then each section by its name.

    The entries of a list of dataclasses (`schedule`) form a section, too, placed after the list's.
    """
    sections: dict[str, list[Key]] = {}
    topic = "Keys"
    for key in list_keys(schema):
        section = key.name.rpartition(".")[0]
        topic = key.declaration.heading or topic
        sections.setdefault(f"`{section}`" if section else topic, []).append(key)
        if key.entries is not None:
            sections[f"Entries of `{key.name}`"] = list(list_keys(key.entries))

    def is_inner(section: tuple[str, list[Key]]) -> bool:
        heading, _ = section
        return heading.startswith(("`", "Entries"))

    return sorted(sections.items(), key=is_inner)  # the topics first, otherwise in their order


def format_help(schema: type, program: str, config_name: str, *, all_keys: bool = True) -> str:
    """Formats the page of `--help`.

    Args:
        all_keys: Whether to show every key (`--help all`), or only those that most runs set.
    """
    lines = [
        f"usage: {program} [--config-name NAME] [key=value ...]",
        "",
        f"NAME is a file of hydra_configs/ (default: {config_name}). Hydra's own options work too",
        "(--multirun, --cfg job, --info). A key with a DeepSpeed twin owns it: the DeepSpeed JSON",
        'says "auto" or the same value. A value may hold ${oc.env:VARIABLE,default},',
        "${from_file:PATH} and ${other.key}.",
        "",
    ]
    is_training = "RunConfig" in {base.__name__ for base in schema.__mro__}
    if is_training:
        lines.append("groups, which set several keys at once (recipes with a +):")
        for name, options in list_group_options().items():
            lines.append(f"    {name}={' | '.join(options)}")
        lines.append("")

    if is_training and not all_keys:
        lines += _describe_main_keys(schema, program)
    else:
        for heading, keys in list_sections(schema):
            lines += _describe_keys(heading.replace("`", ""), keys)
    return "\n".join(lines)


def _describe_main_keys(schema: type, program: str) -> list[str]:
    """Lists the keys that most runs set, the program's own keys, and the headings of the rest."""
    keys = {key.name: key for key in list_keys(schema)}
    inherited: set[str] = set()
    for base in schema.__mro__[1:]:
        inherited |= {*vars(base).get("__annotations__", {})}
    own_keys = [key for name, key in keys.items() if name.partition(".")[0] not in inherited]

    lines = []
    if not {key.name for key in own_keys} & {*MAIN_KEYS}:
        lines += _describe_keys(f"Keys of {program}", own_keys)
    main_keys = [keys[name] for name in MAIN_KEYS if name in keys]
    lines += _describe_keys("The keys that most runs set", main_keys)

    sections = list_sections(schema)
    headings = ", ".join(f"{heading} ({len(members)})" for heading, members in sections)
    lines.append(f"--help all shows all {len(keys)} keys: {headings.replace('`', '')}.")
    return lines


def _describe_keys(heading: str, keys: list[Key]) -> list[str]:
    """Lists keys below their heading, each with its meaning on a second line."""
    lines = [heading, "-" * len(heading)]
    for key in keys:
        twin = f"  [DeepSpeed: {key.declaration.deepspeed}]" if key.declaration.deepspeed else ""
        values = f"  ({key.declaration.values})" if key.declaration.values else ""
        lines.append(f"{key.name}: {key.type} = {key.default}{values}")
        lines.append(f"    {key.meaning}{twin}")
    return [*lines, ""]


def _format_yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def wrap_page(page: str) -> str:
    """Folds a page to the width of the terminal; returns it unchanged where there is none."""
    if not (sys.stdout.isatty() or "COLUMNS" in os.environ):
        return page

    width = max(shutil.get_terminal_size().columns, _MIN_COLUMNS)
    lines = []
    for line in page.split("\n"):
        if len(line) > width:
            indent = len(line) - len(line.lstrip())
            line = textwrap.fill(
                line,
                width,
                subsequent_indent=" " * (indent + 4),
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines.append(line)
    return "\n".join(lines)
