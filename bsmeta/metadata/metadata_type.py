"""What a metadata type is: one class that holds everything that is known about it.

`MetadataType` reads by the default form, `key: value` and `[key: value]…[/key: value]`, and has
every fact that other modules ask for; `processors` has the classes that differ.
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
    """A metadata type, read by the default form.

    Args:
        key: The metadata key.
        config: How its records read.
    """

    # The data.
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns of it (without `metadata_`) besides the one that has the key's name."""
    is_lazy: ClassVar[bool] = False
    """Whether the column of its name has many records: bytes until a document is rendered."""
    is_longest: ClassVar[bool] = False
    """Whether that column is taken out of a line before the rest is parsed (one type's is)."""
    is_address: ClassVar[bool] = False
    """Whether its values are addresses of documents, as the `url` column is (one type's are)."""

    # The use in training.
    is_local: ClassVar[bool] = False
    """Whether it is about places in a text: no value of it can stand before a text to come."""
    always_present: ClassVar[bool] = False
    """Whether a document has the type without having a record of it."""
    sample_rate_key: ClassVar[str | None] = None
    """The configuration's key of the chance that the type may be drawn at all, if it has one."""
    prefix_only: ClassVar[bool] = False
    """Whether `metadata_position` leaves the type's global strings in the prefix."""
    label: ClassVar[str | None] = None
    """What stands before a global record's value; None: the key."""
    template_fields: ClassVar[frozenset[str]] = frozenset({"key", "value"})
    """What a template of the type may name."""

    # The reports.
    prompt_label: ClassVar[str | None] = None
    """What a prompt in English calls the type; None: the key as words."""
    is_listed: ClassVar[bool] = False
    """Whether such a prompt lists the values of local records, because they are words."""
    slice_by: ClassVar[str | None] = None
    """The `slices.by` of an evaluation that divides documents by `group` of this type."""
    example: ClassVar[str | int | None] = None
    """A value for the model card; None: a 1, which can be put into a bucket, too."""
    example_span: ClassVar[tuple[int, int]] = (0, len(EXAMPLE_TEXT))
    """The characters of `EXAMPLE_TEXT` that the example of a local type is about."""

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

    @property
    def special_tokens(self) -> Sequence[str]:
        """What the type adds to a tokenizer."""
        return ()

    @classmethod
    def problems(cls, config: MetadataConfig) -> Iterator[Problem]:
        """What is wrong with the settings that only this type has."""
        yield from ()

    @classmethod
    def sample_rate(cls, config: MetadataConfig) -> float:
        """The chance that the type may be drawn at all."""
        return 1.0 if cls.sample_rate_key is None else getattr(config, cls.sample_rate_key)

    @classmethod
    def prompt_value(cls, value: str) -> str:
        """A value as a prompt in English shows it."""
        return value.replace("_", " ") if cls.is_listed else value

    @classmethod
    def group(cls, value: str, config: MetadataConfig) -> str | None:
        """What a text with this value is attributed to (a host, a year); None: nothing.

        Raises:
            BadDocument: If the value cannot be what the type says it is.
        """
        return value

    @classmethod
    def value_of_group(cls, group: str, config: MetadataConfig) -> str:
        """A value by which a model is given a group."""
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
    """What is wrong with a key of the configuration of metadata."""
    return Problem(f"{CONFIG_KEY}.{name}", HYDRA, found, expected, fix)


def setting(name: str, value: str) -> str:
    """An override of such a key."""
    return f"{CONFIG_KEY}.{name}={value}"
