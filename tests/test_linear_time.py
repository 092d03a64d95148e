"""Time grows with the length of a text, never with its square: all patterns, all splitters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from bsmeta.core.token_forms import TOKEN_FORMS
from tests.growth import LIMIT, SHORT, measure_growth
from tests.hostile_texts import GENERAL, Shape, list_shapes
from tests.patterns import PACKAGE, Use, Uses, find_uses, read_modules
from tests.splitters import (
    EXAMPLE,
    OTHERS,
    called_functions,
    splitters,
    splitting_functions,
)

LENGTHS_OF_PATTERNS = (*SHORT, 1 << 10, 1 << 12)
LENGTHS = (1 << 7, 1 << 10, 1 << 13)
LENGTHS_OF_OWN_SHAPES = (*LENGTHS, 1 << 15)

ATTEMPTS = 3
"""Measurements of which one must notice a slow function: other processes can only hide growth."""

SPECIAL_TOKENS = Tokenizer(WordLevel({"a": 0}))
SPECIAL_TOKENS.add_special_tokens(["<|endoftext|>", "<pad>", AddedToken("<mask>", lstrip=True)])

# By file, examples of the parameters on which its patterns depend.
VALUES: dict[str, dict[str, list[Any]]] = {
    "core/enclosed.py": {"opening": ["<", "<!--"]},
    "core/secrets.py": {"secret": ["a-secret-of-some-length", "short"]},
    "core/token_forms.py": {"pattern": [form.pattern.pattern for form in TOKEN_FORMS]},
    "data/table/csv_file.py": {
        "csv_format": [SimpleNamespace(separator=separator) for separator in ",\t|-"],
        "separator": [",", "\t", "|", "-"],
        "name": ["text", "a b"],
    },
    "data/text/word_cache.py": {"tokenizer": [SPECIAL_TOKENS]},
    "data/text/tokens.py": {"self": [SimpleNamespace(_ids={"<|endoftext|>": 0, "<pad>": 1})]},
    "tasks/disambiguation/array_folder.py": {"name": ["ids"]},
}

FILES = [
    path.relative_to(PACKAGE).as_posix()
    for path in sorted(PACKAGE.rglob("*.py"))
    if re.search(r"\bre\b|\bMeta\b", path.read_text(encoding="utf-8"))
]
"""All files that may hold a pattern: the patterns themselves take seconds to find."""

SPLITTERS = splitters()


@cache
def find_all_uses() -> Uses:
    return find_uses(read_modules(), VALUES)


def list_distinct(uses: Sequence[Use]) -> Iterator[Use]:
    """Yields one use of each pattern and way to read a text: `sub` and others as `finditer`."""
    seen = set()
    for use in uses:
        method = use.method if use.method in ("search", "match", "fullmatch") else "finditer"
        key = use.pattern, method, use.most
        if key not in seen:
            seen.add(key)
            yield Use(use.place, use.pattern, method, use.most)


def find_slow_shape(use: Use) -> tuple[Shape, float] | None:
    """Returns a text for which a pattern's time grows faster than its length, and the growth."""

    def run(text: str) -> None:
        content = text if isinstance(use.pattern.pattern, str) else text.encode()
        if use.most is not None:
            content = content[: use.most]
        result = getattr(use.pattern, use.method)(content)
        if use.method == "finditer":
            list(result)

    lengths = LENGTHS_OF_PATTERNS
    if use.most is not None:
        lengths = (*(length for length in SHORT if length < use.most), use.most, 4 * use.most)
    for shape in list_shapes(use.pattern):
        growth = measure_growth(run, shape.make, lengths)
        if growth > LIMIT:
            return shape, growth
    return None


def get_file(use: Use) -> str:
    return use.place.rpartition(":")[0]


@pytest.mark.long
def test_every_pattern_is_found() -> None:
    every = find_all_uses()
    assert every.problems == []
    assert len({use.place for use in every.uses}) > 80
    assert {get_file(use) for use in every.uses} <= {*FILES}


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_patterns_take_linear_time(file: str) -> None:
    uses = [use for use in list_distinct(find_all_uses().uses) if get_file(use) == file]
    assert [(use, shape) for use in uses if (shape := find_slow_shape(use))] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"<[^>]*>", "finditer"),
        (r"[\w.]+$", "search"),
        (r"\s*\([^()]*\)", "finditer"),
        (r"[-=+|: \t]*[-=]{3}[-=+|: \t]*[\r\n]*", "fullmatch"),
        (r"\[https?://\S+ ?([^\]]*)\]", "finditer"),
        (r"(?:a|b|ab)*c", "fullmatch"),
        (r"(\w+\s?)+:", "match"),
        (r'"(?:\\.|[^"\\])*"', "findall"),
        (r"(?<!a)(?:a+)+b", "search"),
    ],
)
def test_slow_patterns_are_detected(pattern: str, method: str) -> None:
    use = Use("", re.compile(pattern), method)
    assert any(find_slow_shape(use) for _ in range(ATTEMPTS))


@pytest.mark.parametrize("method", ["search", "finditer"])
def test_an_anchored_pattern_is_not_slow(method: str) -> None:
    assert find_slow_shape(Use("", re.compile(r"(?<!\s)\s++(?:\(|$)"), method)) is None
    assert find_slow_shape(Use("", re.compile(r"<[^>]*>"), "match")) is None


@pytest.mark.long
@pytest.mark.parametrize("name", SPLITTERS)
def test_splitters_take_linear_time(name: str, tmp_path: Path) -> None:
    splitter = SPLITTERS[name]
    general = [(Shape("", unit, ""), splitter.lengths or LENGTHS) for unit in GENERAL]
    special = [(shape, splitter.lengths or LENGTHS_OF_OWN_SHAPES) for shape in splitter.shapes]
    slow = {}
    for shape, lengths in [*general, *special]:
        growth = measure_growth(lambda text: splitter.run(text, tmp_path), shape.make, lengths)
        if growth > LIMIT:
            slow[shape] = growth
    assert slow == {}


@pytest.mark.long
def test_every_function_that_splits_texts_is_called(tmp_path: Path) -> None:
    called: set[str] = set()
    for number, splitter in enumerate(SPLITTERS.values()):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        texts = [EXAMPLE, *(shape.make(200) for shape in splitter.shapes)]
        for text in texts:
            called |= called_functions(partial(splitter.run, text, folder))
    functions = set(splitting_functions(read_modules()))
    assert functions - called <= {*OTHERS}
    assert {*OTHERS} <= functions


@pytest.mark.parametrize(
    "slow",
    [
        lambda text: [sum(map(ord, text[:number])) for number in range(0, len(text), 16)],
        lambda text: [word for word in text.split(" ") if text.split(" ").count(word) > 1],
    ],
)
def test_slow_splitters_are_detected(slow: Any) -> None:
    """Nearly all their time grows quadratically, so that no load hides the growth."""
    texts = [Shape("", unit, "").make for unit in (" ", "a ")]
    assert any(
        measure_growth(slow, make, LENGTHS) > LIMIT for make in texts for _ in range(ATTEMPTS)
    )
