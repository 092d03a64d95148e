"""Makes overrides of arguments that are not in Hydra's grammar: `bsmeta quick pages.jsonl`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bsmeta.config.composing.override_values import format_override_value

_QUOTED = re.compile(r"""(['"])(?:(?!\1)[^\\]|\\.)*\1""", re.DOTALL)
"""A value that is quoted as a whole, in Hydra's grammar."""

_OPTIONS_WITH_VALUE = ("--config-name", "-cn", "--config-dir", "-cd", "--config-path", "-cp")


def name_positional(arguments: Sequence[str], key: str) -> list[str]:
    """Returns the arguments with all positional ones joined to one argument, `key=…`.

    A positional argument has no equals sign, and is neither an option nor the value of one. A shell
    expands `pages/*.jsonl` to several.
    """
    other_arguments = []
    values = []
    previous = ""
    for argument in arguments:
        is_option = argument.startswith("-") or previous in _OPTIONS_WITH_VALUE
        is_value_of_help = argument == "all" and "--help" in arguments
        if is_option or is_value_of_help or "=" in argument:
            other_arguments.append(argument)
        else:
            values.append(argument)
        previous = argument

    if not values:
        return other_arguments
    value = values[0] if len(values) == 1 else values
    return [*other_arguments, f"{key}={format_override_value(value)}"]


def quote_text(arguments: Sequence[str], key: str) -> list[str]:
    """Returns the arguments with the value of `key` quoted, so that Hydra takes it literally.

    A text may then have commas and brackets. A value in quotes of Hydra's grammar stays unchanged.
    """
    return [_quote_value(argument, key) for argument in arguments]


def _quote_value(argument: str, key: str) -> str:
    """Returns an argument, with its value quoted if it sets `key`."""
    name, equals_sign, value = argument.partition("=")
    if name != key or not equals_sign or _QUOTED.fullmatch(value) or value == "null":
        return argument
    return f"{name}={format_override_value(value)}"
