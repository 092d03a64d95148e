"""Parsing JSON and YAML that come from outside: every file, line and answer passes here.

The parsers raise a RecursionError, which is no ValueError, for what is nested a thousand levels
deep, and what is nearly as deep fails later, when it is walked or written. An integer of 400 digits
fails when it becomes a float. Half of a surrogate pair, written as an escape, fails when the text
is encoded. msgspec raises a UnicodeDecodeError, which is none of its own errors, for a text that is
not in UTF-8. Here, all this is refused as any other content that is malformed. YAML is also refused
if its aliases stand for more than it could itself hold.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import msgspec
import yaml

Form = TypeVar("Form")
Content = bytes | memoryview | msgspec.Raw | str

MOST_NESTED = 200
"""Levels of lists and objects, beyond which content is refused."""

MOST_ALIASED = 1_000_000
"""Nodes that the aliases of a YAML document may stand for, all together."""

_LARGEST_INTEGER = int(sys.float_info.max)
_DIGITS = len(str(_LARGEST_INTEGER))
_DIGIT = re.compile("[0-9]")
_LONG_NUMBER = re.compile(rf"(?<![0-9])[0-9]{{{_DIGITS}}}")

_TOO_DEEP = f"nested too deeply (at most {MOST_NESTED} levels are read)"
_TOO_LARGE = "an integer that is larger than any float"
_HALF_A_PAIR = "a text with half of a surrogate pair, which is no character"
_SURROGATE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")


class ExtremeContentError(msgspec.DecodeError):
    """Content that is well formed, but deeper or larger than what is read, or no text."""


def parse_json(
    text: str | bytes,
    *,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Parses JSON as `json.loads` does, with NaN and infinity.

    Raises:
        ExtremeContentError: If it is nested too deeply, has an integer that is no float, or half of
            a surrogate pair.
        ValueError: If it is malformed.
    """
    try:
        value = json.loads(text, object_pairs_hook=object_pairs_hook, parse_constant=parse_constant)
    except RecursionError as error:
        raise ExtremeContentError(_TOO_DEEP) from error
    _refuse_extremes(text, value)
    if _may_have_surrogates(text) and has_surrogates(value):
        raise ExtremeContentError(_HALF_A_PAIR)
    return value


@overload
def decode_json(content: Content, form: type[Form]) -> Form: ...


@overload
def decode_json(content: Content, form: Any = Any) -> Any: ...


def decode_json(content: Content, form: Any = Any) -> Any:
    """Decodes JSON of a form with msgspec, which takes no NaN and no infinity.

    Raises:
        msgspec.DecodeError: If it is malformed; its subclass ValidationError: if it has another
            form.
    """
    value = JSONDecoder(form).decode(content)
    _refuse_extremes(content if isinstance(content, str) else bytes(content), value)
    return value


class JSONDecoder(Generic[Form]):
    """Decodes many lines of a form, which says what is in it on all levels.

    What is only kept as `msgspec.Raw`, or is no part of the form, may be nested deeper than
    `MOST_NESTED`.
    """

    @overload
    def __init__(self: JSONDecoder[Form], form: type[Form]) -> None: ...

    @overload
    def __init__(self: JSONDecoder[Any], form: Any) -> None: ...

    def __init__(self, form: Any) -> None:
        self._decode = msgspec.json.Decoder(form).decode

    def decode(self, content: Content) -> Form:
        """Decodes JSON.

        Raises:
            msgspec.DecodeError: See `decode_json`.
        """
        try:
            return self._decode(content)
        except RecursionError as error:
            raise ExtremeContentError(_TOO_DEEP) from error
        except UnicodeDecodeError as error:
            wrong = error.object[error.start]
            raise msgspec.DecodeError(f"not UTF-8: {error.reason} (0x{wrong:02x})") from error
        except UnicodeEncodeError as error:  # half of a surrogate pair in a `str`
            raise msgspec.DecodeError(f"not UTF-8: {error.reason}") from error


def _refuse_extremes(text: str | bytes, value: Any) -> None:
    """Refuses values that are nested too deeply, and integers that are no floats."""
    if not (_may_be_deep(text) or _may_have_large_integer(text)):
        return

    level = [value]
    for _ in range(MOST_NESTED + 1):
        if any(isinstance(part, int) and abs(part) > _LARGEST_INTEGER for part in level):
            raise ExtremeContentError(_TOO_LARGE)
        containers = [part for part in level if isinstance(part, list | dict)]
        if not containers:
            return
        level = [
            part
            for container in containers
            for part in (container.values() if isinstance(container, dict) else container)
        ]
    raise ExtremeContentError(_TOO_DEEP)


def _may_be_deep(text: str | bytes) -> bool:
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{") > MOST_NESTED
    return text.count("[") + text.count("{") > MOST_NESTED


def _may_have_surrogates(text: str | bytes) -> bool:
    content = text.decode("latin-1") if isinstance(text, bytes) else text
    return _SURROGATE.search(content) is not None


def has_surrogates(value: Any) -> bool:
    """Whether a text in a value, at most `MOST_NESTED` levels deep, cannot be encoded.

    Python decodes each byte of a file name that is not in UTF-8 as half of a surrogate pair.
    """
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(map(has_surrogates, value)) or any(map(has_surrogates, value.values()))
    return isinstance(value, list | tuple) and any(map(has_surrogates, value))


def _may_have_large_integer(text: str | bytes) -> bool:
    sample = text[_DIGITS - 1 :: _DIGITS]  # includes one of the digits of each long number
    if isinstance(sample, bytes):
        sample = sample.decode("latin-1")
    if _DIGIT.search(sample) is None:
        return False
    content = text.decode("latin-1") if isinstance(text, bytes) else text
    return _LONG_NUMBER.search(content) is not None


def parse_yaml(text: str | bytes, loader_class: type[yaml.SafeLoader] | None = None) -> Any:
    """Parses a YAML document, without tags that construct objects.

    Args:
        loader_class: A stricter loader.

    Raises:
        yaml.YAMLError: If it is malformed.
    """
    return _parse_yaml(text, loader_class or YAMLLoader)


def parse_yaml_file(text: str, file: Path) -> Any:
    """Like `parse_yaml`; errors name the file that the text is from, and quote none of its lines.

    Raises:
        yaml.YAMLError: If it is malformed.
    """
    try:
        return _parse_yaml(_FileText(text, file), YAMLLoader)
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError):  # which name it, and the line
        raise
    except yaml.YAMLError as error:
        raise yaml.YAMLError(f'{error}\n  in "{file}"') from error


class _FileText(io.StringIO):
    """The text of a file, with the name by which PyYAML calls it in errors."""

    def __init__(self, text: str, file: Path) -> None:
        super().__init__(text)
        self.name = str(file)


def _parse_yaml(text: str | bytes | _FileText, loader_class: type[yaml.SafeLoader]) -> Any:
    try:
        content = text.getvalue() if isinstance(text, _FileText) else text
        loader = loader_class(text)
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
        if _may_have_surrogates(content) and has_surrogates(value):
            raise yaml.YAMLError(_HALF_A_PAIR)
        return value
    except yaml.YAMLError:
        raise
    except RecursionError as error:
        raise yaml.YAMLError(_TOO_DEEP) from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML does not check everything: `!!int`, or the date 2001-99-99.
        raise yaml.YAMLError(str(error)) from error


def decode_yaml(content: str | bytes, form: type[Form]) -> Form:
    """Parses a YAML document of a form.

    Raises:
        msgspec.DecodeError: If it is malformed; its subclass ValidationError: if it has another
            form.
    """
    try:
        value = parse_yaml(content)
    except yaml.YAMLError as error:
        raise msgspec.DecodeError(str(error)) from error
    return msgspec.convert(value, form)


class YAMLLoader(yaml.SafeLoader):
    """Refuses aliases that stand for too many nodes: merged or printed, each would be a copy."""

    def __init__(self, text: str | bytes | _FileText) -> None:
        super().__init__(text)
        self._nodes = 0
        self._aliased = 0
        self._sizes: dict[int, int] = {}  # by node

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= MOST_NESTED:  # each level is looked at for each token
            raise yaml.YAMLError(_TOO_DEEP)
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_alias = self.check_event(yaml.AliasEvent)
        before = self._nodes + self._aliased
        node = super().compose_node(parent, index)
        if is_alias:
            self._aliased += self._sizes.get(id(node), 1)
            if self._aliased > MOST_ALIASED:
                raise yaml.YAMLError(f"its aliases stand for more than {MOST_ALIASED:,} nodes")
        else:
            self._nodes += 1
            self._sizes[id(node)] = self._nodes + self._aliased - before
        return node

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > _DIGITS:  # in base 60, the time would be quadratic
            raise yaml.YAMLError(_TOO_LARGE)
        number: int = super().construct_yaml_int(node)
        if abs(number) > _LARGEST_INTEGER:  # in base 16
            raise yaml.YAMLError(_TOO_LARGE)
        return number


YAMLLoader.add_constructor("tag:yaml.org,2002:int", YAMLLoader.construct_yaml_int)
