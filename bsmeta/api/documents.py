"""Reads documents from Python values, and renders them as in training.

A document is a string (a text without metadata), `{"text": …, "metadata": {…}}` with values by
type, or a record in the form of the training data (`metadata_…` columns, or the columns that
`data_config.columns` maps), which is read by the decoder of the training data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeVar

import msgspec

from bsmeta.api.configuration import Configuration, Overrides, compose_configuration
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import (
    ConfigurationError,
    DataError,
    find_similar,
    suggest_nearest,
)
from bsmeta.data.stream.stages.render import check_length
from bsmeta.metadata.decoding import TEXT_KEY, DocumentDecoder, make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import find_type
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Rendered, Renderer

METADATA = "metadata"

GivenDocument = str | Mapping[str, Any]
Item = TypeVar("Item")


@dataclass(frozen=True)
class RenderedDocument:
    """A document as the input of a model.

    Attributes:
        text: The whole input: the prefix, the text with local metadata, and appended metadata.
        prefix: The prefix; empty if there is none.
        types: The rendered types, in the order of `metadata_list`.
    """

    text: str
    prefix: str
    types: tuple[str, ...]

    def __str__(self) -> str:
        return self.text


def render(
    document: GivenDocument,
    metadata: Mapping[str, Any] | None = None,
    *,
    types: Sequence[str] | None = None,
    config: Configuration | None = None,
    overrides: Overrides | None = None,
) -> RenderedDocument:
    """Renders a document with its metadata, character for character as in training.

    Training samples the types to render for each document. This function renders all types that
    the document has, or those in `types`.

    Args:
        document: A text, `{"text": …, "metadata": {…}}`, or a record of the training data.
        metadata: Values by type, which add to or replace values of the document: a string or
            number, a list of them, or a list of records for types with positions in the text.
        types: Keys of `metadata_list` to render; None: all of them.
        config: The name of a configuration, the path of a YAML file, or a configuration, such as
            `bsmeta.open_run(folder).config`; None: the default values of all keys.
        overrides: Keys to change: `{"data_config.content": "union"}`, or nested.

    Raises:
        UserError: If the document or the configuration is invalid.
    """
    run_config = compose_configuration(CausalLMConfig() if config is None else config, overrides)
    if not isinstance(run_config, CausalLMConfig):
        raise ConfigurationError(
            f"config: is for task={run_config.task}; expected task=causal_lm, which renders "
            "documents"
        )
    return DocumentReader(run_config.data_config).render(document, metadata, types)


class DocumentReader:
    """Reads documents from Python values, and renders them.

    Args:
        config: The configuration of the training data.
    """

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._metadata = config.metadata_config
        self._types = list(self._metadata.metadata_list)
        self._corpus_decoder = make_decoder(self._metadata, config.columns, content=config.content)
        self._plain_decoder = DocumentDecoder(MetadataConfig(metadata_list=[]))
        # A corpus may have a column `metadata` with other content.
        self._corpus_has_metadata = any(
            path.split(".")[0] == METADATA for path in config.columns.values()
        )
        self._renderer = Renderer(self._metadata)

    def read(self, document: GivenDocument, metadata: Mapping[str, Any] | None = None) -> Document:
        """Reads a document and its metadata.

        Args:
            metadata: Values by type, which add to or replace values of the document.

        Raises:
            DataError: If the value is not a document, or has metadata that training would ignore.
        """
        if isinstance(document, str):
            document = {TEXT_KEY: document}
        if not isinstance(document, Mapping):
            raise DataError(
                f'a {type(document).__name__}; expected a string, or {{"text": …, "metadata": …}}'
            )
        if not isinstance(metadata, Mapping | None):
            raise DataError(f"metadata={metadata!r}: expected values by type: {{type: value}}")

        plain_keys = {TEXT_KEY} if self._corpus_has_metadata else {TEXT_KEY, METADATA}
        is_plain = document.keys() <= plain_keys
        document_metadata = document.get(METADATA)
        if is_plain and isinstance(document_metadata, Mapping):
            document = {**document, METADATA: None}
            metadata = {**document_metadata, **(metadata or {})}

        try:
            decoder = self._plain_decoder if is_plain else self._corpus_decoder
            decoded = decoder.decode(msgspec.json.encode(document))
            if not is_plain:
                self._refuse_ignored_values(document, decoded)
            return self._replace_metadata(decoded, metadata) if metadata else decoded
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(f"{error}; expected strings, numbers and lists of them") from error
        except BadDocument as error:
            keys = ", ".join(repr(key) for key in document)
            raise DataError(f"{error} (it has {keys})") from error

    def _replace_metadata(self, document: Document, metadata: Mapping[str, Any]) -> Document:
        """Returns the document with the given metadata in place of its metadata of these types."""
        records: list[dict[str, Any]] = []
        for key, value in metadata.items():
            records += self._make_records(key, value)
        replacement = self._plain_decoder.decode(
            msgspec.json.encode({TEXT_KEY: "", METADATA: records})
        )

        records_by_type = {}
        for key in self._types:
            source = replacement if key in metadata else document
            records_of_type = list(source.records(key))
            if records_of_type:
                records_by_type[key] = records_of_type
        return Document(document.text, document.url, records_by_type)

    def _make_records(self, key: str, value: Any) -> list[dict[str, Any]]:
        """Makes the records of a type from a value or a list of values.

        Raises:
            DataError: If the type is not in `metadata_list`, or a value cannot be used.
        """
        if key not in self._types:
            types = ", ".join(self._types) or "(it is empty)"
            raise DataError(
                f"metadata.{key}: not in metadata_list; expected some of {types}"
                f"{suggest_nearest(key, self._types)}, or a configuration that has it there"
            )

        metadata_type = find_type(key)
        if value is None or (metadata_type.always_present and value is True):
            return []

        items = value if isinstance(value, list) else [value]
        return [self._make_record(key, item, is_local=metadata_type.is_local) for item in items]

    @staticmethod
    def _make_record(key: str, item: Any, *, is_local: bool) -> dict[str, Any]:
        """Makes a record from a value, or adds the key to a given record.

        Raises:
            DataError: If the value is neither a string nor a number, or the type is local.
        """
        if isinstance(item, date):
            item = item.isoformat()
        if isinstance(item, Mapping):
            return {**item, "key": key}

        if is_local:
            raise DataError(
                f"metadata.{key}={item!r}: expected a list of records with value, char_start_idx "
                "and char_end_idx"
            )
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise DataError(
                f"metadata.{key}={item!r}: expected a string or a number, or a list of them"
            )
        return {"key": key, "type": "global", "value": item}

    def _refuse_ignored_values(self, document: Mapping[str, Any], decoded: Document) -> None:
        """Refuses values that the decoder would ignore: under a misspelled or a bare name."""
        has_metadata = any(str(key).startswith(METADATA) for key in document)
        for key in document:
            if not has_metadata and find_similar(key, [METADATA]):
                raise DataError(f"{key}: not a key of a document (did you mean {METADATA}?)")

        for key in self._types:
            is_value = isinstance(document.get(key), (str, int, float))
            if is_value and f"metadata_{key}" not in document and not decoded.has(key):
                raise DataError(
                    f"{key}={document[key]!r} is not read as metadata in the form of the training "
                    f'data; expected {{"text": …, "metadata": {{"{key}": …}}}}'
                )

    def render(
        self,
        document: GivenDocument,
        metadata: Mapping[str, Any] | None,
        types: Sequence[str] | None,
    ) -> RenderedDocument:
        """Renders a document; see the function `render`.

        Raises:
            DataError: If the document is invalid, or a type cannot be rendered.
        """
        unknown = [name for name in types or () if name not in self._types]
        if unknown:
            raise DataError(
                f"types: {', '.join(unknown)} not in metadata_list; expected some of "
                f"{', '.join(self._types)}"
            )

        decoded = self.read(document, metadata)
        if isinstance(document, Mapping):
            for key in types or ():
                columns = [f"metadata_{column}" for column in (key, *find_type(key).columns)]
                has_column = any(document.get(column) for column in columns)
                if has_column and not decoded.has(key):
                    raise DataError(
                        f"types: {key}: metadata_column_list of the configuration leaves its "
                        "column out"
                    )

        rendered = self.render_types(decoded, self._types if types is None else types)
        if self._metadata.without_metadata_same_context:
            rendered = rendered.without_metadata()
        return RenderedDocument(rendered.full_text, rendered.prefix, rendered.types)

    def render_types(self, document: Document, types: Sequence[str]) -> Rendered:
        """Renders a decoded document; types that it does not have are skipped.

        Raises:
            DataError: If a record is invalid, or the document is too long to encode.
        """
        try:
            rendered = self._renderer.render(document, types)
            check_length(rendered, self._config)
        except BadDocument as error:
            raise DataError(str(error)) from error
        return rendered


def read_each(
    documents: Iterable[Any], read: Callable[[Any], Item], argument: str, *, first: int = 0
) -> list[Item]:
    """Reads each document of a list, a data set, or anything else that yields documents.

    Args:
        read: Reads a document; raises DataError if the document is invalid.
        argument: The name of the argument, for messages.
        first: Index of the first document, for messages.

    Raises:
        DataError: If documents cannot be read; lists all of them.
    """
    refuse_single(documents, argument)
    items = []
    problems = []
    for number, document in enumerate(documents, start=first):
        try:
            items.append(read(document))
        except DataError as error:
            problems.append(f"{argument}[{number}]: {error}")
    if problems:
        raise DataError("\n".join(problems))
    return items


def read_batches(
    documents: Iterable[Any], read: Callable[[Any], Item], argument: str, batch_size: int
) -> Iterator[list[Item]]:
    """Reads documents lazily, and yields them in batches.

    Args:
        read: Reads a document; raises DataError if the document is invalid.
        argument: The name of the argument, for messages.
        batch_size: Number of documents in a batch.

    Raises:
        DataError: If documents of the next batch cannot be read; lists all of them.
    """
    refuse_single(documents, argument)
    iterator = iter(documents)
    for first in itertools.count(0, batch_size):
        batch = list(itertools.islice(iterator, batch_size))
        if not batch:
            return
        yield read_each(batch, read, argument, first=first)


def refuse_single(documents: Any, argument: str) -> None:
    """Refuses a single document, or a value that is not iterable, in place of documents.

    Args:
        argument: The name of the argument, for messages.

    Raises:
        DataError: If `documents` is either of them.
    """
    is_single = isinstance(documents, (str, bytes, Mapping))
    if is_single or not isinstance(documents, Iterable):
        fix = "; write […] around it" if is_single else ""
        raise DataError(
            f"{argument}: expected a list or another iterable, found {type(documents).__name__}"
            f"{fix}"
        )
