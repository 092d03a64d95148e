"""Hydra's errors as problems: mistakes in defaults lists, and in combinations of overrides."""

from __future__ import annotations

import re
from pathlib import Path

from hydra.errors import MissingConfigException

from bsmeta.config.groups import list_group_options
from bsmeta.config.hydra_files import ConfigReader, shorten_path
from bsmeta.config.misfits import HELP
from bsmeta.config.schema_types import format_schema_name
from bsmeta.core.errors import HYDRA, Problem, find_closest, format_value, suggest_nearest

# Advice on "+key=value" cannot work, because the schema is closed; the rest does not help a user.
_NOISE = (
    "To append", "Config search path", "provider=", "See https", "Error merging", "object_type",
    "reference_type", "full_key", "In '", "Check that it's in",
)  # fmt: skip


def explain_error(error: BaseException) -> str:
    """Returns Hydra's message and its cause in one line, without advice that cannot work here."""
    lines = dict.fromkeys(
        line.strip() for line in _join_messages(error).splitlines() if line.strip()
    )
    return "; ".join(line for line in lines if not line.startswith(_NOISE))


def _join_messages(error: BaseException) -> str:
    """Returns the messages of an error and of its cause."""
    return f"{error}\n{error.__cause__ or ''}"


def describe_problem_of_files(error: Exception, reader: ConfigReader, schema: type) -> Problem:
    """Returns the problem of a defaults list, or of a combination of overrides."""
    choice = re.search(r"You must specify '(.+?)'", _join_messages(error))
    if choice is not None:
        options = list_group_options().get(choice[1], ["NAME"])
        expected = f"a choice, which the files leave open (???): {', '.join(options)}"
        return Problem(choice[1], HYDRA, "none", expected, f"{choice[1]}={options[0]}")

    file = _find_file(error, reader)
    if not isinstance(error, MissingConfigException) or not error.missing_cfg_file:
        expected = "something that Hydra can compose"
        return Problem("defaults", file, explain_error(error), expected, f"correct it; {HELP}")

    group, _, option = error.missing_cfg_file.rpartition("/")
    if not group:
        suggestion = suggest_nearest(
            option, [*_list_files_beside(error, reader), format_schema_name(schema)]
        )
        expected = f"a file of a config folder, or a schema{suggestion}"
        return Problem("defaults", file, format_value(option), expected, "correct it, or delete it")

    options = [name.removesuffix(".yaml") for name in error.options or ()]
    if not options:
        groups = [*list_group_options()]
        expected = f"one of the groups {', '.join(groups)}{suggest_nearest(group, groups)}"
        fix = f"- {find_closest(group, groups)}: {option}"
        return Problem("defaults", file, format_value(f"{group}: {option}"), expected, fix)

    expected = f"one of {', '.join(options)}{suggest_nearest(option, options)}"
    return Problem(
        group, file, format_value(option), expected, f"- {group}: {find_closest(option, options)}"
    )


def _find_named_file(error: Exception) -> str | None:
    """Returns the name of the file that Hydra's message names, such as `job` or `model/gpt2`."""
    match = re.search(r"In '(.+?)'", _join_messages(error))
    return match[1] if match is not None else None


def _find_file(error: Exception, reader: ConfigReader) -> str:
    """Returns the file that Hydra's message names."""
    name = _find_named_file(error)
    if name is None:
        return "the configuration"
    for file in reader.files:
        if str(file.with_suffix("")).endswith(f"/{name}"):
            return shorten_path(file)
    return f"{name}.yaml"


def _list_files_beside(error: Exception, reader: ConfigReader) -> list[str]:
    """Lists the configurations beside the file with the mistake, the last one that was read."""
    if _find_named_file(error) is None:
        return []
    folder: Path = [*reader.files][-1].parent
    return [path.stem for path in folder.glob("*.yaml")]
