"""Errors of a device that its user can do something about, with what that is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.training.determinism import lacks_deterministic_kernel


@contextmanager
def explaining_device_errors(config: RunConfig) -> Iterator[None]:
    """A context whose errors of the device are replaced by ones that name the keys to change.

    Raises:
        ConfigurationError: If an operation has no deterministic kernel, and `deterministic` asks
            for one.
    """
    try:
        yield
    except Exception as error:
        explained = _explain(error, config)
        if explained is None:
            raise
        raise explained from error


def _explain(error: Exception, config: RunConfig) -> Exception | None:
    if config.deterministic and lacks_deterministic_kernel(error):
        operation = str(error).split(maxsplit=1)[0]
        return ConfigurationError(
            f"deterministic=true: found {operation}, which has no deterministic kernel on this "
            "device; expected deterministic=false, or a model or a task without it"
        )
    return None
