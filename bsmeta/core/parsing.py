"""Parses all JSON and YAML from outside the program: files, lines and responses.

Some well-formed content breaks programs. Nesting a thousand levels deep makes the parsers raise a
RecursionError, which is not a ValueError, and content nearly as deep fails later, when it is walked
or written. An integer of 400 digits fails when it becomes a float. Half of a surrogate pair,
written as an escape, fails when the text is encoded. For a text that is not in UTF-8, msgspec
raises a UnicodeDecodeError, which is none of its own errors. This module refuses all of this as
malformed. It also refuses YAML whose aliases expand to more nodes than any document could hold, and
a key that an object or a mapping has twice, of which all parsers silently take one value.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import msgspec
import yaml

Value = TypeVar("Value")
Content = bytes | memoryview | msgspec.Raw | str
FloatHook = Callable[[str], Any]

MAX_NESTING = 200
"""Maximum number of nested levels of lists and objects."""

MAX_ALIASED_NODES = 1_000_000
"""Maximum number of nodes that all aliases of a YAML document together may expand to."""

_MAX_INTEGER = int(sys.float_info.max)
_MAX_INTEGER_DIGITS = len(str(_MAX_INTEGER))  # an integer with fewer digits is never too large
_DIGIT = re.compile("[0-9]")
_LONG_NUMBER = re.compile(rf"(?<![0-9])[0-9]{{{_MAX_INTEGER_DIGITS}}}")

_TOO_DEEP = f"nested too deeply (at most {MAX_NESTING} levels are read)"
_TOO_LARGE = "an integer that is larger than any float"
HALF_A_PAIR = "a text with half of a surrogate pair, which is not a character"
_PLAIN_TYPES = {str, int, float, bool, type(None)}  # the types of nearly all values without parts
_MAX_SHOWN_CHARS = 100  # of a key in a message
_SURROGATE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")


class ExtremeContentError(msgspec.DecodeError):
    """Well-formed content that is nested too deeply, has too large a number, or is not Unicode."""


class RepeatedKeyError(msgspec.DecodeError):
    """An object that has a key twice."""


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds a JSON object from its keys and values.

    Raises:
        RepeatedKeyError: If a key occurs twice.
    """
    content = dict(pairs)
    if len(content) == len(pairs):
        return content

    counts = Counter(key for key, _ in pairs)
    key = next(key for key in content if counts[key] > 1)
    raise RepeatedKeyError(
        f"an object has the key {json.dumps(key[:_MAX_SHOWN_CHARS])} {counts[key]} times; expected "
        "each key once"
    )


def parse_json(
    text: str | bytes,
    *,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] = build_object,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Parses JSON as `json.loads` does, with NaN and infinity.

    Args:
        object_pairs_hook: Builds an object from its keys and values; `dict` takes the last value of
            a repeated key, as other programs do.

    Raises:
        RepeatedKeyError: If an object has a key twice, by the default hook.
        ExtremeContentError: If it is nested too deeply, has an integer beyond the range of floats,
            or half of a surrogate pair.
        ValueError: If it is malformed.
    """
    try:
        value = json.loads(text, object_pairs_hook=object_pairs_hook, parse_constant=parse_constant)
    except RecursionError as error:
        raise ExtremeContentError(_TOO_DEEP) from error

    _refuse_extremes(text, value)
    if _may_have_surrogates(text) and has_surrogates(value):
        raise ExtremeContentError(HALF_A_PAIR)
    return value


@overload
def decode_json(
    content: Content,
    value_type: type[Value],
    *,
    float_hook: FloatHook | None = None,
    allow_repeated_keys: bool = False,
) -> Value: ...


@overload
def decode_json(
    content: Content,
    value_type: Any = Any,
    *,
    float_hook: FloatHook | None = None,
    allow_repeated_keys: bool = False,
) -> Any: ...


def decode_json(
    content: Content,
    value_type: Any = Any,
    *,
    float_hook: FloatHook | None = None,
    allow_repeated_keys: bool = False,
) -> Any:
    """Decodes JSON into a type with msgspec, which refuses NaN and infinity.

    Args:
        value_type: The expected type.
        float_hook: Converts the digits of each number with a fraction or an exponent, where the
            type is `Any`.
        allow_repeated_keys: Whether the last value of a repeated key counts, for content of other
            programs. The check parses the content a second time, because msgspec has none.

    Raises:
        ExtremeContentError: If the content is nested too deeply, or has an integer beyond the range
            of floats (a subclass of `DecodeError`).
        RepeatedKeyError: If an object has a key twice (a subclass of `DecodeError`).
        msgspec.DecodeError: If the content is malformed.
        msgspec.ValidationError: If the content has another type (a subclass of `DecodeError`).
    """
    value = JSONDecoder(value_type, float_hook=float_hook).decode(content)
    text = content if isinstance(content, str) else bytes(content)
    _refuse_extremes(text, value)
    if not allow_repeated_keys:
        _refuse_repeated_keys(text)
    return value


class JSONDecoder(Generic[Value]):
    """Decodes many lines of JSON into one type, which declares their content on all levels.

    Values that stay `msgspec.Raw`, or that the type does not declare, may be nested deeper than
    `MAX_NESTING`.

    Args:
        value_type: See `decode_json`.
        float_hook: See `decode_json`.
    """

    @overload
    def __init__(
        self: JSONDecoder[Value], value_type: type[Value], *, float_hook: FloatHook | None = None
    ) -> None: ...

    @overload
    def __init__(
        self: JSONDecoder[Any], value_type: Any, *, float_hook: FloatHook | None = None
    ) -> None: ...

    def __init__(self, value_type: Any, *, float_hook: FloatHook | None = None) -> None:
        self._decode = msgspec.json.Decoder(value_type, float_hook=float_hook).decode

    def decode(self, content: Content) -> Value:
        """Decodes JSON; large integers are not refused.

        Raises:
            msgspec.DecodeError: See `decode_json`.
        """
        try:
            return self._decode(content)
        except RecursionError as error:
            raise ExtremeContentError(_TOO_DEEP) from error
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise msgspec.DecodeError(f"not UTF-8: {error.reason} (0x{byte:02x})") from error
        except UnicodeEncodeError as error:  # half of a surrogate pair in a `str`
            raise msgspec.DecodeError(f"not UTF-8: {error.reason}") from error


def _refuse_repeated_keys(text: str | bytes) -> None:
    """Refuses a well-formed JSON text in which an object has a key twice.

    Raises:
        RepeatedKeyError: Naming the key.
        ExtremeContentError: If it is nested too deeply in a part that msgspec leaves undecoded.
    """
    try:
        json.loads(text, object_pairs_hook=build_object, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise ExtremeContentError(_TOO_DEEP) from error


def _refuse_extremes(text: str | bytes, value: Any) -> None:
    """Refuses values that are nested too deeply, and integers beyond the range of floats.

    Args:
        text: The JSON text of the value. It shows quickly that nearly all values need no walk.

    Raises:
        ExtremeContentError: Naming the fault.
    """
    if not (_may_be_deep(text) or _may_have_large_integer(text)):
        return

    level = [value]
    for _ in range(MAX_NESTING + 1):
        if any(type(node) is int and abs(node) > _MAX_INTEGER for node in level):
            raise ExtremeContentError(_TOO_LARGE)

        containers = [node for node in level if _has_parts(node)]
        if not containers:
            return
        level = [part for container in containers for part in _list_parts(container)]
    raise ExtremeContentError(_TOO_DEEP)


def _has_parts(value: Any) -> bool:
    """Whether a value is a container, or an object that JSON was decoded into."""
    if type(value) in _PLAIN_TYPES:
        return False
    is_container = isinstance(value, dict | list | tuple | set | frozenset | msgspec.Struct)
    return is_container or dataclasses.is_dataclass(value)


def _list_parts(value: Any) -> list[Any]:
    """Returns the values in a container, or in an object that JSON was decoded into."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def _may_be_deep(text: str | bytes) -> bool:
    """Whether a JSON text has enough opening brackets to be nested too deeply."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{") > MAX_NESTING
    return text.count("[") + text.count("{") > MAX_NESTING


def _may_have_surrogates(text: str | bytes) -> bool:
    """Whether a JSON or YAML text has an escape that may be half of a surrogate pair."""
    content = text.decode("latin-1") if isinstance(text, bytes) else text
    return _SURROGATE.search(content) is not None


def has_surrogates(value: Any) -> bool:
    """Whether a text in a value has half of a surrogate pair, so that it cannot be encoded.

    Python decodes each invalid byte of a file name that is not in UTF-8 as such a half.

    Args:
        value: A value of lists and dicts, at most `MAX_NESTING` levels deep.
    """
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return has_surrogates([*value, *value.values()])
    if isinstance(value, list | tuple):
        return any(has_surrogates(part) for part in value)
    return False


def _may_have_large_integer(text: str | bytes) -> bool:
    """Whether a JSON text may have a number with at least the digits of the largest float."""
    # Every `_MAX_INTEGER_DIGITS`-th character: a number of that length has a digit among them.
    sample = text[_MAX_INTEGER_DIGITS - 1 :: _MAX_INTEGER_DIGITS]
    if isinstance(sample, bytes):
        sample = sample.decode("latin-1")
    if _DIGIT.search(sample) is None:
        return False

    content = text.decode("latin-1") if isinstance(text, bytes) else text
    return _LONG_NUMBER.search(content) is not None


def parse_yaml(text: str | bytes, loader_class: type[yaml.SafeLoader] | None = None) -> Any:
    """Parses a YAML document, and refuses tags that construct Python objects.

    Args:
        loader_class: A stricter loader than `YAMLLoader`.

    Raises:
        yaml.YAMLError: If it is malformed.
    """
    return _parse_yaml(text, loader_class or YAMLLoader)


def parse_yaml_file(
    text: str, file: Path, loader_class: type[yaml.SafeLoader] | None = None
) -> Any:
    """Parses the text of a YAML file; errors name the file, and do not quote its lines.

    Args:
        loader_class: A stricter loader than `YAMLLoader`.

    Raises:
        yaml.YAMLError: If it is malformed.
    """
    try:
        return _parse_yaml(_FileText(text, file), loader_class or YAMLLoader)
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError):  # these name the file and the line
        raise
    except yaml.YAMLError as error:
        raise yaml.YAMLError(f'{error}\n  in "{file}"') from error


class _FileText(io.StringIO):
    """The text of a file, with the `name` that PyYAML reads for its errors."""

    def __init__(self, text: str, file: Path) -> None:
        super().__init__(text)
        self.name = str(file)


def _parse_yaml(text: str | bytes | _FileText, loader_class: type[yaml.SafeLoader]) -> Any:
    """Parses a YAML document; see `parse_yaml`."""
    try:
        content = text.getvalue() if isinstance(text, _FileText) else text
        loader = loader_class(text)
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()

        if _may_have_surrogates(content) and has_surrogates(value):
            raise yaml.YAMLError(HALF_A_PAIR)
        return value
    except yaml.YAMLError:
        raise
    except RecursionError as error:
        raise yaml.YAMLError(_TOO_DEEP) from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML does not check every value, such as `!!int x` or the date 2001-99-99.
        raise yaml.YAMLError(str(error)) from error


def decode_yaml(content: str | bytes, value_type: type[Value]) -> Value:
    """Parses a YAML document, and converts it to a type.

    Raises:
        msgspec.DecodeError: If the document is malformed.
        msgspec.ValidationError: If the document has another type (a subclass of `DecodeError`).
    """
    try:
        value = parse_yaml(content)
    except yaml.YAMLError as error:
        raise msgspec.DecodeError(str(error)) from error
    return msgspec.convert(value, value_type)


class YAMLLoader(yaml.SafeLoader):
    """A safe loader that refuses repeated keys, and limits nesting, integers and aliases.

    Each alias becomes a copy of its node when the document is merged or printed, so a few lines can
    stand for billions of nodes.
    """

    def __init__(self, text: str | bytes | _FileText) -> None:
        super().__init__(text)
        self._written_nodes = 0
        self._aliased_nodes = 0
        # The id of a node -> the number of nodes in it, with its aliases expanded.
        self._expanded_sizes: dict[int, int] = {}

    def fetch_flow_collection_start(self, token: Any) -> None:
        # PyYAML checks each open level for each token, so deep nesting takes quadratic time.
        if self.flow_level >= MAX_NESTING:
            raise yaml.YAMLError(_TOO_DEEP)
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_alias = self.check_event(yaml.AliasEvent)
        size_before = self._written_nodes + self._aliased_nodes
        node = super().compose_node(parent, index)

        if is_alias:
            self._aliased_nodes += self._expanded_sizes.get(id(node), 1)
            if self._aliased_nodes > MAX_ALIASED_NODES:
                raise yaml.YAMLError(f"its aliases stand for more than {MAX_ALIASED_NODES:,} nodes")
        else:
            self._written_nodes += 1
            size = self._written_nodes + self._aliased_nodes - size_before
            self._expanded_sizes[id(node)] = size
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)

        # Here, because constructing a mapping adds the keys of `<<`, which it may replace.
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in keys:
                raise yaml.constructor.ConstructorError(
                    "while constructing a mapping",
                    node.start_mark,
                    f"found duplicate key {key.value}",
                    key.start_mark,
                )
            keys.add((key.tag, key.value))
        return node

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > _MAX_INTEGER_DIGITS:  # parsing base 60 takes quadratic time
            raise yaml.YAMLError(_TOO_LARGE)

        number: int = super().construct_yaml_int(node)
        if abs(number) > _MAX_INTEGER:  # possible with fewer digits in base 16
            raise yaml.YAMLError(_TOO_LARGE)
        return number


YAMLLoader.add_constructor("tag:yaml.org,2002:int", YAMLLoader.construct_yaml_int)
