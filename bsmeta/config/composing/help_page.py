"""Formats `--help`: the keys of a schema with type, default, meaning and DeepSpeed counterpart.

`bsmeta.reference` writes the same into docs/configuration.md.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bsmeta.config.composing.groups import list_group_options
from bsmeta.config.composing.schema_types import describe_type, find_entry_schema
from bsmeta.core.keys import (
    Declaration,
    get_declaration,
    iterate_leaves,
    read_meanings,
    read_type_hints,
)

_MIN_COLUMNS = 40
"""Minimum width of the page, in characters."""

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
    """A key of a schema, as text.

    Attributes:
        name: The dotted name.
        type: The type, in the notation of messages.
        default: The default, in YAML's notation.
        meaning: The text that explains the key.
        declaration: The accepted values, heading and DeepSpeed counterpart.
        entry_schema: The schema of the entries of a list; None if they have none.
    """

    name: str
    type: str
    default: str
    meaning: str
    declaration: Declaration
    entry_schema: Any


def list_keys(schema: type) -> Iterator[Key]:
    """Yields the keys of a schema and its sections, in the order of declaration."""
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
            entry_schema=find_entry_schema(value_type),
        )


def list_sections(schema: type) -> list[tuple[str, list[Key]]]:
    """Lists the keys by heading: first the outermost keys by topic, then the keys of each section.

    The keys of the entries of a list (`schedule`) have a heading after that of the list's section.
    """
    sections: dict[str, list[Key]] = {}
    topic = "Keys"
    for key in list_keys(schema):
        section = key.name.rpartition(".")[0]
        topic = key.declaration.heading or topic
        sections.setdefault(f"`{section}`" if section else topic, []).append(key)
        if key.entry_schema is not None:
            sections[f"Entries of `{key.name}`"] = list(list_keys(key.entry_schema))

    inner_headings = [heading for heading in sections if heading.startswith(("`", "Entries"))]
    topics = [heading for heading in sections if heading not in inner_headings]
    return [(heading, sections[heading]) for heading in topics + inner_headings]


def format_help(schema: type, program: str, config_name: str, *, all_keys: bool = True) -> str:
    """Formats the page of `--help`.

    Args:
        program: The name of the program's file.
        config_name: The main configuration if the command line names none.
        all_keys: Whether to show every key (`--help all`); otherwise, the page of a training
            program shows only the keys that most runs set.
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
    """Describes the program's own keys, the keys that most runs set, and how to see the others."""
    keys = {key.name: key for key in list_keys(schema)}
    inherited_names: set[str] = set()
    for base in schema.__mro__[1:]:
        inherited_names.update(vars(base).get("__annotations__", {}))
    own_keys = [key for name, key in keys.items() if name.partition(".")[0] not in inherited_names]

    lines: list[str] = []
    own_keys_are_shown_below = any(key.name in MAIN_KEYS for key in own_keys)
    if not own_keys_are_shown_below:
        lines += _describe_keys(f"Keys of {program}", own_keys)
    main_keys = [keys[name] for name in MAIN_KEYS if name in keys]
    lines += _describe_keys("The keys that most runs set", main_keys)

    sections = list_sections(schema)
    headings = ", ".join(f"{heading} ({len(section_keys)})" for heading, section_keys in sections)
    lines.append(f"--help all shows all {len(keys)} keys: {headings.replace('`', '')}.")
    return lines


def _describe_keys(heading: str, keys: list[Key]) -> list[str]:
    """Describes keys below a heading, each with its meaning on a second line."""
    lines = [heading, "-" * len(heading)]
    for key in keys:
        twin = f"  [DeepSpeed: {key.declaration.deepspeed}]" if key.declaration.deepspeed else ""
        values = f"  ({key.declaration.values})" if key.declaration.values else ""
        lines.append(f"{key.name}: {key.type} = {key.default}{values}")
        lines.append(f"    {key.meaning}{twin}")
    return [*lines, ""]


def _format_yaml(value: Any) -> str:
    """Formats a default in YAML's notation of null and booleans."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def wrap_page(page: str) -> str:
    """Wraps the lines of a page at the width of the terminal; without one, returns it unchanged."""
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
