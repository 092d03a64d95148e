"""The schema as text: every key with its type, default, meaning and DeepSpeed counterpart.

The single source of `--help` and of docs/configuration.md.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.keys import About, about, key_names, leaves, type_hints

PARTS = "parts"
"""The folder of `hydra_configs/` that is not a group: its files are for `${from_file:…}`."""

# The keys of `--help`: those that most runs set.
MAIN = (
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


@dataclass(frozen=True)
class Key:
    """One key of the schema: its dotted name, its type and default as text, and all about it."""

    name: str
    type: str
    default: str
    about: About
    entries: Any  # the dataclass of the entries of a list


def keys(schema: type) -> Iterator[Key]:
    """Yields the leaves of the schema, in declaration order."""
    for name, section, field in leaves(schema()):
        owner: Any = type(section)
        kind = type_hints(owner)[field.name]
        default = _text(getattr(section, field.name))
        yield Key(name, type_name(kind), default, about(field), entries_of(kind))


def group_options() -> dict[str, list[str]]:
    """The groups of `hydra_configs/` (`model=…`, `+recipes=…`) and what each offers."""
    folders = sorted(
        path for path in CONFIG_FOLDER.iterdir() if path.is_dir() and path.name != PARTS
    )
    return {path.name: sorted(file.stem for file in path.glob("*.yaml")) for path in folders}


def suggestion(name: str, schema: type) -> str | None:
    """The key or group most similar to a misspelled one; None if none is."""
    leaf = name.rsplit(".", 1)[-1]
    full = {name.rsplit(".", 1)[-1]: name for name in reversed(key_names(schema))}
    full |= {group: group for group in group_options()}
    near = difflib.get_close_matches(leaf, full, n=1)
    if not near or full[near[0]] == name:
        return None
    return full[near[0]]


def sections(schema: type) -> list[tuple[str, list[Key]]]:
    """The keys under headings: the outermost ones by topic, then each section under its name.

    The entries of a list of dataclasses (`schedule`) form a section, too, placed after the list's.
    """
    parts: dict[str, list[Key]] = {}
    heading = "Keys"
    for name in keys(schema):
        section = name.name.rpartition(".")[0]
        heading = name.about.heading or heading
        parts.setdefault(f"`{section}`" if section else heading, []).append(name)
        if name.entries is not None:
            parts[f"Entries of `{name.name}`"] = list(keys(name.entries))
    return sorted(parts.items(), key=lambda part: part[0].startswith(("`", "Entries")))


def describe(schema: type, program: str, config_name: str, *, whole: bool = True) -> str:
    """The text of `--help`; docs/configuration.md holds the same (bsmeta.reference).

    Args:
        whole: Whether to show every key (`--help all`) or only those that most runs set.
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
        lines += [f"    {name}={' | '.join(found)}" for name, found in group_options().items()]
        lines.append("")
    if is_training and not whole:
        named = {key.name: key for key in keys(schema)}
        inherited = {
            name for base in schema.__mro__[1:] for name in vars(base).get("__annotations__", {})
        }
        own = [key for name, key in named.items() if name.partition(".")[0] not in inherited]
        if not {key.name for key in own} & {*MAIN}:
            lines += _listed(f"Keys of {program}", own)
        main = [named[name] for name in MAIN if name in named]
        lines += _listed("The keys that most runs set", main)
        rest = ", ".join(f"{heading} ({len(found)})" for heading, found in sections(schema))
        lines.append(f"--help all shows all {len(named)} keys: {rest.replace('`', '')}.")
        return "\n".join(lines)
    for heading, found in sections(schema):
        lines += _listed(heading.replace("`", ""), found)
    return "\n".join(lines)


def _listed(heading: str, found: list[Key]) -> list[str]:
    """Lists keys below their heading, each with its meaning on a second line."""
    lines = [heading, "-" * len(heading)]
    for line in found:
        twin = f"  [DeepSpeed: {line.about.deepspeed}]" if line.about.deepspeed else ""
        values = f"  ({line.about.values})" if line.about.values else ""
        lines.append(f"{line.name}: {line.type} = {line.default}{values}")
        lines.append(f"    {line.about.meaning}{twin}")
    return [*lines, ""]


def type_name(kind: Any) -> str:
    """A type as a user reads it: `int`, `list[str]`, `str | None`."""
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(kind))


def entries_of(kind: Any) -> type | None:
    """The dataclass that a list holds, if it holds one."""
    options = [argument for argument in typing.get_args(kind) if isinstance(argument, type)]
    return next(filter(dataclasses.is_dataclass, options), None)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
