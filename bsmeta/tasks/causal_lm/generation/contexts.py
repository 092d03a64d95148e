"""The tokens that a model continues: metadata and a prompt.

The metadata becomes records, which the renderer and encoder of the training data process; so
granularity, templates, buckets and separators apply here as well.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.processors import column_keys, type_of
from bsmeta.metadata.records import BadDocument, Document, Record
from bsmeta.metadata.rendering import Rendered, Renderer


@dataclass(frozen=True, slots=True)
class Context:
    """The input that a model continues.

    Attributes:
        prefix: The rendered metadata; "" without any.
        ids: Token ids of the prefix and the prompt; never empty.
        joint: The remainder of the separator between prefix and text, with which the continuation
            begins; it is not part of the text.
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
        self._is_apart = config.row_budget == BY_TEXT  # the separator merges with no word

    def make(self, metadata: Mapping[str, Any], prompt: str) -> Context:
        """Build the context of metadata followed by a prompt.

        If both are empty, the context is an end-of-text token.

        Args:
            metadata: A value or a list of values by type; None leaves a type out; True announces
                a local type.
            prompt: The text to continue; may be empty.
        """
        head = self._rendered(metadata)
        rendered = Rendered(
            text=prompt,
            prefix=head.prefix,
            prefix_spans=head.prefix_spans,
            prefix_token_types=head.prefix_token_types,
            prefix_own=head.prefix_own,
            lead=head.lead,
            body=prompt,
        )
        (encoded,) = self._encoder.encode([rendered])
        body, joint = encoded.ids[:-1].tolist(), ""
        if not prompt and not self._is_apart:
            body, joint = self._begun(head.lead)
        ids = [*encoded.prefix_ids.tolist(), *body]
        return Context(head.prefix, ids or [int(self._tokenizer.eos_token_id)], joint)

    def _rendered(self, metadata: Mapping[str, Any]) -> Rendered:
        given = {key: value for key, value in metadata.items() if value is not None}
        for key, value in given.items():
            check_value(key, value, self._config)
        records = {key: _records(key, value) for key, value in given.items()}
        try:
            rendered = self._renderer.render(Document("", None, records), tuple(given))
        except BadDocument as error:
            raise ConfigurationError(f"metadata={given}: {error}") from error
        if given and not rendered.prefix:
            raise ConfigurationError(f"metadata={given}: nothing of it can be rendered")
        return rendered

    def _begun(self, lead: str) -> tuple[list[int], str]:
        """The tokens of the separator that do not merge with the first word, and its remainder.

        A space, for example, is part of the token of the word after it.
        """
        if not lead:
            return [], ""
        followed = f"{lead}A"
        (encoded,) = self._encoder.encode([Rendered(followed, body=followed)])
        inside = encoded.text_ends[:-1] <= len(lead)
        end = int(encoded.text_ends[:-1][inside].max(initial=0))
        return encoded.ids[:-1][inside].tolist(), lead[end:]


def _records(key: str, value: Any) -> list[Record]:
    if type_of(key).is_local:  # only announced in the prefix: its insertion is not used
        return [Record(value="", key=key, type="local", char_start_idx=0, char_end_idx=0)]
    values = value if isinstance(value, list) else [value]
    return [Record(value=value, key=key, type="global") for value in values]


def check_value(key: str, value: Any, config: MetadataConfig) -> None:
    """Reject a metadata value that cannot be in the prefix of this model."""
    check_type(key, f"metadata.{key}", config)
    if type_of(key).is_local:
        _check_announcement(key, value, config)
    elif type_of(key).always_present:
        if value is not True:
            raise ConfigurationError(f"metadata.{key}={value}: expected true, they have no value")
    else:
        values = value if isinstance(value, list) else [value]
        if not values or not all(_is_value(value) for value in values):
            raise ConfigurationError(f"metadata.{key}={value!r}: expected a string or a number")


def check_type(key: str, name: str, config: MetadataConfig) -> None:
    """Reject a metadata type that cannot be in the prefix of this model.

    Args:
        name: What the user set, for the message.
    """
    known = [*config.metadata_list]
    if key not in known:
        near = column_keys().get(key) or next(
            iter(difflib.get_close_matches(key, known, n=1)), None
        )
        hint = f"; did you mean {near}?" if near in known else ""
        given = [key for key in known if not type_of(key).is_local]
        raise ConfigurationError(
            f"{name}: the model was not trained with this type; expected any of {given}{hint}"
        )
    is_global = not type_of(key).is_local and not type_of(key).always_present
    if is_global and config.metadata_position == "append":
        raise ConfigurationError(
            f"{name}: the model was trained with metadata_position=append: it reads metadata after "
            "the text, so none can be given before it"
        )


def _is_value(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def is_announced(key: str, config: MetadataConfig) -> bool:
    """Whether the prefix names a local type that a document has."""
    named = (config.local_metadata_special_tokens or {}).get(key, key) != ""
    return config.add_local_metadata_special_tokens_in_prefix and named


def _check_announcement(key: str, value: Any, config: MetadataConfig) -> None:
    announced = is_announced(key, config)
    if value is True and announced:
        return
    fix = (
        f"the prefix only announces it: metadata.{key}=true"
        if announced
        else f"and training did not announce it in the prefix: leave out metadata.{key}"
    )
    raise ConfigurationError(
        f"metadata.{key}={value}: {key} is a local type; it stands at places in the text and "
        f"cannot be given as a value before it; {fix}"
    )
