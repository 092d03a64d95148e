"""Requests for generated text, from the command line or the lines of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.keys import refuse_out_of_bounds
from bsmeta.core.parsing import decode_json

Output = TypeVar("Output")


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A request for text; `GenerateConfig` documents the fields, and their bounds.

    `id` is only copied to the result.
    """

    id: str | int | None = None
    metadata: dict[str, Any] = {}
    prompt: str = ""
    null_metadata: dict[str, Any] = {}
    guidance: float = 1.0
    max_new_tokens: int = 100
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 42
    num_samples: int = 1


FIELDS = tuple(name for name in Request.__struct_fields__ if name != "id")


def replace_defaults(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> Request:
    """Returns a request with some of the defaults replaced.

    Raises:
        ConfigurationError: If a field is unknown, or a value is invalid.
    """
    merged = {**defaults, **values}
    try:
        request = msgspec.convert(merged, Request)
    except msgspec.ValidationError as error:
        # The path of the field is at the end: `Expected … - at `$.temperature``.
        message, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        if name:
            message = f"{name}={merged.get(name)!r}: {message}"
        else:
            message += f"; expected any of {', '.join(Request.__struct_fields__)}"
        raise ConfigurationError(message) from error

    refuse_out_of_bounds(GenerateConfig(**{name: getattr(request, name) for name in FIELDS}))
    return request


def read_requests(path: str, defaults: Request) -> list[Request]:
    """Reads the requests of a JSON Lines file; missing fields have the values of `defaults`.

    Raises:
        DataError: If the file cannot be read, or lines are invalid requests; lists all such lines.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"input={path} cannot be read: {error}") from error

    default_values = msgspec.structs.asdict(defaults)
    requests: list[Request] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = decode_json(line, dict[str, Any])
            requests.append(replace_defaults(default_values, values))
        except (msgspec.DecodeError, ConfigurationError) as error:
            problems.append(f"{path}, line {number}: {error}")
    if problems:
        raise DataError("\n".join(problems))
    return requests


def apply_steps(requests: Sequence[Request], *steps: Callable[[Request], Output]) -> list[Output]:
    """Applies each step to each request; returns the outputs, ordered by request, then by step.

    Raises:
        ConfigurationError: If a step refuses a request; lists the problems of all requests.
    """
    outputs: list[Output] = []
    problems: list[str] = []
    for number, request in enumerate(requests, start=1):
        for step in steps:
            try:
                outputs.append(step(request))
            except ConfigurationError as error:
                prefix = f"request {request.id or number}: " if len(requests) > 1 else ""
                problems.append(f"{prefix}{error}")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return outputs
