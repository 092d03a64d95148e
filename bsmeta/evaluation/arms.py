"""Arms: the ways in which one document is shown to the model, and which of them are compared.

An arm turns a document into rendered text; a comparison pairs two arms. Every arm is scored once,
however many comparisons use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bsmeta.config.errors import ConfigurationError

NOTHING: tuple[str, ...] = ()
TEXT = "text"
"""The group of the one comparison that compares nothing: the text alone, of every document."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to show a document: with these metadata types (those of them that it has)."""

    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms over the same bytes: what does `test` change against `base`?

    Attributes:
        group: What it is one of, such as `all` or `each`.
        name: Unique among the comparisons, such as `each/url`.
    """

    group: str
    name: str
    base: Arm
    test: Arm


def _all(types: tuple[str, ...]) -> list[Comparison]:
    return [Comparison("all", "all", Arm(NOTHING), Arm(types))]


def _each(types: tuple[str, ...]) -> list[Comparison]:
    return [Comparison("each", f"each/{one}", Arm(NOTHING), Arm((one,))) for one in types]


COMPARISONS: dict[str, Callable[[tuple[str, ...]], list[Comparison]]] = {
    "all": _all,
    "each": _each,
}


def text_alone() -> Comparison:
    """No comparison at all: how the model reads every document without metadata."""
    return Comparison(TEXT, TEXT, Arm(NOTHING), Arm(NOTHING))


def plan_comparisons(groups: Sequence[str], types: Sequence[str]) -> list[Comparison]:
    """The comparisons of these groups, in their order.

    Raises:
        ConfigurationError: A group has no such name.
    """
    unknown = [group for group in groups if group not in COMPARISONS]
    if unknown:
        raise ConfigurationError(
            f"comparisons={list(groups)}: {unknown} unknown, expected any of {list(COMPARISONS)}"
        )
    return [one for group in groups for one in COMPARISONS[group](tuple(types))]
