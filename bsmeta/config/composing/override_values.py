"""Formats Python values in the grammar of Hydra's overrides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from bsmeta.config.saved import change_texts, escape_interpolations
from bsmeta.core.errors import ConfigurationError


def format_override_value(value: Any) -> str:
    """Formats a value as an override writes it after `key=`.

    Texts are quoted and literal: a `${…}` in them is not resolved.

    Raises:
        ConfigurationError: If Hydra has no notation for the type of the value.
    """
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        return QuotedString(escape_interpolations(value), Quote.single).with_quotes()
    if isinstance(value, Mapping):
        escaped = change_texts(dict(value), escape_interpolations)
        return json.dumps(escaped, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(format_override_value, value))}]"

    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(float(value))  # also for numbers of numpy
    if isinstance(value, int):
        return repr(int(value))
    raise ConfigurationError(
        f"overrides: {value!r} is a {type(value).__name__}; expected a text, a number, true or "
        "false, None, or a list or mapping of them"
    )
