"""Changes values of frozen configurations, by copying them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from bsmeta.core.keys import get_declaration, iterate_leaves

Section = TypeVar("Section")


def replace_values(section: Section, values: Mapping[str, Any]) -> Section:
    """Returns a copy of a configuration with other values for some keys.

    Args:
        section: A dataclass, or a list or mapping of dataclasses.
        values: The new values by dotted key, as `iterate_leaves` names them.

    Raises:
        TypeError: If a dataclass has no such key.
    """
    changes: dict[str, Any] = {}
    changes_in_sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        if rest:
            changes_in_sections.setdefault(first, {})[rest] = value
        else:
            changes[first] = value

    for first, section_values in changes_in_sections.items():
        changes[first] = replace_values(_get_entry(section, first), section_values)

    if isinstance(section, list):
        return cast(
            Section, [changes.get(str(index), entry) for index, entry in enumerate(section)]
        )
    if isinstance(section, dict):
        return cast(Section, section | changes)
    return replace(cast(Any, section), **changes)


def _get_entry(section: Any, name: str) -> Any:
    """Returns an entry of a list or mapping, or a field of a dataclass."""
    if isinstance(section, list):
        return section[int(name)]
    if isinstance(section, dict):
        return section[name]
    return getattr(section, name)


def expand_home(section: Section) -> tuple[Section, list[tuple[str, str]]]:
    """Expands a leading `~` in every path of a configuration.

    Returns:
        The changed configuration, and the dotted key and the value of each path that names an
        unknown user.
    """
    expanded: dict[str, Any] = {}
    unknown_users: list[tuple[str, str]] = []
    for name, owner, schema_field in iterate_leaves(section):
        value = getattr(owner, schema_field.name)
        if not get_declaration(schema_field).is_path or value is None:
            continue

        paths = value if isinstance(value, list) else [value]
        new_paths = [os.path.expanduser(path) if isinstance(path, str) else path for path in paths]
        unknown_users += [(name, path) for path in new_paths if str(path).startswith("~")]
        if new_paths != paths:
            expanded[name] = new_paths if isinstance(value, list) else new_paths[0]

    return replace_values(section, expanded), unknown_users
