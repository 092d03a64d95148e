"""Trains with a configuration of Bootleg: `train.py --config_script wiki_config.json key=value …`.

The option is replaced by our keys, as the converter finds them, and the entity table is built if it
is missing. Keys on the command line count instead of the converted ones.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bsmeta.config.composing.override_values import format_override_value
from bsmeta.config.composing.overrides import extract_key
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import hold_write_lock
from bsmeta.core.rank import read_rank
from bsmeta.tasks.disambiguation.converter import (
    BootlegConfig,
    convert_keys,
    format_rows,
    list_entity_files,
    merge_rows,
    read_config,
)

OPTION = "--config_script"
_CONFIG_NAME = "disambiguation_config"  # the schema: scripts state what they change of its defaults
_HYDRA_FILES = ("--config-name", "-cn", "--config-dir", "-cd", "--config-path", "-cp")
_TABLE_KEY = "data_config.entity_table"
_NOTHING_BUILT = ("check_only=true", "estimate=true")


def apply_config_script() -> None:
    """Replaces the option of this process's command line by our keys, and prints what they mean.

    Raises:
        ConfigurationError: If the file is missing or cannot be converted, or the command line names
            another configuration, too.
        DataError: If the entity files cannot be read.
    """
    path, others = _take_option(sys.argv[1:])
    config = read_config(path)
    rows = convert_keys(config)
    if read_rank() == 0:
        print(f"{path}: each key with its replacement\n{format_rows(rows)}", flush=True)

    given = {extract_key(text): text.partition("=")[2] for text in others if "=" in text}
    converted = {name: value for name, value in merge_rows(rows).items() if name not in given}
    if not {*_NOTHING_BUILT} & {*others}:
        table = given.get(_TABLE_KEY, converted.get(_TABLE_KEY))
        _build_missing_table(BootlegConfig(config), table)

    overrides = [f"{name}={format_override_value(value)}" for name, value in converted.items()]
    sys.argv[1:] = ["--config-name", _CONFIG_NAME, *overrides, *others]


def _take_option(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Splits a command line into the file that the option names, and all other arguments.

    Raises:
        ConfigurationError: If the file is not named, or named beside another configuration.
    """
    paths: list[str] = []
    others: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name == OPTION:
            paths.append(value if equals else next(remaining, ""))
        elif name in _HYDRA_FILES:
            raise ConfigurationError(
                f"{OPTION} and {name} are given; expected one of them. Fix: leave out {name}, or "
                f"convert the file (docs/migrating.md)"
            )
        else:
            others.append(argument)

    if len(paths) != 1 or not paths[0]:
        raise ConfigurationError(f"{OPTION}: expected one file, as in {OPTION} wiki_config.json")
    return Path(paths[0]), others


def _build_missing_table(source: BootlegConfig, table: str | None) -> None:
    """Builds the entity table from the files that the script names, unless it exists.

    One process of a machine builds it while the others wait.
    """
    if table is None:  # reported with the other missing keys
        return

    from bsmeta.tasks.disambiguation.entity_files import Sources, build_from_files

    folder = Path(table)
    entity_dir = Path(str(source.get("data_config.entity_dir")))
    if not folder.exists() and not entity_dir.is_dir():
        raise ConfigurationError(
            f"data_config.entity_dir={entity_dir}: there is no such folder; expected the entity "
            f"files of Bootleg, to build {_TABLE_KEY}={folder} from. Fix: correct it in the "
            f"script, or name a table that is built: {_TABLE_KEY}=FOLDER",
            [_TABLE_KEY],
        )

    lock = folder.with_name(f"{folder.name}.building.lock")
    with hold_write_lock(folder, f"the table {folder}", lock):
        if not folder.exists():
            emb_dir = source.get("data_config.emb_dir") if source.is_first_generation else None
            files = list_entity_files(source)
            sources = Sources(
                entity_dir,
                None if emb_dir is None else Path(str(emb_dir)),
                files["types"] or None,
                files["relations"] or None,
            )
            print(f"{folder}: {build_from_files(sources, folder).summary()}", flush=True)
