"""Checks the choices and bounds that `key(...)` declares for single keys, for every schema."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from bsmeta.config.checks.problems import HYDRA, Problem, closest, nearest, show
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.keys import Values, values_of


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
    """Raises an error if a value is out of bounds.

    Raises:
        ConfigurationError: Listing the keys and what was expected.
    """
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
