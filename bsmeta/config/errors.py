"""The errors that end a run with a message instead of a stack trace.

`ConfigurationError` and `DataError` are for the user to fix (exit code 2); `CheckpointError` and
`TrainingError` are failures of the run (exit code 1).
"""

from __future__ import annotations

from collections.abc import Iterable


class UserError(ValueError):
    """Base of the errors that a user can fix: the message says what, where and how."""


class ConfigurationError(UserError):
    """A key, a file or the launch is invalid, or two of them disagree.

    Args:
        message: All problems.
        keys: The keys concerned, as far as they are known.
    """

    def __init__(self, message: str, keys: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.keys = frozenset(keys)


class DataError(UserError):
    """Training or evaluation data is missing, unreadable or not what the configuration says."""


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, incomplete or from another run."""


class TrainingError(RuntimeError):
    """Training cannot continue (for example: the loss is not finite)."""
