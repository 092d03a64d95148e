"""Values: convert a record's value before a type puts it into its string."""

from __future__ import annotations

import bisect
import math
import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from urllib.parse import unquote_plus, urlsplit

import tldextract
import xxhash
from dateutil import parser as date_parser  # type: ignore[import-untyped]

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.records import BadDocument

extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
"""Splits a host into subdomain, domain and public suffix."""


MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
"""English names: `strftime("%B")` would follow the locale of the machine."""

_UNIX_TIME = re.compile(r"\d{11,14}|\d{9,10}(\.\d+)?")  # milliseconds or seconds, from 1973 on

_SCHEME = re.compile(r"//|[A-Za-z][A-Za-z0-9+.-]*:(?!\d+(/|$))")  # but not a host and its port


@lru_cache(maxsize=4096)
def year_and_month(value: str) -> tuple[int, str | None]:
    """The year of a point in time, and the name of its month if it has one.

    Args:
        value: A date in any usual notation, or Unix time in seconds or milliseconds.

    Raises:
        BadDocument: `not_a_timestamp`.
    """
    try:
        if _UNIX_TIME.fullmatch(value):
            seconds = float(value) / (1 if len(value.partition(".")[0]) < 11 else 1000)
            moment = datetime.fromtimestamp(seconds, UTC)
            return moment.year, MONTHS[moment.month - 1]
        return _parsed(value)
    except (ValueError, OverflowError) as error:
        raise BadDocument("not_a_timestamp", f"{value!r}: {error}") from error


def _parsed(value: str) -> tuple[int, str | None]:
    try:
        moment = datetime.fromisoformat(value)
        return moment.year, MONTHS[moment.month - 1]
    except ValueError:
        # Parsed twice: fields missing in the text come from the default, so they differ.
        moment = date_parser.parse(value, default=datetime(1, 1, 1))
        other = date_parser.parse(value, default=datetime(2, 2, 1))
    if moment.year != other.year:
        raise ValueError("it has no year")
    return moment.year, MONTHS[moment.month - 1] if moment.month == other.month else None


def readable_url(url: str, granularity: str) -> str | None:
    """The part of an address that is rendered, without %-escapes.

    Args:
        url: The address, with or without its scheme.
        granularity: `full`; `host` (in lower case, without port); `registered_domain` and
            `suffix` (by the public suffix list that comes with tldextract); `path`; `hash`
            (xxh3 of the host: 16 hexadecimal digits that distinguish sites but carry no meaning).

    Returns:
        None if the address does not have that part.
    """
    if granularity == "full":
        return unquote_plus(url)
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
    domain, suffix = _domain_and_suffix(host)
    return (suffix if granularity == "suffix" else domain) or None


@lru_cache(maxsize=4096)
def _domain_and_suffix(host: str) -> tuple[str, str]:
    # Imported here: it is slow to load, and most configurations do not need it.

    parts = extract(host)
    return parts.top_domain_under_public_suffix or host, parts.suffix


class Bucketing:
    """Puts the numbers of a type into buckets, if configured.

    `value_bucket_scale` renders floor(scale * value), as "Beyond URLs" (2025) does with quality
    scores (scale 10); `value_bucket_bounds` renders the interval, such as `100-500`.
    """

    def __init__(self, key: str, config: MetadataConfig) -> None:
        scale = config.value_bucket_scale.get(key)
        self._scale = None if scale is None else Decimal(str(scale))
        self._bounds = config.value_bucket_bounds.get(key)
        # `:g` would write a million as 1e+06.
        self._labels = [f"{Decimal(str(bound)).normalize():f}" for bound in self._bounds or ()]

    def __call__(self, value: str | int | float) -> str:
        """The rendered value.

        Raises:
            BadDocument: `not_a_number`, if buckets are configured.
        """
        if self._scale is not None:
            # In decimal, where 100 * 0.29 is 29.
            return str(math.floor(self._scale * _number(value)))
        if self._bounds is not None:
            return self._interval(bisect.bisect_right(self._bounds, _number(value)))
        return str(value)

    def _interval(self, bounds_passed: int) -> str:
        labels = self._labels
        if bounds_passed == 0:
            return f"<{labels[0]}"
        if bounds_passed == len(labels):
            return f">={labels[-1]}"
        return f"{labels[bounds_passed - 1]}-{labels[bounds_passed]}"


def _number(value: str | int | float) -> Decimal:
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation as error:
        raise BadDocument("not_a_number", f"{value!r}") from error
    if not number.is_finite():
        raise BadDocument("not_a_number", f"{value!r}")
    return number
