"""Types: how the records of each metadata key read.

A type is one class: what a global record puts in the prefix, and what a local record puts at
the start and the end of its span. `PROCESSORS` has the types that read otherwise than the
default, `key: value` and `[key: value]…[/key: value]`. The strings are those of the BigScience
`metadata` repository, which trained models expect.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import msgspec

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.records import BadDocument, Record, bad_document
from bsmeta.metadata.values import Bucketing, readable_url, year_and_month


class MetadataType:
    """A metadata type, read by the default form.

    Args:
        key: The metadata key.
        config: How its records read.
    """

    label: str | None = None
    """What stands before a global record's value; None: the key."""
    prefix_only = False
    """Whether `metadata_position` leaves the type's global strings in the prefix."""
    always_present = False
    """Whether a document has the type without having a record of it."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        self.key = key
        self._separator = config.metadata_key_value_sep
        self._template = config.metadata_templates.get(key)
        self._bucketing = Bucketing(key, config)
        self.literals = self._literals()

    def own_ends(self, text: str) -> tuple[int, int]:
        """How many characters at the start and the end of a global string are the configuration's.

        Only there may a special token be meant: what lies between comes from the record.
        """
        first, last = self.literals
        begins, ends = text.startswith(first), text.endswith(last)
        return len(first) if begins else 0, len(last) if ends else 0

    def _literals(self) -> tuple[str, str]:
        """What stands before and after the value of a global record."""
        if self._template is None:
            return f"{self.label or self.key}{self._separator}", ""
        parts = list(string.Formatter().parse(self._template))
        last, field, _, _ = parts[-1]
        return parts[0][0], last if field is None and len(parts) > 1 else ""

    def global_text(self, record: Record) -> str | None:
        """How a global record reads; None leaves it out.

        Raises:
            BadDocument: If the value cannot be what the type says it is.
        """
        value = self._value(record)
        if value is None:
            return None
        if self._template is not None:
            return self._template.format_map({"key": self.key, "value": value})
        return f"{self.label or self.key}{self._separator}{value}"

    def local_text(self, record: Record, length: int) -> tuple[str, str] | None:
        """What a local record inserts at the start and the end of its span; None drops it.

        Args:
            record: The record.
            length: Characters in its span.
        """
        text = f"{self.key}{self._separator}{self._bucketing(record.value)}"
        return f"[{text}]", f"[/{text}]"

    def local_texts(
        self, records: Sequence[Record], lengths: Sequence[int]
    ) -> list[tuple[str, str] | None]:
        """`local_text` of each of several records."""
        return list(map(self.local_text, records, lengths))

    def _value(self, record: Record) -> str | None:
        return self._bucketing(record.value)


class Timestamp(MetadataType):
    """`Year: 2018 | Month: December`, whatever `metadata_key_value_sep` is: as published."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        self._record_separator = config.metadata_sep

    def global_text(self, record: Record) -> str | None:
        year, month = year_and_month(str(record.value))
        if self._template is not None:
            fields = {"key": self.key, "value": record.value, "year": year, "month": month or ""}
            return self._template.format_map(fields)
        parts = [f"Year: {year}"]
        if month is not None:
            parts.append(f"Month: {month}")
        return self._record_separator.join(parts)


class Url(MetadataType):
    """`url: foo.bar/Year 2021/`: the address, or a part of it, without %-escapes."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        self._granularity = config.url_granularity

    def _value(self, record: Record) -> str | None:
        return readable_url(str(record.value), self._granularity)


class Title(MetadataType):
    """`Title: …`."""

    label = "Title"


class WebsiteDescription(MetadataType):
    """`Website Description: …`."""

    label = "Website Description"


class Datasource(MetadataType):
    """`Datasource: example.de > forum > 21 new project`."""

    label = "Datasource"


class Length(MetadataType):
    """`Text Length: 123` for the text; `[length: 12]…[/length: 12]` for a sentence."""

    label = "Text Length"


class Entity(MetadataType):
    """`Biden [[Joe Biden]] studied at …`."""

    def local_text(self, record: Record, length: int) -> tuple[str, str] | None:
        return "", f" [[{str(record.value).replace('_', ' ')}]]"


class EntityParagraph(MetadataType):
    """` |Joe Biden|` at the start or the end of the paragraph that mentions the entity."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        self._at_start = config.entity_setting == "beg"

    def local_text(self, record: Record, length: int) -> tuple[str, str] | None:
        text = f" |{str(record.value).replace('_', ' ')}|"
        return (text, "") if self._at_start else ("", text)


class HtmlAttributes(msgspec.Struct, gc=False):
    """The attributes of an html tag: names and, at the same places, values.

    A value may be a number, as that of a record may; one without a value is null.
    """

    attrs: list[str]
    values: list[str | int | float | None]


_ATTRIBUTES = msgspec.json.Decoder(HtmlAttributes | None)
_REMEMBERED_TAGS = 1 << 14  # some megabytes; four tags in five come again on the same page


class Html(MetadataType):
    """`<b class:level1 id:4>…</b>`, with the tags and attributes that the configuration keeps."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        rules = config.html_parser_config
        every = rules.all_tags_rules
        kept = every.attributes_to_keep
        self._attributes = None if kept is None else frozenset(kept)
        self._remembered: dict[tuple[str, bytes], tuple[str, str]] = {}
        self._dropped_lengths = (every.txt_min_chr_len, every.txt_max_chr_len)
        self._exceptions = frozenset(every.tags_exceptions_to_txt_max_min_chr_len)
        self._dropped_tags = {
            tag: (shortest, longest)
            for tag, shortest, longest in zip(
                rules.tags_to_remove_alone_tag_name,
                rules.tags_to_remove_alone_txt_min_chr_len,
                rules.tags_to_remove_alone_txt_max_chr_len,
                strict=True,
            )
        }

    def local_text(self, record: Record, length: int) -> tuple[str, str] | None:
        return self.local_texts([record], [length])[0]

    def local_texts(
        self, records: Sequence[Record], lengths: Sequence[int]
    ) -> list[tuple[str, str] | None]:
        # One loop without calls: a page has hundreds of tags.
        shortest, longest = self._dropped_lengths
        exceptions, dropped, remembered = self._exceptions, self._dropped_tags, self._remembered
        texts: list[tuple[str, str] | None] = []
        for record, length in zip(records, lengths, strict=True):
            tag = record.value if type(record.value) is str else str(record.value)
            if shortest <= length <= longest and tag not in exceptions:
                texts.append(None)
                continue
            if tag in dropped:
                least, most = dropped[tag]
                if least <= length <= most:
                    texts.append(None)
                    continue
            attributes = bytes(record.html_attrs)
            strings = remembered.get((tag, attributes))
            texts.append(self._remember(tag, attributes) if strings is None else strings)
        return texts

    def _remember(self, tag: str, attributes: bytes) -> tuple[str, str]:
        if len(self._remembered) >= _REMEMBERED_TAGS:
            self._remembered.clear()
        strings = self._opening_and_closing(tag, attributes)
        self._remembered[tag, attributes] = strings
        return strings

    def _opening_and_closing(self, tag: str, attributes: bytes) -> tuple[str, str]:
        """The strings of a tag; its attributes are the JSON of an `HtmlAttributes`, if any."""
        try:
            found = _ATTRIBUTES.decode(attributes)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_document(error, f"html_attrs of <{tag}>: ") from error
        if found is None:
            return f"<{tag}>", f"</{tag}>"
        if len(found.attrs) != len(found.values):
            problem = f"<{tag}> has {len(found.attrs)} attributes, {len(found.values)} values"
            raise BadDocument("html_attributes_mismatch", problem)
        text = "".join(
            f" {name}:{'' if value is None else value}"
            for name, value in zip(found.attrs, found.values, strict=True)
            if self._attributes is None or name in self._attributes
        )
        return f"<{tag}{text}>", f"</{tag}>"


class BasicStartLocal(MetadataType):
    """The value itself, at the start of its span."""

    def local_text(self, record: Record, length: int) -> tuple[str, str] | None:
        return str(record.value), ""


class MetaTokens(MetadataType):
    """Learnable tokens that say nothing but that metadata is given (they have no records).

    Source: "Beyond URLs" (2025), which trains five of them.
    """

    prefix_only = True
    always_present = True

    def __init__(self, key: str, config: MetadataConfig) -> None:
        super().__init__(key, config)
        self.tokens = [f"<|meta_{number}|>" for number in range(config.num_meta_tokens)]
        self.literals = "".join(self.tokens), ""

    def global_text(self, record: Record) -> str | None:
        return "".join(self.tokens)


PROCESSORS: dict[str, type[MetadataType]] = {
    "timestamp": Timestamp,
    "url": Url,
    "title": Title,
    "website_description": WebsiteDescription,
    "datasource": Datasource,
    "length": Length,
    "entity": Entity,
    "entity_paragraph": EntityParagraph,
    "html": Html,
    "basic_start_local": BasicStartLocal,
    "meta_tokens": MetaTokens,
}
"""The types that do not read by the default form, by key."""


def make_types(config: MetadataConfig) -> dict[str, MetadataType]:
    """The types of `metadata_list`, in its order."""
    return {key: PROCESSORS.get(key, MetadataType)(key, config) for key in config.metadata_list}
