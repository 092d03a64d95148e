"""The annotators by name, and those of a run in the order in which they run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from bsmeta.annotate.about_page import (
    Datasource,
    Html,
    Language,
    Timestamp,
    Title,
    Url,
    WebsiteDescription,
)
from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.content import Content
from bsmeta.annotate.spans import Entity, EntityParagraph, Label, Length, Paragraph, Spelling
from bsmeta.core.errors import ConfigurationError, nearest

ANNOTATORS: dict[str, type[Annotator]] = {
    kind.name: kind
    for kind in (
        Html,
        Content,
        Url,
        Title,
        Timestamp,
        WebsiteDescription,
        Datasource,
        Length,
        Paragraph,
        Language,
        Spelling,
        Label,
        Entity,
        EntityParagraph,
    )
}
"""The annotators; rows list their columns in this order, followed by those of custom annotators."""

_DECLARED = ("name", "columns")  # by every annotator


def make_annotators(config: AnnotateConfig) -> list[Annotator]:
    """The annotators of a run, each after those whose columns it needs.

    Raises:
        ConfigurationError: Listing names that are unknown, classes that cannot be imported or are
            no annotators, columns that two of them make, and columns that none makes.
    """
    kinds, problems = [], []
    for name in dict.fromkeys(config.annotators):
        try:
            kinds.append(ANNOTATORS[name] if name in ANNOTATORS else _imported(name))
        except ConfigurationError as error:
            problems.append(str(error))
    problems += _column_problems(kinds)
    problems += _unknown("replace", config.replace, kinds)
    problems += _unknown("only", config.only or [], kinds)
    if problems:
        raise ConfigurationError("\n".join(problems))
    return [kind(config) for kind in _in_order(kinds)]


def _imported(name: str) -> type[Annotator]:
    """The class of a dotted path."""
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ConfigurationError(
            f"annotators: there is no {name}{nearest(name, ANNOTATORS)}; expected names of "
            f"{', '.join(ANNOTATORS)}, or classes as module.Class"
        )
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"annotators: {name} cannot be imported: {error} (the module must be on PYTHONPATH)"
        ) from error
    is_annotator = isinstance(kind, type) and issubclass(kind, Annotator)
    if (
        not is_annotator
        or inspect.isabstract(kind)
        or not all(hasattr(kind, name) for name in _DECLARED)
    ):
        raise ConfigurationError(
            f"annotators: {name} is no class derived from bsmeta.annotate.annotator.Annotator with "
            "name, columns and annotate()"
        )
    return kind


def _column_problems(kinds: Sequence[type[Annotator]]) -> Iterator[str]:
    """Columns that two annotators make, and columns that are needed and that none makes."""
    makers: dict[str, str] = {}
    for kind in kinds:
        for column in kind.columns:
            if column in makers:
                yield f"annotators: {makers[column]} and {kind.name} both make {column}"
            makers[column] = kind.name
    for kind in kinds:
        for column in set(kind.needs) - makers.keys():
            names = [other.name for other in ANNOTATORS.values() if column in other.columns]
            maker = names[0] if names else "an annotator that makes it"
            yield f"annotators: {kind.name} needs {column}: add {maker}"


def _unknown(key: str, names: Sequence[str], kinds: Sequence[type[Annotator]]) -> Iterator[str]:
    known = [kind.name for kind in kinds]
    for name in names:
        if name not in known:
            expected = f"some of `annotators`: {known}"
            yield f"{key}: found {name}{nearest(name, known)}, expected {expected}"


def _in_order(kinds: Sequence[type[Annotator]]) -> list[type[Annotator]]:
    """Sorted so that each comes after those whose columns it needs, else as in `ANNOTATORS`."""
    places = {kind: place for place, kind in enumerate(ANNOTATORS.values())}
    kinds = sorted(kinds, key=lambda kind: places.get(kind, len(places)))
    makers = {column: kind for kind in kinds for column in kind.columns}
    sorter = TopologicalSorter({kind: {makers[one] for one in kind.needs} for kind in kinds})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        names = " -> ".join(kind.name for kind in error.args[1])
        raise ConfigurationError(f"annotators: each of {names} needs the next one") from error


def fingerprints(
    annotators: Sequence[Annotator], own: Mapping[str, str], stored: Mapping[str, str]
) -> dict[str, str]:
    """What the records of the annotators that run depend on, including the annotators they need.

    Args:
        annotators: In the order in which they run.
        own: The fingerprints of those that run, by name.
        stored: Those of the existing columns, which the other annotators do not change.
    """
    found = dict(stored)
    for annotator in annotators:
        if annotator.name in own:
            needed = (found.get(name, "") for name in _needed(annotator, annotators))
            found[annotator.name] = "+".join([own[annotator.name], *needed])
    return {name: found[name] for name in own}


def with_dependents(annotators: Sequence[Annotator], names: Iterable[str]) -> set[str]:
    """The names, and those of the annotators that need their columns, directly or not.

    Args:
        annotators: In the order in which they run.
        names: Some of their names.
    """
    found = set(names)
    for annotator in annotators:
        if not found.isdisjoint(_needed(annotator, annotators)):
            found.add(annotator.name)
    return found


def _needed(annotator: Annotator, annotators: Sequence[Annotator]) -> list[str]:
    """The names of the annotators whose columns an annotator needs."""
    makers = {column: one.name for one in annotators for column in one.columns}
    return list(dict.fromkeys(makers[column] for column in annotator.needs))
