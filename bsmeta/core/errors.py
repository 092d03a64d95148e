"""Errors that end a run with a message, and problems with the configuration, listed in one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

EXTRA_OF = {
    **dict.fromkeys(("datasets", "sklearn"), "tables"),
    "rapidfuzz": "spelling",
    "ahocorasick_rs": "entities",
    **dict.fromkeys(("selectolax", "resiliparse", "fastwarc", "htmldate", "pycld2"), "annotate"),
    **dict.fromkeys(("botocore", "google", "google.auth"), "object-stores"),
    "peft": "lora",
}
"""Module -> the extra of setup.py that installs it, for modules that a base install lacks."""

HYDRA = "Hydra configuration"

MISSING = object()  # shown as "no such key"

_LIKENESS_OF_FIX = 0.7
_LIKENESS = 0.5  # smallest difflib ratio of a suggestion: `lama` for llama_tiny


class UserError(ValueError):
    """Base of the errors that a user can fix: the message says what, where and how."""


class ConfigurationError(UserError):
    """A key, a file or the launch is invalid, or two of them disagree."""

    def __init__(self, message: str, keys: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.keys = frozenset(keys)


class DataError(UserError):
    """Training or evaluation data is missing, unreadable or not what the configuration says."""


class DeviceError(UserError):
    """The device lacks what the configuration needs of it."""


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, incomplete or from another run."""


class TrainingError(RuntimeError):
    """Training cannot continue (for example: the loss is not finite)."""


def missing_extra(error: BaseException) -> ConfigurationError | None:
    """The error to report for a module that only an extra installs; None for any other error."""
    extra = EXTRA_OF.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if extra is None:
        return None
    return ConfigurationError(f"{error}, which is installed by: pip install 'bsmeta[{extra}]'")


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raises the `ConfigurationError` of a module that only an extra installs in its place."""
    try:
        yield
    except ModuleNotFoundError as error:
        named = missing_extra(error)
        if named is None:
            raise
        raise named from error


def differences(other: Any, current: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields the leaves in which two nested dicts differ: dotted name and both values."""
    if isinstance(other, dict) and isinstance(current, dict):
        for part in sorted({*other, *current}):
            below = f"{name}.{part}" if name else str(part)
            yield from differences(other.get(part, "absent"), current.get(part, "absent"), below)
    elif other != current:
        yield name, other, current


def differing(other: Any, current: Any, where: str, here: str = "now") -> Iterator[str]:
    """Yields a line for each leaf in which two nested dicts differ.

    Args:
        where: Where `other` comes from, in words.
        here: Where `current` comes from, in words.
    """
    for leaf, there, now in differences(other, current):
        yield f"  {leaf}: {there} {where}, {now} {here}"


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


def refuse(problems: Sequence[Problem | str]) -> None:
    """Raises one error that lists every problem once, numbered."""
    problems = [*dict.fromkeys(problems)]
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        listed = "\n".join(f"{n}. {problem}" for n, problem in enumerate(problems, 1))
        keys = [problem.key for problem in problems if isinstance(problem, Problem)]
        raise ConfigurationError(f"{count} in the configuration\n{listed}", keys)


def nearest(name: object, known: Iterable[str]) -> str:
    """` (did you mean X?)` for the known name most similar to `name`, or an empty string."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=_LIKENESS)
    return f" (did you mean {close[0]}?)" if close else ""


def much_like(name: object, known: Iterable[str]) -> str | None:
    """The known name that a printed command may have in place of `name`; None if none is alike.

    A command is run as it is printed, so it takes more likeness than a question.
    """
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=_LIKENESS_OF_FIX)
    return close[0] if close else None


def closest(name: object, known: Sequence[str]) -> str:
    """The known name most similar to `name`; the first name if none is similar."""
    return (difflib.get_close_matches(str(name), known, n=1, cutoff=_LIKENESS) or known)[0]


def show(value: object) -> str:
    """A value as written in YAML or JSON; a string that looks like another type is marked."""
    if value is MISSING:
        return "no such key"
    if isinstance(value, str):
        return f'"{value}"{" (text)" if _looks_typed(value) else ""}'
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _looks_typed(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false", "null", "none")
    return True


def look_up(document: Any, key: str) -> Any:
    """The value of a dotted key in nested mappings and lists, or MISSING."""
    for name in key.split("."):
        if isinstance(document, Mapping) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return MISSING
    return document


def same(found: Any, value: Any) -> bool:
    """Whether value and type agree: `"8"`, `8.0` and `true` are not 8; an int may equal a float."""
    if isinstance(value, list):
        return isinstance(found, list) and len(found) == len(value) and all(map(same, found, value))
    return same_type(found, value) and bool(found == value)


def same_type(found: Any, value: Any) -> bool:
    """Whether `found` has the type of `value`; an int is also accepted for a float."""
    if isinstance(value, float):
        return isinstance(found, (int, float)) and not isinstance(found, bool)
    return type(found) is type(value)
