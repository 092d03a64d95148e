"""The entity files of the first generation (seed document 000), made into a table.

    entity_dir/entity_mappings/  qid2title.json, alias2qids.json ({alias: [[qid, score], …]}),
                                 qid2eid.json, config.json (max_candidates)
    emb_dir/                     qid2types.json, type_vocab.json, qid2relations.json
                                 ({qid: {relation: [qid, …]}}), kg_conn.txt (tab-separated pairs);
                                 each may be missing

The order of the entities is that of their numbers in `qid2eid.json`, which begin at 1.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bsmeta.config.errors import DataError
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import Problems
from bsmeta.tasks.disambiguation.profiles import (
    MAX_CANDIDATES,
    Profile,
    Relation,
    is_score,
    write_table,
)

CONNECTED = "connected to"
"""The relation of the pairs of `kg_conn.txt`, which has none."""

Mentions = dict[str, list[tuple[str, float]]]


def build_first_generation(
    entity_dir: Path, emb_dir: Path | None, folder: Path, max_candidates: int | None = None
) -> EntityTable:
    """Builds a table from the files of the first generation.

    Args:
        entity_dir: The folder with `entity_mappings/`.
        emb_dir: The folder of types and relations; None: the entities have neither.
        folder: Where the table goes; it must not exist.
        max_candidates: The most candidates that an alias keeps; None: what `config.json` says. An
            alias with more than that is a problem.

    Raises:
        ConfigurationError: If the folder exists.
        DataError: With the problems of a file.
    """
    mappings = entity_dir / "entity_mappings"
    path = mappings / "config.json"
    settings = _JsonFile(path, dict[str, Any]).content if path.exists() else {}
    stated = int(settings.get("max_candidates", MAX_CANDIDATES))
    order = _order(mappings)
    mentions = _mentions(mappings, order, stated)
    types, relations = _types(emb_dir, order), _relations(emb_dir, order)
    profiles = (
        Profile(qid, mentions[qid], title, types=types.get(qid, {}), relations=relations[qid])
        for qid, title in order.items()
    )
    # The files are valid: nothing is left to report about a profile.
    most = max_candidates or stated
    return write_table(enumerate(profiles, 1), Problems(mappings), folder, max_candidates=most)


class _JsonFile:
    """An object in a JSON file, and the problems of its keys.

    Args:
        path: The file.
        form: The type of the content.
    """

    def __init__(self, path: Path, form: Any) -> None:
        self._problems = Problems(path)
        self._repeated: list[str] = []
        try:
            self._raw = path.read_text(encoding="utf-8")
            content = json.loads(self._raw, object_pairs_hook=self._object)
            self.content = msgspec.convert(content, form)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise DataError(f"{path}: not what was expected: {error}") from error
        for key in self._repeated:
            self.add(key, f"{key!r} is there twice", occurrence=2)

    def add(self, key: str, reason: str, occurrence: int = 1) -> None:
        """Adds a problem of a key."""
        place = -1
        for _ in range(occurrence):
            place = max(self._raw.find(text, place + 1) for text in (_quoted(key), json.dumps(key)))
        self._problems.add(self._raw.count("\n", 0, max(place, 0)) + 1, reason)

    def close(self) -> None:
        """Raises the problems, if there are any."""
        self._problems.close()

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            self._repeated += [key for key in found if keys.count(key) > 1]
        return found


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)


def _order(mappings: Path) -> dict[str, str]:
    """The titles of the entities by their ids, in the order of their numbers."""
    numbers = _JsonFile(mappings / "qid2eid.json", dict[str, int])
    owners: dict[int, str] = {}
    for qid, number in numbers.content.items():
        if number < 1:
            numbers.add(qid, f"{qid!r} has the number {number}; expected one from 1 on")
        elif number in owners:
            numbers.add(qid, f"{qid!r} has the number {number}, as {owners[number]!r} has")
        owners[number] = qid
    numbers.close()
    titles = _JsonFile(mappings / "qid2title.json", dict[str, str])
    _refuse_unknown(titles, titles.content, numbers.content)
    for qid in numbers.content:
        if qid not in titles.content:
            titles.add(qid, f"there is no title of {qid!r}")
    titles.close()
    return {owners[number]: titles.content[owners[number]] for number in sorted(owners)}


def _refuse_unknown(file: _JsonFile, qids: Iterable[str], known: Mapping[str, Any]) -> None:
    for qid in qids:
        if qid not in known:
            file.add(qid, f"there is no entity {qid!r}")


def _mentions(mappings: Path, known: Mapping[str, str], most: int) -> Mentions:
    """The aliases of each entity, with scores."""
    file = _JsonFile(mappings / "alias2qids.json", dict[str, list[tuple[str, float]]])
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


def _types(emb_dir: Path | None, known: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """The names of the types of each entity."""
    path = emb_dir / "qid2types.json" if emb_dir else None
    if path is None or not path.exists():
        return {}
    names: dict[int | str, str] = {}
    vocabulary = path.with_name("type_vocab.json")
    if vocabulary.exists():
        numbers = _JsonFile(vocabulary, dict[str, int])
        numbers.close()
        names = {number: name for name, number in numbers.content.items()}
    file = _JsonFile(path, dict[str, list[int | str]])
    _refuse_unknown(file, file.content, known)
    found = {}
    for qid, types in file.content.items():
        for number in types:
            if isinstance(number, int) and number not in names:
                file.add(qid, f"{qid!r} has the type {number}, which is not in {vocabulary.name}")
        found[qid] = {"types": [names.get(number, str(number)) for number in types]}
    file.close()
    return found


def _relations(emb_dir: Path | None, known: Mapping[str, str]) -> dict[str, list[Relation]]:
    """The relations of each entity."""
    found: dict[str, list[Relation]] = defaultdict(list)
    path = emb_dir / "qid2relations.json" if emb_dir else None
    if path is not None and path.exists():
        file = _JsonFile(path, dict[str, dict[str, list[str]]])
        _refuse_unknown(file, file.content, known)
        for qid, relations in file.content.items():
            for name, objects in relations.items():
                _refuse_unknown(file, objects, known)
                found[qid] += [Relation(name, other) for other in objects]
        file.close()
    for subject, other in _pairs(emb_dir / "kg_conn.txt" if emb_dir else None, known):
        if all(relation.object != other for relation in found[subject]):
            found[subject].append(Relation(CONNECTED, other))
    return found


def _pairs(path: Path | None, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of connected entities, in both directions."""
    if path is None or not path.exists():
        return
    problems = Problems(path)
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            qids = line.split()
            if not qids:
                continue
            unknown = [qid for qid in qids if qid not in known]
            if len(qids) != 2:
                problems.add(number, f"{len(qids)} ids; expected two, separated by a tab")
            elif unknown:
                problems.add(number, f"there is no entity {' and '.join(map(repr, unknown))}")
            else:
                yield qids[0], qids[1]
                yield qids[1], qids[0]
    problems.close()
