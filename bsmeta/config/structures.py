"""Schemas as OmegaConf's structures, which stay writable until they are made into an instance.

The schemas are frozen, and OmegaConf makes the structure of a frozen dataclass read-only. While a
configuration is composed, its values are set one by one.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from bsmeta.config.schema_types import find_entry_schema
from bsmeta.core.keys import read_type_hints


def open_structure(schema: Any) -> DictConfig:
    """Returns the writable structure of a schema, or of an instance with its values."""
    if isinstance(schema, type):
        return copy.deepcopy(_build_structure(schema))

    structure = OmegaConf.structured(schema)
    unlock(structure)
    return structure


@cache
def _build_structure(schema: type) -> DictConfig:
    """Builds the structure of a schema, to be copied: a copy takes a sixth of the time."""
    structure = OmegaConf.structured(schema)
    unlock(structure)
    return structure


def merge_into_structure(schema: type, values: Mapping[str, Any]) -> DictConfig:
    """Returns the structure of a schema with the values of a mapping.

    Raises:
        OmegaConfBaseException: If a key is unknown, or a value does not fit.
    """
    structure = open_structure(schema)
    for name, value_type in read_type_hints(schema).items():
        section = find_entry_schema(value_type)
        entries = values.get(name)
        # OmegaConf would create the entries itself, read-only, and refuse to merge into them.
        if section and typing.get_origin(value_type) is dict and isinstance(entries, Mapping):
            sections = [entry for entry in entries if isinstance(entries[entry], Mapping)]
            structure[name] = {entry: OmegaConf.structured(section) for entry in sections}

    unlock(structure)
    merged = OmegaConf.merge(structure, values)
    assert isinstance(merged, DictConfig)
    return merged


def unlock(node: DictConfig | ListConfig) -> None:
    """Makes a node writable, with the sections in it, its lists and its mappings."""
    OmegaConf.set_readonly(node, None)
    names = list(node) if isinstance(node, DictConfig) else range(len(node))
    for name in names:
        if OmegaConf.is_interpolation(node, name) or OmegaConf.is_missing(node, name):
            continue
        entry = node[name]
        if OmegaConf.is_config(entry):
            unlock(entry)
