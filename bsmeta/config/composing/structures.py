"""Creates writable OmegaConf structures of schemas.

The schemas are frozen, and OmegaConf makes the structure of a frozen dataclass read-only, but while
a configuration is composed, its values are set one by one.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from bsmeta.config.composing.schema_types import find_entry_schema
from bsmeta.core.keys import read_type_hints


def open_structure(schema: Any) -> DictConfig:
    """Returns the writable structure of a schema or, with its values, of an instance."""
    if isinstance(schema, type):
        return copy.deepcopy(_build_structure(schema))

    structure = OmegaConf.structured(schema)
    unlock(structure)
    return structure


@cache
def _build_structure(schema: type) -> DictConfig:
    """Builds the structure of a schema; copying it takes only a sixth of the time."""
    structure = OmegaConf.structured(schema)
    unlock(structure)
    return structure


def merge_into_structure(schema: type, values: Mapping[str, Any]) -> DictConfig:
    """Returns the writable structure of a schema with the values of a mapping.

    Raises:
        OmegaConfBaseException: If a key is unknown, or a value does not fit.
    """
    structure = open_structure(schema)
    for name, value_type in read_type_hints(schema).items():
        entry_schema = find_entry_schema(value_type)
        entries = values.get(name)
        if entry_schema is None or typing.get_origin(value_type) is not dict:
            continue

        # OmegaConf would itself create read-only entries, and then refuse to merge into them.
        if isinstance(entries, Mapping):
            sections = [entry for entry, value in entries.items() if isinstance(value, Mapping)]
            structure[name] = {entry: OmegaConf.structured(entry_schema) for entry in sections}

    unlock(structure)
    merged = OmegaConf.merge(structure, values)
    assert isinstance(merged, DictConfig)
    return merged


def unlock(node: DictConfig | ListConfig) -> None:
    """Makes a node writable, and all sections, lists and mappings in it."""
    OmegaConf.set_readonly(node, None)
    names = list(node) if isinstance(node, DictConfig) else range(len(node))
    for name in names:
        if OmegaConf.is_interpolation(node, name) or OmegaConf.is_missing(node, name):
            continue
        entry = node[name]
        if OmegaConf.is_config(entry):
            unlock(entry)
