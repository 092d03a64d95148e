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
"""Module -> the extra of setup.py that installs it, for modules that a base install lacks."""

_NEWEST_PYTHON = {"pycld2": (3, 13)}  # of modules without a build for a newer one
_USES = {"pycld2": "the annotator language"}

HYDRA = "Hydra configuration"

MISSING = object()  # shown as "no such key"

# Smallest difflib ratios: of a name in a suggested command, and of a question (`lama` for
# llama_tiny).
_MIN_LIKENESS_OF_FIX = 0.7
_MIN_LIKENESS = 0.5


class UserError(ValueError):
    """Base of the errors that a user can fix; messages name the place, the fault and the fix."""


class ConfigurationError(UserError):
    """A key, a file or the launch is invalid, or two of them disagree."""

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
    """Training cannot continue (for example: the loss is not finite)."""


def explain_missing_extra(
    error: BaseException, python: tuple[int, int] = sys.version_info[:2]
) -> ConfigurationError | None:
    """Returns the error to report for a missing module if an extra of the package installs it.

    Args:
        python: Version of Python for which the extra would be installed.

    Returns:
        None for any other error.
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
    """Replaces the error for a module that an extra installs by one that names the extra.

    Raises:
        ConfigurationError: In place of the `ModuleNotFoundError`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extra_error = explain_missing_extra(error)
        if extra_error is None:
            raise
        raise extra_error from error


class Difference(NamedTuple):
    """A leaf in which two nested dicts differ; a missing value is `"absent"`."""

    name: str
    other: Any
    current: Any


def find_differences(other: Any, current: Any, name: str = "") -> Iterator[Difference]:
    """Yields the leaves in which two nested dicts differ, by dotted name."""
    if isinstance(other, dict) and isinstance(current, dict):
        for part in sorted({*other, *current}):
            part_name = f"{name}.{part}" if name else str(part)
            yield from find_differences(
                other.get(part, "absent"), current.get(part, "absent"), part_name
            )
    elif other != current:
        yield Difference(name, other, current)


def describe_differences(
    other: Any, current: Any, origin: str, current_origin: str = "now"
) -> Iterator[str]:
    """Yields a line for each leaf in which two nested dicts differ.

    Args:
        origin: The place or time of `other`, as words that follow its value (`in the checkpoint`).
        current_origin: The same for `current`.
    """
    for leaf in find_differences(other, current):
        yield f"  {leaf.name}: {leaf.other} {origin}, {leaf.current} {current_origin}"


@dataclass(frozen=True)
class Problem:
    """A problem with the configuration, as reported to the user."""

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
    """Raises one error that lists every problem once, numbered."""
    problems = [*dict.fromkeys(problems)]
    if not problems:
        return

    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    numbered = "\n".join(f"{number}. {problem}" for number, problem in enumerate(problems, 1))
    keys = [problem.key for problem in problems if isinstance(problem, Problem)]
    raise ConfigurationError(f"{count} in the configuration\n{numbered}", keys)


def suggest_nearest(name: object, candidates: Iterable[str]) -> str:
    """Returns ` (did you mean X?)` for the candidate most similar to a name, or an empty string."""
    close_matches = difflib.get_close_matches(
        str(name), list(candidates), n=1, cutoff=_MIN_LIKENESS
    )
    return f" (did you mean {close_matches[0]}?)" if close_matches else ""


def find_similar(name: object, candidates: Iterable[str]) -> str | None:
    """Returns the candidate that a suggested command may use for a name; None if none is similar.

    A suggested command may be run unread, so it requires more similarity than a question
    (`suggest_nearest`).
    """
    close_matches = difflib.get_close_matches(
        str(name), list(candidates), n=1, cutoff=_MIN_LIKENESS_OF_FIX
    )
    return close_matches[0] if close_matches else None


def find_closest(name: object, candidates: Sequence[str]) -> str:
    """Returns the candidate most similar to a name; the first candidate if none is similar."""
    close_matches = difflib.get_close_matches(str(name), candidates, n=1, cutoff=_MIN_LIKENESS)
    return close_matches[0] if close_matches else candidates[0]


def format_value(value: object) -> str:
    """Formats a value as in YAML or JSON; a string that looks like another type is marked."""
    if value is MISSING:
        return "no such key"
    if isinstance(value, str):
        return f'"{value}"{" (text)" if _reads_as_scalar(value) else ""}'
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _reads_as_scalar(text: str) -> bool:
    """Whether a text reads as a number, a boolean or null."""
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false", "null", "none")
    return True


def look_up(document: Any, key: str) -> Any:
    """Returns the value of a dotted key in nested mappings and lists, or MISSING."""
    for name in key.split("."):
        if isinstance(document, Mapping) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return MISSING
    return document


def equals_exactly(actual: Any, value: Any) -> bool:
    """Whether value and type agree: `"8"`, `8.0` and `true` are not 8; an int may equal a float."""
    if isinstance(value, list):
        have_same_length = isinstance(actual, list) and len(actual) == len(value)
        return have_same_length and all(map(equals_exactly, actual, value))
    return has_same_type(actual, value) and bool(actual == value)


def has_same_type(actual: Any, value: Any) -> bool:
    """Whether `actual` has the type of `value`; an int is also accepted for a float."""
    if isinstance(value, float):
        return isinstance(actual, (int, float)) and not isinstance(actual, bool)
    return type(actual) is type(value)
