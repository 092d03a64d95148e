"""Declares the keys of schemas: their meaning, accepted values and DeepSpeed counterpart.

The checks of values, `--help` and the documentation are derived from these declarations (`key`).
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from bsmeta.core.errors import (
    HYDRA,
    ConfigurationError,
    Problem,
    find_closest,
    format_value,
    suggest_nearest,
)
from bsmeta.core.files import is_special_file
from bsmeta.core.parsing import has_surrogates
from bsmeta.core.secrets import format_url

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

_DECLARATION = "declaration"
"""The key of a declaration in the metadata of its dataclass field."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The declaration of a key in a schema: its meaning and its constraints.

    In a list or a mapping, the constraints apply to each entry. Null is accepted wherever the type
    of the key allows it.

    Attributes:
        meaning: Text for `--help` and the reference documentation; "": the docstring under the
            field (see `read_meanings`).
        deepspeed: The dotted DeepSpeed JSON key that must agree with this one, if there is one.
        deepspeed_default: DeepSpeed's own default for that key, if the JSON must contain it.
        is_path: Whether the value names files or folders. A leading `~` is expanded. A pipe, a
            socket and a device are refused, as is an address (`s3://…`), because it would be read
            as the name of a local folder.
        takes_addresses: Whether addresses (`SCHEME://…`) are accepted beside paths; the code that
            uses them checks the scheme.
        takes_pipes: Whether a pipe or a device is accepted, into which the program writes directly.
        heading: The heading that `--help` and the documentation show above this key and the
            following ones.
        choices: The only accepted values.
        at_least: The smallest accepted number.
        at_most: The largest accepted number.
        above: Exclusive lower bound; infinity is refused.
        below: Exclusive upper bound.
        finite: Whether infinity is refused.
    """

    meaning: str = ""
    deepspeed: str | None = None
    deepspeed_default: str | None = None
    is_path: bool = False
    takes_addresses: bool = False
    takes_pipes: bool = False
    heading: str | None = None
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    finite: bool = False

    @property
    def values(self) -> str:
        """The accepted values, as text for the documentation; "" if any value is accepted."""
        if self.choices:
            return " | ".join(self.choices)

        limits = {">=": self.at_least, ">": self.above, "<=": self.at_most, "<": self.below}
        bounds = [f"{sign} {limit}" for sign, limit in limits.items() if limit is not None]
        if self.finite:
            bounds.append("finite")
        return ", ".join(bounds)

    def describe_bound(self, value: Any) -> str | None:
        """Describes the bound that a value violates; None if it is within bounds."""
        low = self.at_least
        high = self.at_most
        has_bounds = self.finite or {low, high, self.above, self.below} != {None}
        if has_bounds and not isinstance(value, int | float):
            return "a number"

        # `not value >= low` instead of `value < low`, because NaN must fail every comparison.
        if low is not None and high is not None and not low <= value <= high:
            return f"{low} to {high}"
        if low is not None and not value >= low:
            return f"{low} or more"
        if high is not None and not value <= high:
            return f"{high} or less"
        if self.above is not None and not self.above < value < math.inf:
            return f"a number above {self.above}"
        if self.below is not None and not value < self.below:
            return f"a number below {self.below}"
        if self.finite and not math.isfinite(value):
            return "a finite number"
        return None

    def suggest_number(self) -> float:
        """Returns a number within bounds, near the lower one, to suggest in a message."""
        if self.above is not None:
            high = self.at_most if self.at_most is not None else self.below
            return self.above + 1 if high is None else (self.above + high) / 2

        if self.at_least is not None:
            return self.at_least
        return 0 if self.at_most is None else self.at_most


class Leaf(NamedTuple):
    """A key of a configuration whose value is not a section.

    Attributes:
        name: The dotted name; entries of a list are numbered, as in `runs.0.seed`.
        owner: The section (a dataclass instance) that has the key.
        field: The field of the key in that dataclass.
    """

    name: str
    owner: Any
    field: Field[Any]


class _Entry(NamedTuple):
    """A value to check, which may be a part of the value of a key.

    Attributes:
        path: The path of the value below the key: `.url` in a mapping, otherwise `""`.
    """

    value: Any
    path: str


def key(default: Any, meaning: str = "", **attributes: Any) -> Any:
    """Declares a field of a schema; the docstring under the field states its meaning.

    Args:
        default: The default value (lists and dicts are copied for each instance), or the dataclass
            of a section.
        meaning: Replaces the docstring where the text must be computed.
        attributes: The other attributes of the `Declaration`.
    """
    metadata = {_DECLARATION: Declaration(meaning=meaning, **attributes)}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def inherit_key(base: type, name: str, default: Any) -> Any:
    """Declares a field of a base class again, with another default."""
    base_field = next(candidate for candidate in fields(base) if candidate.name == name)
    return field(default=default, metadata=base_field.metadata)


def get_declaration(schema_field: Field[Any]) -> Declaration:
    """Returns the declaration of a field that `key` has created."""
    declaration: Declaration = schema_field.metadata[_DECLARATION]
    return declaration


@cache
def read_type_hints(schema: Any) -> dict[str, Any]:
    """Returns the types of a schema's fields, by name."""
    hints = get_type_hints(schema)
    return {schema_field.name: hints[schema_field.name] for schema_field in fields(schema)}


@cache
def read_meanings(schema: Any) -> dict[str, str]:
    """Returns the docstring under each field of a schema and its bases, by field."""
    docstrings: dict[str, str] = {}
    bases_first = reversed(schema.__mro__[:-1])  # without `object`
    for section in bases_first:
        docstrings |= _read_docstrings(section.__module__).get(section.__name__, {})
    return docstrings


@cache
def _read_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Reads the docstrings under the fields of a module's classes, by class and field."""
    docstrings: dict[str, dict[str, str]] = {}
    for statement in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(statement, ast.ClassDef):
            docstrings[statement.name] = _extract_docstrings(statement)
    return docstrings


def _extract_docstrings(class_definition: ast.ClassDef) -> dict[str, str]:
    """Returns the docstrings under the fields of a class as one line each, by field."""
    docstrings: dict[str, str] = {}
    for declaration, text in itertools.pairwise(class_definition.body):
        if isinstance(declaration, ast.AnnAssign) and isinstance(text, ast.Expr):
            docstring = ast.literal_eval(text.value)
            docstrings[ast.unparse(declaration.target)] = " ".join(docstring.split())
    return docstrings


def iterate_leaves(section: Any, prefix: str = "") -> Iterator[Leaf]:
    """Yields the keys of a section, and of all sections in it, its lists and its mappings.

    Args:
        section: A dataclass of `key(...)` fields.
        prefix: Prepended to the names, such as `data_config.`.
    """
    for schema_field in fields(section):
        name = prefix + schema_field.name
        subsections = _find_subsections(name, getattr(section, schema_field.name))

        for subsection_name, subsection in subsections.items():
            yield from iterate_leaves(subsection, f"{subsection_name}.")
        if not subsections:
            yield Leaf(name, section, schema_field)


def _find_subsections(name: str, value: Any) -> dict[str, Any]:
    """Returns the sections in the value of a key, or the value if it is one, by dotted name."""
    if is_dataclass(value):
        return {name: value}

    if isinstance(value, list):
        entries = dict(enumerate(value))
    elif isinstance(value, dict):
        entries = value
    else:
        return {}
    return {f"{name}.{index}": entry for index, entry in entries.items() if is_dataclass(entry)}


def list_key_names(schema: type) -> list[str]:
    """Returns the dotted names of all keys and sections of a schema, sorted."""
    names: set[str] = set()
    for leaf in iterate_leaves(schema()):
        parts = leaf.name.split(".")
        names.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return sorted(names)


def find_path_problems(section: Any) -> Iterator[Problem]:
    """Yields a problem for each path that no program can use.

    These are addresses under a key that takes only paths on this machine, and pipes, sockets and
    devices, which may block forever when they are read, and are lost when an output replaces them.
    """
    for name, owner, schema_field in iterate_leaves(section):
        declaration = get_declaration(schema_field)
        if not declaration.is_path:
            continue

        for value, _ in _iterate_entries(getattr(owner, schema_field.name)):
            if not isinstance(value, str):
                continue
            if not declaration.takes_addresses and _ADDRESS.match(value):
                yield _describe_address(name, value)
            elif not declaration.takes_pipes and is_special_file(value):
                found = f"{format_value(value)}, which is a pipe, a socket or a device"
                fix = "write the content of a pipe to a file, and name that"
                yield Problem(name, HYDRA, found, "a file or a folder", fix)


def _describe_address(name: str, value: str) -> Problem:
    """Returns the problem of an address under a key that takes only paths on this machine."""
    fix = "name a file or folder of this machine; a bucket can be mounted as a folder"
    scheme = value.partition("://")[0] + "://"
    if scheme.lower() == "file://":
        fix = f"{name}={value.removeprefix(scheme)}"
    expected = f"a path on this machine: {name} takes no address"
    return Problem(name, HYDRA, format_value(format_url(value)), expected, fix)


def find_bound_problems(section: Any, prefix: str = "") -> list[Problem]:
    """Returns a problem for each invalid value in a section, and in all sections of it.

    Texts that are not in UTF-8 come first, then invalid choices, then numbers out of bounds, each
    in the order of the schema.

    Args:
        section: A dataclass of `key(...)` fields.
        prefix: Prepended to the names of its keys, such as `data_config.`.
    """
    undecodable_texts: list[Problem] = []
    invalid_choices: list[Problem] = []
    numbers_out_of_bounds: list[Problem] = []
    for leaf in iterate_leaves(section, prefix):
        declaration = get_declaration(leaf.field)
        value = getattr(leaf.owner, leaf.field.name)

        if has_surrogates(value):  # for example, from an environment variable
            undecodable_texts.append(describe_undecodable(leaf.name, value))
            continue

        for entry in _iterate_entries(value):
            if declaration.choices:
                if entry.value not in declaration.choices:
                    invalid_choices.append(
                        _describe_invalid_choice(leaf.name, value, entry.value, declaration.choices)
                    )
                continue

            expected = declaration.describe_bound(entry.value)
            if expected is not None:
                numbers_out_of_bounds.append(_describe_out_of_bounds(leaf, entry, expected))
    return [*undecodable_texts, *invalid_choices, *numbers_out_of_bounds]


def describe_undecodable(key: str, value: object, where: str = HYDRA) -> Problem:
    """Returns the problem of a text that is not in UTF-8, such as the name of an old file.

    Args:
        key: The key or other place that has the value.
        value: The text, or a list or mapping that contains it.
        where: The file or other place that sets the key.
    """
    found = f"{value}, which is not in UTF-8"
    fix = "correct the text, or rename the file or folder (convmv renames whole trees)"
    return Problem(key, where, found, "text in UTF-8", fix)


def list_bound_lines(section: Any, prefix: str = "") -> list[str]:
    """Formats the problems of `find_bound_problems` as lines, for programs that do not train.

    The arguments are the same.
    """
    return [
        f"{problem.key}={problem.found}: expected {problem.expected}"
        for problem in find_bound_problems(section, prefix)
    ]


def refuse_out_of_bounds(section: Any, prefix: str = "") -> None:
    """Refuses a section with invalid values. The arguments are those of `find_bound_problems`.

    Raises:
        ConfigurationError: With a line for each invalid value.
    """
    lines = list_bound_lines(section, prefix)
    if lines:
        raise ConfigurationError("\n".join(lines))


def _iterate_entries(value: Any) -> Iterator[_Entry]:
    """Yields the values to check in the value of a key; none if it is null."""
    if isinstance(value, dict):
        for name, nested_value in value.items():
            for entry in _iterate_entries(nested_value):
                yield _Entry(entry.value, f".{name}{entry.path}")
    elif isinstance(value, list):
        for item in value:
            yield _Entry(item, "")
    elif value is not None:
        yield _Entry(value, "")


def _describe_out_of_bounds(leaf: Leaf, entry: _Entry, expected: str) -> Problem:
    """Returns the problem of a number out of bounds.

    It suggests the default of the key or, for an entry of a mapping, any valid number.
    """
    if entry.path:
        suggestion = get_declaration(leaf.field).suggest_number()
    else:
        suggestion = getattr(type(leaf.owner)(), leaf.field.name)

    name = f"{leaf.name}{entry.path}"
    fix = f"{name}={format_value(suggestion)}, for example"
    return Problem(name, HYDRA, format_value(entry.value), expected, fix)


def _describe_invalid_choice(
    name: str, value: Any, invalid: Any, choices: Sequence[str]
) -> Problem:
    """Returns the problem of an invalid choice.

    Args:
        name: The key.
        value: The value of the key.
        invalid: The invalid choice: the value, or an entry of it.
    """
    if isinstance(value, list):
        expected = f"some of {', '.join(choices)}{suggest_nearest(invalid, choices)}"
        corrected = [item if item in choices else find_closest(item, choices) for item in value]
        fix = f"{name}=[{', '.join(dict.fromkeys(corrected))}]"
        return Problem(name, HYDRA, format_value(invalid), expected, fix)

    expected = f"one of {', '.join(choices)}{suggest_nearest(invalid, choices)}"
    fix = f"{name}={find_closest(invalid, choices)}"
    if invalid == "False" and "no" in choices:
        expected += " (YAML reads no without quotes as false)"
        fix = f'{name}: "no" in YAML, or {name}=no on the command line'
    return Problem(name, HYDRA, format_value(invalid), expected, fix)
