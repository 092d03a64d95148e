"""Refuses keys that a program does not use in its current mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from bsmeta.core.errors import ConfigurationError


def refuse_unused_keys(config: Any, used_keys: Collection[str], purpose: str) -> None:
    """Refuses keys that have another value than their default, but no effect.

    Args:
        used_keys: The keys that have an effect.
        purpose: The mode in which only these have an effect, for messages: `mode=text`.

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
