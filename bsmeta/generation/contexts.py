"""Given metadata and a prompt to the tokens that a model continues.

The metadata becomes records, and these are rendered and encoded by what renders and encodes the
training data; so granularity, templates, buckets and separators hold here, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.encoding import DocumentEncoder
from bsmeta.metadata.processors import column_keys, type_of
from bsmeta.metadata.records import BadDocument, Document, Record
from bsmeta.metadata.rendering import Rendered, Renderer


@dataclass(frozen=True, slots=True)
class Context:
    """What a model is to continue.

    Attributes:
        prefix: The metadata as the model reads it; "" without any.
        ids: Its tokens and those of the prompt; never empty.
        joint: What the continuation begins with that belongs to no text.
    """

    prefix: str
    ids: list[int]
    joint: str


class Contexts:
    """Makes contexts as training makes the beginnings of documents.

    Args:
        config: How the model's training data was rendered and encoded.
        tokenizer: The model's tokenizer.
    """

    def __init__(self, config: DataConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self._config = config.metadata_config
        self._renderer = Renderer(config.metadata_config)
        self._encoder = DocumentEncoder(tokenizer, config)
        self._tokenizer = tokenizer

    def make(self, metadata: Mapping[str, Any], prompt: str) -> Context:
        """The context of a prompt behind metadata.

        Without both, the model starts behind an end-of-text token.

        Args:
            metadata: A value, or a list of them, by type; null leaves a type out; true announces
                a local type.
            prompt: The text so far; may be empty.

        Raises:
            ConfigurationError: A type or a value cannot be given.
        """
        head = self._rendered(metadata)
        rendered = Rendered(
            text=prompt,
            prefix=head.prefix,
            prefix_spans=head.prefix_spans,
            prefix_kinds=head.prefix_kinds,
            prefix_own=head.prefix_own,
            lead=head.lead,
            body=prompt,
        )
        (encoded,) = self._encoder.encode([rendered])
        body, joint = (encoded.ids[:-1].tolist(), "") if prompt else self._begun(head.lead)
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
        """The tokens of what joins prefix and text as a first word leaves them, and the rest.

        A blank, for example, is part of the token of the word behind it.
        """
        if not lead:
            return [], ""
        followed = f"{lead}A"
        (encoded,) = self._encoder.encode([Rendered(followed, body=followed)])
        inside = encoded.text_ends[:-1] <= len(lead)
        end = int(encoded.text_ends[:-1][inside].max(initial=0))
        return encoded.ids[:-1][inside].tolist(), lead[end:]


def _records(key: str, value: Any) -> list[Record]:
    if type_of(key).is_local:  # only to be announced: what it inserts is not used
        return [Record(value="", key=key, type="local", char_start_idx=0, char_end_idx=0)]
    values = value if isinstance(value, list) else [value]
    return [Record(value=one, key=key, type="global") for one in values]


def check_value(key: str, value: Any, config: MetadataConfig) -> None:
    """Refuses what cannot stand in the prefix of this model.

    Raises:
        ConfigurationError: The type is unknown or local, or the value is none.
    """
    known = [*config.metadata_list]
    if key not in known:
        near = column_keys().get(key) or next(
            iter(difflib.get_close_matches(key, known, n=1)), None
        )
        hint = f"; did you mean {near}?" if near in known else ""
        given = [one for one in known if not type_of(one).is_local]
        raise ConfigurationError(
            f"metadata.{key}: the model was not trained with this type; expected any of {given}"
            f"{hint}"
        )
    if type_of(key).is_local:
        _check_announcement(key, value, config)
    elif type_of(key).always_present:
        if value is not True:
            raise ConfigurationError(f"metadata.{key}={value}: expected true, they have no value")
    elif config.metadata_position == "append":
        raise ConfigurationError(
            f"metadata.{key}: the model was trained with metadata_position=append: it reads "
            "metadata after the text, so none can be given before it"
        )
    else:
        values = value if isinstance(value, list) else [value]
        if not values or not all(_is_value(one) for one in values):
            raise ConfigurationError(f"metadata.{key}={value!r}: expected a string or a number")


def _is_value(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _check_announcement(key: str, value: Any, config: MetadataConfig) -> None:
    announced = config.add_local_metadata_special_tokens_in_prefix
    if announced and (config.local_metadata_special_tokens or {}).get(key, key) == "":
        announced = False
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
