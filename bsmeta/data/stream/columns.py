"""Checks that the first documents have the text and the metadata that a run should train on.

A path in `data_config.columns` that no document has is an error. So is a metadata type that is
neither built in nor in any of the first documents, because a misspelled type would silently be left
out. A built-in type that no document has only causes a note, because `metadata_list` may name more
types than a data set has.

The checks before a run use this, so it imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bsmeta.config.data import DataConfig, build_source_configs
from bsmeta.config.metadata import MetadataConfig, configure_phases
from bsmeta.core.errors import (
    HYDRA,
    Problem,
    UserError,
    find_similar,
    format_value,
    suggest_nearest,
)
from bsmeta.core.foreign_json import ForeignDecoder, decode_values, split_columns
from bsmeta.core.rounding import divide_up
from bsmeta.data.io.file_start import describe_start, explain_no_document, has_document
from bsmeta.data.io.shard_lines import read_first_lines
from bsmeta.data.io.shards import (
    Shard,
    find_validation_path,
    list_entries,
    list_shards,
    select_shards,
)
from bsmeta.metadata.decoding import SOURCE_KEY, TEXT_KEY, make_decoder
from bsmeta.metadata.metadata_type import CONFIG_KEY
from bsmeta.metadata.processors import PROCESSORS, find_type, map_columns
from bsmeta.metadata.records import UNREADABLE, BadDocument

NUM_CHECKED_DOCUMENTS = 64
"""Number of first documents that are checked: per shard for columns, in total for types."""

MAX_CHECKED_DOCUMENTS = 2048
"""Number of first documents that are searched in total before a type is refused."""

MIN_SIMILARITY = 0.75
"""Minimum difflib ratio to a known name of a misspelling, such as titel or urls."""

NUM_SAMPLED_SHARDS = (3, 16)
"""Maximum number of sampled shards: few at first, then more if a column is missing."""

MAX_COLUMNS_SHOWN = 40
"""Maximum number of columns in a message."""

TEXT_NAMES = ("content", "raw_content", "body", "article")
"""Names of the text column in public corpora (RefinedWeb, RedPajama, news collections)."""

_RECORD_LIST_DECODER = ForeignDecoder(list[dict[str, msgspec.Raw]] | None)
_NAME_DECODER = ForeignDecoder(str)


def find_column_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields a problem for each source without documents, and for each path that no document has.

    Only the first documents of local shards are read; the run itself checks remote shards.
    """
    for name, source_config in build_source_configs(config).items():
        with contextlib.suppress(UserError, OSError, EOFError):  # the run itself reports these
            yield from find_document_problems(config, name, list_local_shards(source_config))
    with contextlib.suppress(UserError, OSError, EOFError):
        yield from _find_held_out_problems(config)


def find_document_problems(config: DataConfig, name: str, shards: Sequence[Shard]) -> list[Problem]:
    """Finds the problems of a source's first documents.

    Returns:
        One problem if the source has no documents; otherwise one for each path in `columns` that
        none of its first documents has.

    Args:
        name: Name of the source; "" without a mixture.

    Raises:
        OSError: If a shard cannot be opened.
        DataError: If a shard is remote and cannot be read.
    """
    problems = _find_no_document_problems(config, name, shards)
    return problems or find_missing_path_problems(config, name, shards)


def _find_no_document_problems(
    config: DataConfig, name: str, shards: Sequence[Shard]
) -> list[Problem]:
    """Returns a problem, in a list, if no shard has a document."""
    # Evenly spaced shards are searched first, because shards without documents may be neighbors.
    candidates = dict.fromkeys((*select_shards(shards, NUM_SAMPLED_SHARDS[-1]), *shards))
    if not candidates or any(has_document(shard.path) for shard in candidates):
        return []

    start = describe_start(shards[0].path)
    others = f", and none of {len(shards)} files has a document" if len(shards) > 1 else ""
    return [
        Problem(
            name_source_key(config, name, "train_file"),
            HYDRA,
            f"{shards[0].path}, which {start.description}{others}",
            "a file of documents",
            start.remedy,
        )
    ]


def _find_held_out_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields a problem if the held-out file is local and has no document.

    A run on prepared data does not need the file.
    """
    if not config.validation_file or config.prepared or "://" in config.validation_file:
        return
    path = find_validation_path(config)
    if not isinstance(path, str) or not os.path.isfile(path):
        return

    start = explain_no_document(path)
    if start is not None:
        content = f"{path}, which {start.description}"
        expected = "a file of documents"
        yield Problem("data_config.validation_file", HYDRA, content, expected, start.remedy)


def name_source_key(config: DataConfig, name: str, key: str) -> str:
    """Returns the full name of a key for a source: the source's own key if it is set, or the run's.

    Args:
        name: Name of the source; "" without a mixture.
        key: Name of the key in `data_config`.
    """
    for index, source in enumerate(config.sources):
        if source.name == name and getattr(source, key):
            return f"data_config.sources.{index}.{key}"
    return f"data_config.{key}"


def find_type_problems(config: DataConfig) -> list[Problem]:
    """Returns a problem, in a list, if types in `metadata_list` are unknown.

    Nothing is checked unless all shards are local; otherwise, the run itself checks the types.
    """
    shards = {
        name: list_local_shards(source_config)
        for name, source_config in build_source_configs(config).items()
    }
    if not all(shards.values()):
        return []
    return find_unknown_type_problems(config, shards)


def describe_missing_types(config: DataConfig) -> list[str]:
    """Returns a message for each source whose first documents lack configured types.

    Sources without local shards are not checked. Shards that cannot be read are skipped: the run
    itself reports them.
    """
    types = _collect_recorded_types(config.metadata_config)
    messages = [
        _describe_missing_types(source_config, name, types)
        for name, source_config in build_source_configs(config).items()
    ]
    return [message for message in messages if message]


def list_local_shards(config: DataConfig) -> list[Shard]:
    """Returns the training shards; empty if any is remote, or the run reads prepared data."""
    with contextlib.suppress(UserError, OSError):
        # Only the run itself requests files from the Hub.
        if not config.prepared and not any("://" in entry for entry in list_entries(config)):
            return list_shards(config)
    return []


def _read_first_lines(shards: Sequence[Shard], max_shards: int, count: int) -> list[bytes]:
    """Reads the first `count` lines of each of up to `max_shards` shards.

    Unreadable shards are skipped: the run itself reports them.
    """
    lines: list[bytes] = []
    for shard in select_shards(shards, max_shards):
        with contextlib.suppress(UserError, OSError, EOFError):
            lines += read_first_lines(shard.path, count)
    return lines


def find_unknown_type_problems(
    config: DataConfig, sources: Mapping[str, Sequence[Shard]]
) -> list[Problem]:
    """Returns a problem, in a list, if types in `metadata_list` are unknown.

    A type is unknown if it is neither built in, nor mapped to a column, nor in any of the first
    documents of the sources without mapped columns.

    Args:
        sources: The shards of each source, by its name.
    """
    source_configs = build_source_configs(config)
    mapped_types: set[str] = set()
    for source_config in source_configs.values():
        mapped_types |= {key for key in source_config.columns if key != TEXT_KEY}

    unknown_types = _find_unmapped_types(config, mapped_types)
    unmapped_sources = [
        shards for name, shards in sources.items() if not source_configs[name].columns
    ]
    lines: list[bytes] = []
    present_types: set[str] = set()
    for num_documents in (NUM_CHECKED_DOCUMENTS, MAX_CHECKED_DOCUMENTS):
        if not unknown_types:
            return []

        lines = []
        for shards in unmapped_sources:
            max_shards = NUM_SAMPLED_SHARDS[-1]
            num_sampled = max(min(len(shards), max_shards), 1)
            lines += _read_first_lines(shards, max_shards, divide_up(num_documents, num_sampled))
        present_types = set(_list_types_in(lines))
        unknown_types -= present_types
        if unmapped_sources and not lines:  # the run itself reports why
            return []

    if not unknown_types:
        return []
    available_types = sorted(present_types | mapped_types)
    return [_make_unknown_types_problem(config, unknown_types, available_types, lines)]


def _find_unmapped_types(config: DataConfig, mapped_types: set[str]) -> set[str]:
    """Returns the requested types that are neither built in nor mapped to a column.

    If all sources have mapped columns, only likely misspellings are returned, because one
    `metadata_list` may be used for several corpora, each with its own columns.

    Args:
        mapped_types: The types that any source maps to a column.
    """
    requested_types = _collect_recorded_types(config.metadata_config)
    unmapped_types = requested_types - {*PROCESSORS, *mapped_types, SOURCE_KEY}
    source_configs = build_source_configs(config).values()
    are_all_mapped = all(source_config.columns for source_config in source_configs)
    if not are_all_mapped or requested_types.isdisjoint(mapped_types):
        return unmapped_types

    names = [*mapped_types, *PROCESSORS]
    return {
        key for key in unmapped_types if difflib.get_close_matches(key, names, 1, MIN_SIMILARITY)
    }


def _make_unknown_types_problem(
    config: DataConfig,
    unknown_types: set[str],
    available_types: Sequence[str],
    lines: Sequence[bytes],
) -> Problem:
    """Returns a problem that names unknown types and the available types.

    Args:
        available_types: The types that the documents have, or that any source maps to a column.
        lines: The documents that were searched; empty if all sources map columns.
    """
    key = f"{CONFIG_KEY}.metadata_list"
    requested_types = config.metadata_config.metadata_list
    candidates = [*available_types, *PROCESSORS]
    missing_types = [name for name in requested_types if name in unknown_types]

    reason = f"none of the first {len(lines):,} documents has"
    if not lines:
        reason = "data_config.columns does not have"
    suggestion = suggest_nearest(missing_types[0], candidates)
    expected = f"types that there are: {', '.join(available_types) or 'none'}{suggestion}"

    plain_types = [name for name in missing_types if _is_plain(name, lines)]
    if plain_types:
        fix = f"data_config.columns={{{plain_types[0]}: {plain_types[0]}}} uses a plain column"
    else:
        similar = {name: find_similar(name, candidates) for name in missing_types}
        corrected = dict.fromkeys(similar.get(name, name) for name in requested_types)
        fix = f"{key}=[{','.join(name for name in corrected if name)}]"
        if any(similar.values()):
            fix += f", or leave {', '.join(missing_types)} out"
    return Problem(key, HYDRA, f"{', '.join(missing_types)}, which {reason}", expected, fix)


def find_missing_path_problems(
    config: DataConfig, name: str, shards: Sequence[Shard]
) -> list[Problem]:
    """Returns a problem for each configured path that no first document of a source has.

    A few shards are read, and more shards only if a path is missing.

    Args:
        name: Name of the source; "" without a mixture.
    """
    key = name_source_key(config, name, "columns")
    columns = {TEXT_KEY: TEXT_KEY, **build_source_configs(config)[name].columns}
    problems: list[Problem] = []
    for max_shards in NUM_SAMPLED_SHARDS:
        lines = _read_first_lines(shards, max_shards, NUM_CHECKED_DOCUMENTS)
        problems = list(_find_path_problems(key, columns, _decode_objects(lines)))
        if not problems:
            break
    return problems


def _find_path_problems(
    key: str, columns: Mapping[str, str], rows: Iterable[dict[str, Any]]
) -> Iterator[Problem]:
    """Yields a problem for each path that no row has; no problem if there are no rows.

    Args:
        key: The configuration key of the mapping.
        columns: The path of the text and of each metadata type.
        rows: Decoded documents.
    """
    value_paths: set[str] = set()
    object_paths: set[str] = set()
    num_rows = 0
    for row in rows:
        num_rows += 1
        _collect_paths(row, "", value_paths, object_paths)
        if value_paths.issuperset(columns.values()):
            return  # usually after the first row, which saves the parsing of all others

    if num_rows == 0:
        return
    for name, path in columns.items():
        if path not in value_paths:
            yield _make_path_problem(key, name, path, value_paths, object_paths, num_rows)


def _make_path_problem(
    key: str,
    name: str,
    path: str,
    value_paths: set[str],
    object_paths: set[str],
    num_documents: int,
) -> Problem:
    """Returns a problem for the path of a column that no document has.

    Args:
        key: The configuration key of the mapping.
        name: The text or the metadata type that is mapped to the path.
        value_paths: The paths of all values in the documents.
        object_paths: The paths of all objects in the documents.
        num_documents: Number of documents that were searched.
    """
    available = sorted(value_paths)
    inside = [candidate for candidate in available if candidate.startswith(f"{path}.")]
    similar_paths = _find_similar_paths(path, available) or _find_similar_paths(name, available)
    if name == TEXT_KEY and not similar_paths:
        similar_paths = [candidate for candidate in TEXT_NAMES if candidate in value_paths]
    candidates = [*inside, *similar_paths]
    best_path = candidates[0] if candidates else find_similar(path, available)

    if path in object_paths:
        content = f"{format_value(path)}, which is an object"
        hint = f"; in it: {', '.join(inside)}"
    else:
        content = f"{format_value(path)}, which none of the first {num_documents} documents has"
        hint = suggest_nearest(path, available)
        if similar_paths:
            hint = f" (did you mean {similar_paths[0]}?)"

    ellipsis = ", …" if len(available) > MAX_COLUMNS_SHOWN else ""
    columns = ", ".join(available[:MAX_COLUMNS_SHOWN]) or "none"
    expected = f"one of their columns: {columns}{ellipsis}{hint}"

    fix = f"{key}.{name}={best_path or 'COLUMN'}"
    if best_path is None and name != TEXT_KEY:
        fix += f", or leave {name} out of metadata_list, if the documents have none"
    return Problem(f"{key}.{name}", HYDRA, content, expected, fix)


def _find_similar_paths(path: str, candidates: Sequence[str]) -> list[str]:
    """Returns the paths whose last name contains the last name of `path`, equal names first."""
    last_name = path.rpartition(".")[2].lower()
    names = {candidate: candidate.rpartition(".")[2].lower() for candidate in candidates}
    matches = [candidate for candidate, name in names.items() if last_name in name]
    return sorted(matches, key=lambda candidate: names[candidate] != last_name)


def _decode_objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yields the decoded lines; skips lines that are not JSON objects."""
    for line in lines:
        try:
            row = decode_values(line)
        except UNREADABLE:
            continue
        yield row


def _collect_paths(
    row: dict[str, Any], prefix: str, value_paths: set[str], object_paths: set[str]
) -> None:
    """Adds the dotted paths of a row's values and of its objects to two sets.

    Args:
        prefix: Is put before the paths: the path of the row and a dot, or "".
    """
    for name, value in row.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            object_paths.add(path)
            _collect_paths(value, f"{path}.", value_paths, object_paths)
        else:
            value_paths.add(path)


def _collect_recorded_types(config: MetadataConfig) -> set[str]:
    """Returns the types that any phase may sample, except types that need no records."""
    types: set[str] = set()
    for phase in configure_phases(config):
        if phase.metadata_probability > 0:
            types.update(phase.metadata_list)
    return {name for name in types if not find_type(name).always_present}


def _describe_missing_types(config: DataConfig, source: str, types: set[str]) -> str:
    """Describes which of the types no first document of a source has; "" if none is missing.

    Only the first shard is read.

    Args:
        config: The configuration of the source.
        source: Name of the source; "" without a mixture.
    """
    metadata = config.metadata_config
    shards = list_local_shards(config)
    if not types or not shards:
        return ""
    try:
        lines = read_first_lines(shards[0].path, NUM_CHECKED_DOCUMENTS)
    except (UserError, OSError, EOFError):
        return ""
    if not lines:  # nothing is known about the documents of the other shards
        return ""

    requested_types = [name for name in metadata.metadata_list if name in types]
    missing_types = _find_missing_types(config, source, requested_types, lines)
    if not missing_types:
        return ""

    lacks_all = len(missing_types) == len(metadata.metadata_list)
    consequence = "; it would train on text alone" if lacks_all else ""
    columns = [name for name in config.columns if name != TEXT_KEY] or _list_types_in(lines)
    hint = ""
    if not config.columns:
        plain_types = [name for name in missing_types if _is_plain(name, lines)]
        if plain_types:
            name = plain_types[0]
            hint = f" (data_config.columns={{{name}: {name}}} uses a plain column)"
    return (
        f"none of the first {len(lines)} documents of {shards[0].name} has "
        f"{', '.join(missing_types)} (metadata_list){consequence}. "
        f"Their columns: {', '.join(columns) or 'none'}{hint}"
    )


def _find_missing_types(
    config: DataConfig, source: str, types: Sequence[str], lines: Sequence[bytes]
) -> list[str]:
    """Returns the types that no document in these lines of a source has."""
    decoder = make_decoder(config.metadata_config, config.columns, source, config.content)
    missing_types = list(types)
    for line in lines:
        with contextlib.suppress(BadDocument):
            document = decoder.decode(line)
            missing_types = [name for name in missing_types if not document.has(name)]
    return missing_types


def _is_plain(name: str, lines: Sequence[bytes]) -> bool:
    """Whether any line has a column of this name whose value is a string or number."""
    return any(isinstance(row.get(name), (str, int, float)) for row in _decode_objects(lines))


def _list_types_in(lines: Sequence[bytes]) -> list[str]:
    """Returns the metadata types in the columns and record lists of some lines, sorted."""
    keys = map_columns()
    types: set[str] = set()
    for line in lines:
        with contextlib.suppress(*UNREADABLE, KeyError):
            row = split_columns(line)
            for name in row:
                if name.startswith("metadata_"):
                    column = name.removeprefix("metadata_")
                    types.add(keys.get(column, column))

            records = row.get("metadata", msgspec.Raw(b"null"))
            for record in _RECORD_LIST_DECODER.decode(records) or ():
                types.add(_NAME_DECODER.decode(record["key"]))
    return sorted(types)
