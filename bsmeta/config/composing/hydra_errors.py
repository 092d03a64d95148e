"""Converts Hydra's errors to problems: mistakes in defaults lists and combined overrides."""

from __future__ import annotations

import re
from pathlib import Path

from hydra.errors import MissingConfigException

from bsmeta.config.composing.groups import list_group_options
from bsmeta.config.composing.hydra_files import ConfigReader, shorten_path
from bsmeta.config.composing.misfits import HELP_ADVICE
from bsmeta.config.composing.schema_types import format_schema_name
from bsmeta.core.errors import HYDRA, Problem, find_closest, format_value, suggest_nearest

# Beginnings of lines to leave out. Advice to use "+key=value" cannot work, because the schema has a
# fixed set of keys; the other lines do not help a user.
_UNHELPFUL_LINES = (
    "To append", "Config search path", "provider=", "See https", "Error merging", "object_type",
    "reference_type", "full_key", "In '", "Check that it's in",
)  # fmt: skip


def explain_error(error: BaseException) -> str:
    """Returns the messages of Hydra's error and its cause in one line, without useless advice."""
    stripped_lines = [line.strip() for line in _join_messages(error).splitlines()]
    lines = dict.fromkeys(line for line in stripped_lines if line)
    return "; ".join(line for line in lines if not line.startswith(_UNHELPFUL_LINES))


def _join_messages(error: BaseException) -> str:
    """Returns the message of an error, and of its cause if it has one, on separate lines."""
    return f"{error}\n{error.__cause__ or ''}"


def describe_problem_of_files(error: Exception, reader: ConfigReader, schema: type) -> Problem:
    """Returns the problem of a defaults list, or of a combination of overrides.

    Args:
        error: The error with which Hydra refuses to compose.
        reader: The reader of the files that Hydra has read.
        schema: The schema of the configuration.
    """
    choice = re.search(r"You must specify '(.+?)'", _join_messages(error))
    if choice is not None:
        group = choice[1]
        options = list_group_options().get(group, ["NAME"])
        expected = f"a choice, which the files leave open (???): {', '.join(options)}"
        return Problem(group, HYDRA, "none", expected, f"{group}={options[0]}")

    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _describe_missing_entry(error, error.missing_cfg_file, reader, schema)
    expected = "something that Hydra can compose"
    fix = f"correct it; {HELP_ADVICE}"
    return Problem("defaults", _find_file(error, reader), explain_error(error), expected, fix)


def _describe_missing_entry(
    error: MissingConfigException, entry: str, reader: ConfigReader, schema: type
) -> Problem:
    """Returns the problem of an entry of a defaults list that does not exist.

    Args:
        entry: The entry, as `GROUP/OPTION` or the name of a file.
    """
    file = _find_file(error, reader)
    group, _, option = entry.rpartition("/")
    if not group:
        names = [*_list_files_beside(error, reader), format_schema_name(schema)]
        expected = f"a file of a config folder, or a schema{suggest_nearest(option, names)}"
        return Problem("defaults", file, format_value(option), expected, "correct it, or delete it")

    options = [name.removesuffix(".yaml") for name in error.options or ()]
    if not options:
        groups = list(list_group_options())
        expected = f"one of the groups {', '.join(groups)}{suggest_nearest(group, groups)}"
        fix = f"- {find_closest(group, groups)}: {option}"
        return Problem("defaults", file, format_value(f"{group}: {option}"), expected, fix)

    expected = f"one of {', '.join(options)}{suggest_nearest(option, options)}"
    fix = f"- {group}: {find_closest(option, options)}"
    return Problem(group, file, format_value(option), expected, fix)


def _find_named_file(error: Exception) -> str | None:
    """Returns the file in Hydra's message as the message names it, such as `model/gpt2`.

    Returns:
        None if the message names no file.
    """
    match = re.search(r"In '(.+?)'", _join_messages(error))
    return match[1] if match is not None else None


def _find_file(error: Exception, reader: ConfigReader) -> str:
    """Returns the path of the file in Hydra's message, or other words if it cannot be found."""
    name = _find_named_file(error)
    if name is None:
        return "the configuration"
    for file in reader.files:
        if str(file.with_suffix("")).endswith(f"/{name}"):
            return shorten_path(file)
    return f"{name}.yaml"


def _list_files_beside(error: Exception, reader: ConfigReader) -> list[str]:
    """Lists the configurations beside the file with the mistake, which was read last.

    Returns:
        An empty list if Hydra's message names no file.
    """
    if _find_named_file(error) is None:
        return []
    folder: Path = list(reader.files)[-1].parent
    return [path.stem for path in folder.glob("*.yaml")]
