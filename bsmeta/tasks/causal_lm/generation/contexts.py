"""Requests for text, and the tokens that a model continues for each: metadata and a prompt.

Requests come from the command line, the lines of a file, or the lines of a dialogue.
In a dialogue (standard input, a terminal or a pipe), a line `key=value` sets a metadata type or a
sampling parameter for the following prompts (`key=` resets it); any other line is a prompt. A
leading space makes any line a prompt.

The metadata becomes records, which the renderer and encoder of the training data process; so
granularity, templates, buckets and separators apply here as well.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.tools import GenerateConfig
from bsmeta.core.errors import ConfigurationError, DataError, refuse_out_of_bounds
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.processors import column_keys, type_of
from bsmeta.metadata.records import BadDocument, Document, Record
from bsmeta.metadata.rendering import Rendered, Renderer

_SETTING = re.compile(r"(\w+)=(.*)")

_MAPPINGS = ("metadata", "null_metadata")

HELP = "a prompt, or key=value ({names}, and {fields}); key= resets it; Ctrl-D ends"


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


def request_of(config: GenerateConfig) -> Request:
    """The request of the command line."""
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
    refuse_out_of_bounds(GenerateConfig(**{name: getattr(request, name) for name in FIELDS}))
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


class Dialogue:
    """Keeps the current settings and turns lines into requests.

    Args:
        check: Raises a `ConfigurationError` for metadata that the model cannot be given.
    """

    def __init__(
        self, request: Request, types: Iterable[str], check: Callable[[Mapping[str, Any]], object]
    ) -> None:
        self._first = msgspec.structs.asdict(request)
        self._now = dict(self._first)
        self._types = tuple(types)
        self._check = check

    def parse(self, line: str) -> Request | None:
        """The request of a line; None if the line only changed a setting."""
        setting = _SETTING.fullmatch(line)
        if setting is None:
            return changed(self._now, {"prompt": line.removeprefix(" ")})
        name, text = setting.groups()
        self._set(name, text)
        return None

    def _set(self, name: str, text: str) -> None:
        if name in FIELDS and name != "prompt":
            value = _value(text) if text else self._first[name]
            if name in _MAPPINGS:
                self._check(value if isinstance(value, dict) else {})
            self._now = msgspec.structs.asdict(changed(self._now, {name: value}))
        elif name in self._types:
            metadata = {key: old for key, old in self._now["metadata"].items() if key != name}
            if text:
                metadata[name] = True if text == "true" else text
            self._check(metadata)
            self._now["metadata"] = metadata
        else:
            known = ", ".join([*self._types, *(field for field in FIELDS if field != "prompt")])
            raise ConfigurationError(
                f"{name}: expected any of {known} before `=` (a blank before the line makes it a "
                "prompt)"
            )

    def requests(self, lines: Iterable[str]) -> Iterator[Request]:
        """Yield the requests of all lines; prints errors to standard error and continues."""
        for line in lines:
            try:
                request = self.parse(line.rstrip("\r\n"))
            except ConfigurationError as error:
                print(error, file=sys.stderr, flush=True)
            else:
                if request is not None:
                    yield request


def lines_of_input(types: Iterable[str]) -> Iterator[str]:
    """Yield the lines of standard input; at a terminal, prints help and a prompt."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    fields = ", ".join(field for field in FIELDS if field not in ("prompt", *_MAPPINGS))
    print(HELP.format(names=", ".join(types), fields=fields), file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            return


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{text}: not readable: {error}") from error


@dataclass(frozen=True, slots=True)
class Context:
    """The input that a model continues.

    Attributes:
        prefix: The rendered metadata; "" without any.
        ids: Token ids of the prefix and the prompt; never empty.
        joint: The remainder of the separator between prefix and text, with which the continuation
            begins; it is not part of the text.
    """

    prefix: str
    ids: list[int]
    joint: str


class Contexts:
    """Builds contexts in the same way as training builds the beginnings of documents."""

    def __init__(self, config: DataConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self._config = config.metadata_config
        self._renderer = Renderer(config.metadata_config)
        self._encoder = DocumentEncoder(tokenizer, config)
        self._tokenizer = tokenizer
        self._is_apart = config.row_budget == BY_TEXT  # the separator merges with no word

    def make(self, metadata: Mapping[str, Any], prompt: str) -> Context:
        """Build the context of metadata followed by a prompt.

        If both are empty, the context is an end-of-text token.

        Args:
            metadata: A value or a list of values by type; None leaves a type out; True announces
                a local type.
            prompt: The text to continue; may be empty.
        """
        head = self._rendered(metadata)
        rendered = Rendered(
            text=prompt,
            prefix=head.prefix,
            prefix_spans=head.prefix_spans,
            prefix_token_types=head.prefix_token_types,
            prefix_own=head.prefix_own,
            lead=head.lead,
            body=prompt,
        )
        (encoded,) = self._encoder.encode([rendered])
        body, joint = encoded.ids[:-1].tolist(), ""
        if not prompt and not self._is_apart:
            body, joint = self._begun(head.lead)
        ids = [*encoded.prefix_ids.tolist(), *body]
        return Context(head.prefix, ids or [int(self._tokenizer.eos_token_id)], joint)

    def _rendered(self, metadata: Mapping[str, Any]) -> Rendered:
        given = {key: value for key, value in metadata.items() if value is not None}
        for key, value in given.items():
            check_value(key, value, self._config)
        records = {key: _records(key, value) for key, value in given.items()}
        try:
            rendered = self._renderer.render(Document("", None, records), tuple(given))
        except BadDocument as error:
            raise ConfigurationError(f"metadata={given}: {error}") from error
        if given and not rendered.prefix:
            raise ConfigurationError(f"metadata={given}: nothing of it can be rendered")
        return rendered

    def _begun(self, lead: str) -> tuple[list[int], str]:
        """The tokens of the separator that do not merge with the first word, and its remainder.

        A space, for example, is part of the token of the word after it.
        """
        if not lead:
            return [], ""
        followed = f"{lead}A"
        (encoded,) = self._encoder.encode([Rendered(followed, body=followed)])
        inside = encoded.text_ends[:-1] <= len(lead)
        end = int(encoded.text_ends[:-1][inside].max(initial=0))
        return encoded.ids[:-1][inside].tolist(), lead[end:]


def _records(key: str, value: Any) -> list[Record]:
    if type_of(key).is_local:  # only announced in the prefix: its insertion is not used
        return [Record(value="", key=key, type="local", char_start_idx=0, char_end_idx=0)]
    values = value if isinstance(value, list) else [value]
    return [Record(value=value, key=key, type="global") for value in values]


def check_value(key: str, value: Any, config: MetadataConfig) -> None:
    """Reject a metadata value that cannot be in the prefix of this model."""
    check_type(key, f"metadata.{key}", config)
    if type_of(key).is_local:
        _check_announcement(key, value, config)
    elif type_of(key).always_present:
        if value is not True:
            raise ConfigurationError(f"metadata.{key}={value}: expected true, they have no value")
    else:
        values = value if isinstance(value, list) else [value]
        if not values or not all(_is_value(value) for value in values):
            raise ConfigurationError(f"metadata.{key}={value!r}: expected a string or a number")


def check_type(key: str, name: str, config: MetadataConfig) -> None:
    """Reject a metadata type that cannot be in the prefix of this model.

    Args:
        name: What the user set, for the message.
    """
    known = [*config.metadata_list]
    if key not in known:
        near = column_keys().get(key) or next(
            iter(difflib.get_close_matches(key, known, n=1)), None
        )
        hint = f"; did you mean {near}?" if near in known else ""
        given = [key for key in known if not type_of(key).is_local]
        raise ConfigurationError(
            f"{name}: the model was not trained with this type; expected any of {given}{hint}"
        )
    is_global = not type_of(key).is_local and not type_of(key).always_present
    if is_global and config.metadata_position == "append":
        raise ConfigurationError(
            f"{name}: the model was trained with metadata_position=append: it reads metadata after "
            "the text, so none can be given before it"
        )


def _is_value(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def is_announced(key: str, config: MetadataConfig) -> bool:
    """Whether the prefix names a local type that a document has."""
    named = (config.local_metadata_special_tokens or {}).get(key, key) != ""
    return config.add_local_metadata_special_tokens_in_prefix and named


def _check_announcement(key: str, value: Any, config: MetadataConfig) -> None:
    announced = is_announced(key, config)
    if value is True and announced:
        return
    fix = (
        f"the prefix only announces it: metadata.{key}=true"
        if announced
        else f"and training did not announce it in the prefix: leave out metadata.{key}"
    )
    raise ConfigurationError(
        f"metadata.{key}={value}: {key} is a local type; it stands at places in the text and "
        f"cannot be given as a value before it; {fix}"
    )
