"""The metadata types that differ from the default type: their properties and their rendering.

Each type is a class. It renders a global record as a string in the prefix, and a local record as
strings at the start and end of its span. The strings are the same as in the BigScience `metadata`
repository, because published models are trained on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote_plus

import msgspec

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import Problem
from bsmeta.core.parsing import JSONDecoder
from bsmeta.metadata.chat_form import ChatForm
from bsmeta.metadata.metadata_type import (
    EXAMPLE_TEXT,
    MetadataType,
    format_year_and_month,
    make_problem,
    make_url_readable,
)
from bsmeta.metadata.records import UNREADABLE, BadDocument, Record, classify_bad_document

_MAX_CACHED_TAGS = 1 << 14
"""Maximum number of cached html tags (a few MB); four of five tags occur on their page again."""


class Timestamp(MetadataType):
    """A date: `Year: 2018 | Month: December`, whatever `metadata_key_value_sep` is."""

    template_fields = frozenset({"key", "value", "year", "month"})
    takes_buckets = False
    prompt_label = "Date"
    slice_by = "time"
    example = "2018-12-10T13:45:00Z"

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        self._record_separator = config.metadata_sep

    def render_global(self, record: Record) -> str | None:
        year, month = format_year_and_month(str(record.value))
        if self._template is not None:
            fields = {"key": self.key, "value": record.value, "year": year, "month": month or ""}
            return self._template.format_map(fields)

        parts = [f"Year: {year}"]
        if month is not None:
            parts.append(f"Month: {month}")
        return self._record_separator.join(parts)

    def make_chat_form(self) -> ChatForm:
        if self._template is not None:
            parts = self._list_parts()
            return ChatForm(kind="date", parts=parts, parts_of_year=parts)
        year = ("Year: ", "year")
        month = (f"{self._record_separator}Month: ", "month")
        return ChatForm(kind="date", parts=(year, month), parts_of_year=(year,))

    @classmethod
    def find_group(cls, value: str, config: MetadataConfig) -> str | None:
        """Returns the year."""
        year, _ = format_year_and_month(value)
        return str(year)


class Url(MetadataType):
    """An address, or a part of it, with %-escapes decoded: `url: foo.bar/Year 2021/`."""

    is_address = True
    takes_buckets = False
    prompt_label = "URL"
    slice_by = "site"
    example = "https://en.example.org/history/first-program.html"

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        self._granularity = config.url_granularity

    def _render_value(self, record: Record) -> str | None:
        return make_url_readable(str(record.value), self._granularity)

    def make_chat_form(self) -> ChatForm:
        if self._granularity not in ("full", "host", "path"):
            reason = f"url_granularity={self._granularity} takes code"
            return ChatForm(kind="code", reason=reason)
        return ChatForm(kind="address", parts=self._list_parts(), part=self._granularity)

    @classmethod
    def format_for_prompt(cls, value: str) -> str:
        return unquote_plus(value)

    @classmethod
    def find_group(cls, value: str, config: MetadataConfig) -> str | None:
        """Returns the host, or the rendered part of the address if that is less specific."""
        part = config.url_granularity
        if part not in ("registered_domain", "suffix", "path"):
            part = "host"
        return make_url_readable(value, part)

    @classmethod
    def make_group_value(cls, group: str, config: MetadataConfig) -> str:
        return group if config.url_granularity == "path" else f"https://{group}/"


class Title(MetadataType):
    """The title of a document: `Title: …`."""

    label = "Title"
    example = "The first program"


class WebsiteDescription(MetadataType):
    """The description of a document's website: `Website Description: …`."""

    columns = ("website_desc",)
    label = "Website Description"
    prompt_label = "Website description"
    example = "A site about the history of computing."


class Datasource(MetadataType):
    """The source of a document: `Datasource: example.de > forum > 21 new project`."""

    columns = ("generation_datasource",)
    label = "Datasource"
    prompt_label = "Data source"
    example = "en.example.org > history > first program"


class Length(MetadataType):
    """A number of characters: `Text Length: 123`; of a sentence: `[length: 12]…[/length: 12]`."""

    columns = ("generation_length_text", "generation_length_sentence")
    measures_text = True
    label = "Text Length"
    prompt_label = "Number of characters"
    example = len(EXAMPLE_TEXT)


class Paragraph(MetadataType):
    """A paragraph: `[paragraph: 1]…[/paragraph: 1]`."""

    is_lazy = True
    is_local = True
    example = "1"


class Entity(MetadataType):
    """An entity after its mention: `Biden [[Joe Biden]] studied at …`."""

    is_lazy = True
    is_local = True
    takes_buckets = False
    prompt_label = "Entities"
    is_listed = True
    example = "Ada_Lovelace"
    example_span = (0, 12)

    def render_local(self, record: Record, length: int) -> tuple[str, str] | None:
        return "", f" [[{str(record.value).replace('_', ' ')}]]"


class EntityParagraph(MetadataType):
    """An entity at the start or the end of the paragraph that mentions it: ` |Joe Biden|`."""

    is_lazy = True
    is_local = True
    takes_buckets = False
    prompt_label = "Entities by paragraph"
    is_listed = True
    example = "Ada_Lovelace"

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        self._at_start = config.entity_setting == "beg"

    def render_local(self, record: Record, length: int) -> tuple[str, str] | None:
        text = f" |{str(record.value).replace('_', ' ')}|"
        return (text, "") if self._at_start else ("", text)


class HtmlAttributes(msgspec.Struct, gc=False):
    """The attributes of an html tag: parallel lists of names and values.

    A value may be a number, as the value of a record may; an attribute without a value has null.
    """

    attrs: list[str]
    values: list[str | int | float | None]


_ATTRIBUTES = JSONDecoder(HtmlAttributes | None)


class LengthRange(NamedTuple):
    """An inclusive range of the length of a tag's text, in characters."""

    minimum: float
    maximum: float


class Html(MetadataType):
    """An html tag with the attributes that are kept: `<b class:level1 id:4>…</b>`."""

    is_lazy = True
    is_longest = True
    is_local = True
    takes_buckets = False
    sample_rate_key = "html_overall_sample_rate"
    example = "b"
    example_span = (21, 28)

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        rules = config.html_parser_config
        tag_rules = rules.all_tags_rules
        attributes = tag_rules.attributes_to_keep
        self._kept_attributes = None if attributes is None else frozenset(attributes)

        # The opening and closing string of a tag, by its name and the JSON of its attributes.
        self._cached_tags: dict[str, dict[bytes, tuple[str, str]]] = {}
        self._num_cached = 0

        self._dropped_lengths = LengthRange(tag_rules.txt_min_chr_len, tag_rules.txt_max_chr_len)
        self._exempt_tags = frozenset(tag_rules.tags_exceptions_to_txt_max_min_chr_len)
        self._dropped_tags = {
            tag: LengthRange(minimum, maximum)
            for tag, minimum, maximum in zip(
                rules.tags_to_remove_alone_tag_name,
                rules.tags_to_remove_alone_txt_min_chr_len,
                rules.tags_to_remove_alone_txt_max_chr_len,
                strict=True,
            )
        }

    def render_local(self, record: Record, length: int) -> tuple[str, str] | None:
        return self.render_locals([record], [length])[0]

    def render_locals(
        self, records: Sequence[Record], lengths: Sequence[int]
    ) -> list[tuple[str, str] | None]:
        # One loop without function calls, for speed: a page has hundreds of tags.
        minimum, maximum = self._dropped_lengths
        exempt_tags = self._exempt_tags
        dropped_tags = self._dropped_tags
        cached_tags = self._cached_tags
        texts: list[tuple[str, str] | None] = []
        for record, length in zip(records, lengths, strict=True):
            tag = record.value
            if type(tag) is not str:
                tag = str(tag)

            if minimum <= length <= maximum and tag not in exempt_tags:
                texts.append(None)
                continue
            if tag in dropped_tags:
                minimum_of_tag, maximum_of_tag = dropped_tags[tag]
                if minimum_of_tag <= length <= maximum_of_tag:
                    texts.append(None)
                    continue

            attributes = bytes(record.html_attrs)
            try:
                texts.append(cached_tags[tag][attributes])
            except KeyError:
                texts.append(self._render_and_cache(tag, attributes))
        return texts

    def _render_and_cache(self, tag: str, attributes: bytes) -> tuple[str, str]:
        """Renders a tag, and caches its strings; clears a full cache first."""
        if self._num_cached >= _MAX_CACHED_TAGS:
            self._cached_tags.clear()
            self._num_cached = 0
        strings = self._render_tag(tag, attributes)
        self._cached_tags.setdefault(tag, {})[attributes] = strings
        self._num_cached += 1
        return strings

    def _render_tag(self, tag: str, attributes: bytes) -> tuple[str, str]:
        """Returns the opening and closing string of a tag.

        Args:
            attributes: The JSON of an `HtmlAttributes`, or null.

        Raises:
            BadDocument: If the attributes are invalid, or names and values differ in number.
        """
        try:
            decoded = _ATTRIBUTES.decode(attributes)
        except UNREADABLE as error:
            raise classify_bad_document(error, f"html_attrs of <{tag}>: ") from error
        if decoded is None:
            return f"<{tag}>", f"</{tag}>"
        if len(decoded.attrs) != len(decoded.values):
            detail = f"<{tag}> has {len(decoded.attrs)} attributes, {len(decoded.values)} values"
            raise BadDocument("html_attributes_mismatch", detail)

        opening = f"<{tag}"
        for name, value in zip(decoded.attrs, decoded.values, strict=True):
            if self._kept_attributes is None or name in self._kept_attributes:
                opening += f" {name}:{'' if value is None else value}"
        return f"{opening}>", f"</{tag}>"

    @classmethod
    def find_problems(cls, config: MetadataConfig) -> Iterator[Problem]:
        rules = config.html_parser_config
        section = "html_parser_config"
        name_list = "tags_to_remove_alone_tag_name"
        names = rules.tags_to_remove_alone_tag_name
        for bound in ("min", "max"):
            field = f"tags_to_remove_alone_txt_{bound}_chr_len"
            lengths = getattr(rules, field)
            if len(lengths) != len(names):
                expected = f"a length for each of the {len(names)} names of {name_list}"
                fix = "give one length for each name"
                yield make_problem(f"{section}.{field}", f"{len(lengths)} lengths", expected, fix)

        for name in sorted({name for name in names if names.count(name) > 1}):
            fix = f"drop one {name}, and its lengths"
            yield make_problem(f"{section}.{name_list}", f"{name} more than once", "each once", fix)


class BasicStartLocal(MetadataType):
    """The value alone, at the start of its span."""

    is_local = True
    takes_buckets = False
    example = "note: "
    example_span = (0, 4)

    def render_local(self, record: Record, length: int) -> tuple[str, str] | None:
        return str(record.value), ""


class MetaTokens(MetadataType):
    """Learnable tokens without content, which only signal that metadata is present.

    Source: "Beyond URLs" (2025), which trains five of them.
    """

    prefix_only = True
    always_present = True
    takes_template = False
    takes_buckets = False

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        self._tokens = [f"<|meta_{number}|>" for number in range(config.num_meta_tokens)]
        self.literals = "".join(self._tokens), ""

    def render_global(self, record: Record) -> str | None:
        return "".join(self._tokens)

    def make_chat_form(self) -> ChatForm:
        return ChatForm(kind="constant", text="".join(self._tokens))

    @property
    def special_tokens(self) -> Sequence[str]:
        return self._tokens


PROCESSORS: dict[str, type[MetadataType]] = {
    "timestamp": Timestamp,
    "url": Url,
    "title": Title,
    "website_description": WebsiteDescription,
    "datasource": Datasource,
    "length": Length,
    "paragraph": Paragraph,
    "entity": Entity,
    "entity_paragraph": EntityParagraph,
    "html": Html,
    "basic_start_local": BasicStartLocal,
    "meta_tokens": MetaTokens,
}
"""The types that differ from the default type, by key."""

ADDRESS_KEY = next(key for key, cls in PROCESSORS.items() if cls.is_address)
"""The type whose values are document addresses."""

LONGEST_COLUMN = next(key for key, cls in PROCESSORS.items() if cls.is_longest)
"""The type whose column is cut out of a line before the rest is parsed."""


def find_type(key: str) -> type[MetadataType]:
    """Returns the class of a metadata key; `MetadataType` for a key without one."""
    return PROCESSORS.get(key, MetadataType)


def map_columns() -> dict[str, str]:
    """Maps each column that is not named after its key to that key.

    Names of columns are without `metadata_`.
    """
    keys_by_column: dict[str, str] = {}
    for key, cls in PROCESSORS.items():
        keys_by_column |= dict.fromkeys(cls.columns, key)
    return keys_by_column


def make_types(config: MetadataConfig) -> dict[str, MetadataType]:
    """Creates the types in `metadata_list`, in its order."""
    return {key: find_type(key)(key, config) for key in config.metadata_list}
