"""Refuses keys that a program does not use in one of its modes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from bsmeta.core.errors import ConfigurationError


def refuse_unused_keys(config: Any, used_keys: Collection[str], purpose: str) -> None:
    """Refuses keys that are set although a purpose does not use them.

    Args:
        used_keys: The keys that the purpose uses.
        purpose: Its name in messages, such as `mode=text`.

    Raises:
        ConfigurationError: Naming the unused keys.
    """
    default = type(config)()
    unused_keys = [
        field.name
        for field in dataclasses.fields(config)
        if field.name not in used_keys
        and getattr(config, field.name) != getattr(default, field.name)
    ]
    if unused_keys:
        raise ConfigurationError(
            f"{', '.join(unused_keys)}: no effect with {purpose}; expected some of "
            f"{', '.join(used_keys)}"
        )
