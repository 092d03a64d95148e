"""The chat template of a model, and whether other programs get the token ids of training by it.

Training encodes prefix, text and suffix separately, while other programs encode a document as one
string. The ids are equal only if the tokenizer merges nothing across the separators, which a
special token ensures for most tokenizers (`metadata_boundary_token`). The comparison runs before
step 1, on the first documents that the survey of a run has read anyway. It refuses a boundary token
that does not keep its promise; otherwise, the model card reports the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jinja2
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig, build_source_configs, compute_row_length
from bsmeta.config.metadata import MetadataConfig, choose_separators
from bsmeta.core.errors import ConfigurationError, format_value
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.metadata.chat_template import render_chat_template, takes_chat_template
from bsmeta.metadata.decoding import make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import EXAMPLE_TEXT, OWN
from bsmeta.metadata.processors import find_type
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import NO_SPANS, NO_TOKEN_TYPES, Rendered, Renderer
from bsmeta.tasks.causal_lm.generation.contexts import Contexts

MAX_TEXT_CHARS = 2_000
"""Largest number of characters of a text to compare: what merges is at its ends."""

_UNCUT_TOKENS = 2**30
"""Length of a sequence into which the metadata of any document fits."""

_TOKENS_SHOWN = 3


class Sample(NamedTuple):
    """A document to compare.

    Attributes:
        metadata: The content of its metadata message.
        rendered: The document as in training, but without insertions in its text.
    """

    metadata: dict[str, Any]
    rendered: Rendered


@dataclass
class Comparison:
    """Documents as one string, compared with training.

    Attributes:
        documents: The documents that were compared.
        num_cut: Documents that were left out because training cuts their metadata.
        num_written: Documents that were left out because they spell out a special token.
        num_other_ids: Documents with other ids than in training.
        difference: The first difference; "" if there is none.
        num_refused: Documents that the template does not render as in training.
        refusal: The first reason; "" if there is none.
    """

    documents: int = 0
    num_cut: int = 0
    num_written: int = 0
    num_other_ids: int = 0
    difference: str = ""
    num_refused: int = 0
    refusal: str = ""


@dataclass(frozen=True)
class ChatTemplate:
    """The template of a model, with the comparison of its results."""

    text: str
    comparison: Comparison = field(default_factory=Comparison)

    @property
    def has_training_ids(self) -> bool:
        """Whether all compared documents, and some at all, have the ids of training."""
        return self.comparison.documents > 0 and not self.comparison.num_other_ids


def prepare_tokenizer(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate | None
) -> PreTrainedTokenizerBase:
    """Returns a copy of the tokenizer of a run for export.

    It has the template, and the length of the rows that were trained on.
    """
    exported = deepcopy(tokenizer)
    exported.model_max_length = compute_row_length(config)
    if template is not None:
        exported.chat_template = template.text
    return exported


def build_chat_template(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    lines: Mapping[str, Sequence[bytes]],
) -> ChatTemplate | None:
    """Builds the template of a run and compares its results with training.

    Args:
        tokenizer: With the special tokens of the metadata.
        lines: Some lines of each source, by its name; a document with the example of each type is
            compared, too.

    Returns:
        None if the model reads no metadata, or metadata without content.
    """
    metadata = config.metadata_config
    if not takes_chat_template(metadata):
        return None

    lead = choose_separators(metadata).lead
    joint = Contexts(config, tokenizer).find_joint(lead)
    text = render_chat_template(
        metadata,
        has_bos=metadata.bos_token and tokenizer.bos_token_id is not None,
        bare_lead=lead.removesuffix(joint),
    )
    return ChatTemplate(text, compare_with_training(config, tokenizer, lines, text))


def check_boundary(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    lines: Mapping[str, Sequence[bytes]],
) -> None:
    """Checks that the boundary token, if there is one, keeps its promise of equal ids.

    Raises:
        ConfigurationError: If documents as one string have other ids than in training.
    """
    token = config.metadata_config.metadata_boundary_token
    if not token:
        return

    # Without the content-free tokens of a control, and without cutting any metadata.
    whole = replace(
        config.metadata_config,
        metadata_values=OWN,
        max_seq_len=_UNCUT_TOKENS,
        prefix_max_tokens=None,
    )
    comparison = compare_with_training(
        replace(config, metadata_config=whole, row_metadata_budget=None), tokenizer, lines
    )
    if comparison.num_other_ids:
        key = "data_config.metadata_config.metadata_boundary_token"
        raise ConfigurationError(
            f"{key}={format_value(token)}: {comparison.num_other_ids} of {comparison.documents} "
            f"documents have other ids as one string than in training ({comparison.difference}). "
            "Expected a token that no text contains, and a tokenizer that encodes a text after a "
            f"special token like a text alone, such as byte-level BPE; choose others, or {key}=''"
        )


def compare_with_training(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    lines: Mapping[str, Sequence[bytes]],
    template: str | None = None,
) -> Comparison:
    """Compares documents as one string with training: their ids, and their template's string.

    Args:
        template: None: only ids are compared.
    """
    metadata = config.metadata_config
    samples = [*_make_samples(config, lines)]
    encoder = DocumentEncoder(tokenizer, config)
    encoded = encoder.encode([sample.rendered for sample in samples])

    special = {
        added.content for added in tokenizer.added_tokens_decoder.values() if added.special
    } - {metadata.metadata_boundary_token}
    max_suffix = metadata.prefix_max_tokens or metadata.max_seq_len // 2
    bos = ""
    if metadata.bos_token and tokenizer.bos_token_id is not None:
        bos = str(tokenizer.bos_token)

    comparison = Comparison()
    for sample, document in zip(samples, encoded, strict=True):
        rendered = sample.rendered
        if document.prefix_is_cut or document.suffix_length >= max_suffix:
            comparison.num_cut += 1
        elif not metadata.special_tokens_in_text and _spells_out(sample, special):
            comparison.num_written += 1
        else:
            string = f"{bos}{rendered.whole}{tokenizer.eos_token}"
            _compare_ids(document, string, tokenizer, comparison)
            if template is not None:
                _compare_strings(sample, string, tokenizer, template, comparison)
    return comparison


def _compare_ids(
    document: EncodedDocument,
    string: str,
    tokenizer: PreTrainedTokenizerBase,
    comparison: Comparison,
) -> None:
    """Compares the ids of a string with the ids in training."""
    comparison.documents += 1
    expected = [*document.prefix_ids.tolist(), *document.ids.tolist()]
    ids = tokenizer(string, add_special_tokens=False, verbose=False)["input_ids"]
    if ids == expected:
        return

    comparison.num_other_ids += 1
    if not comparison.difference:
        pairs = enumerate(zip(ids, expected, strict=False))
        start = next((number for number, (left, right) in pairs if left != right), 0)
        shown = slice(start, start + _TOKENS_SHOWN)
        comparison.difference = (
            f"{tokenizer.convert_ids_to_tokens(ids[shown])} instead of "
            f"{tokenizer.convert_ids_to_tokens(expected[shown])}"
        )


def _compare_strings(
    sample: Sample,
    string: str,
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    comparison: Comparison,
) -> None:
    """Compares the result of the template with the string of training."""
    messages = [
        {"role": "metadata", "content": sample.metadata},
        {"role": "text", "content": sample.rendered.text},
    ]
    try:
        result = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        refusal = str(error)
    else:
        if result == string:
            return
        refusal = f"metadata {', '.join(sample.metadata)}: rendered differently"

    comparison.num_refused += 1
    comparison.refusal = comparison.refusal or refusal


def _make_samples(config: DataConfig, lines: Mapping[str, Sequence[bytes]]) -> Iterator[Sample]:
    """Yields the documents of some lines, and a document with the example of each type."""
    metadata = config.metadata_config
    renderer = Renderer(metadata)
    for name, data in build_source_configs(config).items():
        decoder = make_decoder(metadata, data.columns, name, data.content)
        for line in lines.get(name, ()):
            with contextlib.suppress(BadDocument):
                yield _make_sample(decoder.decode(line), renderer, metadata)

    records = {key: [find_type(key).example_record(key)] for key in metadata.metadata_list}
    for key in metadata.metadata_list:
        with contextlib.suppress(BadDocument):  # the example of a type need not suit its settings
            yield _make_sample(
                Document(EXAMPLE_TEXT, None, {key: records[key]}), renderer, metadata
            )


def _make_sample(document: Document, renderer: Renderer, config: MetadataConfig) -> Sample:
    """Renders a document with all of its metadata, but without insertions in its text.

    Raises:
        BadDocument: If its records are invalid.
    """
    rendered = renderer.render(document, config.metadata_list)
    announced = set(rendered.prefix_token_types.tolist())
    content: dict[str, Any] = {}
    for token_type, key in enumerate(config.metadata_list, start=1):
        if find_type(key).is_local or find_type(key).always_present:
            if token_type in announced:
                content[key] = True
        elif key in rendered.types:
            records = document.records(key)
            content[key] = [record.value for record in records if not record.is_local()]

    text = rendered.text[:MAX_TEXT_CHARS]
    plain = replace(
        rendered,
        text=text,
        body=text,
        spans=NO_SPANS,
        span_token_types=NO_TOKEN_TYPES,
        own=NO_SPANS,
    )
    return Sample(content, plain)


def _spells_out(sample: Sample, special: set[str]) -> bool:
    """Whether a text or a value contains a special token, which training encodes as text."""
    rendered = sample.rendered
    values = [str(value) for value in sample.metadata.values()]
    return any(token in string for token in special for string in (rendered.text, *values))
