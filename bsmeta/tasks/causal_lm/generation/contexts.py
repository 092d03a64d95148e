"""Builds the contexts that a model continues, from metadata and a prompt.

Metadata becomes records, which the renderer and encoder of the training data process; so
granularity, templates, buckets and separators apply here as well.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import find_type, map_columns
from bsmeta.metadata.records import BadDocument, Record
from bsmeta.metadata.rendering import Rendered, Renderer


@dataclass(frozen=True, slots=True)
class Context:
    """The input that a model continues.

    Attributes:
        prefix: The rendered metadata; "" without any.
        ids: Token ids of the prefix and the prompt; never empty.
        joint: The end of the separator between prefix and text that merges with the first word. The
            continuation begins with it, but it is not part of the text.
    """

    prefix: str
    ids: list[int]
    joint: str


class Contexts:
    """Builds contexts in the same way as training builds the beginnings of documents."""

    def __init__(self, config: DataConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self._config = config.metadata_config
        self._renderer = Renderer(config.metadata_config)
        self._encoder = DocumentEncoder(tokenizer, config)
        self._tokenizer = tokenizer
        # Under this budget, metadata and text are tokenized separately.
        self._separator_merges = config.row_budget != BY_TEXT

    def make_context(self, metadata: Mapping[str, Any], prompt: str) -> Context:
        """Builds the context of metadata followed by a prompt.

        If both are empty, the context is an end-of-text token.

        Args:
            metadata: A value or a list of values by type; None leaves a type out; True announces
                a local type.
            prompt: The text to continue; may be empty.
        """
        rendered_metadata = self._render_metadata(metadata)
        rendered = Rendered(
            prompt,
            prefix=rendered_metadata.prefix,
            prefix_spans=rendered_metadata.prefix_spans,
            prefix_token_types=rendered_metadata.prefix_token_types,
            prefix_configured=rendered_metadata.prefix_configured,
            lead=rendered_metadata.lead,
            body=prompt,
        )
        (encoded,) = self._encoder.encode([rendered])

        joint = ""
        body_ids = encoded.ids[:-1].tolist()
        if not prompt and self._separator_merges:
            body_ids, joint = self._split_lead(rendered.lead)
        ids = [*encoded.prefix_ids.tolist(), *body_ids]
        if not ids:  # the model needs a first token: the end of the document before
            ids = [int(self._tokenizer.eos_token_id)]
        return Context(rendered.prefix, ids, joint)

    def _render_metadata(self, metadata: Mapping[str, Any]) -> Rendered:
        """Renders metadata without a text.

        Raises:
            ConfigurationError: If the metadata cannot be in the prefix of this model.
        """
        values = {key: value for key, value in metadata.items() if value is not None}
        check_metadata(values, self._config)
        records = {key: _make_records(key, value) for key, value in values.items()}
        try:
            rendered = self._renderer.render(Document("", None, records), tuple(values))
        except BadDocument as error:
            raise ConfigurationError(f"metadata={values}: {error}") from error
        if values and not rendered.prefix:
            raise ConfigurationError(f"metadata={values}: nothing of it can be rendered")
        return rendered

    def find_joint(self, lead: str) -> str:
        """Returns the end of the separator before the text that merges with the first word."""
        if not self._separator_merges:
            return ""
        _, joint = self._split_lead(lead)
        return joint

    def _split_lead(self, lead: str) -> tuple[list[int], str]:
        """Splits the separator between prefix and text, for a context without a prompt.

        Its end may merge with the first word of the text: a space, for example, is part of the
        token of the word after it.

        Returns:
            The token ids of the beginning, and the characters that merge.
        """
        if not lead:
            return [], ""
        with_word = f"{lead}A"
        (encoded,) = self._encoder.encode([Rendered(with_word, body=with_word)])
        is_inside = encoded.text_ends[:-1] <= len(lead)
        end = int(encoded.text_ends[:-1][is_inside].max(initial=0))
        return encoded.ids[:-1][is_inside].tolist(), lead[end:]


def _make_records(key: str, value: Any) -> list[Record]:
    """Makes the records of a type from a value or a list of values."""
    if find_type(key).is_local:  # only announced in the prefix: its insertion is not used
        return [Record(value="", key=key, type="local", char_start_idx=0, char_end_idx=0)]
    values = value if isinstance(value, list) else [value]
    return [Record(value=entry, key=key, type="global") for entry in values]


def check_metadata(metadata: Mapping[str, Any], config: MetadataConfig) -> None:
    """Refuses metadata that cannot be in the prefix of this model; None leaves a type out.

    Raises:
        ConfigurationError: If a type or a value is invalid.
    """
    for key, value in metadata.items():
        if value is None:
            continue
        check_type(key, f"metadata.{key}", config)
        problem = _describe_value_problem(key, value, config)
        if problem is not None:
            raise ConfigurationError(f"metadata.{key}={problem}")


def _describe_value_problem(key: str, value: Any, config: MetadataConfig) -> str | None:
    """Returns the value with the reason why it cannot be in the prefix; None if it can."""
    metadata_type = find_type(key)
    if metadata_type.is_local:
        can_announce = is_announced(key, config)
        if value is True and can_announce:
            return None
        problem = (
            f"{value}: {key} is a local type; it stands at places in the text and cannot be "
            "given as a value before it; "
        )
        if can_announce:
            return problem + f"the prefix only announces it: metadata.{key}=true"
        return problem + f"and training did not announce it in the prefix: leave out metadata.{key}"

    if metadata_type.always_present:
        return None if value is True else f"{value}: expected true, they have no value"

    values = value if isinstance(value, list) else [value]
    if values and all(_is_text_or_number(entry) for entry in values):
        return None
    return f"{value!r}: expected a string or a number"


def _is_text_or_number(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def check_type(key: str, setting: str, config: MetadataConfig) -> None:
    """Refuses a metadata type that cannot be in the prefix of this model.

    Args:
        setting: The setting of the user, for the message.

    Raises:
        ConfigurationError: If the model was not trained with the type, or not with a prefix.
    """
    if key not in config.metadata_list:
        global_types = [name for name in config.metadata_list if not find_type(name).is_local]
        raise ConfigurationError(
            f"{setting}: the model was not trained with this type; expected any of {global_types}"
            f"{_suggest_type(key, config.metadata_list)}"
        )

    metadata_type = find_type(key)
    has_value = not metadata_type.is_local and not metadata_type.always_present
    if config.metadata_position == "append" and has_value:
        raise ConfigurationError(
            f"{setting}: the model was trained with metadata_position=append: it reads metadata "
            "after the text, so none can be given before it"
        )


def _suggest_type(key: str, trained_types: Sequence[str]) -> str:
    """Returns `; did you mean X?` for the type of a column or a misspelled type, or ""."""
    suggestion = map_columns().get(key)
    if suggestion is None:
        close_matches = difflib.get_close_matches(key, trained_types, n=1)
        suggestion = close_matches[0] if close_matches else None
    return f"; did you mean {suggestion}?" if suggestion in trained_types else ""


def is_announced(key: str, config: MetadataConfig) -> bool:
    """Whether the prefix of a document names a local type that the document has."""
    names = config.local_metadata_special_tokens or {}
    has_name = names.get(key, key) != ""
    return config.add_local_metadata_special_tokens_in_prefix and has_name
