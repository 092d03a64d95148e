"""The annotators by name, and those of a run in the order in which they run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
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
from bsmeta.annotate.spans import Entity, EntityParagraph, Length, Paragraph
from bsmeta.annotate.trained import Label, Spelling
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.problems import nearest

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
"""The annotators; their columns stand in this order in a row, after them those of others."""


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
    if not (isinstance(kind, type) and issubclass(kind, Annotator)) or inspect.isabstract(kind):
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


def fingerprints(annotators: Sequence[Annotator]) -> dict[str, str]:
    """What the records of each annotator depend on, including the annotators that it needs."""
    makers = {column: one for one in annotators for column in one.columns}
    found: dict[str, str] = {}
    for annotator in annotators:
        needed = dict.fromkeys(makers[column].name for column in annotator.needs)
        found[annotator.name] = "+".join(
            [annotator.fingerprint(), *(found[name] for name in needed)]
        )
    return found
