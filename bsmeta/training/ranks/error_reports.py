"""Errors that a rank reports to the others, so that all end with the same one."""

from __future__ import annotations

from typing import Any

from bsmeta.core.errors import TrainingError, UserError
from bsmeta.core.secrets import redact


def serialize_error(error: Exception) -> dict[str, Any]:
    """Serializes an error, so that another rank can end with the same one."""
    return {"user": isinstance(error, UserError), "message": redact(str(error))}


def rebuild_error(rank: int, serialized: dict[str, Any]) -> Exception:
    """Rebuilds the error that another rank has reported."""
    error_type = UserError if serialized["user"] else TrainingError
    prefix = f"rank {rank}: "
    return error_type(prefix + str(serialized["message"]).removeprefix(prefix))
