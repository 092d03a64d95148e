"""Converts configurations of Bootleg, both generations (seed documents 000 and 001), into ours.

    python -m bsmeta.tasks.disambiguation.converter wiki_config.json --out configs/wiki.yaml

prints what each key becomes, or why nothing corresponds to it, and writes the YAML, with which
`bsmeta/train.py --config-dir configs --config-name wiki` trains.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bsmeta.config.errors import ConfigurationError, UserError
from bsmeta.tasks.disambiguation.converter_rules import FIRST, SECOND, Converted, Source

HEADER = """\
# Converted from {source} by python -m bsmeta.tasks.disambiguation.converter
defaults:
  - disambiguation_config
  - _self_
  - optimizer: null
  - schedule: null

"""


@dataclass(frozen=True)
class Row:
    """What a key of the old configuration became.

    Attributes:
        key: The dotted key.
        value: Its value.
        ours: Our keys and their values; empty if nothing corresponds to it.
        note: What else there is to know: what it means, or why nothing corresponds to it.
    """

    key: str
    value: Any
    ours: tuple[tuple[str, Any], ...]
    note: str


def convert(config: Mapping[str, Any]) -> list[Row]:
    """What each key of a configuration becomes.

    Args:
        config: The configuration; with the block `emmental`, it is of the second generation.

    Raises:
        ConfigurationError: If a value cannot be converted.
    """
    source = Source(dict(_leaves(config)), is_first="emmental" not in config)
    rules = FIRST if source.is_first else SECOND
    rows = []
    for key, value in source.values.items():
        rule = next((rules[name] for name in _names(key) if name in rules), _unknown)
        converted = rule(value, source)
        rows.append(Row(key, value, converted.ours, converted.note))
    implied = source.implied()
    return rows + [Row("", "", (pair,), "not stated there") for pair in implied]


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and name != "checkpoint_metric":
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _names(key: str) -> Iterator[str]:
    """The rules that a key may have: its own, then those of the blocks around it."""
    yield key
    while "." in key:
        key = key.rpartition(".")[0]
        yield f"{key}.*"


def _unknown(value: Any, source: Source) -> Converted:
    return Converted((), "unknown here; see whether you need it")


def as_yaml(rows: list[Row], source: str) -> str:
    """Our configuration.

    Raises:
        ConfigurationError: If two keys become one with different values.
    """
    found: dict[str, Any] = {}
    for row in rows:
        for name, value in row.ours:
            if found.setdefault(name, value) != value:
                raise ConfigurationError(
                    f"{row.key}={row.value!r} becomes {name}={value!r}, but another key makes it "
                    f"{found[name]!r}; leave one of them out"
                )
    nested: dict[str, Any] = {}
    for name in sorted(found, key=lambda name: ("." in name, name)):
        *sections, last = name.split(".")
        section = nested
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = found[name]
    return HEADER.format(source=source) + yaml.safe_dump(nested, sort_keys=False)


def as_table(rows: list[Row]) -> Table:
    """The rows, for the terminal."""
    table = Table(show_lines=True)
    table.add_column("key", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("becomes", overflow="fold")
    for row in rows:
        lines = [f"{name}={_shown(value)}" for name, value in row.ours] or ["–"]
        cells = (row.key, _shown(row.value), "\n".join([*lines, *filter(None, [row.note])]))
        table.add_row(*map(escape, cells))
    return table


def _shown(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def main(arguments: list[str]) -> int:
    """Prints the rows and writes the YAML; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, help="JSON or YAML file of Bootleg")
    parser.add_argument("--out", type=Path, help="our YAML file")
    chosen = parser.parse_args(arguments)
    try:
        rows = convert(_read(chosen.config))
        text = as_yaml(rows, chosen.config.name)
        Console().print(as_table(rows))
        if chosen.out is not None:
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            chosen.out.write_text(text)
            print(f"written to {chosen.out}")
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text())  # JSON is YAML
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is neither JSON nor YAML: {error}") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path}: expected blocks of keys, such as data_config")
    return config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
