"""Texts that are hard for a regular expression, made from its parts."""

from __future__ import annotations

import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

_Item = tuple[Any, Any]
"""What a pattern consists of, as `re` parses it: the code of an item, and its arguments."""

GENERAL = (
    " ", ".", ",", '"', "'", "(", ")", "[", "]", "{", "<", ">", "|", "-", "_", "/", "\\", ":", "=",
    "&", "#", "*", "`", "~", "@", "%", "a", "A", "1", "\n", "\r", "\r\n", "\t", "\0", " \n", "a ",
    "a.", "a. ", "1.", '",', 'x",y,"\n', "[[", "{{", "<!--", "<a ", "${", "é", "。", "…", "\u00a0",
    "\u2028", "e\u0301",
)  # fmt: skip
"""Strings whose repetition is hard for many a splitter."""

_ENDINGS = ("", "\0")  # the second ends no match
_CANDIDATES = 'a1 -.x\n"Z_é'
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s", codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_MOST_PAIRED = 6
_LONGEST_UNIT = 40


class Shape(NamedTuple):
    """A text: a beginning, a string that is repeated, and an end."""

    beginning: str
    unit: str
    end: str

    def make(self, length: int) -> str:
        """Returns a text of about `length` characters."""
        return self.beginning + self.unit * max(1, length // len(self.unit)) + self.end


def list_shapes(pattern: re.Pattern[Any]) -> list[Shape]:
    """Returns texts of strings that a pattern matches or almost matches."""
    source = pattern.pattern
    if isinstance(source, bytes):
        source = source.decode("latin-1")
    items = list(parser.parse(source, pattern.flags & ~re.DEBUG))
    atoms = list(dict.fromkeys(_atoms(items)))
    units = dict.fromkeys([*atoms, *_parts(items), *GENERAL])
    units |= dict.fromkeys(map("".join, product(atoms[:_MOST_PAIRED], repeat=2)))
    shapes = [
        Shape("", unit, end) for unit in units if 0 < len(unit) <= _LONGEST_UNIT for end in _ENDINGS
    ]
    for number in range(1, len(items) + 1):
        repeated = list(dict.fromkeys(_atoms(items[number - 1 : number + 1])))[:_MOST_PAIRED]
        shapes += [
            Shape(beginning, unit, end)
            for beginning in _examples(items[:number])
            for unit in repeated
            for end in _ENDINGS
        ]
    return list(dict.fromkeys(shapes))


def _atoms(items: Sequence[_Item]) -> Iterator[str]:
    """Yields the characters that a pattern names or excludes, and its literal strings."""
    literal = ""
    for code, argument in items:
        if code is codes.LITERAL:
            literal += chr(argument)
            yield chr(argument)
            continue
        if len(literal) > 1:
            yield literal
        literal = ""
        if code is codes.NOT_LITERAL:
            yield from (chr(argument), _matching([(codes.NEGATE, None), (codes.LITERAL, argument)]))
        elif code is codes.ANY:
            yield from "a\n"
        elif code is codes.IN:
            yield from _members(argument)
            yield _matching(argument)
        for inner in _inner(code, argument):
            yield from _atoms(inner)
    if len(literal) > 1:
        yield literal


def _parts(items: Sequence[_Item]) -> Iterator[str]:
    """Yields examples of matches of parts of a pattern: beginnings, ends, and neighbors."""
    for number in range(1, len(items) + 1):
        yield from _examples(items[:number])
        yield from _examples(items[-number:])
        yield from _examples(items[number - 1 : number + 2])
    for code, argument in items:
        for inner in _inner(code, argument):
            yield from _parts(inner)


def _examples(items: Sequence[_Item]) -> Iterator[str]:
    """Yields strings that match: with the least repetitions and one more, of each alternative."""
    branches = max(
        (len(argument[1]) for code, argument in _flat(items) if code is codes.BRANCH), default=1
    )
    for repetitions, branch in product((0, 1), range(min(branches, 3))):
        yield _example(items, repetitions, branch, {})


def _example(items: Sequence[_Item], repetitions: int, branch: int, groups: dict[int, str]) -> str:
    text = ""
    for code, argument in items:
        if code is codes.LITERAL:
            text += chr(argument)
        elif code is codes.NOT_LITERAL:
            text += _matching([(codes.NEGATE, None), (codes.LITERAL, argument)])
        elif code is codes.ANY:
            text += "a"
        elif code is codes.IN:
            text += _matching(argument)
        elif code is codes.BRANCH:
            options = argument[1]
            text += _example(options[branch % len(options)], repetitions, branch, groups)
        elif code is codes.GROUPREF:
            text += groups.get(argument, "")
        elif code in _REPEATS:
            least, most, inner = argument
            count = min(max(least, repetitions), most)
            text += _example(inner, repetitions, branch, groups) * count
        elif code not in (codes.ASSERT, codes.ASSERT_NOT):
            for inner in _inner(code, argument):
                part = _example(inner, repetitions, branch, groups)
                text += part
                if code is codes.SUBPATTERN and argument[0] is not None:
                    groups[argument[0]] = part
    return text


def _inner(code: Any, argument: Any) -> list[Sequence[_Item]]:
    """Returns the parts of an item that consist of items."""
    if code is codes.BRANCH:
        return list(argument[1])
    if code is codes.SUBPATTERN:
        return [argument[3]]
    if code in _REPEATS:
        return [argument[2]]
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return [argument[1]]
    return [argument] if code is codes.ATOMIC_GROUP else []


def _flat(items: Sequence[_Item]) -> Iterator[_Item]:
    for code, argument in items:
        yield code, argument
        for inner in _inner(code, argument):
            yield from _flat(inner)


def _members(characters: Sequence[_Item]) -> list[str]:
    """Returns the characters that a class names, and one of each range and category."""
    members = []
    for code, argument in characters:
        if code is codes.LITERAL:
            members.append(chr(argument))
        elif code is codes.RANGE:
            members.append(chr(argument[0]))
        elif code is codes.CATEGORY:
            members += [
                character for character in _CANDIDATES if re.match(_CATEGORIES[argument], character)
            ][:1]
    return members[:_MOST_PAIRED]


def _matching(characters: Sequence[_Item]) -> str:
    """Returns a character that a class matches."""
    if characters[0][0] is not codes.NEGATE:
        return _members(characters)[0]
    return next(
        character for character in _CANDIDATES + "!§" if not _is_member(characters, character)
    )


def _is_member(characters: Sequence[_Item], character: str) -> bool:
    for code, argument in characters:
        if code is codes.LITERAL and chr(argument) == character:
            return True
        if code is codes.RANGE and argument[0] <= ord(character) <= argument[1]:
            return True
        if code is codes.CATEGORY and re.match(_CATEGORIES[argument], character):
            return True
    return False
