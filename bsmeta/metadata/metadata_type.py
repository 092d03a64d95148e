"""Metadata types: the base class, with the default rendering and the default properties.

`MetadataType` renders the default form, `key: value` and `[key: value]…[/key: value]`, and has
every property that other modules need; `processors` has the classes that differ.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from typing import ClassVar

from bsmeta.config.checks.problems import HYDRA, Problem
from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.records import Record
from bsmeta.metadata.values import Bucketing

CONFIG_KEY = "data_config.metadata_config"

EXAMPLE_TEXT = "Ada Lovelace wrote a program."
"""The text of the model card's example."""


class MetadataType:
    """A metadata type, rendered in the default form."""

    # The data.
    columns: ClassVar[tuple[str, ...]] = ()
    """Its columns (without `metadata_`) besides the column named after the key."""
    is_lazy: ClassVar[bool] = False
    """Whether its column has many records and stays bytes until a document is rendered."""
    is_longest: ClassVar[bool] = False
    """Whether that column is cut out of a line before the rest is parsed (true for one type)."""
    is_address: ClassVar[bool] = False
    """Whether its values are document addresses, like the `url` column (true for one type)."""

    # The use in training.
    is_local: ClassVar[bool] = False
    """Whether it annotates places in a text, so that it cannot be used in a prompt's prefix."""
    measures_text: ClassVar[bool] = False
    """Whether its values count the characters of the text, or of a local record's span."""
    always_present: ClassVar[bool] = False
    """Whether a document has the type without having a record of it."""
    sample_rate_key: ClassVar[str | None] = None
    """Configuration key of the probability that the type is a sampling candidate, if any."""
    prefix_only: ClassVar[bool] = False
    """Whether the type's global strings stay in the prefix regardless of `metadata_position`."""
    label: ClassVar[str | None] = None
    """The label before a global record's value; None: the key."""
    template: ClassVar[str | None] = None
    """A global record's form instead of `label: value`; `metadata_templates` replaces it."""
    template_fields: ClassVar[frozenset[str]] = frozenset({"key", "value"})
    """The fields that a template of the type may use."""

    # The reports.
    prompt_label: ClassVar[str | None] = None
    """The type's name in an English prompt; None: the key as words."""
    is_listed: ClassVar[bool] = False
    """Whether such a prompt lists the values of local records, because they are words."""
    slice_by: ClassVar[str | None] = None
    """The `slices.by` of an evaluation that slices documents by this type's `group`."""
    example: ClassVar[str | int | None] = None
    """A value for the model card; None: 1, which can also be bucketed."""
    example_span: ClassVar[tuple[int, int]] = (0, len(EXAMPLE_TEXT))
    """The characters of `EXAMPLE_TEXT` that the example of a local type is about."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        self.key = key
        self._separator = config.metadata_key_value_sep
        self._template = config.metadata_templates.get(key, self.template)
        self._bucketing = Bucketing(key, config)
        self.literals = self._literals()

    def own_ends(self, text: str) -> tuple[int, int]:
        """Number of leading and trailing characters of a global string from the configuration.

        Only there may a literal special token be encoded as one: the rest comes from the record.
        """
        first, last = self.literals
        begins, ends = text.startswith(first), text.endswith(last)
        return len(first) if begins else 0, len(last) if ends else 0

    def _literals(self) -> tuple[str, str]:
        """The strings before and after the value of a global record."""
        if self._template is None:
            return f"{self.label or self.key}{self._separator}", ""
        parts = list(string.Formatter().parse(self._template))
        last, field, _, _ = parts[-1]
        return parts[0][0], last if field is None and len(parts) > 1 else ""

    def global_text(self, record: Record) -> str | None:
        """The rendered global record; None leaves it out.

        Raises:
            BadDocument: If the value is invalid for the type.
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
            length: Characters in its span.
        """
        text = f"{self.key}{self._separator}{self._bucketing(record.value)}"
        return f"[{text}]", f"[/{text}]"

    def local_texts(
        self, records: Sequence[Record], lengths: Sequence[int]
    ) -> list[tuple[str, str] | None]:
        """`local_text` for each of several records."""
        return list(map(self.local_text, records, lengths))

    def _value(self, record: Record) -> str | None:
        return self._bucketing(record.value)

    @property
    def special_tokens(self) -> Sequence[str]:
        """The special tokens that the type adds to a tokenizer."""
        return ()

    @classmethod
    def problems(cls, config: MetadataConfig) -> Iterator[Problem]:
        """Problems with the settings that only this type has."""
        yield from ()

    @classmethod
    def sample_rate(cls, config: MetadataConfig) -> float:
        """The probability that the type is a sampling candidate."""
        return 1.0 if cls.sample_rate_key is None else getattr(config, cls.sample_rate_key)

    @classmethod
    def prompt_value(cls, value: str) -> str:
        """A value as shown in an English prompt."""
        return value.replace("_", " ") if cls.is_listed else value

    @classmethod
    def group(cls, value: str, config: MetadataConfig) -> str | None:
        """The group of a text with this value (a host, a year); None: no group.

        Raises:
            BadDocument: If the value is invalid for the type.
        """
        return value

    @classmethod
    def value_of_group(cls, group: str, config: MetadataConfig) -> str:
        """A value that conditions a model on a group."""
        return group

    @classmethod
    def example_record(cls, key: str) -> Record:
        """The record of the model card's example, about `EXAMPLE_TEXT`."""
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


def config_problem(name: str, found: str, expected: str, fix: str) -> Problem:
    """A problem with a key of the metadata configuration."""
    return Problem(f"{CONFIG_KEY}.{name}", HYDRA, found, expected, fix)


def setting(name: str, value: str) -> str:
    """A command-line override of a key of the metadata configuration."""
    return f"{CONFIG_KEY}.{name}={value}"
