"""Problems with the configuration, and the error that lists all of them.

Two sources of problems are defined here: values that `key(...)` does not allow, in any schema, and
values that should agree in Hydra and in the DeepSpeed JSON.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.keys import Values, values_of

HYDRA = "Hydra configuration"
MISSING = object()  # shown as "no such key"
_LIKENESS = 0.5  # smallest difflib ratio of a suggestion: `lama` for llama_tiny


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
    """Raises one error that lists every problem, numbered."""
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


AUTO = "auto"


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


@dataclass(frozen=True)
class _Refused:
    name: str
    value: Any
    expected: str
    fix: str


def bound_problems(section: Any, prefix: str = "") -> Iterator[Problem]:
    """Yields a problem for each key of a section (nested ones excluded) that is out of bounds.

    Args:
        section: A dataclass of `key(...)` fields.
        prefix: Prepended to the names of its keys, such as `data_config.`.
    """
    for problem in _refused(section):
        name = f"{prefix}{problem.name}"
        fix = problem.fix.replace("{key}", name)
        yield Problem(name, HYDRA, show(problem.value), problem.expected, fix)


def bound_lines(section: Any) -> list[str]:
    """One line for each key that is out of bounds, for programs that do not train."""
    return [
        f"{problem.name}={problem.value}: expected {problem.expected}"
        for problem in _refused(section)
    ]


def refuse_out_of_bounds(section: Any) -> None:
    """Raises an error if a value is out of bounds."""
    lines = bound_lines(section)
    if lines:
        raise ConfigurationError("\n".join(lines))


def _refused(section: Any) -> Iterator[_Refused]:
    """Yields invalid choices first, then numbers out of bounds, each in schema order."""
    described = {
        field.name: values_of(field)
        for field in fields(section)
        if not is_dataclass(getattr(section, field.name))
    }
    defaults = type(section)()
    for name, values in described.items():
        value = getattr(section, name)
        if values.choices and value is not None and value not in values.choices:
            yield _not_a_choice(name, value, values.choices)
    for name, values in described.items():
        value = getattr(section, name)
        expected = None if value is None else _expected(value, values)
        if expected is not None:
            default = show(getattr(defaults, name))
            yield _Refused(name, value, expected, f"{{key}}={default}, for example")
        elif values.finite and value == math.inf:
            yield _Refused(name, value, "a number (0 switches it off)", "{key}=0")


def _not_a_choice(name: str, value: Any, choices: tuple[str, ...]) -> _Refused:
    expected = f"one of {', '.join(choices)}{nearest(value, choices)}"
    if value == "False" and "no" in choices:
        expected += " (YAML reads no without quotes as false)"
        return _Refused(
            name, value, expected, '{key}: "no" in YAML, or {key}=no on the command line'
        )
    return _Refused(name, value, expected, f"{{key}}={closest(value, choices)}")


def _expected(value: Any, values: Values) -> str | None:
    """The bound that a number (or NaN) violates, as text; None if it is within bounds."""
    if values.at_least is not None and not value >= values.at_least:
        return f"{values.at_least} or more"
    if values.at_most is not None and not value <= values.at_most:
        return f"{values.at_most} or less"
    if values.above is not None and not values.above < value < math.inf:
        return f"a number above {values.above}"
    if values.below is not None and not value < values.below:
        return f"a number below {values.below}"
    return None
