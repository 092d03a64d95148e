"""Errors that end a run with a message, and problems with the configuration, listed in one.

Two sources of problems are defined here: values that `key(...)` does not allow, in any schema, and
values that should agree in Hydra and in the DeepSpeed JSON.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bsmeta.core.keys import Values, leaves, values_of

EXTRA_OF = {
    "datasets": "tables",
    "sklearn": "tables",
    "rapidfuzz": "spelling",
    "ahocorasick_rs": "entities",
    "selectolax": "annotate",
    "resiliparse": "annotate",
    "fastwarc": "annotate",
    "htmldate": "annotate",
    "pycld2": "annotate",
    "botocore": "object-stores",
    "google": "object-stores",
    "google.auth": "object-stores",
    "peft": "lora",
}
"""Module -> the extra of setup.py that installs it, for modules that a base install lacks."""

HYDRA = "Hydra configuration"

MISSING = object()  # shown as "no such key"

_LIKENESS = 0.5  # smallest difflib ratio of a suggestion: `lama` for llama_tiny

AUTO = "auto"


class UserError(ValueError):
    """Base of the errors that a user can fix: the message says what, where and how."""


class ConfigurationError(UserError):
    """A key, a file or the launch is invalid, or two of them disagree."""

    def __init__(self, message: str, keys: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.keys = frozenset(keys)


class DataError(UserError):
    """Training or evaluation data is missing, unreadable or not what the configuration says."""


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


def closest(name: object, known: Sequence[str]) -> str:
    """The known name most similar to `name`; the first name if none is similar."""
    return (difflib.get_close_matches(str(name), known, n=1, cutoff=_LIKENESS) or known)[0]


def show(value: object) -> str:
    """A value as written in YAML or JSON; a string that looks like another type is marked."""
    if value is MISSING:
        return "no such key"
    if isinstance(value, str):
        return (
            f'"{value}"'
            if value in ("", "auto") or not _looks_typed(value)
            else f'"{value}" (text)'
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _looks_typed(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false", "null", "none")
    return True


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A key of the JSON whose value Hydra owns.

    Attributes:
        key: The key in the JSON, dotted.
        owner: The Hydra key (or the calculation) that determines the value, as shown in messages.
        value: The value according to Hydra.
        default: What DeepSpeed uses if the key is missing; None: a missing key is no problem.
        override: Returns the override that makes Hydra agree with a value of the JSON; None: there
            is none.
    """

    key: str
    owner: str
    value: Any
    default: str | None = None
    override: Callable[[Any], str] | None = None


def override_of(name: str) -> Callable[[Any], str]:
    """Returns a function that formats a value as `name=value` for the command line."""
    return lambda value: f"{name}={show(value)}"


def look_up(document: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, or MISSING."""
    node: Any = document
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return MISSING
        node = node[name]
    return node


def compare(document: Mapping[str, Any], shared: Shared, file: str) -> Iterator[Problem]:
    """Yields a problem unless the JSON has `"auto"` or Hydra's value, in Hydra's type."""
    found = look_up(document, shared.key)
    expected = f'"auto" or {show(shared.value)} ({shared.owner})'
    write = f'write "auto" for {shared.key} in {file}'
    if found is MISSING:
        if shared.default is not None:
            missing = f"no such key (DeepSpeed would silently take {shared.default})"
            yield Problem(shared.key, file, missing, expected, write)
        return
    if found == AUTO or same(found, shared.value):
        return
    if shared.override is not None and same_type(found, shared.value):
        write += f", or pass {shared.override(found)}"
    yield Problem(shared.key, file, show(found), expected, write)


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


def bound_problems(section: Any, prefix: str = "") -> list[Problem]:
    """The values of a section, and of all sections in it, that their keys do not allow.

    Invalid choices come first, then numbers out of bounds, each in schema order.

    Args:
        section: A dataclass of `key(...)` fields.
        prefix: Prepended to the names of its keys, such as `data_config.`.
    """
    choices, numbers = [], []
    for name, owner, described in leaves(section, prefix):
        values = values_of(described)
        if not str(values):
            continue
        default = getattr(type(owner)(), described.name)
        for value, place in _entries(getattr(owner, described.name)):
            if values.choices and value not in values.choices:
                choices.append(_not_a_choice(name, getattr(owner, described.name), value, values))
            expected = None if values.choices else _expected(value, values)
            if expected is not None:
                example = default if place is None else _least(values)
                key = f"{name}{place or ''}"
                fix = f"{key}={show(example)}, for example"
                numbers.append(Problem(key, HYDRA, show(value), expected, fix))
    return [*choices, *numbers]


def bound_lines(section: Any, prefix: str = "") -> list[str]:
    """One line for each key that is out of bounds, for programs that do not train."""
    return [
        f"{problem.key}={problem.found}: expected {problem.expected}"
        for problem in bound_problems(section, prefix)
    ]


def refuse_out_of_bounds(section: Any, prefix: str = "") -> None:
    """Raises an error if a value is out of bounds."""
    lines = bound_lines(section, prefix)
    if lines:
        raise ConfigurationError("\n".join(lines))


def _entries(value: Any) -> Iterator[tuple[Any, str | None]]:
    """Yields the values in a value: those of a mapping with their places, such as `.url`."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from ((found, f".{name}") for found, _ in _entries(entry))
    elif isinstance(value, list):
        yield from ((entry, None) for entry in value)
    elif value is not None:
        yield value, None


def _not_a_choice(name: str, whole: Any, value: Any, values: Values) -> Problem:
    choices = values.choices
    expected = f"one of {', '.join(choices)}{nearest(value, choices)}"
    fix = f"{name}={closest(value, choices)}"
    if isinstance(whole, list):
        expected = f"some of {', '.join(choices)}{nearest(value, choices)}"
        fixed = dict.fromkeys(one if one in choices else closest(one, choices) for one in whole)
        fix = f"{name}=[{', '.join(fixed)}]"
    elif value == "False" and "no" in choices:
        expected += " (YAML reads no without quotes as false)"
        fix = f'{name}: "no" in YAML, or {name}=no on the command line'
    return Problem(name, HYDRA, show(value), expected, fix)


def _expected(value: Any, values: Values) -> str | None:
    """The bound that a number (or NaN) violates, as text; None if it is within bounds."""
    least, most = values.at_least, values.at_most
    if least is not None and most is not None and not least <= value <= most:
        return f"{least} to {most}"
    if least is not None and not value >= least:
        return f"{least} or more"
    if most is not None and not value <= most:
        return f"{most} or less"
    if values.above is not None and not values.above < value < math.inf:
        return f"a number above {values.above}"
    if values.below is not None and not value < values.below:
        return f"a number below {values.below}"
    if values.finite and not math.isfinite(value):
        return "a finite number"
    return None


def _least(values: Values) -> float:
    """A small number within bounds."""
    if values.above is not None:
        most = values.at_most if values.at_most is not None else values.below
        return values.above + 1 if most is None else (values.above + most) / 2
    bounds = (values.at_least, values.at_most)
    return next((bound for bound in bounds if bound is not None), 0)
