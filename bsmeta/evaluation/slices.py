"""Slices: groups of documents (by site, length or time) that are reported separately."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

import numpy as np

from bsmeta.config.checks.bounds import bound_lines
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.evaluation import SLICE_KINDS, SliceConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.evaluation.documents import HeldOutDocuments
from bsmeta.metadata.processors import PROCESSORS, type_of
from bsmeta.metadata.records import BadDocument, Document


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
    """The slices that the configuration declares; empty slices are left out.

    Raises:
        ConfigurationError: A declaration is invalid; the message lists all of them.
    """
    problems = [problem for config in configs for problem in _problems(config)]
    if problems:
        raise ConfigurationError("\n".join(problems))
    if not configs:
        return []
    facts = _facts(documents, metadata)
    made: list[Slice] = []
    for config in configs:
        values = facts[config.by]
        made += _by_site(config, values) if config.by == "site" else _by_band(config, values)
    return [part for part in made if part.members.any()]


def _problems(one: SliceConfig) -> list[str]:
    out_of_bounds = bound_lines(one)
    if out_of_bounds:
        return [f"slices: {line}" for line in out_of_bounds]
    edges = list(one.edges)
    if one.by != "site" and (not edges or edges != sorted(set(edges))):
        return [f"slices: by={one.by}: edges={edges}: expected rising numbers, at least one"]
    return []


def _facts(documents: HeldOutDocuments, metadata: MetadataConfig) -> dict[str, list]:
    """Host, length in bytes and year of each document (None if it has no address or no time)."""
    grouping = {kind.slice_by: key for key, kind in PROCESSORS.items() if kind.slice_by}
    decoder = documents.decoder(
        replace(metadata, metadata_list=[*grouping.values()], metadata_column_list=None)
    )
    facts: dict[str, list] = {kind: [] for kind in SLICE_KINDS}
    for index in range(len(documents)):
        document = decoder.decode(documents.line(index))
        facts["length"].append(len(document.text.encode("utf-8", "surrogatepass")))
        for kind, key in grouping.items():
            facts[kind].append(_group(document, key))
    return facts


def _group(document: Document, key: str) -> str | None:
    """The group of a document by the value of a type, under the default metadata settings."""
    kind = type_of(key)
    values = [str(record.value) for record in document.records(key)]
    if kind.is_address and document.url:
        values.insert(0, document.url)
    try:
        return kind.group(values[0], MetadataConfig()) if values and values[0] else None
    except BadDocument:  # not a valid value of the type: in none of its slices
        return None


def _by_site(config: SliceConfig, hosts: Sequence[str | None]) -> list[Slice]:
    """One slice for each pattern, or for each of the most frequent hosts."""
    counts = Counter(host for host in hosts if host)
    patterns = list(config.sites) or [host for host, _ in counts.most_common(config.top)]
    return [
        Slice(
            "site",
            pattern,
            np.array([bool(host) and fnmatch(str(host), pattern) for host in hosts]),
        )
        for pattern in patterns
    ]


def _by_band(config: SliceConfig, values: Sequence[int | str | None]) -> list[Slice]:
    """Slices below the first edge, between adjacent edges, and from the last edge up."""
    unit = " bytes" if config.by == "length" else ""
    number = "{:,}" if config.by == "length" else "{}"
    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    edges = [int(edge) for edge in config.edges]
    names = [f"below {number.format(edges[0])}{unit}"]
    for low, high in itertools.pairwise(edges):
        names.append(f"{number.format(low)} to {number.format(high - 1)}{unit}")
    names.append(f"{number.format(edges[-1])}{unit} and more")
    bounds = [-np.inf, *edges, np.inf]
    return [
        Slice(config.by, name, (numbers >= low) & (numbers < high))
        for name, (low, high) in zip(names, itertools.pairwise(bounds), strict=True)
    ]
