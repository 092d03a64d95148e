"""`key(...)`: a schema field, and what is known about it: meaning, accepted values, DeepSpeed twin.

The checks of values, `--help` and the documentation are derived from it.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, closest, nearest, show
from bsmeta.core.secrets import shown_url

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class About:
    """What the schema says about a key.

    The accepted values are those of each entry of a list or a mapping; null is never refused if
    the type of the key allows it.

    Attributes:
        meaning: For `--help` and the reference documentation; usually the docstring under the field
            (see `meanings`).
        deepspeed: The DeepSpeed JSON key (dotted) that must agree with this one, if there is one.
        deepspeed_default: What DeepSpeed uses where the JSON lacks that key, if the JSON must have
            it.
        is_path: Whether the value names files or folders: a `~` at its beginning is expanded, and
            an address (`s3://…`) is refused, which would be the name of a local folder.
        takes_addresses: Whether addresses (`SCHEME://…`) are accepted beside paths; which ones is
            checked where they are used.
        heading: The heading that `--help` and the documentation show above this key and the next.
        choices: The only accepted values.
        at_least: The smallest accepted number.
        at_most: The largest accepted number.
        above: Exclusive lower bound; infinity is refused.
        below: Exclusive upper bound.
        finite: Infinity is refused.
    """

    meaning: str = ""
    deepspeed: str | None = None
    deepspeed_default: str | None = None
    is_path: bool = False
    takes_addresses: bool = False
    heading: str | None = None
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    finite: bool = False

    @property
    def values(self) -> str:
        """The accepted values as the documentation shows them; empty if any value is accepted."""
        if self.choices:
            return " | ".join(self.choices)
        named = {">=": self.at_least, ">": self.above, "<=": self.at_most, "<": self.below}
        bounds = [f"{sign} {bound}" for sign, bound in named.items() if bound is not None]
        return ", ".join([*bounds, *(["finite"] if self.finite else [])])

    def expected(self, value: Any) -> str | None:
        """The bound that a number (or NaN) violates, as text; None if it is within bounds."""
        least, most = self.at_least, self.at_most
        has_bounds = self.finite or {least, most, self.above, self.below} != {None}
        if has_bounds and not isinstance(value, int | float):
            return "a number"
        if least is not None and most is not None and not least <= value <= most:
            return f"{least} to {most}"
        if least is not None and not value >= least:
            return f"{least} or more"
        if most is not None and not value <= most:
            return f"{most} or less"
        if self.above is not None and not self.above < value < math.inf:
            return f"a number above {self.above}"
        if self.below is not None and not value < self.below:
            return f"a number below {self.below}"
        if self.finite and not math.isfinite(value):
            return "a finite number"
        return None

    def least(self) -> float:
        """A small number within bounds."""
        if self.above is not None:
            most = self.at_most if self.at_most is not None else self.below
            return self.above + 1 if most is None else (self.above + most) / 2
        bounds = (self.at_least, self.at_most)
        return next((bound for bound in bounds if bound is not None), 0)


def key(default: Any, meaning: str = "", **about: Any) -> Any:
    """A dataclass field of the schema; what it means is said in the docstring under it.

    Args:
        default: The default value (lists and dicts are copied for each instance), or the dataclass
            of a section.
        meaning: In the place of a docstring, if it is computed.
        about: The other attributes of `About`.
    """
    metadata = {"about": About(meaning=meaning, **about)}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def inherited(section: type, name: str, default: Any) -> Any:
    """A field of a base class, with another default."""
    described = next(field_ for field_ in fields(section) if field_.name == name)
    return field(default=default, metadata=described.metadata)


def about(described: Field[Any]) -> About:
    """What the schema says about a field that `key` has made."""
    found: About = described.metadata["about"]
    return found


@cache
def type_hints(schema: Any) -> dict[str, Any]:
    """The types of the fields of a schema."""
    hints = get_type_hints(schema)
    return {field_.name: hints[field_.name] for field_ in fields(schema)}


@cache
def meanings(schema: Any) -> dict[str, str]:
    """What the keys of a schema mean: the docstrings under its fields, and those of its bases."""
    found: dict[str, str] = {}
    for section in schema.__mro__[-2::-1]:  # without `object`
        found |= _docstrings(section.__module__).get(section.__name__, {})
    return found


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """The docstrings under the fields of the classes of a module, by class and field."""
    found: dict[str, dict[str, str]] = {}
    for section in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(section, ast.ClassDef):
            found[section.name] = {
                ast.unparse(field_.target): " ".join(ast.literal_eval(text.value).split())
                for field_, text in itertools.pairwise(section.body)
                if isinstance(field_, ast.AnnAssign) and isinstance(text, ast.Expr)
            }
    return found


def leaves(section: Any, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yields the keys of a section and of the sections in it, which lists and mappings may hold.

    Args:
        section: A dataclass of `key(...)` fields.
        prefix: Prepended to the names, such as `data_config.`.

    Yields:
        The dotted name (entries of lists by their number), the section that has the key, and its
        field there.
    """
    for field_ in fields(section):
        name, value = prefix + field_.name, getattr(section, field_.name)
        entries = dict(enumerate(value)) if isinstance(value, list) else value
        inside = {name: value} if is_dataclass(value) else {}
        if isinstance(entries, dict):
            inside = {f"{name}.{at}": each for at, each in entries.items() if is_dataclass(each)}
        for place, entry in inside.items():
            yield from leaves(entry, f"{place}.")
        if not inside:
            yield name, section, field_


def key_names(schema: type) -> list[str]:
    """Every dotted name of a schema, sections included."""
    names = [name for name, _, _ in leaves(schema())]
    sections = {name.rsplit(".", n)[0] for name in names for n in range(1, name.count(".") + 1)}
    return sorted({*names, *sections})


def expand_home(section: Any) -> Iterator[tuple[str, str]]:
    """Expands a `~` at the beginning of every path of a configuration, in place.

    Yields:
        The dotted key and the value of each path that names an unknown user.
    """
    for name, owner, field_ in leaves(section):
        value = getattr(owner, field_.name)
        if about(field_).is_path and value is not None:
            values = value if isinstance(value, list) else [value]
            paths = [os.path.expanduser(v) if isinstance(v, str) else v for v in values]
            yield from ((name, path) for path in paths if str(path).startswith("~"))
            setattr(owner, field_.name, paths if isinstance(value, list) else paths[0])


def address_problems(section: Any) -> Iterator[Problem]:
    """Yields the addresses among the values of keys that take only paths on this machine."""
    for name, owner, field_ in leaves(section):
        described = about(field_)
        if not described.is_path or described.takes_addresses:
            continue
        for value, _ in _entries(getattr(owner, field_.name)):
            scheme = _ADDRESS.match(value) if isinstance(value, str) else None
            if scheme is None:
                continue
            fix = "name a file or folder of this machine; a bucket can be mounted as a folder"
            if scheme[0].lower() == "file://":
                fix = f"{name}={value[len(scheme[0]) :]}"
            expected = f"a path on this machine: {name} takes no address"
            yield Problem(name, HYDRA, show(shown_url(value)), expected, fix)


def bound_problems(section: Any, prefix: str = "") -> list[Problem]:
    """The values of a section, and of all sections in it, that their keys do not allow.

    Invalid choices come first, then numbers out of bounds, each in schema order.

    Args:
        section: A dataclass of `key(...)` fields.
        prefix: Prepended to the names of its keys, such as `data_config.`.
    """
    choices, numbers = [], []
    for name, owner, field_ in leaves(section, prefix):
        known, whole = about(field_), getattr(owner, field_.name)
        for value, place in _entries(whole):
            if known.choices:
                if value not in known.choices:
                    choices.append(_not_a_choice(name, whole, value, known.choices))
            elif expected := known.expected(value):
                default = getattr(type(owner)(), field_.name)
                fix = f"{name}{place}={show(known.least() if place else default)}, for example"
                numbers.append(Problem(f"{name}{place}", HYDRA, show(value), expected, fix))
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


def _entries(value: Any) -> Iterator[tuple[Any, str]]:
    """Yields the values in a value: those of a mapping with their places, such as `.url`."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from ((found, f".{name}") for found, _ in _entries(entry))
    elif isinstance(value, list):
        yield from ((entry, "") for entry in value)
    elif value is not None:
        yield value, ""


def _not_a_choice(name: str, whole: Any, value: Any, choices: Sequence[str]) -> Problem:
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
