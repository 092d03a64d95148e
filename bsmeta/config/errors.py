"""The errors that end a run with a message instead of a stack trace.

`ConfigurationError` and `DataError` are the user's to mend (exit code 2); `CheckpointError` and
`TrainingError` are the run's (exit code 1).
"""

from __future__ import annotations


class UserError(ValueError):
    """Base of the errors that a user can mend: the message says what, where and how."""


class ConfigurationError(UserError):
    """A key, a file or the launch says something that cannot be right, or two of them disagree."""


class DataError(UserError):
    """Training or evaluation data is missing, unreadable or not what the configuration says."""


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, incomplete or of another run."""


class TrainingError(RuntimeError):
    """Training cannot go on (for example: the loss is not finite)."""
