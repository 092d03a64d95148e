"""The entity folders of Bootleg, both generations, made into a table.

    entity_dir/entity_mappings/  qid2title.json, qid2desc.json, qid2eid, config.json
                                 (max_candidates); alias2qids: {alias: [[qid, score], …]}
    entity_dir/type_mappings/    second generation: SYSTEM/qid2typenames: {qid: [type, …]}
    entity_dir/kg_mappings/      second generation: qid2relations, or kg_adj.txt
    emb_dir/                     first generation: files of any name: types {qid: [type, …]},
                                 relations {qid: {relation: [qid, …]}}, {qid: [relation, …]} or
                                 {qid: {qid: weight}}, and tab-separated pairs of qids (.txt)

Only `qid2title.json` and `alias2qids` must be there. Without `qid2eid`, the entities are in the
order of their titles. Types and relations may be numbers in a vocabulary ({name: number}). What
they say about entities that have no title is left out and counted.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation.entities import NIL_ID, EntityTable
from bsmeta.tasks.disambiguation.entity_sources import Sources
from bsmeta.tasks.disambiguation.json_lines import Problems
from bsmeta.tasks.disambiguation.mappings import MappingFile, locate
from bsmeta.tasks.disambiguation.profiles import (
    MAX_CANDIDATES,
    Profile,
    Relation,
    is_score,
    write_table,
)

log = logging.getLogger(__name__)

CONNECTED = "connected to"
"""The relation of a pair that names none."""

Mentions = dict[str, list[tuple[str, float]]]
Names = dict[str, list[int | str]]


def build_from_files(
    sources: Sources, folder: Path, max_candidates: int | None = None
) -> EntityTable:
    """Builds a table from the files of either generation.

    Args:
        sources: The files.
        folder: Where the table goes; it must not exist.
        max_candidates: The most candidates that an alias keeps; None: what `config.json` says. An
            alias with more than that is a problem.

    Raises:
        ConfigurationError: If the folder exists, or named files do not.
        DataError: With the problems of a file.
    """
    mappings = sources.entity_dir / "entity_mappings"
    path = mappings / "config.json"
    settings = MappingFile(path, dict[str, Any]).content if path.exists() else {}
    stated = int(settings.get("max_candidates", MAX_CANDIDATES))
    files = sources.type_files(), sources.relation_files()
    titles = _titles(mappings)
    mentions = _mentions(mappings, titles, stated)
    descriptions = _descriptions(mappings)
    types = _types(files[0], titles)
    relations = _relations(files[1], titles)
    profiles = (
        Profile(
            qid, mentions[qid], title, descriptions.get(qid), types.get(qid, {}), relations[qid]
        )
        for qid, title in titles.items()
    )
    # The files are valid: nothing is left to report about a profile.
    most = max_candidates or stated
    return write_table(enumerate(profiles, 1), Problems(mappings), folder, max_candidates=most)


def _titles(mappings: Path) -> dict[str, str]:
    """The titles of the entities by their ids, in the order of their numbers."""
    titles = MappingFile(mappings / "qid2title.json", dict[str, str])
    path = locate(mappings, "qid2eid")
    if path is None:
        titles.close()
        return titles.content
    numbers = MappingFile(path, dict[str, int])
    owners: dict[int, str] = {}
    for qid, number in numbers.content.items():
        if number < 1:
            numbers.add(qid, f"{qid!r} has the number {number}; expected one from 1 on")
        elif number in owners:
            numbers.add(qid, f"{qid!r} has the number {number}, as {owners[number]!r} has")
        owners[number] = qid
    numbers.close()
    for qid in titles.content:
        if qid not in numbers.content:
            titles.add(qid, f"there is no entity {qid!r} in {path.name}")
    for qid in numbers.content:
        if qid not in titles.content:
            titles.add(qid, f"there is no title of {qid!r}")
    titles.close()
    return {owners[number]: titles.content[owners[number]] for number in sorted(owners)}


def _descriptions(mappings: Path) -> dict[str, str]:
    path = mappings / "qid2desc.json"
    if not path.exists():
        return {}
    file = MappingFile(path, dict[str, str])
    file.close()
    return dict(file.content)


def _mentions(mappings: Path, known: Mapping[str, str], most: int) -> Mentions:
    """The aliases of each entity, with scores."""
    path = locate(mappings, "alias2qids") or mappings / "alias2qids.json"
    file = MappingFile(path, dict[str, list[tuple[str, float]]])
    mentions: Mentions = defaultdict(list)
    for alias, candidates in file.content.items():
        for reason in _candidate_problems(alias, candidates, known, most):
            file.add(alias, reason)
        for qid, score in candidates:
            mentions[qid].append((alias, score))
    file.close()
    return mentions


def _candidate_problems(
    alias: str, candidates: Sequence[tuple[str, float]], known: Mapping[str, str], most: int
) -> Iterator[str]:
    qids, scores = [qid for qid, _ in candidates], [score for _, score in candidates]
    if not alias.strip():
        yield "an alias is empty"
    if len(candidates) > most:
        yield f"alias {alias!r} has {len(candidates)} candidates; max_candidates is {most}"
    if scores != sorted(scores, reverse=True):
        yield f"the scores of alias {alias!r} are out of order; expected the highest first"
    if not all(map(is_score, scores)):
        yield f"alias {alias!r} has a score that is no number from 0"
    if len({*qids}) < len(qids):
        yield f"alias {alias!r} has a candidate twice"
    for qid in qids:
        if qid not in known:
            yield f"alias {alias!r} leads to {qid!r}, which is no entity"


def _types(
    files: Mapping[str, tuple[Path, Path]], known: Mapping[str, str]
) -> dict[str, dict[str, list[str]]]:
    """The names of the types of each entity, by system."""
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for system, (path, vocabulary) in files.items():
        file = MappingFile(path, dict[str, list[tuple[str, float]]] if path.is_dir() else Names)
        names = _Vocabulary(vocabulary)
        for qid, own in _of_known(file, known):
            own = [name for name, _ in own] if path.is_dir() else own  # a trie has scores
            found[qid][system] = names.of(file, qid, own, "type")
        file.close()
    return _not_empty("types", [path for path, _ in files.values()], found)


def _relations(
    files: Sequence[tuple[Path, Path]], known: Mapping[str, str]
) -> dict[str, list[Relation]]:
    """The relations of each entity; the object of one that only has a name is NIL."""
    found: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)  # each once, in order
    connected: list[tuple[str, str]] = []
    for path, vocabulary in files:
        if path.suffix == ".txt":
            connected += _pairs(path, known)
            continue
        file = MappingFile(path, dict[str, dict[str, list[str] | float] | list[int | str]])
        names, unknown = _Vocabulary(vocabulary), 0
        for qid, own in _of_known(file, known):
            if isinstance(own, dict):
                pairs = [*_with_objects(own, names)]
                found[qid] |= dict.fromkeys(pair for pair in pairs if pair[1] in known)
                unknown += sum(pair[1] not in known for pair in pairs)
            else:
                listed = names.of(file, qid, own, "relation")
                found[qid] |= dict.fromkeys((name, NIL_ID) for name in listed)
        file.close()
        if unknown:
            log.warning(
                "%s: %d relations lead to entities without a title; left out", path, unknown
            )
    for subject, other in connected:
        if all(own != other for _, own in found[subject]):
            found[subject][CONNECTED, other] = None
    relations = {qid: [Relation(*pair) for pair in own] for qid, own in found.items()}
    return defaultdict(list, _not_empty("relations", [path for path, _ in files], relations))


def _with_objects(
    own: Mapping[str, list[str] | float], names: _Vocabulary
) -> Iterator[tuple[str, str]]:
    """The relations of an entity, each with the entity that it leads to."""
    for name, objects in own.items():
        if isinstance(objects, list):
            yield from ((names.name(name), other) for other in objects)
        else:  # the name is that of an entity, with a weight
            yield CONNECTED, name


class _Vocabulary:
    """The names of numbered types or relations.

    Args:
        path: {name: number}; without the file, what is listed are names.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[int | str, str] = {}
        if path.exists():
            file = MappingFile(path, dict[str, int | str])
            file.close()
            self._names = {number: name for name, number in file.content.items()}

    def name(self, number: int | str) -> str:
        """The name of a number (or identifier) of the vocabulary; that of any other is itself."""
        return self._names.get(number, str(number))

    def of(self, file: MappingFile, qid: str, own: Iterable[int | str], what: str) -> list[str]:
        """The names of what an entity has; a number without one is a problem of the file."""
        for number in own:
            if isinstance(number, int) and number not in self._names:
                file.add(qid, f"{qid!r} has the {what} {number}, which is not in {self._path.name}")
        return [self.name(number) for number in own]


def _of_known(file: MappingFile, known: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The items of a file whose keys are entities; the others are counted."""
    unknown = len(file.content.keys() - known.keys())
    if unknown:
        log.warning(
            "%s: %d of %d entities have no title; left out", file.path, unknown, len(file.content)
        )
    return ((qid, own) for qid, own in file.content.items() if qid in known)


def _pairs(path: Path, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of connected entities, in both directions; a third column is a weight."""
    problems = Problems(path)
    count = unknown = 0
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            columns = line.split()
            if not columns:
                continue
            count += 1
            if len(columns) not in (2, 3):
                problems.add(number, f"{len(columns)} columns; expected two ids and a tab between")
            elif columns[0] in known and columns[1] in known:
                yield columns[0], columns[1]
                yield columns[1], columns[0]
            else:
                unknown += 1
    problems.close()
    if unknown:
        log.warning("%s: %d of %d pairs name entities without a title; left out",
                    path, unknown, count)  # fmt: skip


def _not_empty(key: str, files: Sequence[Path], found: dict[str, Any]) -> dict[str, Any]:
    """What files say about the entities.

    Raises:
        DataError: If it is nothing.
    """
    if files and not any(found.values()):
        listed = ", ".join(map(str, files))
        raise DataError(
            f"{key}: no entity gets any from {listed}; name the files of these entities, or none: "
            f"{key}=[]"
        )
    return found
