"""Converts configurations of Bootleg, of both generations, into ours.

    python -m bsmeta.tasks.disambiguation.converter wiki_config.json --out configs/wiki.yaml

prints what each key becomes, or why nothing corresponds to it, and writes the YAML, with which
`bsmeta/train.py --config-dir configs --config-name wiki` trains.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.tasks.disambiguation.converter_rules import FIRST, SECOND, Converted, Source

HEADER = """\
# Converted from {source} by python -m bsmeta.tasks.disambiguation.converter
defaults:
  - disambiguation_config
  - _self_
  - optimizer: null
  - schedule: null

"""

_JSON_PARTS = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)
"""Strings, and what JSON does not have: comments, and commas before a closing bracket."""
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""A number that YAML 1.1 takes for a text, such as 2e-5."""


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
    return rows + [Row("", None, (pair,), note) for pair, note in implied]


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and name != "checkpoint_metric":
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, str) and _EXPONENT.fullmatch(value):
            yield prefix + name, float(value)
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


def as_text(rows: list[Row]) -> str:
    """The rows: each key with its value, and indented what it becomes."""
    return "\n".join("\n    ".join([_stated(row), *_becomes(row)]) for row in rows)


def _stated(row: Row) -> str:
    return f"{row.key}={_shown(row.value)}" if row.key else "(not stated there)"


def _becomes(row: Row) -> list[str]:
    if not row.ours:
        return [f"-> nothing: {row.note}"]
    return [*(f"-> {name}={_shown(value)}" for name, value in row.ours), *filter(None, [row.note])]


def _shown(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()
    )


def main(arguments: list[str]) -> int:
    """Prints the rows and writes the YAML; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, help="JSON or YAML file of Bootleg")
    parser.add_argument("--out", type=Path, help="our YAML file")
    chosen = parser.parse_args(arguments)
    try:
        rows = convert(_read(chosen.config))
        text = as_yaml(rows, chosen.config.name)
        print(as_text(rows))
        if chosen.out is not None:
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            chosen.out.write_text(text)
            print(f"written to {chosen.out}")
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _read(path: Path) -> dict[str, Any]:
    """The content of a file: YAML, or JSON with comments.

    Raises:
        ConfigurationError: If it is neither.
    """
    text = path.read_text(encoding="utf-8")
    is_json = text.lstrip().startswith(("{", "//", "/*"))
    try:
        config = json.loads(_JSON_PARTS.sub(_as_json, text)) if is_json else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        form = "JSON" if is_json else "YAML"
        raise ConfigurationError(f"{path} is no {form}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path}: expected blocks of keys, such as data_config")
    return config


def _as_json(part: re.Match[str]) -> str:
    return part[0] if part[0].startswith('"') else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
