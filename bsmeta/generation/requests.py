"""Requests for text: from the command line, lines of a file, or lines of a dialogue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.config.generation import GenerateConfig

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A request for text; `GenerateConfig` documents the fields.

    `id` is only copied to the result.
    """

    id: str | int | None = None
    metadata: dict[str, Any] = {}
    prompt: str = ""
    null_metadata: dict[str, Any] = {}
    guidance: float = 1.0
    max_new_tokens: Positive = 100
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.8
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.95
    seed: Annotated[int, msgspec.Meta(ge=0)] = 42
    num_samples: Positive = 1


FIELDS = tuple(name for name in Request.__struct_fields__ if name != "id")


def request_of(config: GenerateConfig) -> Request:
    """The request of the command line.

    Raises:
        ConfigurationError: A value is not possible.
    """
    return changed({name: getattr(config, name) for name in FIELDS}, {})


def changed(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> Request:
    """A request with some of the defaults replaced.

    Raises:
        ConfigurationError: A field is unknown, or a value is not possible.
    """
    merged = {**defaults, **values}
    try:
        request = msgspec.convert(merged, Request)
    except msgspec.ValidationError as error:
        raise ConfigurationError(_explained(error, merged)) from error
    for name in ("guidance", "temperature", "top_p"):
        if not math.isfinite(getattr(request, name)):
            raise ConfigurationError(f"{name}={merged[name]}: expected a finite number")
    return request


def _explained(error: msgspec.ValidationError, values: Mapping[str, Any]) -> str:
    """`temperature=-1: Expected …`, from msgspec's `Expected … - at `$.temperature``."""
    message, _, place = str(error).partition(" - at `$.")
    name = place.rstrip("`")
    if name:
        return f"{name}={values.get(name)!r}: {message}"
    return f"{message}; expected any of {', '.join(Request.__struct_fields__)}"


def read_requests(path: str, defaults: Request) -> list[Request]:
    """Read the requests of a JSON Lines file; missing fields have the values of `defaults`.

    Raises:
        DataError: The file cannot be read, or lines are not valid requests; lists all such lines.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"input={path} cannot be read: {error}") from error
    base = msgspec.structs.asdict(defaults)
    requests, problems = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = msgspec.json.decode(line, type=dict[str, Any])
            requests.append(changed(base, values))
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigurationError) as error:
            problems.append(f"{path}, line {number}: {error}")
    if problems:
        raise DataError("\n".join(problems))
    return requests
