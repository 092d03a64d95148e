"""Describes values that a schema does not accept, and suggests the most similar valid key."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bsmeta.config.composing.from_file import NO_VALUE
from bsmeta.config.composing.groups import list_group_options
from bsmeta.core.errors import Problem, format_value
from bsmeta.core.keys import list_key_names

Names = tuple[Any, ...]
"""A path: the names of sections, from the outermost one on, and the name of a key."""

COMMAND_LINE = "the command line"
HELP_ADVICE = "see --help for every key"


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A value that the schema does not accept.

    Attributes:
        path: The path of the value; entries of lists have their index as a name.
        value: The value.
        expected: The expected type, as text; None if the schema has no such key.
        reason: OmegaConf's message; "" if there is none.
        siblings: The keys of the section, if the schema has no such key.
        found: The value as messages show it; None: in YAML's notation.
        fix: The change to make; None: to correct the value.
    """

    path: Names
    value: Any
    expected: str | None
    reason: str = ""
    siblings: tuple[str, ...] = ()
    found: str | None = None
    fix: str | None = None

    @property
    def key(self) -> str:
        """The dotted key of the value."""
        return join_key(self.path)

    def describe_problem(self, where: str, schema: type, written: str | None = None) -> Problem:
        """Returns the misfit as a problem.

        Args:
            where: The file or command line that sets the value.
            schema: The schema of the whole configuration.
            written: The value as it was written, if known.
        """
        if self.expected is None:
            return describe_unknown_key(self.key, schema, where, self.siblings)
        if self.value == NO_VALUE:
            return Problem(self.key, where, NO_VALUE, self.expected, f"{self.key}=VALUE")
        if self.fix is not None:
            found = self.found or format_value(self.value)
            return Problem(self.key, where, found, self.expected, self.fix)

        found = format_value(self.value) if written is None else written
        return Problem(
            self.key, where, found, f"{self.expected} ({self.reason})", f"correct it; {HELP_ADVICE}"
        )


def join_key(path: Sequence[Any]) -> str:
    """Joins the names of a path into a dotted key."""
    return ".".join(map(str, path))


def describe_unknown_key(
    name: str, schema: type, where: str = COMMAND_LINE, siblings: Sequence[str] = ()
) -> Problem:
    """Returns the problem of an unknown key, and suggests the most similar key.

    Args:
        name: The dotted name of the unknown key.
        where: The file or command line that sets it.
        siblings: The keys of its section, which are preferred if they are very similar.
    """
    expected = f"a key of {schema.__name__}"
    if where == COMMAND_LINE:
        expected += f", or one of the groups {', '.join(list_group_options())}"
    if name in list_key_names(schema):  # in a file, as one name with dots
        nested = f"{': {'.join(name.split('.'))}: …{'}' * name.count('.')}"
        fix = f"write it nested, {nested}"
        return Problem(name, where, "one name with dots", "a section with the key in it", fix)

    similar_siblings = difflib.get_close_matches(name, siblings, n=1, cutoff=0.8)
    suggestion = similar_siblings[0] if similar_siblings else suggest_key(name, schema)
    if suggestion is None:
        fix = f"drop it; {HELP_ADVICE}"
    else:
        expected += f" (did you mean {suggestion}?)"
        fix = f"write {suggestion}, or drop it"
    return Problem(name, where, "an unknown key", expected, fix)


def suggest_key(name: str, schema: type) -> str | None:
    """Returns the key or group most similar to a misspelled one; None if none is similar."""
    keys_by_last_name = {key.rpartition(".")[2]: key for key in reversed(list_key_names(schema))}
    keys_by_last_name |= {group: group for group in list_group_options()}
    close_matches = difflib.get_close_matches(name.rpartition(".")[2], keys_by_last_name, n=1)
    if not close_matches:
        return None

    suggestion = keys_by_last_name[close_matches[0]]
    return None if suggestion == name else suggestion
