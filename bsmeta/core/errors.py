"""The errors that end a run with a message, and how two nested dicts differ, for such messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

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
