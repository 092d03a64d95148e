"""Changes of a table of entities, collected in memory and written as one new version.

New entities, aliases and names are appended to the arrays of the table; existing entities keep
their numbers. A removed entity keeps its number and its id, but loses its content, so that stored
numbers never refer to another entity; adding the id again restores the number.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from bsmeta.data.text.caseless import make_caseless
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder, ArrayWriter
from bsmeta.tasks.disambiguation.entities import (
    ENTITY_LAYOUT,
    MAX_EXAMPLES,
    NIL_ID,
    Action,
    EntityTable,
    TableFacts,
    TableVersion,
    format_examples,
)
from bsmeta.tasks.disambiguation.lines import Problems
from bsmeta.tasks.disambiguation.string_table import (
    Names,
    Strings,
    find_list_range,
    replace_list_ends,
    replace_list_values,
)

logger = logging.getLogger(__name__)

MAX_SCORE = float(np.finfo(np.float32).max)
"""Maximum score of a candidate."""

Mentions = list[tuple[str, float]]
"""Aliases of an entity, with its score as a candidate of each."""


class Relation(msgspec.Struct):
    """A relation of an entity."""

    relation: str  # its name
    object: str  # id of the other entity


Types = dict[str, list[str]]
"""The types of an entity, by type system."""


class Profile(msgspec.Struct):
    """A line of a file of profiles."""

    entity_id: str
    mentions: Mentions
    title: str
    description: str | None = None
    types: Types = {}
    relations: list[Relation] = []


class ProfileUpdate(msgspec.Struct, forbid_unknown_fields=True):
    """New content of an existing entity; fields that are not given keep their content."""

    entity_id: str
    mentions: Mentions | msgspec.UnsetType = msgspec.UNSET
    title: str | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType | None = msgspec.UNSET
    types: Types | msgspec.UnsetType = msgspec.UNSET
    relations: list[Relation] | msgspec.UnsetType = msgspec.UNSET


_UPDATE_FIELDS = ProfileUpdate.__struct_fields__[1:]


class NewScores(msgspec.Struct, forbid_unknown_fields=True):
    """New scores of an existing entity: of the given aliases, or one score for all of its own."""

    entity_id: str
    mentions: Mentions | None = None
    score: float | None = None


class EntityName(msgspec.Struct):
    """The id of an entity; other fields of the line are ignored."""

    entity_id: str


def is_score(score: float) -> bool:
    """Returns whether a number can be the score of a candidate."""
    return 0 <= score <= MAX_SCORE


class _Lists:
    """Lists (bytes or numbers): new ones, concatenated, and new content of existing ones.

    Args:
        values: An empty array of the type of the values.
        start: Number of existing lists.

    Attributes:
        values: The concatenated new lists.
        ends: The end offset of each new list.
        replaced: New content of existing lists, by number.
    """

    def __init__(self, values: bytearray | array[int], start: int) -> None:
        self.values = values
        self.ends = array("q")
        self.replaced: dict[int, Sequence[int]] = {}
        self._start = start

    def put(self, number: int, values: Sequence[int]) -> None:
        """Sets the content of an existing list, or of the next new one."""
        if number < self._start:
            self.replaced[number] = values
            return

        assert number == self._start + len(self.ends)
        self.values.extend(values)
        self.ends.append(len(self.values))


class _NewNames(_Lists):
    """Distinct new strings, numbered after the strings of the table.

    Args:
        before: The existing strings of the table; None for a new table.
    """

    def __init__(self, before: Strings | None) -> None:
        super().__init__(bytearray(), 0 if before is None else len(before))
        self.hashes = array("Q")

        # `Names` are looked up on disk by hash; other strings are few, and held in memory.
        self._table = before if isinstance(before, Names) else None
        self._numbers = {}
        if before is not None and self._table is None:
            self._numbers = {name: number for number, name in enumerate(before)}

    @property
    def count(self) -> int:
        """Number of existing and new strings."""
        return self._start + len(self.ends)

    def find(self, string: str) -> int:
        """Returns the number of a string; -1 if it is new."""
        number = self._numbers.get(string, -1)
        if number < 0 and self._table is not None:
            return self._table.find(string)
        return number

    def find_or_add(self, string: str) -> int:
        """Returns the number of a string; adds a new one."""
        number = self.find(string)
        if number >= 0:
            return number

        number = self.count
        self._numbers[string] = number
        data = string.encode()
        self.put(number, data)
        self.hashes.append(xxhash.xxh3_64_intdigest(data))
        return number


class _NewAliases(_NewNames):
    """New aliases in caseless form, and a record of those in other spellings."""

    def __init__(self, before: Strings | None) -> None:
        super().__init__(before)
        self._respelled: dict[str, int] = {}  # numbers by spelling, if that is not caseless
        self._is_caseless = bytearray(b"\1" * self.count)  # whether the caseless spelling occurs

    def find_or_add(self, string: str) -> int:
        key = make_caseless(string)
        number = super().find_or_add(key)
        if number == len(self._is_caseless):
            self._is_caseless.append(0)

        if key == string:
            self._is_caseless[number] = 1
        else:
            self._respelled[string] = number
        return number

    def log_respelled(self, path: Path) -> None:
        """Logs the number of aliases that were normalized, and of those merged with another."""
        if not self._respelled:
            return

        # Each alias has its normalized spellings, and perhaps one that is caseless already; those
        # beyond the first have been merged.
        numbers = {*self._respelled.values()}
        spellings = len(self._respelled) + sum(self._is_caseless[number] for number in numbers)
        merged = spellings - len(numbers)
        example = next(iter(self._respelled))
        logger.warning(
            "%s: %d aliases were normalized (lower case, Unicode composition, single spaces), such "
            "as %r to %r; merged with another alias: %d",
            path,
            len(self._respelled),
            example,
            make_caseless(example),
            merged,
        )


class TableChanges:
    """Changes of one action: lines are collected first, then written together.

    Args:
        before: The existing arrays of the table; None for a new table.

    Attributes:
        entities: Numbers of the changed entities, in the order of their lines.
    """

    def __init__(self, before: ArrayFolder[TableFacts] | None) -> None:
        self._before = before
        self._table = None if before is None else EntityTable(before)
        table = self._table
        self._ids = _NewNames(None if table is None else table.ids)
        self._aliases = _NewAliases(None if table is None else table.aliases)
        self._type_names = _NewNames(None if table is None else table.type_names)
        self._relation_names = _NewNames(None if table is None else table.relation_names)

        count = 0 if table is None else len(table)
        self._titles = _Lists(bytearray(), count)
        self._descriptions = _Lists(bytearray(), count)
        self._types = _Lists(array("i"), count)
        self._relations = _Lists(array("i"), count)
        self._relation_objects = _Lists(array("i"), count)

        # The relations of all lines; their objects are resolved at the end.
        self._relation_owners = array("i")
        self._relation_labels = array("i")
        self._relation_targets = array("i")
        self._targets: dict[str, int] = {}  # number of each distinct object
        self._with_relations = array("i")  # entities whose relations are set

        # Candidates: existing ones that are dropped or rescored, and new ones
        self._without_mentions: set[int] = set()
        self._entity_scores: dict[int, float] = {}
        self._mention_aliases = array("i")
        self._mention_entities = array("i")
        self._mention_scores = array("f")

        self.entities = array("i")
        self._removed = set() if table is None else set(table.removed.tolist())
        self._newly_removed: set[int] = set()
        self._lines: dict[str, int] = {}  # line by the id of the entity

        if before is None:
            self._put_profile(Profile(NIL_ID, [], ""))

    def add(self, line: int, profile: Profile, problems: Problems) -> None:
        """Adds an entity, which may have been removed before."""
        reasons = [*self._find_id_problems(profile.entity_id, is_new=True)]
        reasons += self._find_mention_problems(profile.mentions)
        if self._collect(line, profile.entity_id, reasons, problems):
            self.entities.append(self._put_profile(profile))

    def update(self, line: int, update: ProfileUpdate, problems: Problems) -> None:
        """Replaces the given fields of an existing entity."""
        reasons = [*self._find_id_problems(update.entity_id, is_new=False)]
        if all(getattr(update, name) is msgspec.UNSET for name in _UPDATE_FIELDS):
            reasons.append(f"nothing to change; expected some of {', '.join(_UPDATE_FIELDS)}")
        if update.mentions is not msgspec.UNSET:
            reasons += self._find_mention_problems(update.mentions)
        if not self._collect(line, update.entity_id, reasons, problems):
            return

        entity = self._find_entity(update.entity_id)
        self.entities.append(entity)
        if update.title is not msgspec.UNSET:
            self._titles.put(entity, update.title.encode())
        if update.description is not msgspec.UNSET:
            self._descriptions.put(entity, (update.description or "").encode())
        if update.types is not msgspec.UNSET:
            self._put_types(entity, update.types)
        if update.relations is not msgspec.UNSET:
            self._put_relations(entity, update.relations)
        if update.mentions is not msgspec.UNSET:
            self._without_mentions.add(entity)
            self._put_mentions(entity, update.mentions)

    def remove(self, line: int, name: EntityName, problems: Problems) -> None:
        """Removes the content of an existing entity, and all relations to it."""
        reasons = self._find_id_problems(name.entity_id, is_new=False)
        if not self._collect(line, name.entity_id, reasons, problems):
            return

        entity = self._find_entity(name.entity_id)
        self.entities.append(entity)
        self._newly_removed.add(entity)
        self._without_mentions.add(entity)
        for column in (self._titles, self._descriptions):
            column.put(entity, b"")
        for column in (self._types, self._relations, self._relation_objects):
            column.put(entity, [])

    def rescore(self, line: int, scores: NewScores, problems: Problems) -> None:
        """Replaces scores of an existing entity."""
        reasons = [*self._find_id_problems(scores.entity_id, is_new=False)]
        reasons += self._find_score_problems(scores)
        if not self._collect(line, scores.entity_id, reasons, problems):
            return

        entity = self._find_entity(scores.entity_id)
        self.entities.append(entity)
        if scores.score is not None:
            self._entity_scores[entity] = scores.score
        else:
            self._put_mentions(entity, scores.mentions or [])

    def close(self, problems: Problems) -> None:
        """Raises the problems of the lines; else resolves relations, which may lead to later lines.

        Relations to entities outside the table are left out, and their number is logged.
        """
        problems.close()
        self._removed |= self._newly_removed
        self._resolve_relations(problems.path)
        self._drop_relations_to_removed(problems.path)
        self._aliases.log_respelled(problems.path)

    def _collect(
        self, line: int, entity_id: str, reasons: Iterable[str], problems: Problems
    ) -> bool:
        """Adds the problems of a line; returns whether there are none."""
        is_valid = True
        for reason in reasons:
            problems.add(line, reason)
            is_valid = False
        self._lines.setdefault(entity_id, line)
        return is_valid

    def _find_entity(self, entity_id: str) -> int:
        """Returns the number of an entity; -1 if there is none, or it is removed."""
        entity = self._ids.find(entity_id)
        return -1 if entity in self._removed else entity

    def _find_id_problems(self, entity_id: str, *, is_new: bool) -> Iterator[str]:
        if not entity_id:
            yield "entity_id is empty"
        elif entity_id == NIL_ID:
            yield f"entity_id {entity_id!r} is reserved for mentions without an entity"
        elif entity_id in self._lines:
            yield f"entity_id {entity_id!r} is that of line {self._lines[entity_id]:,}, too"
        elif is_new and self._find_entity(entity_id) >= 0:
            yield f"entity_id {entity_id!r} is in the table already"
        elif not is_new and self._find_entity(entity_id) < 0:
            yield f"entity_id {entity_id!r} is not in the table"

    def _find_mention_problems(self, mentions: Mentions) -> Iterator[str]:
        checked_aliases = set()
        for alias, score in mentions:
            if not make_caseless(alias):
                yield "a mention is empty"
            if alias in checked_aliases:
                yield f"mention {alias!r} is there twice"
            if not is_score(score):
                yield f"mention {alias!r} has the score {score}; expected a number from 0"
            checked_aliases.add(alias)

    def _find_score_problems(self, scores: NewScores) -> Iterator[str]:
        """Yields the problems of new scores: both or neither forms, and unknown aliases."""
        if (scores.mentions is None) == (scores.score is None):
            yield "expected mentions ([[alias, score], …]) or score (of all its aliases)"
        elif scores.score is not None:
            if not is_score(scores.score):
                yield f"score is {scores.score}; expected a number from 0"
            entity = self._find_entity(scores.entity_id)
            if entity >= 0 and not self._has_candidate(entity):
                yield f"{scores.entity_id!r} is not a candidate of any alias; name them in mentions"

        yield from self._find_mention_problems(scores.mentions or [])
        for alias, _ in scores.mentions or []:
            if make_caseless(alias) and self._aliases.find(make_caseless(alias)) < 0:
                yield f"mention {alias!r} is not an alias of the table; update=… adds aliases"

    @cached_property
    def _candidate_counts(self) -> np.ndarray:
        """For each existing entity, the number of aliases of which it is a candidate."""
        entities = self._read_existing("candidates", np.int32)
        return np.bincount(entities, minlength=1)

    def _has_candidate(self, entity: int) -> bool:
        return entity < len(self._candidate_counts) and bool(self._candidate_counts[entity])

    def _put_profile(self, profile: Profile) -> int:
        """Sets the whole content of an entity; returns its number."""
        entity = self._ids.find_or_add(profile.entity_id)
        self._removed.discard(entity)
        self._titles.put(entity, profile.title.encode())
        self._descriptions.put(entity, (profile.description or "").encode())
        self._put_types(entity, profile.types)
        self._put_relations(entity, profile.relations)
        self._put_mentions(entity, profile.mentions)
        return entity

    def _put_types(self, entity: int, types: Types) -> None:
        numbers = []
        for system_types in types.values():
            numbers += [self._type_names.find_or_add(name) for name in system_types]
        self._types.put(entity, numbers)

    def _put_relations(self, entity: int, relations: Sequence[Relation]) -> None:
        self._with_relations.append(entity)
        for relation in relations:
            target = self._targets.setdefault(relation.object, len(self._targets))
            self._relation_owners.append(entity)
            self._relation_labels.append(self._relation_names.find_or_add(relation.relation))
            self._relation_targets.append(target)

    def _put_mentions(self, entity: int, mentions: Mentions) -> None:
        scores: dict[int, float] = {}
        for alias, score in mentions:
            number = self._aliases.find_or_add(alias)
            scores[number] = min(scores.get(number, 0.0) + score, MAX_SCORE)
        self._mention_aliases.extend(scores)
        self._mention_entities.extend([entity] * len(scores))
        self._mention_scores.extend(scores.values())

    def _resolve_relations(self, path: Path) -> None:
        """Sets the relations of all lines, except those to entities outside the table."""
        objects = np.array([self._find_entity(name) for name in self._targets], np.int64)
        all_objects = objects[np.array(self._relation_targets, np.int64)]
        is_inside = all_objects >= 0

        owners = np.array(self._relation_owners)[is_inside]
        labels = np.array(self._relation_labels)[is_inside]
        inside_objects = all_objects[is_inside].astype(np.int32)
        # An entity has one line, so its relations are consecutive, in the order of the lines.
        counts = np.bincount(owners, minlength=self._ids.count)
        start = 0
        for entity in self._with_relations:
            end = start + int(counts[entity])
            self._relations.put(entity, labels[start:end].tolist())
            self._relation_objects.put(entity, inside_objects[start:end].tolist())
            start = end

        outside = int((~is_inside).sum())
        if outside:
            names = [*self._targets]
            unknown = [names[number] for number in np.flatnonzero(objects < 0).tolist()]
            logger.warning(
                "%s: relations to entities outside the table, left out: %d (to %s)",
                path,
                outside,
                format_examples(unknown[:MAX_EXAMPLES], len(unknown)),
            )

    def _drop_relations_to_removed(self, path: Path) -> None:
        """Drops the relations of other entities to those that are removed now."""
        if not self._newly_removed:
            return

        objects = self._read_existing("relation_objects", np.int32)
        labels = self._read_existing("relations", np.int32)
        ends = self._read_existing("relations_ends", np.int64)
        removed = np.array([*self._newly_removed])
        hits = np.flatnonzero(np.isin(objects, removed))
        owners = np.searchsorted(ends, hits, side="right")
        from_others = ~np.isin(owners, removed)
        for owner in np.unique(owners[from_others]).tolist():
            positions = find_list_range(ends, owner)
            is_kept = ~np.isin(objects[positions], removed)
            self._relations.put(owner, labels[positions][is_kept].tolist())
            self._relation_objects.put(owner, objects[positions][is_kept].tolist())

        if from_others.any():
            logger.warning(
                "%s: relations of other entities to the removed ones, removed with them: %d",
                path,
                int(from_others.sum()),
            )

    def write(self, folder: Path, max_candidates: int, action: Action) -> TableVersion:
        """Writes the changes to the table in a folder; returns its new version."""
        writer = ArrayWriter(folder, ENTITY_LAYOUT, self._before)
        columns = {
            "ids": self._ids,
            "titles": self._titles,
            "descriptions": self._descriptions,
            "aliases": self._aliases,
            "type_names": self._type_names,
            "relation_names": self._relation_names,
            "types": self._types,
            "relations": self._relations,
        }
        for name, column in columns.items():
            self._write_values(writer, name, f"{name}_ends", column)
            self._write_ends(writer, f"{name}_ends", column)
        self._write_values(writer, "relation_objects", "relations_ends", self._relation_objects)

        self._write_hashes(writer, "ids", self._ids)
        self._write_hashes(writer, "aliases", self._aliases)
        self._write_candidates(writer, max_candidates)
        writer.replace("removed", np.array(sorted(self._removed), np.int32))

        versions = [*self._before.facts.versions] if self._before else []
        examples = [self._read_id(entity) for entity in self.entities[:MAX_EXAMPLES]]
        fingerprint = writer.compute_content_hash()
        version = TableVersion(fingerprint, action, len(self.entities), examples)
        writer.commit(TableFacts(max_candidates, [*versions, version]))
        return version

    def _read_id(self, entity: int) -> str:
        if self._table is not None and entity < len(self._table):
            return self._table.ids[entity]
        index = entity - (0 if self._table is None else len(self._table))
        text = self._ids.values[find_list_range(np.array(self._ids.ends), index)]
        return bytes(text).decode()

    def _read_existing(self, name: str, dtype: Any) -> np.ndarray:
        """Returns an existing array of the table; an empty one for a new table."""
        return self._before[name] if self._before else np.empty(0, dtype)

    def _write_ends(self, writer: ArrayWriter, name: str, column: _Lists) -> None:
        """Writes the ends of lists: appends those of new lists, or rewrites all."""
        ends = self._read_existing(name, np.int64)
        if column.replaced:
            ends = replace_list_ends(ends, column.replaced)
        new_ends = np.array(column.ends) + (ends[-1] if len(ends) else 0)

        if column.replaced:
            writer.replace(name, np.concatenate([ends, new_ends]))
        else:
            writer.append(name, new_ends)

    def _write_values(self, writer: ArrayWriter, name: str, ends_name: str, column: _Lists) -> None:
        """Writes the values of lists: appends those of new lists, or rewrites all."""
        new_values = np.array(column.values)
        if not column.replaced:
            writer.append(name, new_values)
            return

        ends = self._read_existing(ends_name, np.int64)
        values = self._read_existing(name, new_values.dtype)
        values = replace_list_values(values, ends, column.replaced)
        writer.replace(name, np.concatenate([values, new_values]))

    def _write_hashes(self, writer: ArrayWriter, name: str, strings: _NewNames) -> None:
        """Writes the sorted hashes of all strings of a name, and the number of each string."""
        order = self._read_existing(f"{name}_order", np.int32)
        hashes = np.empty(len(order), np.uint64)
        hashes[order] = self._read_existing(f"{name}_hashes", np.uint64)
        hashes = np.concatenate([hashes, np.array(strings.hashes, np.uint64)])

        order = np.argsort(hashes, kind="stable").astype(np.int32)
        writer.replace(f"{name}_order", order)
        writer.replace(f"{name}_hashes", hashes[order])

    def _write_candidates(self, writer: ArrayWriter, max_candidates: int) -> None:
        """Writes the `max_candidates` entities with the highest scores of each alias, best first.

        Of equal scores, entities with lower numbers come first.
        """
        counts_before = np.diff(self._read_existing("candidates_ends", np.int64), prepend=0)
        aliases_before = np.repeat(np.arange(len(counts_before)), counts_before)
        entities_before = self._read_existing("candidates", np.int32)
        scores_before = self._rescore_entities()

        new_pairs = _pack_pairs(np.array(self._mention_aliases), np.array(self._mention_entities))
        is_dropped = np.isin(_pack_pairs(aliases_before, entities_before), new_pairs)
        is_dropped |= np.isin(entities_before, [*self._without_mentions])

        aliases = np.concatenate([aliases_before[~is_dropped], self._mention_aliases])
        entities = np.concatenate([entities_before[~is_dropped], self._mention_entities])
        scores = np.concatenate([scores_before[~is_dropped], self._mention_scores])

        order = np.lexsort((entities, -scores, aliases))
        aliases = aliases[order].astype(np.int64)
        ranks = np.arange(len(aliases)) - np.searchsorted(aliases, aliases)
        is_kept = ranks < max_candidates

        writer.replace("candidates", entities[order][is_kept].astype(np.int32))
        writer.replace("candidate_scores", scores[order][is_kept].astype(np.float32))
        counts = np.bincount(aliases[is_kept], minlength=self._aliases.count)
        writer.replace("candidates_ends", np.cumsum(counts, dtype=np.int64))

    def _rescore_entities(self) -> np.ndarray:
        """Returns the scores of the existing candidates, with those that entities were given."""
        scores = self._read_existing("candidate_scores", np.float32).copy()
        if self._entity_scores:
            entities = self._read_existing("candidates", np.int32)
            rescored = np.array(sorted(self._entity_scores))
            new_scores = np.array([self._entity_scores[entity] for entity in rescored.tolist()])
            indices = np.searchsorted(rescored, entities).clip(max=len(rescored) - 1)
            is_rescored = rescored[indices] == entities
            scores[is_rescored] = new_scores[indices[is_rescored]]
        return scores


def _pack_pairs(aliases: np.ndarray, entities: np.ndarray) -> np.ndarray:
    """Packs each alias and entity into one int64."""
    return aliases.astype(np.int64) << 32 | entities.astype(np.int64)
