"""The base class of metadata types, with the default rendering and the default properties.

`MetadataType` renders the default form, `key: value` and `[key: value]…[/key: value]`, and declares
every property that other modules need; `processors` has the classes that differ. The functions
prepare values for rendering.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote_plus, urlsplit

import xxhash

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.dates import MONTHS, parse_any_date
from bsmeta.core.errors import HYDRA, Problem
from bsmeta.metadata.chat_form import ChatForm, Part, split_template
from bsmeta.metadata.records import BadDocument, Record

if TYPE_CHECKING:
    from tldextract import ExtractResult

_UNIX_TIME = re.compile(r"\d{9,14}(\.\d+)?")  # seconds or milliseconds, from 1973 on

_MAX_TIMESTAMP_CHARS = 200
"""Maximum number of characters of a date; longer text is prose, and slow to parse as a date."""

_SCHEME = re.compile(r"//|[A-Za-z][A-Za-z0-9+.-]*:(?!\d+(/|$))")  # but not a host with a port

CONFIG_KEY = "data_config.metadata_config"

# The source of the values that a document is rendered with: itself, other documents (`donors`), or
# tokens without content that replace the tokens of the prefix one by one.
OWN = "own"
SHUFFLED = "shuffled"
WRONG = "wrong"
MATCHED = "matched"
CONSTANT = "constant"
RANDOM = "random"

EXAMPLE_TEXT = "Ada Lovelace wrote a program."
"""The text to which the example records of model cards belong."""


@cache
def _load_extractor() -> Callable[[str], ExtractResult]:
    """Returns the function that splits a host into subdomain, domain and public suffix."""
    from tldextract import TLDExtract  # slow to load, and most configurations do not need it

    return TLDExtract(suffix_list_urls=(), cache_dir=None)


@lru_cache(maxsize=4096)
def format_year_and_month(value: str) -> tuple[int, str | None]:
    """Returns the year of a point in time, and the name of its month (None if it has none).

    Args:
        value: A date in any common notation, or Unix time in seconds or milliseconds.

    Raises:
        BadDocument: `not_a_timestamp`, if it is neither.
    """
    if len(value) > _MAX_TIMESTAMP_CHARS:
        raise BadDocument("not_a_timestamp", f"{value[:_MAX_TIMESTAMP_CHARS]!r}…: too long")

    try:
        if _UNIX_TIME.fullmatch(value):
            num_whole_digits = len(value.partition(".")[0])
            seconds = float(value) if num_whole_digits < 11 else float(value) / 1000
            moment = datetime.fromtimestamp(seconds, UTC)
            return moment.year, MONTHS[moment.month - 1]
        return _parse_date(value)
    except (ValueError, OverflowError) as error:
        raise BadDocument("not_a_timestamp", f"{value!r}: {error}") from error


def _parse_date(value: str) -> tuple[int, str | None]:
    """Returns the year of a date, and the name of its month (None if it has none).

    Raises:
        ValueError: If the text is not a date, or a date without a year.
    """
    date = parse_any_date(value)
    if not date.has_year:
        raise ValueError("it has no year")
    month = MONTHS[date.moment.month - 1] if date.has_month else None
    return date.moment.year, month


def make_url_readable(url: str, granularity: str) -> str | None:
    """Returns the requested part of an address, with %-escapes decoded.

    Args:
        url: The address, with or without its scheme.
        granularity: `full`; `host` (in lower case, without port); `registered_domain` or `suffix`
            (by the public suffix list in tldextract); `path`; `hash` (xxh3 of the host: 16
            hexadecimal digits that distinguish sites but carry no meaning).

    Returns:
        None if the address does not have that part.
    """
    if granularity == "full":
        return unquote_plus(url)

    url = url.strip()
    try:
        parts = urlsplit(url if _SCHEME.match(url) else f"//{url}")
        host = parts.hostname
    except ValueError:  # for example an unclosed bracket: cannot be split into parts
        return None

    if granularity == "path":
        return unquote_plus(parts.path) or None
    if not host:
        return None
    if granularity == "hash":
        return xxhash.xxh3_64_hexdigest(host.encode())
    if granularity == "host":
        return host

    domain, suffix = _split_host(host)
    part = suffix if granularity == "suffix" else domain
    return part or None


@lru_cache(maxsize=4096)
def _split_host(host: str) -> tuple[str, str]:
    """Returns the registered domain of a host (the host if it has none), and its public suffix."""
    parts = _load_extractor()(host)
    return parts.top_domain_under_public_suffix or host, parts.suffix


class Bucketing:
    """Renders a type's values, as buckets if configured.

    With `value_bucket_scale`, a bucket is floor(scale * value), as in "Beyond URLs" (2025), which
    renders quality scores with scale 10; with `value_bucket_bounds`, it is an interval such as
    `100-500`.
    """

    def __init__(self, key: str, config: MetadataConfig) -> None:
        scale = config.value_bucket_scale.get(key)
        self._scale = None if scale is None else Decimal(str(scale))
        self._bounds = config.value_bucket_bounds.get(key)
        if self._bounds:
            # `:g` would write a million as 1e+06.
            bounds = [f"{Decimal(str(bound)).normalize():f}" for bound in self._bounds]
            intervals = [f"{low}-{high}" for low, high in itertools.pairwise(bounds)]
            self._labels = [f"<{bounds[0]}", *intervals, f">={bounds[-1]}"]

    def render(self, value: str | int | float) -> str:
        """Renders a value.

        Raises:
            BadDocument: `not_a_number`, if buckets are configured.
        """
        if self._scale is not None:
            # The product of decimals is exact: 100 * 0.29 is 29, but less as a product of floats.
            return str(math.floor(self._scale * _parse_number(value)))
        if self._bounds:
            return self._labels[bisect.bisect_right(self._bounds, _parse_number(value))]
        return str(value)

    def add_buckets(self, form: ChatForm) -> ChatForm:
        """Returns a chat form with the buckets, whose numbers are split into integers."""
        if self._scale is not None:
            exponent = int(self._scale.as_tuple().exponent)
            return replace(form, scale=(int(self._scale.scaleb(-exponent)), exponent))
        if self._bounds:
            if not all(math.isfinite(bound) for bound in self._bounds):
                return ChatForm(kind="code", reason="an infinite bound takes code")
            bounds = tuple(bound.as_integer_ratio() for bound in self._bounds)
            return replace(form, bounds=bounds, labels=tuple(self._labels))
        return form


def _parse_number(value: str | int | float) -> Decimal:
    """Converts a value to a decimal number.

    Raises:
        BadDocument: `not_a_number`, also if it is beyond the range of floats.
    """
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation as error:
        raise BadDocument("not_a_number", f"{value!r}") from error
    if not number.is_finite() or number.adjusted() > sys.float_info.max_10_exp:
        raise BadDocument("not_a_number", f"{value!r}")
    return number


class MetadataType:
    """A metadata type that is rendered in the default form."""

    # Properties of the data.
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns of the type (without `metadata_`) besides the one named after its key."""
    is_lazy: ClassVar[bool] = False
    """Whether the column has many records, which are decoded only if they are rendered."""
    is_longest: ClassVar[bool] = False
    """Whether the column is cut out of a line before the rest is parsed (true for one type)."""
    is_address: ClassVar[bool] = False
    """Whether the values are addresses of documents, as in the `url` column (true for one type)."""
    reasons: ClassVar[tuple[str, ...]] = ()
    """Reasons for a `BadDocument` that only this type has; each is counted in the log."""

    # Properties of sampling and rendering.
    is_local: ClassVar[bool] = False
    """Whether the records are about spans of a text, so that a prefix cannot contain them."""
    measures_text: ClassVar[bool] = False
    """Whether the values count the characters of the text, or of a local record's span."""
    always_present: ClassVar[bool] = False
    """Whether every document has the type, although no document has records of it."""
    sample_rate_key: ClassVar[str | None] = None
    """The configuration key of the probability that the type may be sampled; None: always."""
    prefix_only: ClassVar[bool] = False
    """Whether global records stay in the prefix, whatever `metadata_position` is."""
    label: ClassVar[str | None] = None
    """The label before a global record's value; None: the key."""
    template: ClassVar[str | None] = None
    """The template of a global record instead of `label: value`; `metadata_templates` replaces
    it."""
    template_fields: ClassVar[frozenset[str]] = frozenset({"key", "value"})
    """The fields that a template of the type may use."""
    takes_template: ClassVar[bool] = True
    """Whether `metadata_templates` may name the type."""
    takes_buckets: ClassVar[bool] = True
    """Whether `value_bucket_bounds` and `value_bucket_scale` may name the type."""

    # Properties of reports.
    prompt_label: ClassVar[str | None] = None
    """The name of the type in an English prompt; None: the key, with spaces for underscores."""
    is_listed: ClassVar[bool] = False
    """Whether an English prompt lists the values of local records, because they are words."""
    slice_by: ClassVar[str | None] = None
    """The value of `slices.by` with which an evaluation slices documents by `find_group`."""
    example: ClassVar[str | int | None] = None
    """The value of the example in model cards; None: 1, which can also be bucketed."""
    example_span: ClassVar[tuple[int, int]] = (0, len(EXAMPLE_TEXT))
    """The span of the example in `EXAMPLE_TEXT`, in characters, for a local type."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        self.key = key
        self._separator = config.metadata_key_value_sep
        self._template = config.metadata_templates.get(key, self.template)
        self._bucketing = Bucketing(key, config)
        self.literals = self._split_literals()

    def count_literal_ends(self, text: str) -> tuple[int, int]:
        """Counts the characters at both ends of a global string that come from the configuration.

        Special tokens that are spelled out are recognized only in these, not in the record.

        Args:
            text: A string that `render_global` has returned.
        """
        before, after = self.literals
        num_leading = len(before) if text.startswith(before) else 0
        num_trailing = len(after) if text.endswith(after) else 0
        return num_leading, num_trailing

    def _split_literals(self) -> tuple[str, str]:
        """Returns the strings before and after the value of a global record."""
        if self._template is None:
            return f"{self.label or self.key}{self._separator}", ""

        parts = split_template(self._template)
        before, _ = parts[0]
        after, field = parts[-1]
        ends_in_literal = field == "" and len(parts) > 1
        return before, after if ends_in_literal else ""

    def render_global(self, record: Record) -> str | None:
        """Renders a global record; returns None to leave it out."""
        value = self._render_value(record)
        if value is None:
            return None
        if self._template is not None:
            return self._template.format_map({"key": self.key, "value": value})
        return f"{self.label or self.key}{self._separator}{value}"

    def render_local(self, record: Record, length: int) -> tuple[str, str] | None:
        """Returns the strings to insert at the start and end of a local record's span.

        Args:
            length: Number of characters in the span.

        Returns:
            None to leave the record out.
        """
        text = f"{self.key}{self._separator}{self._bucketing.render(record.value)}"
        return f"[{text}]", f"[/{text}]"

    def render_locals(
        self, records: Sequence[Record], lengths: Sequence[int]
    ) -> list[tuple[str, str] | None]:
        """Renders several local records; see `render_local`."""
        return list(map(self.render_local, records, lengths))

    def make_chat_form(self) -> ChatForm:
        """Returns the form with which a chat template renders a record as `render_global` does.

        A class that overrides the rendering must override this, too; otherwise the chat template
        refuses its records.
        """
        return self._bucketing.add_buckets(ChatForm(kind="value", parts=self._list_parts()))

    def _list_parts(self) -> tuple[Part, ...]:
        """Returns the literal texts and fields of a global record."""
        if self._template is not None:
            return split_template(self._template)
        return ((f"{self.label or self.key}{self._separator}", "value"),)

    def _render_value(self, record: Record) -> str | None:
        """Renders the value of a global record; returns None to leave the record out."""
        return self._bucketing.render(record.value)

    @property
    def special_tokens(self) -> Sequence[str]:
        """The special tokens that the type adds to a tokenizer."""
        return ()

    @classmethod
    def find_problems(cls, config: MetadataConfig) -> Iterator[Problem]:
        """Yields a problem for each invalid setting that concerns only this type."""
        yield from ()

    @classmethod
    def get_sample_rate(cls, config: MetadataConfig) -> float:
        """Returns the probability that the type may be sampled for a document."""
        if cls.sample_rate_key is None:
            return 1.0
        sample_rate: float = getattr(config, cls.sample_rate_key)
        return sample_rate

    @classmethod
    def compute_dropout(cls, key: str, config: MetadataConfig) -> float:
        """Returns the probability that the type is dropped before sampling.

        The dropout and the sample rate of the type drop it independently.
        """
        keep_probability = 1.0 - config.metadata_dropout.get(key, 0.0)
        return 1.0 - keep_probability * cls.get_sample_rate(config)

    @classmethod
    def find_weight(cls, key: str, config: MetadataConfig) -> float:
        """Returns the sampling weight, configured under the key or a column; 1 by default."""
        weights = config.random_sample_metadata_weights
        for name in (key, *cls.columns):
            if name in weights:
                return weights[name]
        return 1.0

    @classmethod
    def format_for_prompt(cls, value: str) -> str:
        """Formats a value for an English prompt."""
        return value.replace("_", " ") if cls.is_listed else value

    @classmethod
    def find_group(cls, value: str, config: MetadataConfig) -> str | None:
        """Returns the group of documents with a value, such as a host or a year.

        Returns:
            None if documents with the value belong to no group.
        """
        return value

    @classmethod
    def make_group_value(cls, group: str, config: MetadataConfig) -> str:
        """Returns a value of the type that conditions a model on a group."""
        return group

    @classmethod
    def make_example_record(cls, key: str) -> Record:
        """Returns the example in model cards: a record about `EXAMPLE_TEXT`."""
        value = 1 if cls.example is None else cls.example
        if not cls.is_local:
            return Record(value=value, key=key, type="global")

        start, end = cls.example_span
        return Record(
            value=value,
            key=key,
            type="local",
            char_start_idx=start,
            char_end_idx=end,
            relative_start_pos=0,
            relative_end_pos=0,
        )


def make_problem(name: str, value: str, expected: str, fix: str) -> Problem:
    """Returns the problem of a key of the metadata configuration."""
    return Problem(f"{CONFIG_KEY}.{name}", HYDRA, value, expected, fix)


def format_setting(name: str, value: str) -> str:
    """Formats the command-line override of a key of the metadata configuration."""
    return f"{CONFIG_KEY}.{name}={value}"
