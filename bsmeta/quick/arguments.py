"""The command line of `bsmeta quick`, on which paths of pages need no key."""

from __future__ import annotations

from collections.abc import Sequence

from bsmeta.config.override_values import format_override_value

_OPTIONS_WITH_VALUE = ("--config-name", "-cn", "--config-dir", "-cd", "--config-path", "-cp")


def name_pages(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments, with those that are paths as the value of `pages`.

    A path is an argument without an equals sign that is neither an option nor the value of one,
    such as each of those into which a shell expands `pages/*.jsonl`.
    """
    named = []
    paths = []
    previous = ""
    for argument in arguments:
        is_option = argument.startswith("-") or previous in _OPTIONS_WITH_VALUE
        is_value_of_help = argument == "all" and "--help" in arguments
        if is_option or is_value_of_help or "=" in argument:
            named.append(argument)
        else:
            paths.append(argument)
        previous = argument

    if paths:
        value = paths[0] if len(paths) == 1 else paths
        named.append(f"pages={format_override_value(value)}")
    return named
