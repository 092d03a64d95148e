"""Logs a message at most once in a process."""

from __future__ import annotations

import logging
from functools import cache


@cache
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    """Logs a message, unless this process has logged it before at this level."""
    logger.log(level, message)
