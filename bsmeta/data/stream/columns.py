"""Whether the first documents have the text and the metadata that a run should train on.

A path of `data_config.columns` that no document has is an error, as is a type that is neither known
to the project nor in any of the first documents: a misspelled one would silently be left out. A
known type that no document has is only a note, as `metadata_list` may name more types than a data
set has.

The checks before a run use this, so it imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bsmeta.config.data import DataConfig, source_configs
from bsmeta.config.metadata import MetadataConfig, phase_configs
from bsmeta.core.errors import HYDRA, Problem, UserError, much_like, nearest, show
from bsmeta.core.parsing import JSONDecoder
from bsmeta.data.io.file_start import describe_start, explain_no_document, has_document
from bsmeta.data.io.shard_lines import first_lines
from bsmeta.data.io.shards import Shard, entries_of, list_shards, some_of, validation_path
from bsmeta.metadata.decoding import SOURCE_KEY, TEXT, make_decoder
from bsmeta.metadata.metadata_type import CONFIG_KEY
from bsmeta.metadata.processors import PROCESSORS, column_keys, type_of
from bsmeta.metadata.records import UNREADABLE, BadDocument

DOCUMENTS = 64
MANY_DOCUMENTS = 2048  # looked at before a type is refused that is in none of them
MISSPELLED = 0.75  # smallest difflib ratio of a misspelling: titel, urls; not language_score
SHARDS = (3, 16)  # looked at; more where something is missing, as shards may be of many kinds
SHOWN = 40  # columns in a message
TEXT_NAMES = ("content", "raw_content", "body", "article")
"""Names that public corpora have for the text (RefinedWeb, RedPajama, collections of news)."""

_KEYS = JSONDecoder(dict[str, msgspec.Raw])
_RECORDS = JSONDecoder(list[dict[str, msgspec.Raw]] | None)
_NAME = JSONDecoder(str)
_OBJECT = JSONDecoder(dict[str, Any])


def column_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields the files without documents, and the paths that none of the first documents has.

    None if the shards are not on a local disk; the run itself then checks them.
    """
    for name, data in source_configs(config).items():
        with contextlib.suppress(UserError, OSError, EOFError):  # the run itself reports these
            yield from document_problems(config, name, local_shards(data))
    with contextlib.suppress(UserError, OSError, EOFError):
        yield from _held_out_problems(config)


def document_problems(config: DataConfig, name: str, shards: Sequence[Shard]) -> list[Problem]:
    """The problems with the first documents of a source: there are none, or they lack a path.

    Args:
        name: The source; "" without a mixture.

    Raises:
        OSError: If a shard cannot be opened.
        DataError: If a shard is remote and cannot be read.
    """
    return _no_document_problems(config, name, shards) or absent_paths(config, name, shards)


def _no_document_problems(config: DataConfig, name: str, shards: Sequence[Shard]) -> list[Problem]:
    """One problem, if no shard has a document: shards may be empty, but not all of them."""
    looked_at = dict.fromkeys((*some_of(shards, SHARDS[-1]), *shards))
    if not looked_at or any(has_document(shard.path) for shard in looked_at):
        return []
    start = describe_start(shards[0].path)
    others = f", and none of {len(shards)} files has a document" if len(shards) > 1 else ""
    return [
        Problem(
            source_key(config, name, "train_file"),
            HYDRA,
            f"{shards[0].path}, which {start.content}{others}",
            "a file of documents",
            start.remedy,
        )
    ]


def _held_out_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields the local held-out file, if it has no document; prepared data needs none."""
    if not config.validation_file or config.prepared or "://" in config.validation_file:
        return
    path = validation_path(config)
    if not isinstance(path, str) or not os.path.isfile(path):
        return
    start = explain_no_document(path)
    if start is not None:
        found = f"{path}, which {start.content}"
        expected = "a file of documents"
        yield Problem("data_config.validation_file", HYDRA, found, expected, start.remedy)


def source_key(config: DataConfig, name: str, key: str) -> str:
    """The full name of a key of a source, which may have a value of its own."""
    for number, source in enumerate(config.sources):
        if source.name == name and getattr(source, key):
            return f"data_config.sources.{number}.{key}"
    return f"data_config.{key}"


def type_problems(config: DataConfig) -> list[Problem]:
    """The types of `metadata_list` that are unknown and in none of the first documents.

    None if not all shards are on a local disk; the run itself then checks them.
    """
    shards = {name: local_shards(data) for name, data in source_configs(config).items()}
    return unknown_types(config, shards) if all(shards.values()) else []


def missing_types(config: DataConfig) -> list[str]:
    """Messages about the types of `metadata_list` that none of the first documents has.

    None if there are no such types, or if the shards are not on a local disk. Shards that cannot
    be read are ignored here: the run itself reports them.
    """
    wanted = _wanted(config.metadata_config)
    found = [_missing_types(data, name, wanted) for name, data in source_configs(config).items()]
    return [message for message in found if message]


def local_shards(config: DataConfig) -> list[Shard]:
    """The training shards, if they are to be read from a local disk and can be listed; else []."""
    with contextlib.suppress(UserError, OSError):
        # Only the run itself requests files from the Hub.
        if not config.prepared and not any("://" in entry for entry in entries_of(config)):
            return list_shards(config)
    return []


def _first_lines(shards: Sequence[Shard], most: int, count: int) -> list[bytes]:
    """The first lines of up to `most` shards, `count` of each; none of those that are unreadable.

    The run itself reports these.
    """
    lines: list[bytes] = []
    for shard in some_of(shards, most):
        with contextlib.suppress(UserError, OSError, EOFError):
            lines += first_lines(shard.path, count)
    return lines


def unknown_types(config: DataConfig, sources: Mapping[str, Sequence[Shard]]) -> list[Problem]:
    """The types of `metadata_list` that are unknown and in none of the first documents.

    Args:
        sources: The shards of each source, by its name.
    """
    own, wanted = source_configs(config), _wanted(config.metadata_config)
    mapped = {kind for data in own.values() for kind in data.columns if kind != TEXT}
    unknown = wanted - {*PROCESSORS, *mapped, SOURCE_KEY}
    if all(data.columns for data in own.values()) and wanted & mapped:
        # One list may serve several corpora, each with its own columns: only misspellings.
        names = [*mapped, *PROCESSORS]
        unknown = {one for one in unknown if difflib.get_close_matches(one, names, 1, MISSPELLED)}
    unmapped = [one for name, one in sources.items() if not own[name].columns]
    lines: list[bytes] = []
    found: set[str] = set()
    for count in (DOCUMENTS, MANY_DOCUMENTS):
        if not unknown:
            return []
        lines = []
        for shards in unmapped:
            few = min(len(shards), SHARDS[-1])
            lines += _first_lines(shards, SHARDS[-1], -(-count // max(few, 1)))
        found = {*_columns(lines)}
        unknown -= found
        if unmapped and not lines:  # the run itself reports why
            return []
    there = sorted({*found, *mapped})
    return [_unknown_problem(config, unknown, there, lines)] if unknown else []


def _unknown_problem(
    config: DataConfig, unknown: set[str], there: Sequence[str], lines: Sequence[bytes]
) -> Problem:
    key, named = f"{CONFIG_KEY}.metadata_list", config.metadata_config.metadata_list
    known = [*there, *PROCESSORS]
    missing = [name for name in named if name in unknown]
    where = f"none of the first {len(lines):,} documents has"
    if not lines:
        where = "data_config.columns does not have"
    expected = f"types that there are: {', '.join(there) or 'none'}{nearest(missing[0], known)}"
    alike = {name: much_like(name, known) for name in missing}
    fixed = dict.fromkeys(alike.get(name, name) for name in named)
    fix = f"{key}=[{','.join(name for name in fixed if name)}]"
    if any(alike.values()):
        fix += f", or leave {', '.join(missing)} out"
    plain = [name for name in missing if _is_plain(name, lines)]
    if plain:
        fix = f"data_config.columns={{{plain[0]}: {plain[0]}}} uses a plain column"
    return Problem(key, HYDRA, f"{', '.join(missing)}, which {where}", expected, fix)


def absent_paths(config: DataConfig, name: str, shards: Sequence[Shard]) -> list[Problem]:
    """The paths that are in no document of a few shards, nor in any of some more.

    Args:
        name: The source; "" without a mixture.
    """
    key = source_key(config, name, "columns")
    columns = {TEXT: TEXT, **source_configs(config)[name].columns}
    problems: list[Problem] = []
    for most in SHARDS:
        rows = map(_object, _first_lines(shards, most, DOCUMENTS))
        problems = [*_path_problems(key, columns, (row for row in rows if row is not None))]
        if not problems:
            break
    return problems


def _path_problems(
    key: str, columns: Mapping[str, str], rows: Iterable[dict[str, Any]]
) -> Iterator[Problem]:
    """Yields the paths that are in none of some rows; none where there are no rows."""
    values, objects = set[str](), set[str]()
    count = 0
    for row in rows:
        count += 1
        _collect(row, "", values, objects)
        if values.issuperset(columns.values()):
            return  # as a rule in the first row, and parsing them all takes a while
    if count == 0:
        return
    known = sorted(values)
    more = ", …" if len(known) > SHOWN else ""
    for kind, path in columns.items():
        if path in values:
            continue
        inside = [candidate for candidate in known if candidate.startswith(f"{path}.")]
        alike = _of_like_names(path, known) or _of_like_names(kind, known)
        if kind == TEXT and not alike:
            alike = [name for name in TEXT_NAMES if name in values]
        best = next(iter((*inside, *alike)), much_like(path, known))
        hint = f" (did you mean {alike[0]}?)" if alike else nearest(path, known)
        found = f"{show(path)}, which none of the first {count} documents has"
        if path in objects:
            found, hint = f"{show(path)}, which is an object", f"; in it: {', '.join(inside)}"
        expected = f"one of their columns: {', '.join(known[:SHOWN]) or 'none'}{more}{hint}"
        fix = f"{key}.{kind}={best or 'COLUMN'}"
        if best is None and kind != TEXT:
            fix += f", or leave {kind} out of metadata_list, if the documents have none"
        yield Problem(f"{key}.{kind}", HYDRA, found, expected, fix)


def _of_like_names(path: str, known: Sequence[str]) -> list[str]:
    """The paths whose last name contains that of `path`, those of an equal name first."""
    wanted = path.rpartition(".")[2].lower()
    names = {candidate: candidate.rpartition(".")[2].lower() for candidate in known}
    found = [candidate for candidate, name in names.items() if wanted in name]
    return sorted(found, key=lambda candidate: names[candidate] != wanted)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        return _OBJECT.decode(line)
    except UNREADABLE:
        return None


def _collect(row: dict[str, Any], prefix: str, values: set[str], objects: set[str]) -> None:
    """Adds the dotted paths of all values and of all objects in a row."""
    for name, value in row.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            objects.add(path)
            _collect(value, f"{path}.", values, objects)
        else:
            values.add(path)


def _wanted(config: MetadataConfig) -> set[str]:
    """The types that documents may be given, except those that every document has."""
    phases = [phase for phase in phase_configs(config) if phase.metadata_probability > 0]
    wanted = {name for phase in phases for name in phase.metadata_list}
    return {name for name in wanted if not type_of(name).always_present}


def _missing_types(config: DataConfig, source: str, wanted: set[str]) -> str:
    metadata = config.metadata_config
    shards = local_shards(config)
    if not wanted or not shards:
        return ""
    try:
        lines = first_lines(shards[0].path, DOCUMENTS)
    except (UserError, OSError, EOFError):
        return ""
    if not lines:  # an empty shard among others: of which documents could anything be said?
        return ""
    decoder = make_decoder(metadata, config.columns, source, config.content)
    missing = [name for name in metadata.metadata_list if name in wanted]
    for line in lines:
        with contextlib.suppress(BadDocument):
            document = decoder.decode(line)
            missing = [name for name in missing if not document.has(name)]
    if not missing:
        return ""
    whole = "; it would train on text alone" if len(missing) == len(metadata.metadata_list) else ""
    columns = [name for name in config.columns if name != TEXT] or _columns(lines)
    plain = [] if config.columns else [name for name in missing if _is_plain(name, lines)]
    hint = f" (data_config.columns={{{plain[0]}: {plain[0]}}} uses a plain column)" if plain else ""
    return (
        f"none of the first {len(lines)} documents of {shards[0].name} has {', '.join(missing)} "
        f"(metadata_list){whole}. Their columns: {', '.join(columns) or 'none'}{hint}"
    )


def _is_plain(name: str, lines: Sequence[bytes]) -> bool:
    """Whether lines have a column of this name with a plain value."""
    rows = [_object(line) or {} for line in lines]
    return any(isinstance(row.get(name), (str, int, float)) for row in rows)


def _columns(lines: Sequence[bytes]) -> list[str]:
    """The metadata types of some lines, from columns and lists of records."""
    keys = column_keys()
    found: set[str] = set()
    for line in lines:
        with contextlib.suppress(*UNREADABLE, KeyError):
            row = _KEYS.decode(line)
            columns = [name.removeprefix("metadata_") for name in row if name[:9] == "metadata_"]
            found |= {keys.get(column, column) for column in columns}
            for record in _RECORDS.decode(row.get("metadata", msgspec.Raw(b"null"))) or ():
                found.add(_NAME.decode(record["key"]))
    return sorted(found)
