"""A problem with the configuration, and the error that lists all problems."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bsmeta.config.errors import ConfigurationError

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
    """Raises one error that lists every problem, numbered.

    Raises:
        ConfigurationError: If there are any problems.
    """
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
