"""Builds a table from the entity folders of Bootleg, of either generation.

    entity_dir/entity_mappings/  qid2title.json, qid2desc.json, qid2eid, config.json
                                 (max_candidates); alias2qids: {alias: [[qid, score], …]}
    entity_dir/type_mappings/    second generation: SYSTEM/qid2typenames: {qid: [type, …]}
    entity_dir/kg_mappings/      second generation: qid2relations, or kg_adj.txt
    emb_dir/                     first generation: files of any name: types {qid: [type, …]},
                                 relations {qid: {relation: [qid, …]}}, {qid: [relation, …]} or
                                 {qid: {qid: weight}}, and tab-separated pairs of qids (.txt)

Only `qid2title.json` and `alias2qids` are required. Without `qid2eid`, the entities have the order
of `qid2title.json`. Types and relations may be numbers in a vocabulary ({name: number}). Types and
relations of entities without a title are skipped and counted.

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
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from bsmeta.core.errors import ConfigurationError, DataError, format_value, suggest_nearest
from bsmeta.core.parsing import decode_json, parse_json
from bsmeta.data.text.caseless import make_caseless
from bsmeta.tasks.disambiguation.entities import NIL_ID, EntityTable
from bsmeta.tasks.disambiguation.lines import Problems
from bsmeta.tasks.disambiguation.profiles import MAX_CANDIDATES, write_table
from bsmeta.tasks.disambiguation.table_changes import Profile, Relation, is_score

logger = logging.getLogger(__name__)

# Files in a folder of tries
RECORD_TRIE = "record_trie.marisa"
VOCABULARY_TRIE = "vocabulary_trie.marisa"
NUMBERS_FILE = "itoexti.npy"
MAX_PAIRS_FILE = "max_value.json"

_MaxPairs = Annotated[int, msgspec.Meta(ge=1, le=10_000)]  # bounds the memory of a record

PADDING_NUMBER = -1
"""Pads the pairs of a key in a record trie."""

# File names in the first generation's tutorial
TYPES_FILE = "qid2types.json"
TYPE_VOCABULARY = "type_vocab.json"
RELATION_FILES = ("qid2relations.json", "kg_conn.txt")
RELATION_VOCABULARY = "relation_vocab.json"

CONNECTED = "connected to"
"""Name of the relation between entities that are given as unnamed pairs."""

NameLists = dict[str, list[int | str]]
"""Names of types, or their numbers in a vocabulary, by entity."""


def locate_mapping(folder: Path, name: str) -> Path | None:
    """Returns the path of a mapping in a folder, as tries or JSON; None if there is neither."""
    paths = (folder / name, folder / f"{name}.json")
    return next((path for path in paths if path.exists()), None)


class _MappingFile(Problems):
    """A mapping (a JSON file, or a folder of tries), and the problems of its keys.

    Args:
        form: The type of the content.
        vocabulary: The file with the number of each name; None: the content has names.

    Attributes:
        content: The mapping. The value of a key in a record trie is a list of `(name, score)`; with
            two vocabularies, `{first name: [second name, …]}`.
        names: The name of each number in the vocabulary.

    Raises:
        DataError: If it cannot be read, or its content is not of `form`.
    """

    def __init__(self, path: Path, form: Any, vocabulary: Path | None = None) -> None:
        super().__init__(path)
        self.vocabulary = vocabulary
        self._repeated_keys: list[str] = []
        self._text = ""

        try:
            if path.is_dir():
                content = _read_tries(path)
            else:
                self._text = path.read_text(encoding="utf-8")
                content = parse_json(self._text, object_pairs_hook=self._build_object)
            self.content = msgspec.convert(content, form)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise DataError(f"{path}: not what was expected: {error}") from error

        for key in self._repeated_keys:
            self.refuse(key, f"{key!r} is there twice", occurrence=2)

        self.names: dict[int | str, str] = {}
        if vocabulary is not None and vocabulary.exists():
            numbers = _read_mapping(vocabulary, dict[str, int | str])
            self.names = {number: name for name, number in numbers.items()}

    def refuse(self, key: str, reason: str, occurrence: int = 1) -> None:
        """Adds a problem of a key, with the line of its n-th occurrence, n = `occurrence`."""
        offset = -1
        for _ in range(occurrence):
            spellings = (json.dumps(key, ensure_ascii=False), json.dumps(key))
            offset = max(self._text.find(spelling, offset + 1) for spelling in spellings)
        line = self._text.count("\n", 0, max(offset, 0)) + 1
        self.add(line if self._text else None, reason)

    def _build_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Builds a JSON object, and records repeated keys."""
        content = dict(pairs)
        if len(content) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            self._repeated_keys += [key for key in content if counts[key] > 1]
        return content

    def items_with_title(self, titles: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
        """Returns the items of entities with a title; logs the number of skipped ones."""
        unknown = len(self.content.keys() - titles.keys())
        if unknown:
            count = len(self.content)
            logger.warning(
                "%s: %d of %d entities have no title; left out", self.path, unknown, count
            )
        return ((qid, value) for qid, value in self.content.items() if qid in titles)

    def look_up_names(self, qid: str, numbers: Sequence[int | str], kind: str) -> list[str]:
        """Returns the names of an entity's types or relations; unknown numbers are problems.

        Args:
            numbers: Numbers in the vocabulary, or names.
            kind: `type` or `relation`, for messages.
        """
        for number in numbers:
            if isinstance(number, int) and number not in self.names:
                vocabulary = self.vocabulary.name if self.vocabulary else ""
                self.refuse(qid, f"{qid!r} has the {kind} {number}, which is not in {vocabulary}")
        return [self.names.get(number, str(number)) for number in numbers]


def _read_mapping(path: Path, form: Any) -> Any:
    """Reads the content of a mapping; raises DataError if it has problems."""
    file = _MappingFile(path, form)
    file.close()
    return file.content


def _read_tries(folder: Path) -> dict[str, Any]:
    """Reads a mapping from a folder of tries, in any of the forms that the module describes.

    Raises:
        DataError: If the tries cannot be read, or the library is not installed.
    """
    try:
        import marisa_trie  # noqa: F401
    except ImportError as error:
        raise DataError(
            f"{folder} holds marisa tries, and the library that reads them is not installed: "
            "pip install -e .[bootleg]"
        ) from error

    try:
        if (folder / RECORD_TRIE).exists():
            return _read_record_trie(folder)
        numbers = np.load(folder / NUMBERS_FILE)
        trie = _load_trie(folder / VOCABULARY_TRIE)
        return {key: int(numbers[number]) for key, number in trie.items()}
    # marisa's errors are RuntimeErrors
    except (RuntimeError, LookupError, EOFError, TypeError, ValueError) as error:
        raise DataError(
            f"{folder}: its tries cannot be read ({error}); copy the folder again"
        ) from error


def _load_trie(path: Path) -> Any:
    import marisa_trie

    return marisa_trie.Trie().load(str(path))


def _read_record_trie(folder: Path) -> dict[str, Any]:
    """Reads a record trie: `[(name, score), …]`, or `{name: [other name, …]}`, by key."""
    import marisa_trie

    max_pairs = decode_json((folder / MAX_PAIRS_FILE).read_bytes(), _MaxPairs)
    has_scores = (folder / VOCABULARY_TRIE).exists()
    records = marisa_trie.RecordTrie("<" + ("lf" if has_scores else "ll") * max_pairs)
    if has_scores:
        names = _load_trie(folder / VOCABULARY_TRIE)
    else:
        names = _load_trie(folder / f"key_{VOCABULARY_TRIE}")
        other_names = _load_trie(folder / f"value_{VOCABULARY_TRIE}")

    content: dict[str, Any] = {}
    for key, values in records.load(str(folder / RECORD_TRIE)).items():
        pairs = [
            (names.restore_key(number), value)
            for number, value in zip(values[::2], values[1::2], strict=True)
            if number != PADDING_NUMBER
        ]
        if has_scores:
            content[key] = pairs
            continue
        groups = defaultdict(list)
        for name, other in pairs:
            groups[name].append(other_names.restore_key(other))
        content[key] = dict(groups)
    return content


Files = list[tuple[Path, Path]]
"""Files of types or relations, each with the path of its vocabulary, which may not exist."""


@dataclass(frozen=True)
class Sources:
    """The folders of entity files, and the selected files.

    Attributes:
        entity_dir: The folder with `entity_mappings/`.
        emb_dir: The first generation's folder of types and relations; None: second generation.
        types: Files in `emb_dir` (`FILE` or `FILE:VOCABULARY`), or names of type systems; None: the
            file of the tutorial, or all type systems.
        relations: Files in `emb_dir` or `kg_mappings/`; None: the default ones.
    """

    entity_dir: Path
    emb_dir: Path | None = None
    types: Sequence[str] | None = None
    relations: Sequence[str] | None = None

    def list_type_files(self) -> Files:
        """Lists the files of types.

        Raises:
            ConfigurationError: If a named file, or every default one, is missing.
        """
        if self.emb_dir is not None:
            return _select_files("types", self.types, self.emb_dir, [TYPES_FILE], TYPE_VOCABULARY)

        folder = self.entity_dir / "type_mappings"
        systems = sorted(path.name for path in folder.glob("*") if path.is_dir())
        files = []
        for system, _ in _select_files("types", self.types, folder, systems, ""):
            mapping = locate_mapping(system, "qid2typenames") or system / "qid2typeids.json"
            files.append((mapping, system / TYPE_VOCABULARY))
        return files

    def list_relation_files(self) -> Files:
        """Lists the files of relations.

        Raises:
            ConfigurationError: If a named file, or every default one, is missing.
        """
        if self.emb_dir is not None:
            folder = self.emb_dir
            defaults = [*RELATION_FILES]
        else:
            folder = self.entity_dir / "kg_mappings"
            mapping = locate_mapping(folder, "qid2relations") or folder / "kg_adj.txt"
            defaults = [mapping.name]
        return _select_files("relations", self.relations, folder, defaults, RELATION_VOCABULARY)


def _select_files(
    key: str,
    names: Sequence[str] | None,
    folder: Path,
    defaults: Sequence[str],
    default_vocabulary: str,
) -> Files:
    """Returns the files that are named as `FILE` or `FILE:VOCABULARY` in a folder.

    Args:
        key: The configuration key, for messages.
        names: The value of the key; None: the existing ones of `defaults`.
        default_vocabulary: The vocabulary of files without a named one.

    Raises:
        ConfigurationError: If a named file, or every default one, is missing.
    """
    listing = sorted(path.name for path in folder.glob("*"))
    if names is None:
        names = [name for name in defaults if name in listing]
        if folder.is_dir() and not names:
            raise ConfigurationError(
                f"{key}: {folder} has no {' or '.join(defaults) or 'folder of a type system'}, but "
                f"{', '.join(listing) or 'nothing'}; name what is to be read: {key}=[NAME], or "
                f"nothing: {key}=[]",
                [key],
            )

    files = []
    for name in names:
        file, _, vocabulary = name.partition(":")
        for part in (file, vocabulary):
            if part and part not in listing:
                raise ConfigurationError(
                    f"{key}=[{', '.join(names)}]: {folder} has no "
                    f"{part}{suggest_nearest(part, listing)}; "
                    f"it has {', '.join(listing) or 'nothing'}",
                    [key],
                )
        files.append((folder / file, folder / (vocabulary or default_vocabulary)))
    return files


def build_from_files(
    sources: Sources, folder: Path, max_candidates: int | None = None
) -> EntityTable:
    """Builds a table in a new folder from the files of either generation.

    Args:
        max_candidates: Maximum number of candidates of an alias in the table; None: the number in
            `config.json`, which limits the candidates in the files in any case.

    Raises:
        ConfigurationError: If the folder exists, or named files do not.
        DataError: Lists the problems of a file.
    """
    mappings = sources.entity_dir / "entity_mappings"
    path = mappings / "config.json"
    settings = _MappingFile(path, dict[str, Any]).content if path.exists() else {}
    configured_max = settings.get("max_candidates", MAX_CANDIDATES)
    if type(configured_max) is not int or configured_max < 1:
        raise DataError(
            f"{path}: max_candidates={format_value(configured_max)}; expected a number of 1 or more"
        )
    list_type_files = sources.list_type_files()
    list_relation_files = sources.list_relation_files()

    titles = _read_titles(mappings)
    mentions = _read_mentions(mappings, titles, configured_max)
    path = mappings / "qid2desc.json"
    descriptions = _read_mapping(path, dict[str, str]) if path.exists() else {}
    types = _read_types(list_type_files, titles)
    relations = _read_relations(list_relation_files, titles)

    profiles = (
        Profile(
            entity_id=qid,
            mentions=mentions[qid],
            title=title,
            description=descriptions.get(qid),
            types=types.get(qid, {}),
            relations=relations[qid],
        )
        for qid, title in titles.items()
    )
    return write_table(
        enumerate(profiles, 1),
        Problems(mappings),  # stays empty: the files are valid
        folder,
        max_candidates=max_candidates or configured_max,
    )


def _read_titles(mappings: Path) -> dict[str, str]:
    """Reads the titles of the entities by their ids, in the order of their numbers."""
    titles = _MappingFile(mappings / "qid2title.json", dict[str, str])
    path = locate_mapping(mappings, "qid2eid")
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


def _read_mentions(
    mappings: Path, titles: Mapping[str, str], max_candidates: int
) -> dict[str, list[tuple[str, float]]]:
    """Reads the aliases of each entity with their scores."""
    path = locate_mapping(mappings, "alias2qids") or mappings / "alias2qids.json"
    file = _MappingFile(path, dict[str, list[tuple[str, float]]])
    mentions = defaultdict(list)
    for alias, candidates in file.content.items():
        for reason in _find_candidate_problems(alias, candidates, titles, max_candidates):
            file.refuse(alias, reason)
        for qid, score in candidates:
            mentions[qid].append((alias, score))
    file.close()
    return mentions


def _find_candidate_problems(
    alias: str,
    candidates: Sequence[tuple[str, float]],
    titles: Mapping[str, str],
    max_candidates: int,
) -> Iterator[str]:
    """Yields the problems of an alias and its candidates."""
    qids = [qid for qid, _ in candidates]
    scores = [score for _, score in candidates]

    if not make_caseless(alias):
        yield "an alias is empty"
    count = len(candidates)
    if count > max_candidates:
        yield f"alias {alias!r} has {count} candidates; max_candidates is {max_candidates}"
    if scores != sorted(scores, reverse=True):
        yield f"the scores of alias {alias!r} are out of order; expected the highest first"
    if not all(map(is_score, scores)):
        yield f"alias {alias!r} has a score that is not a number from 0"
    if len({*qids}) < count:
        yield f"alias {alias!r} has a candidate twice"
    for qid in qids:
        if qid not in titles:
            yield f"alias {alias!r} leads to {qid!r}, which is not an entity"


def _read_types(files: Files, titles: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """Reads the types of each entity, by the path of their file."""
    types: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for path, vocabulary in files:
        form: Any = dict[str, list[tuple[str, float]]] if path.is_dir() else NameLists
        file = _MappingFile(path, form, vocabulary)
        for qid, values in file.items_with_title(titles):
            # Tries have a score beside each name.
            names = [name for name, _ in values] if path.is_dir() else values
            types[qid][str(path)] = file.look_up_names(qid, names, "type")
        file.close()

    _refuse_empty("types", files, types)
    return types


def _read_relations(files: Files, titles: Mapping[str, str]) -> dict[str, list[Relation]]:
    """Reads the relations of each entity; the object of a relation that only has a name is NIL."""
    # For each entity, ordered and distinct (relation, object)
    relations: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
    connected: list[tuple[str, str]] = []
    for path, vocabulary in files:
        if path.suffix == ".txt":
            connected += _read_pairs(path, titles)
        else:
            for qid, pairs in _read_relation_mapping(path, vocabulary, titles):
                relations[qid] |= dict.fromkeys(pairs)

    # A pair adds a relation only between entities that have none yet.
    for subject, other in connected:
        if all(existing != other for _, existing in relations[subject]):
            relations[subject][CONNECTED, other] = None

    lists = defaultdict(list)
    for qid, qid_relations in relations.items():
        lists[qid] = [Relation(relation, other) for relation, other in qid_relations]
    _refuse_empty("relations", files, lists)
    return lists


def _read_relation_mapping(
    path: Path, vocabulary: Path, titles: Mapping[str, str]
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields each entity with its pairs of a relation and an object.

    Relations to entities without a title are skipped, and their number is logged.
    """
    form = dict[str, dict[str, list[str] | float] | list[int | str]]
    file = _MappingFile(path, form, vocabulary)
    unknown = 0
    for qid, value in file.items_with_title(titles):
        if isinstance(value, dict):
            all_pairs = list(_list_objects(value, file.names))
            pairs = [(relation, other) for relation, other in all_pairs if other in titles]
            unknown += len(all_pairs) - len(pairs)
        else:
            names = file.look_up_names(qid, value, "relation")
            pairs = [(relation, NIL_ID) for relation in names]
        yield qid, pairs

    file.close()
    if unknown:
        logger.warning("%s: %d relations lead to entities without a title; left out", path, unknown)


def _list_objects(
    relations: Mapping[str, list[str] | float], names: Mapping[int | str, str]
) -> Iterator[tuple[str, str]]:
    """Yields the name and the object of each relation of an entity."""
    for key, objects in relations.items():
        if isinstance(objects, list):
            name = names.get(key, key)
            yield from ((name, other) for other in objects)
        else:  # the key is an entity, the value a weight
            yield CONNECTED, key


def _read_pairs(path: Path, titles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields pairs of connected entities, each in both directions.

    A third column, the weight, is ignored. Pairs with an entity without a title are skipped, and
    their number is logged.
    """
    problems = Problems(path)
    count = 0
    unknown = 0
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            columns = line.split()
            if not columns:
                continue

            count += 1
            if len(columns) not in (2, 3):
                problems.add(number, f"{len(columns)} columns; expected two ids and a tab between")
                continue

            subject, other = columns[:2]
            if subject in titles and other in titles:
                yield subject, other
                yield other, subject
            else:
                unknown += 1
    problems.close()

    if unknown:
        logger.warning(
            "%s: %d of %d pairs name entities without a title; left out", path, unknown, count
        )


def _refuse_empty(key: str, files: Files, values: Mapping[str, Any]) -> None:
    """Raises DataError if no entity gets a type or relation from the files."""
    if files and not any(values.values()):
        paths = ", ".join(str(path) for path, _ in files)
        raise DataError(
            f"{key}: no entity gets any from {paths}; name the files of these entities, or none: "
            f"{key}=[]"
        )
