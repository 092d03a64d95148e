"""Finds the text and the metadata among the columns of unknown pages, and says why.

A column is a candidate for the text or for a metadata type by its name: the name of the type, its
column in the published form (`metadata_website_desc`), or another usual name. The values of the
first rows then decide: a column whose values do not fit is ignored, with the reason. No column is
used silently: `make_column_table` shows every column and its use.

Only types about a whole page are used. Records about places in the text (tags, entities) need more
than a small model sees; `bsmeta train` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from bsmeta.core.errors import ConfigurationError, suggest_nearest
from bsmeta.metadata.decoding import TEXT_KEY
from bsmeta.metadata.metadata_type import format_year_and_month
from bsmeta.metadata.processors import ADDRESS_KEY, find_type, map_columns
from bsmeta.metadata.records import BadDocument
from bsmeta.report.page import Column, Table

EXAMINED_ROWS = 200
"""Number of first rows whose values are examined."""

MIN_FITTING_SHARE = 0.9
"""Minimum share of the values of a column that must fit its type."""

MIN_PRESENT_SHARE = 0.1
"""Minimum share of the rows that must have a value of a type."""

MIN_TEXT_CHARACTERS = 80
"""Minimum median length of texts; columns of shorter strings hold names or titles."""

PROSE_CHARACTERS = 300
"""Median length from which a column of any name is prose, if no column is named like a text."""

MAX_VALUE_CHARACTERS = 1000
"""Maximum median length of the values of a metadata type; longer ones are texts themselves."""

TEXT_NAMES = (
    TEXT_KEY, "content", "raw_content", "body", "article", "article_body", "page_content",
    "main_text", "plain_text", "page_text", "document", "story",
)  # fmt: skip
"""Names of columns of text, in the order of preference."""

ALIASES = {
    "url": (
        "uri", "link", "href", "address", "page_url", "source_url", "web_url", "canonical_url",
        "permalink", "warc_target_uri", "weburl",
    ),
    "title": ("page_title", "html_title", "headline", "heading", "document_title"),
    "timestamp": (
        "date", "published", "published_at", "publish_date", "date_published", "published_date",
        "publication_date", "pub_date", "pubdate", "datetime", "created", "created_at", "time",
        "c4_timestamp", "crawl_date", "date_download", "year",
    ),
    "website_description": ("site_description", "description_of_website", "about_site"),
    "datasource": ("data_source", "breadcrumb", "breadcrumbs", "source", "site_section"),
}  # fmt: skip
"""Usual other names of the columns of metadata types, in the order of preference."""

_WEB_ADDRESS = re.compile(r"(?:https?://)?[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:[/?#]\S*)?", re.IGNORECASE)
_MARKUP = re.compile(r"\s*<(?:!doctype|html|head|body|div|p)\b", re.IGNORECASE)
_PUBLISHED_PREFIX = "metadata_"  # begins the names of published columns


@dataclass(frozen=True)
class ColumnChoice:
    """A column of the input pages, and how it is used.

    Attributes:
        path: Its dotted path.
        taken_as: Use of the column: `text`, or a metadata type; None: it is ignored.
        present: Number of examined rows with a value.
        reason: Why the column is used or ignored.
        example: An example value, for the table.
    """

    path: str
    taken_as: str | None
    present: int
    reason: str
    example: str = ""


def find_columns(
    rows: Sequence[Mapping[str, Any]],
    requested: Mapping[str, str],
    types: Sequence[str] | None = None,
) -> list[ColumnChoice]:
    """Decides for each column whether it is the text, a metadata type, or ignored.

    Args:
        rows: The first rows, with dotted paths as keys (`flatten_row`).
        requested: The paths of columns that the user has chosen, by `text` and type (`columns`).
        types: The types that the user wants (`metadata_list`); None: all.

    Returns:
        A choice for each column, in the order of the rows.

    Raises:
        ConfigurationError: If no column is the text, a requested column does not exist, or a
            wanted type has no column.
    """
    columns = _collect_values(rows)
    _refuse_absent_columns(columns, requested)

    uses = {path: _Use(name, f"columns.{name}") for name, path in requested.items()}
    ignored: dict[str, str] = {}
    if TEXT_KEY not in requested:
        path, reason = _find_text(columns, uses, ignored)
        uses[path] = _Use(TEXT_KEY, reason)
    _find_types(columns, uses, ignored, len(rows))
    if types is not None:
        _select_types(types, uses, ignored)

    choices = []
    for path, values in columns.items():
        taken_as = None
        if path in uses:
            taken_as, reason = uses[path]
        else:
            reason = ignored.get(path) or _suggest_type(path, values)
        plain_value = _read_plain_value(values[0])
        example = "" if plain_value is None else str(plain_value)
        choices.append(ColumnChoice(path, taken_as, len(values), reason, example))
    return choices


class _Use(NamedTuple):
    """The use of a column as `text` or as a metadata type, and why."""

    name: str
    reason: str


def map_choices(choices: Sequence[ColumnChoice]) -> dict[str, str]:
    """Returns the paths of the columns that are used, by `text` and type."""
    return {choice.taken_as: choice.path for choice in choices if choice.taken_as is not None}


def list_types(columns: Mapping[str, str], types: Sequence[str] | None) -> list[str]:
    """Returns the metadata types to train on.

    Args:
        columns: The result of `map_choices`.
        types: The types that the user wants (`metadata_list`); None: all.

    Raises:
        ConfigurationError: If there is none.
    """
    names = [name for name in columns if name != TEXT_KEY and (types is None or name in types)]
    if not names:
        raise ConfigurationError(
            "pages: no column is metadata of a known type, so there is nothing to compare; "
            f"expected a column such as {', '.join(ALIASES)}, or columns={{TYPE: COLUMN}} for "
            "another one. bsmeta annotate makes metadata from raw pages, and bsmeta train trains "
            "on text alone"
        )
    return names


def make_column_table(choices: Sequence[ColumnChoice], rows: int) -> Table:
    """Makes the table of all columns: the use of each, or why it is ignored.

    Args:
        rows: Number of examined rows.
    """
    heads = [
        Column("column"),
        Column("taken as"),
        Column("rows with it"),
        Column("because"),
        Column("first value"),
    ]
    table = Table(f"Columns of the first {rows:,} rows", "", heads)

    for choice in sorted(choices, key=lambda choice: choice.taken_as is None):
        example = " ".join(choice.example.split())
        table.rows.append(
            [
                choice.path,
                choice.taken_as or "– (left)",
                f"{choice.present / rows:.0%}",
                choice.reason,
                example if len(example) <= 40 else f"{example[:39]}…",
            ]
        )
    return table


def read_value(name: str, value: Any) -> str | int | float | None:
    """Reads the value of a type in a row as a string or a number; None if it does not fit the type.

    Args:
        name: The type, or `text`.
        value: A plain value, or a list of records, of which the first about the page counts.
    """
    plain_value = _read_plain_value(value)
    if plain_value is None or _find_fault(name, plain_value):
        return None
    return plain_value


def _collect_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Collects the values of each column, by its path, that are neither null nor empty."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for path, value in row.items():
            if value is not None and value != "" and value != []:
                columns.setdefault(path, []).append(value)
    return columns


def _refuse_absent_columns(columns: Mapping[str, Any], requested: Mapping[str, str]) -> None:
    """Refuses requested columns that have no value in the first rows."""
    for name, path in requested.items():
        if path not in columns:
            raise ConfigurationError(
                f"columns.{name}={path}: none of the first rows has a value there; expected one of "
                f"their columns: {', '.join(sorted(columns)) or 'none'}"
                f"{suggest_nearest(path, columns)}"
            )


def _find_text(
    columns: Mapping[str, list[Any]], uses: Mapping[str, _Use], ignored: dict[str, str]
) -> tuple[str, str]:
    """Finds the column of the text.

    Args:
        uses: The columns that are used already, by path.
        ignored: Receives the reasons against other columns, by path.

    Returns:
        The path of the column, and the reason for it.

    Raises:
        ConfigurationError: If no column is the text, or several may be.
    """
    ranked_paths = []
    for path, values in columns.items():
        name = _simplify_name(path)
        if path in uses or name not in TEXT_NAMES:
            continue

        fault = _find_text_fault(values)
        if fault:
            ignored[path] = f"not the text: {fault}"
        else:
            ranked_paths.append((TEXT_NAMES.index(name), path))
    if ranked_paths:
        (_, text_path), *others = sorted(ranked_paths)
        ignored |= {path: f"{text_path} is taken as the text" for _, path in others}
        return text_path, "its name, and long texts"

    prose = []
    for path, values in columns.items():
        is_text = path not in uses and not _find_text_fault(values)
        if is_text and median(len(str(value)) for value in values) >= PROSE_CHARACTERS:
            prose.append(path)
    if len(prose) == 1:
        return prose[0], "the only column of long texts"
    raise ConfigurationError(_describe_missing_text(columns, prose, ignored))


def _describe_missing_text(
    columns: Mapping[str, list[Any]], prose: Sequence[str], ignored: Mapping[str, str]
) -> str:
    """Explains why no column is the text, and how to name one.

    Args:
        prose: The paths of columns of long texts.
        ignored: The reasons against columns, by path.
    """
    descriptions = []
    for path, values in columns.items():
        reason = ignored.get(path) or _find_text_fault(values) or "long texts"
        descriptions.append(f"{path} ({reason.removeprefix('not the text: ')})")
    html_paths = [path for path, values in columns.items() if _find_text_fault(values) == "markup"]

    problem = "no column of the first rows is the text of a page"
    fix = f"columns.text={prose[0] if prose else 'COLUMN'} names it"
    if len(prose) > 1:
        problem = f"several columns may be the text of a page: {', '.join(prose)}"
    elif html_paths:
        fix = (
            f"{html_paths[0]} holds raw pages: bsmeta annotate input=… output=shards makes text "
            "with metadata of them, which bsmeta quick shards reads"
        )
    names = ", ".join(TEXT_NAMES[:5])
    columns_found = "; ".join(descriptions) or "no column"
    return (
        f"pages: {problem}; found {columns_found}; expected a column such as "
        f"{names}, with texts of at least {MIN_TEXT_CHARACTERS} characters. {fix}"
    )


def _find_text_fault(values: Sequence[Any]) -> str:
    """Describes why values are not the texts of pages; "" if they are."""
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < MIN_FITTING_SHARE * len(values):
        return "lists" if isinstance(values[0], list) else "not strings"

    num_markup = sum(_MARKUP.match(text) is not None for text in texts)
    if num_markup > len(texts) / 2:
        return "markup"

    length = median(len(text) for text in texts)
    if length < MIN_TEXT_CHARACTERS:
        return f"short: {length:,.0f} characters"
    if len(set(texts)) == 1 and len(texts) > 1:
        return "the same in all rows"
    return ""


def _find_types(
    columns: Mapping[str, list[Any]],
    uses: dict[str, _Use],
    ignored: dict[str, str],
    rows: int,
) -> None:
    """Adds the column of each type to `uses`, and the reasons against others to `ignored`."""
    paths_by_type = {use.name: path for path, use in uses.items()}
    candidates = []
    for path in columns:
        match = _match_name(path)
        if match is not None:
            candidates.append((match.rank, len(path), path, match.type_name))

    for _, _, path, name in sorted(candidates):
        if path in uses or path in ignored:
            continue

        fault = _find_column_fault(name, columns[path], rows)
        if name in paths_by_type:
            ignored[path] = f"{paths_by_type[name]} is taken as {name}"
        elif fault:
            ignored[path] = f"not taken as {name}: {fault}"
        else:
            uses[path] = _Use(name, "its name, and its values fit")
            paths_by_type[name] = path


class _NameMatch(NamedTuple):
    """The type that the name of a column matches, and the rank of the match.

    Attributes:
        rank: 0 for the name of the type itself; lower ranks are preferred.
    """

    rank: int
    type_name: str


def _match_name(path: str) -> _NameMatch | None:
    """Returns the type that the name of a column matches; None if there is none."""
    name = _simplify_name(path)
    published = map_columns()
    if name in ALIASES:
        return _NameMatch(0, name)
    if published.get(name) in ALIASES:
        return _NameMatch(1, published[name])
    for type_name, aliases in ALIASES.items():
        if name in aliases:
            return _NameMatch(2 + aliases.index(name), type_name)
    return None


def _simplify_name(path: str) -> str:
    """Returns the last name of a path in the notation of types: `pub_date` for `meta.pubDate`."""
    name = path.rpartition(".")[2]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_").removeprefix(_PUBLISHED_PREFIX)


def _find_column_fault(name: str, values: Sequence[Any], rows: int) -> str:
    """Describes why a column does not hold values of a type; "" if it does.

    Args:
        name: The type.
        values: The values of the column that are neither null nor empty.
        rows: Number of examined rows.
    """
    all_plain_values = [_read_plain_value(value) for value in values]
    plain_values = [value for value in all_plain_values if value is not None]
    count = len(plain_values)
    if not plain_values:
        return "its values are neither plain nor records about the page"
    if count < MIN_PRESENT_SHARE * rows:
        return f"only {count:,} of {rows:,} rows have it"

    all_faults = [_find_fault(name, value) for value in plain_values]
    faults = [fault for fault in all_faults if fault]
    if len(faults) > (1 - MIN_FITTING_SHARE) * count:
        return f"{faults[0]} ({len(faults):,} of {count:,} values)"
    if len(set(plain_values)) == 1 and count > 1:
        return "the same value in all rows says nothing about a page"

    length = median(len(str(value)) for value in plain_values)
    if length > MAX_VALUE_CHARACTERS:
        return f"texts of {length:,.0f} characters"
    return ""


def _find_fault(name: str, value: str | int | float) -> str:
    """Describes why a value does not fit a type, or `text`; "" if it fits."""
    find_fault = _FAULT_FINDERS.get(name)
    return find_fault(value) if find_fault is not None else ""


def _find_address_fault(value: str | int | float) -> str:
    is_address = isinstance(value, str) and _WEB_ADDRESS.fullmatch(value.strip()) is not None
    return "" if is_address else "no web address"


def _find_date_fault(value: str | int | float) -> str:
    try:
        format_year_and_month(str(value))
    except BadDocument:
        return "no date"
    return ""


def _find_string_fault(value: str | int | float) -> str:
    return "" if isinstance(value, str) else "no text"


_FAULT_FINDERS: dict[str, Callable[[str | int | float], str]] = {
    TEXT_KEY: _find_string_fault,
    "url": _find_address_fault,
    "timestamp": _find_date_fault,
    "title": _find_string_fault,
    "website_description": _find_string_fault,
    "datasource": _find_string_fault,
}
"""The function that describes why a value does not fit a type, by the name of the type."""


def _read_plain_value(value: Any) -> str | int | float | None:
    """Reads a value as a string or a number; None if it holds neither, or only white space."""
    if isinstance(value, list):
        return _read_list(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, str) and not value.strip():
        return None
    return value


def _read_list(entries: Sequence[Any]) -> str | int | float | None:
    """Reads the value of the first record about the page, or else joins plain entries by commas.

    A list of plain entries may hold the authors of a page.
    """
    for entry in entries:
        if isinstance(entry, dict) and not _is_local(entry) and "value" in entry:
            return _read_plain_value(entry["value"])

    texts = []
    for entry in entries:
        plain_value = None if isinstance(entry, dict | list) else _read_plain_value(entry)
        if plain_value is not None:
            texts.append(str(plain_value))
    return ", ".join(texts) or None


def _is_local(record: Mapping[str, Any]) -> bool:
    """Whether a record is about a place in the text."""
    return record.get("type") == "local" or record.get("char_start_idx") is not None


def _select_types(types: Sequence[str], uses: dict[str, _Use], ignored: dict[str, str]) -> None:
    """Moves types that the user does not want from `uses` to `ignored`.

    The URL stays, because sites are held out by it.

    Raises:
        ConfigurationError: If a type that the user wants was not found.
    """
    available = [use.name for use in uses.values() if use.name != TEXT_KEY]
    for name in types:
        if name not in available:
            raise ConfigurationError(
                f"metadata_list={list(types)}: {name} was not found; expected some of "
                f"{', '.join(available) or 'none'}{suggest_nearest(name, available)}; "
                f"columns.{name}=COLUMN takes a column as it"
            )
    for path, (name, _) in list(uses.items()):
        if name == ADDRESS_KEY and name not in types:
            uses[path] = _Use(name, "only to hold out sites: metadata_list leaves it out")
        elif name not in (TEXT_KEY, *types):
            ignored[path] = f"{name}, which metadata_list leaves out"
            del uses[path]


def _suggest_type(path: str, values: Sequence[Any]) -> str:
    """Explains why a column without a known name is ignored, and how to use it."""
    simple_name = _simplify_name(path)
    name = map_columns().get(simple_name, simple_name)
    if all(_read_plain_value(value) is None for value in values):
        is_local = find_type(name).is_local
        return "about places in the text; bsmeta train takes it" if is_local else "no plain value"
    if not name or find_type(name).is_local:
        return "no known name"

    reason = "counts the text itself" if find_type(name).measures_text else "no known name"
    return f"{reason}; columns.{name}={path} takes it"
