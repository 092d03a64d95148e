"""Errors that end a run with a message, and the report of all configuration problems in one."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

_ANNOTATE = ("selectolax", "resiliparse", "brotli", "htmldate", "pycld2", "datasketch")
EXTRA_BY_MODULE = {
    **dict.fromkeys(("datasets", "pandas", "sklearn"), "tables"),
    "rapidfuzz": "spelling",
    "ahocorasick_rs": "entities",
    **dict.fromkeys(_ANNOTATE, "annotate"),
    **dict.fromkeys(("botocore", "google", "google.auth"), "object-stores"),
    "peft": "lora",
}
"""Module that a base install lacks -> the extra of setup.py that installs it."""

# Modules that are not built for every Python: the newest one, and what needs the module.
_NEWEST_PYTHON = {"pycld2": (3, 13)}
_USES = {"pycld2": "the annotator language"}

HYDRA = "Hydra configuration"
"""The place of a problem whose key any file or the command line may set."""

MISSING = object()
"""The value of a key that does not exist; shown as "no such key"."""

# Smallest difflib ratios of a name to the one suggested: in a command, and in a question, such as
# "did you mean llama_tiny?" for `lama`.
_MIN_COMMAND_SIMILARITY = 0.7
_MIN_QUESTION_SIMILARITY = 0.5


class UserError(ValueError):
    """Base of the errors that a user can fix; messages name the place, the fault and the fix."""


class ConfigurationError(UserError):
    """A key, a file or the launch is invalid, or two of them disagree.

    Attributes:
        keys: The dotted keys with problems, as far as they are known.
    """

    def __init__(self, message: str, keys: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.keys = frozenset(keys)


class DataError(UserError):
    """Training or evaluation data is missing, unreadable or disagrees with the configuration."""


class DeviceError(UserError):
    """The device lacks a feature that the configuration requires."""


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, incomplete or from another run."""


class TrainingError(RuntimeError):
    """Training cannot continue, for example because the loss is not finite."""


def explain_missing_extra(
    error: BaseException, python: tuple[int, int] = sys.version_info[:2]
) -> ConfigurationError | None:
    """Explains the error for a missing module that an extra of the package installs.

    Args:
        error: Any error.
        python: Version of Python for which the extra would be installed: major and minor.

    Returns:
        The error to report; None if the given error is any other.
    """
    if not isinstance(error, ModuleNotFoundError):
        return None

    module = error.name or ""
    extra = EXTRA_BY_MODULE.get(module)
    if extra is None:
        return None

    newest = _NEWEST_PYTHON.get(module, python)
    if python > newest:
        return ConfigurationError(
            f"{error}: found Python {python[0]}.{python[1]}, expected at most {newest[0]}."
            f"{newest[1]}, the newest for which it is built. Leave out {_USES[module]}, or create "
            "an environment with an older Python"
        )
    return ConfigurationError(f"{error}, which is installed by: pip install 'bsmeta[{extra}]'")


@contextmanager
def name_missing_extras() -> Iterator[None]:
    """Replaces the error for a missing module by one that names the extra to install.

    Raises:
        ConfigurationError: In place of a `ModuleNotFoundError` for a module of an extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extra_error = explain_missing_extra(error)
        if extra_error is None:
            raise
        raise extra_error from error


class Difference(NamedTuple):
    """A leaf in which two nested dicts differ.

    Attributes:
        name: The dotted name of the leaf.
        other: The value in the first dict; `"absent"` if it has none.
        current: The value in the second dict; `"absent"` if it has none.
    """

    name: str
    other: Any
    current: Any


def find_differences(other: Any, current: Any, name: str = "") -> Iterator[Difference]:
    """Yields the leaves in which two nested dicts differ, sorted by name.

    Args:
        name: The dotted name of both values, if they are parts of a larger dict.
    """
    if isinstance(other, dict) and isinstance(current, dict):
        for key in sorted({*other, *current}):
            yield from find_differences(
                other.get(key, "absent"),
                current.get(key, "absent"),
                f"{name}.{key}" if name else str(key),
            )
    elif other != current:
        yield Difference(name, other, current)


def describe_differences(
    other: Any, current: Any, origin: str, current_origin: str = "now"
) -> Iterator[str]:
    """Yields a line for each leaf in which two nested dicts differ.

    Args:
        origin: The words that follow a value of `other`, such as `in the checkpoint`.
        current_origin: The words that follow a value of `current`.
    """
    for leaf in find_differences(other, current):
        yield f"  {leaf.name}: {leaf.other} {origin}, {leaf.current} {current_origin}"


@dataclass(frozen=True)
class Problem:
    """A problem with the configuration, as reported to the user.

    Attributes:
        key: The dotted key, or the option or part of a file that is wrong.
        file: The file or other place that sets the key.
        found: The value, as text.
        expected: The values that would be accepted, as text.
        fix: The change to make, such as an override.
    """

    key: str
    file: str
    found: str
    expected: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.key} in {self.file}: found {self.found}, expected {self.expected}.\n"
            f"   Fix: {self.fix}"
        )


def raise_problems(problems: Sequence[Problem | str]) -> None:
    """Raises one error that lists all problems, numbered and without duplicates.

    Raises:
        ConfigurationError: If there are problems.
    """
    problems = list(dict.fromkeys(problems))
    if not problems:
        return

    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    numbered = "\n".join(f"{number}. {problem}" for number, problem in enumerate(problems, 1))
    keys = [problem.key for problem in problems if isinstance(problem, Problem)]
    raise ConfigurationError(f"{count} in the configuration\n{numbered}", keys)


def suggest_nearest(name: object, candidates: Iterable[str]) -> str:
    """Returns ` (did you mean X?)` with the candidate most similar to a name; "" if none is."""
    close_matches = difflib.get_close_matches(
        str(name), list(candidates), n=1, cutoff=_MIN_QUESTION_SIMILARITY
    )
    return f" (did you mean {close_matches[0]}?)" if close_matches else ""


def find_similar(name: object, candidates: Iterable[str]) -> str | None:
    """Returns the candidate to write in a suggested command for a name; None if none is similar.

    Users may run a suggested command without reading it, so the candidate must be more similar than
    in a question (`suggest_nearest`).
    """
    close_matches = difflib.get_close_matches(
        str(name), list(candidates), n=1, cutoff=_MIN_COMMAND_SIMILARITY
    )
    return close_matches[0] if close_matches else None


def find_closest(name: object, candidates: Sequence[str]) -> str:
    """Returns the candidate most similar to a name; the first candidate if none is similar."""
    close_matches = difflib.get_close_matches(
        str(name), candidates, n=1, cutoff=_MIN_QUESTION_SIMILARITY
    )
    return close_matches[0] if close_matches else candidates[0]


def format_value(value: object) -> str:
    """Formats a value as in YAML or JSON; a string that looks like another type is marked."""
    if value is MISSING:
        return "no such key"
    if isinstance(value, str):
        mark = " (text)" if _reads_as_scalar(value) else ""
        return f'"{value}"{mark}'
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return str(value)


def _reads_as_scalar(text: str) -> bool:
    """Whether a text could be taken for a number, a boolean or null."""
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false", "null", "none")
    return True


def look_up(document: Any, key: str) -> Any:
    """Returns the value of a dotted key in nested mappings and lists; `MISSING` if absent."""
    for name in key.split("."):
        if isinstance(document, Mapping) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return MISSING
    return document


def equals_exactly(actual: Any, value: Any) -> bool:
    """Whether two values agree in value and type.

    `"8"`, `8.0` and `true` do not equal the value 8, but `8` equals the value 8.0.
    """
    if isinstance(value, list):
        have_same_length = isinstance(actual, list) and len(actual) == len(value)
        return have_same_length and all(map(equals_exactly, actual, value))
    return has_same_type(actual, value) and bool(actual == value)


def has_same_type(actual: Any, value: Any) -> bool:
    """Whether `actual` has the type of `value`; an int is also accepted for a float."""
    if isinstance(value, float):
        return isinstance(actual, (int, float)) and not isinstance(actual, bool)
    return type(actual) is type(value)
