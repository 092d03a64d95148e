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

A mapping is a JSON object, or from release 1.1 on marisa tries:

    NAME.json  {key: value}
    NAME/      a folder of tries: `record_trie.marisa` has for each key pairs of numbers, the first
               one in `vocabulary_trie.marisa`, the second a score; or, with
               `key_vocabulary_trie.marisa` and `value_vocabulary_trie.marisa`, both names;
               or `vocabulary_trie.marisa` with the number of each key in `itoexti.npy`
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bsmeta.core.errors import ConfigurationError, DataError, nearest
from bsmeta.core.parsing import parse_json
from bsmeta.data.text.caseless import caseless
from bsmeta.tasks.disambiguation.entities import NIL_ID, EntityTable
from bsmeta.tasks.disambiguation.lines import Problems
from bsmeta.tasks.disambiguation.profiles import (
    MAX_CANDIDATES,
    Profile,
    Relation,
    is_score,
    write_table,
)

RECORDS, VOCABULARY, NUMBERS = "record_trie.marisa", "vocabulary_trie.marisa", "itoexti.npy"
NONE = -1  # the number that fills up the pairs of a key
log = logging.getLogger(__name__)
TYPES, TYPE_NAMES = "qid2types.json", "type_vocab.json"
RELATIONS, RELATION_NAMES = ("qid2relations.json", "kg_conn.txt"), "relation_vocab.json"
"""The names in the first generation's tutorial."""
CONNECTED = "connected to"  # the relation of a pair that names none
Names = dict[str, list[int | str]]


def locate(folder: Path, name: str) -> Path | None:
    """The mapping of a name in a folder, as a trie or as JSON; None if there is neither."""
    paths = (folder / name, folder / f"{name}.json")
    return next((path for path in paths if path.exists()), None)


class _MappingFile(Problems):
    """A mapping (a JSON file, or a folder of tries), and the problems of its keys.

    Attributes:
        content: The mapping. The value of a key in a record trie is a list of `(name, score)`; with
            two vocabularies, `{first name: [second name, …]}`.
        names: Those of the numbers in its vocabulary; without that file, what is listed are names.

    Raises:
        DataError: If it cannot be read, or its content is not of `form`.
    """

    def __init__(self, path: Path, form: Any, vocabulary: Path | None = None) -> None:
        super().__init__(path)
        self.vocabulary = vocabulary
        self._repeated: list[str] = []
        self._raw = ""
        try:
            if path.is_dir():
                found = _read_tries(path)
            else:
                self._raw = path.read_text(encoding="utf-8")
                found = parse_json(self._raw, object_pairs_hook=self._object)
            self.content = msgspec.convert(found, form)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise DataError(f"{path}: not what was expected: {error}") from error
        for key in self._repeated:
            self.refuse(key, f"{key!r} is there twice", occurrence=2)
        self.names: dict[int | str, str] = {}
        if vocabulary is not None and vocabulary.exists():
            numbers = _read(vocabulary, dict[str, int | str])
            self.names = {number: name for name, number in numbers.items()}

    def refuse(self, key: str, reason: str, occurrence: int = 1) -> None:
        place = -1
        for _ in range(occurrence):
            quoted = (json.dumps(key, ensure_ascii=False), json.dumps(key))
            place = max(self._raw.find(text, place + 1) for text in quoted)
        line = self._raw.count("\n", 0, max(place, 0)) + 1
        self.add(line if self._raw else None, reason)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            self._repeated += [key for key in found if keys.count(key) > 1]
        return found

    def items_of(self, known: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
        """The items whose keys are entities; the others are counted."""
        unknown = len(self.content.keys() - known.keys())
        if unknown:
            count = len(self.content)
            log.warning("%s: %d of %d entities have no title; left out", self.path, unknown, count)
        return ((qid, own) for qid, own in self.content.items() if qid in known)

    def named(self, qid: str, own: Sequence[int | str], what: str) -> list[str]:
        """The names of what an entity has; a number without one is a problem."""
        for number in own:
            if isinstance(number, int) and number not in self.names:
                place = self.vocabulary.name if self.vocabulary else ""
                self.refuse(qid, f"{qid!r} has the {what} {number}, which is not in {place}")
        return [self.names.get(number, str(number)) for number in own]


def _read(path: Path, form: Any) -> Any:
    """The content of a mapping; raises DataError with its problems."""
    file = _MappingFile(path, form)
    file.close()
    return file.content


def _read_tries(folder: Path) -> dict[str, Any]:
    try:
        import marisa_trie
    except ImportError as error:
        raise DataError(
            f"{folder} holds marisa tries, and the library that reads them is not installed: "
            "pip install -e .[bootleg]"
        ) from error

    def vocabulary(name: str) -> Any:
        return marisa_trie.Trie().load(str(folder / name))

    try:
        if not (folder / RECORDS).exists():
            names, numbers = vocabulary(VOCABULARY), np.load(folder / NUMBERS)
            return {key: int(numbers[number]) for key, number in names.items()}
        most = int(parse_json((folder / "max_value.json").read_text()))
        has_scores = (folder / VOCABULARY).exists()
        records = marisa_trie.RecordTrie("<" + ("lf" if has_scores else "ll") * most)
        if has_scores:
            names = vocabulary(VOCABULARY)
        else:
            names, others = (vocabulary(f"{part}_{VOCABULARY}") for part in ("key", "value"))
        found: dict[str, Any] = {}
        for key, values in records.load(str(folder / RECORDS)).items():
            pairs = zip(values[::2], values[1::2], strict=True)
            named = [(names.restore_key(one), other) for one, other in pairs if one != NONE]
            if not has_scores:
                groups = defaultdict(list)
                for name, other in named:
                    groups[name].append(others.restore_key(other))
            found[key] = named if has_scores else dict(groups)
        return found
    except (RuntimeError, LookupError, EOFError, TypeError) as error:  # marisa's are RuntimeErrors
        raise DataError(
            f"{folder}: its tries cannot be read ({error}); copy the folder again"
        ) from error


Files = list[tuple[Path, Path]]
"""Files of types or relations, each with its vocabulary, which may not exist."""


@dataclass(frozen=True)
class Sources:
    """Where the files are, and which of them are used.

    Attributes:
        entity_dir: The folder with `entity_mappings/`.
        emb_dir: The first generation's folder of types and relations.
        types: Files of `emb_dir` (`FILE` or `FILE:VOCABULARY`), or type systems; None: all systems,
            or the file of the tutorial.
        relations: Files of `emb_dir` or `kg_mappings/`; None: those of the tutorial.
    """

    entity_dir: Path
    emb_dir: Path | None = None
    types: Sequence[str] | None = None
    relations: Sequence[str] | None = None

    def type_files(self) -> Files:
        """Raises ConfigurationError if there is none, although types were asked for."""
        if self.emb_dir is not None:
            return _chosen("types", self.types, self.emb_dir, [TYPES], TYPE_NAMES)
        folder = self.entity_dir / "type_mappings"
        systems = sorted(path.name for path in folder.glob("*") if path.is_dir())
        return [
            (locate(own, "qid2typenames") or own / "qid2typeids.json", own / TYPE_NAMES)
            for own, _ in _chosen("types", self.types, folder, systems, "")
        ]

    def relation_files(self) -> Files:
        """Raises ConfigurationError if there is none, although relations were asked for."""
        folder, defaults = self.emb_dir, [*RELATIONS]
        if folder is None:
            folder = self.entity_dir / "kg_mappings"
            defaults = [(locate(folder, "qid2relations") or folder / "kg_adj.txt").name]
        return _chosen("relations", self.relations, folder, defaults, RELATION_NAMES)


def _chosen(
    key: str,
    names: Sequence[str] | None,
    folder: Path,
    defaults: Sequence[str],
    vocabulary: str,
) -> Files:
    """The files of a folder that are named as `FILE` or `FILE:VOCABULARY`.

    Without names: those of `defaults` that exist.
    """
    there = sorted(path.name for path in folder.glob("*"))
    if names is None:
        names = [name for name in defaults if name in there]
        if folder.is_dir() and not names:
            raise ConfigurationError(
                f"{key}: {folder} has no {' or '.join(defaults) or 'folder of a type system'}, but "
                f"{', '.join(there) or 'nothing'}; name what is to be read: {key}=[NAME], or "
                f"nothing: {key}=[]",
                [key],
            )
    pairs = [name.partition(":")[::2] for name in names]
    for name in (part for pair in pairs for part in pair):
        if name and name not in there:
            raise ConfigurationError(
                f"{key}=[{', '.join(names)}]: {folder} has no {name}{nearest(name, there)}; it "
                f"has {', '.join(there) or 'nothing'}",
                [key],
            )
    return [(folder / file, folder / (own or vocabulary)) for file, own in pairs]


def build_from_files(
    sources: Sources, folder: Path, max_candidates: int | None = None
) -> EntityTable:
    """Builds a table in a new folder from the files of either generation.

    An alias keeps at most `max_candidates`; None: what `config.json` says. One with more than the
    latter is a problem.

    Raises:
        ConfigurationError: If the folder exists, or named files do not.
        DataError: With the problems of a file.
    """
    mappings = sources.entity_dir / "entity_mappings"
    path = mappings / "config.json"
    settings = _MappingFile(path, dict[str, Any]).content if path.exists() else {}
    stated = int(settings.get("max_candidates", MAX_CANDIDATES))
    type_files, relation_files = sources.type_files(), sources.relation_files()
    titles = _titles(mappings)
    mentions = _mentions(mappings, titles, stated)
    path = mappings / "qid2desc.json"
    descriptions = _read(path, dict[str, str]) if path.exists() else {}
    types = _types(type_files, titles)
    relations = _relations(relation_files, titles)
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
    titles = _MappingFile(mappings / "qid2title.json", dict[str, str])
    path = locate(mappings, "qid2eid")
    if path is None:
        titles.close()
        return titles.content
    numbers = _MappingFile(path, dict[str, int])
    owners: dict[int, str] = {}
    for qid, number in numbers.content.items():
        if number < 1:
            numbers.refuse(qid, f"{qid!r} has the number {number}; expected one from 1 on")
        elif number in owners:
            numbers.refuse(qid, f"{qid!r} has the number {number}, as {owners[number]!r} has")
        owners[number] = qid
    numbers.close()
    for qid in titles.content:
        if qid not in numbers.content:
            titles.refuse(qid, f"there is no entity {qid!r} in {path.name}")
    for qid in numbers.content:
        if qid not in titles.content:
            titles.refuse(qid, f"there is no title of {qid!r}")
    titles.close()
    return {owners[number]: titles.content[owners[number]] for number in sorted(owners)}


def _mentions(
    mappings: Path, known: Mapping[str, str], most: int
) -> dict[str, list[tuple[str, float]]]:
    path = locate(mappings, "alias2qids") or mappings / "alias2qids.json"
    file = _MappingFile(path, dict[str, list[tuple[str, float]]])
    mentions = defaultdict(list)
    for alias, candidates in file.content.items():
        for reason in _candidate_problems(alias, candidates, known, most):
            file.refuse(alias, reason)
        for qid, score in candidates:
            mentions[qid].append((alias, score))
    file.close()
    return mentions


def _candidate_problems(
    alias: str, candidates: Sequence[tuple[str, float]], known: Mapping[str, str], most: int
) -> Iterator[str]:
    qids, scores = [qid for qid, _ in candidates], [score for _, score in candidates]
    if not caseless(alias):
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


def _types(files: Files, known: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for path, vocabulary in files:
        form: Any = dict[str, list[tuple[str, float]]] if path.is_dir() else Names
        file = _MappingFile(path, form, vocabulary)
        for qid, own in file.items_of(known):
            own = [name for name, _ in own] if path.is_dir() else own  # a trie has scores
            found[qid][str(path)] = file.named(qid, own, "type")
        file.close()
    return _not_empty("types", files, found)


def _relations(files: Files, known: Mapping[str, str]) -> dict[str, list[Relation]]:
    """The relations of each entity; the object of one that only has a name is NIL."""
    found: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)  # each once, in order
    connected: list[tuple[str, str]] = []
    for path, vocabulary in files:
        if path.suffix == ".txt":
            connected += _pairs(path, known)
            continue
        form = dict[str, dict[str, list[str] | float] | list[int | str]]
        file, unknown = _MappingFile(path, form, vocabulary), 0
        for qid, own in file.items_of(known):
            if isinstance(own, dict):
                pairs = [*_with_objects(own, file.names)]
                unknown += sum(other not in known for _, other in pairs)
                pairs = [pair for pair in pairs if pair[1] in known]
            else:
                pairs = [(name, NIL_ID) for name in file.named(qid, own, "relation")]
            found[qid] |= dict.fromkeys(pairs)
        file.close()
        if unknown:
            what = "relations lead to entities without a title"
            log.warning("%s: %d %s; left out", path, unknown, what)
    for subject, other in connected:
        if all(own != other for _, own in found[subject]):
            found[subject][CONNECTED, other] = None
    relations = {qid: [Relation(*pair) for pair in own] for qid, own in found.items()}
    return defaultdict(list, _not_empty("relations", files, relations))


def _with_objects(
    own: Mapping[str, list[str] | float], names: Mapping[int | str, str]
) -> Iterator[tuple[str, str]]:
    """The relations of an entity, each with the entity that it leads to."""
    for name, objects in own.items():
        if isinstance(objects, list):
            yield from ((names.get(name, name), other) for other in objects)
        else:  # the name is that of an entity, with a weight
            yield CONNECTED, name


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
        what = "pairs name entities without a title"
        log.warning("%s: %d of %d %s; left out", path, unknown, count, what)


def _not_empty(key: str, files: Files, found: dict[str, Any]) -> dict[str, Any]:
    """What files say about the entities; raises DataError if it is nothing."""
    if files and not any(found.values()):
        listed = ", ".join(str(path) for path, _ in files)
        raise DataError(
            f"{key}: no entity gets any from {listed}; name the files of these entities, or none: "
            f"{key}=[]"
        )
    return found
