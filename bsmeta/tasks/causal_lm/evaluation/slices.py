"""Slices of the held-out documents: by site, by length and by time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

import numpy as np

from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.evaluating import SliceConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import PROCESSORS, find_type
from bsmeta.metadata.records import BadDocument
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments


@dataclass(frozen=True, slots=True)
class Slice:
    """A subset of the documents.

    Attributes:
        by: The grouping: `site`, `length` or `time`.
        name: The group, such as `docs.python.org` or `1,000 to 3,999 bytes`.
        members: bool [documents].
    """

    by: str
    name: str
    members: np.ndarray


def make_slices(
    configs: Sequence[SliceConfig], documents: HeldOutDocuments, metadata: MetadataConfig
) -> list[Slice]:
    """Returns the slices that the configuration declares, except empty ones.

    Raises:
        ConfigurationError: If a declaration is invalid; the message lists all of them.
    """
    if not configs:
        return []
    return list_slices(configs, list_document_facts(documents, metadata))


def list_slices(configs: Sequence[SliceConfig], facts: Mapping[str, list]) -> list[Slice]:
    """Returns the slices of the documents with these facts, except empty ones.

    Args:
        facts: The result of `list_document_facts`.

    Raises:
        ConfigurationError: If a declaration is invalid; the message lists all of them.
    """
    problems: list[str] = []
    for config in configs:
        problems += _find_slice_problems(config)
    if problems:
        raise ConfigurationError("\n".join(problems))

    slices: list[Slice] = []
    for config in configs:
        values = facts[config.by]
        if config.by == "site":
            slices += _slice_by_site(config, values)
        else:
            slices += _slice_by_band(config, values)
    return [part for part in slices if part.members.any()]


def _find_slice_problems(config: SliceConfig) -> Iterator[str]:
    """Yields a message for each key of a declaration that is missing or does not belong to it."""
    edges = list(config.edges)
    sites = list(config.sites)
    prefix = f"slices: by={config.by}"
    if config.by == "site":
        if edges:
            yield f"{prefix}: edges={edges}: expected by=length or by=time"
        return
    if not edges or edges != sorted(set(edges)):
        yield f"{prefix}: edges={edges}: expected rising numbers, at least one"
    if sites:
        yield f"{prefix}: sites={sites}: expected by=site"


def list_document_facts(documents: HeldOutDocuments, metadata: MetadataConfig) -> dict[str, list]:
    """Returns the host, the length in bytes and the year of each document.

    The lists are by grouping: `site` (the host), `length` and `time` (the year). They contain None
    for a document without an address or a time.
    """
    grouping = {
        metadata_type.slice_by: key
        for key, metadata_type in PROCESSORS.items()
        if metadata_type.slice_by
    }
    decoder = documents.open_decoder(
        replace(metadata, metadata_list=[*grouping.values()], metadata_column_list=None)
    )

    facts: dict[str, list] = {"length": documents.bytes.tolist(), **{by: [] for by in grouping}}
    for index in range(len(documents)):
        document = decoder.decode(documents.read_line(index))
        for by, key in grouping.items():
            facts[by].append(_find_group(document, key))
    return facts


def _find_group(document: Document, key: str) -> str | None:
    """Returns the group of a document by its first value of a type; None if it has no valid one."""
    metadata_type = find_type(key)
    values = [str(record.value) for record in document.records(key)]
    if metadata_type.is_address and document.url:
        values.insert(0, document.url)
    if not values or not values[0]:
        return None

    try:
        return metadata_type.find_group(values[0], MetadataConfig())
    except BadDocument:  # not a valid value of the type: the document is in none of its slices
        return None


def _slice_by_site(config: SliceConfig, hosts: Sequence[str | None]) -> list[Slice]:
    """Makes one slice for each pattern, or for each of the most frequent hosts."""
    counts = Counter(host for host in hosts if host)
    patterns = list(config.sites) or [host for host, _ in counts.most_common(config.top)]
    names = [host or "" for host in hosts]

    slices = []
    for pattern in patterns:
        members = np.array([bool(name) and fnmatch(name, pattern) for name in names])
        slices.append(Slice("site", pattern, members))
    return slices


def _slice_by_band(config: SliceConfig, values: Sequence[int | str | None]) -> list[Slice]:
    """Makes slices below the first edge, between adjacent edges, and from the last edge up."""
    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    edges = [int(edge) for edge in config.edges]

    unit = ""
    number_format = "{}"
    if config.by == "length":
        unit = " bytes"
        number_format = "{:,}"
    names = [f"below {number_format.format(edges[0])}{unit}"]
    for low, high in itertools.pairwise(edges):
        names.append(f"{number_format.format(low)} to {number_format.format(high - 1)}{unit}")
    names.append(f"{number_format.format(edges[-1])}{unit} and more")

    bounds = itertools.pairwise([-np.inf, *edges, np.inf])
    return [
        Slice(config.by, name, (numbers >= low) & (numbers < high))
        for name, (low, high) in zip(names, bounds, strict=True)
    ]
