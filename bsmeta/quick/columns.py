"""Finds the text and the metadata among the columns of unknown pages, and says why.

A column is a candidate for the text or for a metadata type by its name: the name of the type, its
column in the published form (`metadata_website_desc`), or another usual name. The values of the
first rows then decide: a column whose values do not fit is left, with the reason. Nothing is taken
silently: `make_column_table` shows every column and its use.

Only types about a whole page are taken. Records about places in the text (tags, entities) need more
than a small model sees; `bsmeta train` takes them.
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
"""Share of the values of a column that must fit."""

MIN_PRESENT_SHARE = 0.1
"""Share of the rows that must have a value, below which a type is left out."""

MIN_TEXT_CHARACTERS = 80
"""Median length of a column of text, below which it holds names or titles."""

PROSE_CHARACTERS = 300
"""Median length from which a column of any name is prose, if no column has the name of a text."""

MAX_VALUE_CHARACTERS = 1000
"""Largest median length of the values of a metadata type: longer ones are texts themselves."""

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

_ADDRESS = re.compile(r"(?:https?://)?[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:[/?#]\S*)?", re.IGNORECASE)
_MARKUP = re.compile(r"\s*<(?:!doctype|html|head|body|div|p)\b", re.IGNORECASE)
_PREFIX = "metadata_"


@dataclass(frozen=True)
class ColumnChoice:
    """A column of the input pages, and how it is used.

    Attributes:
        path: Its dotted path.
        taken_as: Use of the column: `text`, a metadata type, or None (ignored).
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
    """Decides for each column whether it is the text, a metadata type, or left.

    Args:
        rows: The first rows, by dotted paths (`flatten_row`).
        requested: Paths that the user has chosen, by `text` and type (`columns`).
        types: The types that the user wants (`metadata_list`); None: all.

    Returns:
        A choice for each column, in the order of the rows.

    Raises:
        ConfigurationError: If no column is the text, a requested column does not exist, or a
            wanted type has no column.
    """
    columns = _collect_values(rows)
    _refuse_absent_columns(columns, requested)

    taken: dict[str, tuple[str, str]] = {
        path: (name, f"columns.{name}") for name, path in requested.items()
    }
    left: dict[str, str] = {}
    if TEXT_KEY not in requested:
        path, reason = _find_text(columns, taken, left)
        taken[path] = (TEXT_KEY, reason)
    _find_types(columns, taken, left, len(rows))

    if types is not None:
        _select_types(types, taken, left)
    choices = []
    for path, values in columns.items():
        name, reason = taken.get(path, (None, left.get(path) or _suggest_type(path, values)))
        plain = _make_plain(values[0])
        example = "" if plain is None else str(plain)
        choices.append(ColumnChoice(path, name, len(values), reason, example))
    return choices


def map_choices(choices: Sequence[ColumnChoice]) -> dict[str, str]:
    """Returns the paths of the columns that are taken, by `text` and type."""
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
    if names:
        return names
    raise ConfigurationError(
        "pages: no column is metadata of a known type, so there is nothing to compare; expected "
        f"a column such as {', '.join(ALIASES)}, or columns={{TYPE: COLUMN}} for another one. "
        "bsmeta annotate makes metadata from raw pages, and bsmeta train trains on text alone"
    )


def make_column_table(choices: Sequence[ColumnChoice], rows: int) -> Table:
    """Makes the table of all columns: the use of each, or why it is ignored."""
    heads = [Column("column"), Column("taken as"), Column("rows with it"), Column("because")]
    heads.append(Column("first value"))
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
    """Returns the value of a type in a row as a plain value; None if it has none that fits.

    Args:
        name: The type, or `text`.
        value: A plain value, or a list of records, of which the first about the page counts.
    """
    plain = _make_plain(value)
    if plain is None or _find_fault(name, plain):
        return None
    return plain


def _collect_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns the values of each column that are neither null nor empty, as they are."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for path, value in row.items():
            if value is not None and value != "" and value != []:
                columns.setdefault(path, []).append(value)
    return columns


def _refuse_absent_columns(columns: Mapping[str, Any], requested: Mapping[str, str]) -> None:
    for name, path in requested.items():
        if path not in columns:
            raise ConfigurationError(
                f"columns.{name}={path}: none of the first rows has a value there; expected one of "
                f"their columns: {', '.join(sorted(columns)) or 'none'}"
                f"{suggest_nearest(path, columns)}"
            )


def _find_text(
    columns: Mapping[str, list[Any]], taken: Mapping[str, Any], left: dict[str, str]
) -> tuple[str, str]:
    """Returns the column of the text, and why it is that; adds others to `left`."""
    fitting = []
    for path, values in columns.items():
        name = _simplify_name(path)
        if path in taken or name not in TEXT_NAMES:
            continue
        fault = _find_text_fault(values)
        if fault:
            left[path] = f"not the text: {fault}"
        else:
            fitting.append((TEXT_NAMES.index(name), path))
    if fitting:
        (_, path), *others = sorted(fitting)
        left |= {other: f"{path} is taken as the text" for _, other in others}
        return path, "its name, and long texts"

    prose = []
    for path, values in columns.items():
        is_text = path not in taken and not _find_text_fault(values)
        if is_text and median(len(str(value)) for value in values) >= PROSE_CHARACTERS:
            prose.append(path)
    if len(prose) == 1:
        return prose[0], "the only column of long texts"
    raise ConfigurationError(_describe_missing_text(columns, prose, left))


def _describe_missing_text(
    columns: Mapping[str, list[Any]], prose: Sequence[str], left: Mapping[str, str]
) -> str:
    """Explains why no column is the text, and how to name one."""
    descriptions = []
    for path, values in columns.items():
        reason = left.get(path) or _find_text_fault(values) or "long texts"
        descriptions.append(f"{path} ({reason.removeprefix('not the text: ')})")
    html = [path for path, values in columns.items() if _find_text_fault(values) == "markup"]

    problem = "no column of the first rows is the text of a page"
    fix = f"columns.text={prose[0] if prose else 'COLUMN'} names it"
    if len(prose) > 1:
        problem = f"several columns may be the text of a page: {', '.join(prose)}"
    elif html:
        fix = (
            f"{html[0]} holds raw pages: bsmeta annotate input=… output=shards makes text with "
            "metadata of them, which bsmeta quick shards reads"
        )
    names = ", ".join(TEXT_NAMES[:5])
    columns_found = "; ".join(descriptions) or "no column"
    return (
        f"pages: {problem}; found {columns_found}; expected a column such as "
        f"{names}, with texts of at least {MIN_TEXT_CHARACTERS} characters. {fix}"
    )


def _find_text_fault(values: Sequence[Any]) -> str:
    """Returns why values are not the texts of pages; "" if they are."""
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < MIN_FITTING_SHARE * len(values):
        return "not strings" if not isinstance(values[0], list) else "lists"
    if sum(bool(_MARKUP.match(text)) for text in texts) > len(texts) / 2:
        return "markup"
    length = median(map(len, texts))
    if length < MIN_TEXT_CHARACTERS:
        return f"short: {length:,.0f} characters"
    if len(set(texts)) == 1 and len(texts) > 1:
        return "the same in all rows"
    return ""


def _find_types(
    columns: Mapping[str, list[Any]],
    taken: dict[str, tuple[str, str]],
    left: dict[str, str],
    rows: int,
) -> None:
    """Adds the column of each type to `taken`, and the reasons against others to `left`."""
    names = {name: path for path, (name, _) in taken.items()}
    ranked = []
    for path in columns:
        rank = _rank_name(path)
        if rank is not None:
            ranked.append((rank.number, len(path), path, rank.name))
    for _, _, path, name in sorted(ranked):
        if path in taken or path in left:
            continue
        fault = _find_column_fault(name, columns[path], rows)
        if name in names:
            left[path] = f"{names[name]} is taken as {name}"
        elif fault:
            left[path] = f"not taken as {name}: {fault}"
        else:
            taken[path] = (name, "its name, and its values fit")
            names[name] = path


class _Rank(NamedTuple):
    """How well the name of a column fits a type: 0 if it is the type's own."""

    number: int
    name: str


def _rank_name(path: str) -> _Rank | None:
    """Returns the type that the name of a column stands for; None: no known one."""
    name = _simplify_name(path)
    published = map_columns()
    if name in ALIASES:
        return _Rank(0, name)
    if published.get(name) in ALIASES:
        return _Rank(1, published[name])
    for type_name, aliases in ALIASES.items():
        if name in aliases:
            return _Rank(2 + aliases.index(name), type_name)
    return None


def _simplify_name(path: str) -> str:
    """Returns the last name of a path in the notation of the types, such as pub_date of pubDate."""
    name = path.rpartition(".")[2]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_").removeprefix(_PREFIX)


def _find_column_fault(name: str, values: Sequence[Any], rows: int) -> str:
    """Returns why the values of a column are none of a type; "" if they are."""
    plain = [_make_plain(value) for value in values]
    present = [value for value in plain if value is not None]
    if not present:
        return "its values are neither plain nor records about the page"
    if len(present) < MIN_PRESENT_SHARE * rows:
        return f"only {len(present):,} of {rows:,} rows have it"

    faults = [fault for value in present if (fault := _find_fault(name, value))]
    if len(faults) > (1 - MIN_FITTING_SHARE) * len(present):
        return f"{faults[0]} ({len(faults):,} of {len(present):,} values)"
    if len(set(present)) == 1 and len(present) > 1:
        return "the same value in all rows says nothing about a page"
    length = median(len(str(value)) for value in present)
    if length > MAX_VALUE_CHARACTERS:
        return f"texts of {length:,.0f} characters"
    return ""


def _find_fault(name: str, value: str | int | float) -> str:
    """Returns why a value is none of a type, or of the text; "" if it is."""
    find_fault = _FAULTS.get(name)
    return find_fault(value) if find_fault is not None else ""


def _find_address_fault(value: str | int | float) -> str:
    is_address = isinstance(value, str) and _ADDRESS.fullmatch(value.strip()) is not None
    return "" if is_address else "no web address"


def _find_date_fault(value: str | int | float) -> str:
    try:
        format_year_and_month(str(value))
    except BadDocument:
        return "no date"
    return ""


def _find_string_fault(value: str | int | float) -> str:
    return "" if isinstance(value, str) else "no text"


_FAULTS: dict[str, Callable[[str | int | float], str]] = {
    TEXT_KEY: _find_string_fault,
    "url": _find_address_fault,
    "timestamp": _find_date_fault,
    "title": _find_string_fault,
    "website_description": _find_string_fault,
    "datasource": _find_string_fault,
}
"""Name of a type -> the function that returns why a value is none of it."""


def _make_plain(value: Any) -> str | int | float | None:
    """Converts a value to a string or a number; None if it holds neither.

    Of a list of records, the first record about the page counts. The items of a list of plain
    values, such as the authors of a page, are joined by commas.
    """
    if isinstance(value, list):
        for record in value:
            if isinstance(record, dict) and not _is_local(record) and "value" in record:
                return _make_plain(record["value"])
        items = [_make_plain(item) for item in value if not isinstance(item, dict | list)]
        return ", ".join(str(item) for item in items if item is not None) or None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return value if not isinstance(value, str) or value.strip() else None


def _is_local(record: Mapping[str, Any]) -> bool:
    """Whether a record is about a place in the text."""
    return record.get("type") == "local" or record.get("char_start_idx") is not None


def _select_types(
    types: Sequence[str], taken: dict[str, tuple[str, str]], left: dict[str, str]
) -> None:
    """Keeps only the types that the user wants, and the URL, by which sites are held out.

    Raises:
        ConfigurationError: If one of them was not found.
    """
    available = [name for name, _ in taken.values() if name != TEXT_KEY]
    for name in types:
        if name not in available:
            raise ConfigurationError(
                f"metadata_list={list(types)}: {name} was not found; expected some of "
                f"{', '.join(available) or 'none'}{suggest_nearest(name, available)}; "
                f"columns.{name}=COLUMN takes a column as it"
            )
    for path, (name, _) in [*taken.items()]:
        if name == ADDRESS_KEY and name not in types:
            taken[path] = (name, "only to hold out sites: metadata_list leaves it out")
        elif name not in (TEXT_KEY, *types):
            left[path] = f"{name}, which metadata_list leaves out"
            del taken[path]


def _suggest_type(path: str, values: Sequence[Any]) -> str:
    """Says why a column without a known name is left, and how it could be taken."""
    name = map_columns().get(_simplify_name(path), _simplify_name(path))
    if all(_make_plain(value) is None for value in values):
        is_local = find_type(name).is_local
        return "about places in the text; bsmeta train takes it" if is_local else "no plain value"
    if not name or find_type(name).is_local:
        return "no known name"
    reason = "counts the text itself" if find_type(name).measures_text else "no known name"
    return f"{reason}; columns.{name}={path} takes it"
