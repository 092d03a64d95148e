"""Adds the key `pages` to the paths in the command line of `bsmeta quick`."""

from __future__ import annotations

from collections.abc import Sequence

from bsmeta.config.override_values import format_override_value

_OPTIONS_WITH_VALUE = ("--config-name", "-cn", "--config-dir", "-cd", "--config-path", "-cp")


def name_pages(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with all paths joined to one argument, `pages=…`.

    A path is an argument without an equals sign that is neither an option nor the value of one. A
    shell expands `pages/*.jsonl` to several.
    """
    other_arguments = []
    paths = []
    previous = ""
    for argument in arguments:
        is_option = argument.startswith("-") or previous in _OPTIONS_WITH_VALUE
        is_value_of_help = argument == "all" and "--help" in arguments
        if is_option or is_value_of_help or "=" in argument:
            other_arguments.append(argument)
        else:
            paths.append(argument)
        previous = argument

    if not paths:
        return other_arguments
    value = paths[0] if len(paths) == 1 else paths
    return [*other_arguments, f"pages={format_override_value(value)}"]
