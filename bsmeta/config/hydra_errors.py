"""Hydra's errors as problems: mistakes in defaults lists, and in combinations of overrides."""

from __future__ import annotations

import re
from pathlib import Path

from hydra.errors import MissingConfigException

from bsmeta.config.groups import group_options
from bsmeta.config.hydra_files import ConfigReader, short_path
from bsmeta.config.misfits import HELP
from bsmeta.config.schema_types import store_name
from bsmeta.core.errors import HYDRA, Problem, closest, nearest, show

# Advice on "+key=value" cannot work, because the schema is closed; the rest does not help a user.
_NOISE = (
    "To append", "Config search path", "provider=", "See https", "Error merging", "object_type",
    "reference_type", "full_key", "In '", "Check that it's in",
)  # fmt: skip


def explain(error: BaseException) -> str:
    """Returns Hydra's message and its cause in one line, without advice that cannot work here."""
    lines = dict.fromkeys(line.strip() for line in _messages(error).splitlines() if line.strip())
    return "; ".join(line for line in lines if not line.startswith(_NOISE))


def _messages(error: BaseException) -> str:
    """Returns the messages of an error and of its cause."""
    return f"{error}\n{error.__cause__ or ''}"


def problem_of_files(error: Exception, reader: ConfigReader, schema: type) -> Problem:
    """Returns the problem of a defaults list, or of a combination of overrides."""
    choice = re.search(r"You must specify '(.+?)'", _messages(error))
    if choice is not None:
        options = group_options().get(choice[1], ["NAME"])
        expected = f"a choice, which the files leave open (???): {', '.join(options)}"
        return Problem(choice[1], HYDRA, "none", expected, f"{choice[1]}={options[0]}")

    file = _file_of(error, reader)
    if not isinstance(error, MissingConfigException) or not error.missing_cfg_file:
        expected = "something that Hydra can compose"
        return Problem("defaults", file, explain(error), expected, f"correct it; {HELP}")

    group, _, option = error.missing_cfg_file.rpartition("/")
    if not group:
        suggestion = nearest(option, [*_names_of_files(error, reader), store_name(schema)])
        expected = f"a file of a config folder, or a schema{suggestion}"
        return Problem("defaults", file, show(option), expected, "correct it, or delete it")

    options = [name.removesuffix(".yaml") for name in error.options or ()]
    if not options:
        groups = [*group_options()]
        expected = f"one of the groups {', '.join(groups)}{nearest(group, groups)}"
        fix = f"- {closest(group, groups)}: {option}"
        return Problem("defaults", file, show(f"{group}: {option}"), expected, fix)

    expected = f"one of {', '.join(options)}{nearest(option, options)}"
    return Problem(group, file, show(option), expected, f"- {group}: {closest(option, options)}")


def _named_file(error: Exception) -> str | None:
    """Returns the name of the file that Hydra's message names, such as `job` or `model/gpt2`."""
    match = re.search(r"In '(.+?)'", _messages(error))
    return match[1] if match is not None else None


def _file_of(error: Exception, reader: ConfigReader) -> str:
    """Returns the file that Hydra's message names."""
    name = _named_file(error)
    if name is None:
        return "the configuration"
    for file in reader.files:
        if str(file.with_suffix("")).endswith(f"/{name}"):
            return short_path(file)
    return f"{name}.yaml"


def _names_of_files(error: Exception, reader: ConfigReader) -> list[str]:
    """Lists the configurations beside the file with the mistake, the last one that was read."""
    if _named_file(error) is None:
        return []
    folder: Path = [*reader.files][-1].parent
    return [path.stem for path in folder.glob("*.yaml")]
