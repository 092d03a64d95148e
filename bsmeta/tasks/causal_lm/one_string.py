"""Builds a model's chat template, and checks that it gives other programs the ids of training.

Training encodes prefix, text and suffix separately, while other programs encode a document as one
string. The ids are equal only if the tokenizer merges nothing across the separators, which a
special token ensures for most tokenizers (`metadata_boundary_token`). Before step 1, documents from
the survey of a run are compared. A boundary token that does not ensure equal ids is refused;
otherwise, the model card reports the result.
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
"""Maximum number of characters of a text to compare; tokens merge only at its ends."""

_UNCUT_TOKENS = 2**30
"""A length of sequences at which no metadata is cut."""

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
    """Counts of a comparison of documents as one string with training.

    Attributes:
        documents: Number of documents that were compared.
        num_cut: Number of documents left out because training cuts their metadata.
        num_spelled_out: Number of documents left out because they spell out a special token.
        num_other_ids: Number of documents with other ids than in training.
        difference: The first difference in ids; "" if there is none.
        num_unlike_training: Number of documents that the template does not render as in training.
        first_problem: Why the first of them differs; "" if there is none.
    """

    documents: int = 0
    num_cut: int = 0
    num_spelled_out: int = 0
    num_other_ids: int = 0
    difference: str = ""
    num_unlike_training: int = 0
    first_problem: str = ""


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a model, and how its results compare with training."""

    text: str
    comparison: Comparison = field(default_factory=Comparison)

    @property
    def has_training_ids(self) -> bool:
        """Whether documents were compared, and all have the ids of training."""
        return self.comparison.documents > 0 and not self.comparison.num_other_ids


def prepare_tokenizer(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate | None
) -> PreTrainedTokenizerBase:
    """Returns a copy of a run's tokenizer for export, with the template and the row length."""
    exported_tokenizer = deepcopy(tokenizer)
    exported_tokenizer.model_max_length = compute_row_length(config)
    if template is not None:
        exported_tokenizer.chat_template = template.text
    return exported_tokenizer


def build_chat_template(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    lines: Mapping[str, Sequence[bytes]],
) -> ChatTemplate | None:
    """Builds the template of a run and compares its results with training.

    Args:
        tokenizer: The tokenizer of the run, with the special tokens of the metadata.
        lines: Lines of JSON to compare, by the name of their source. The example of each type is
            compared as well.

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
    """Refuses a boundary token with which documents as one string have other ids than in training.

    Raises:
        ConfigurationError: If the ids of a document differ; the message shows the first difference.
    """
    token = config.metadata_config.metadata_boundary_token
    if not token:
        return

    # Without the content-free tokens of a control, and without cutting any metadata.
    uncut_metadata = replace(
        config.metadata_config,
        metadata_values=OWN,
        max_seq_len=_UNCUT_TOKENS,
        prefix_max_tokens=None,
    )
    comparison = compare_with_training(
        replace(config, metadata_config=uncut_metadata, row_metadata_budget=None), tokenizer, lines
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
    """Compares documents as one string with training: their ids, and the template's results.

    Args:
        lines: Lines of JSON to compare, by the name of their source.
        template: The chat template; None: only ids are compared.
    """
    metadata = config.metadata_config
    samples = list(_make_samples(config, lines))
    encoder = DocumentEncoder(tokenizer, config)
    encoded_documents = encoder.encode([sample.rendered for sample in samples])

    special_tokens = {
        token.content for token in tokenizer.added_tokens_decoder.values() if token.special
    }
    special_tokens.discard(metadata.metadata_boundary_token)
    max_suffix = metadata.prefix_max_tokens or metadata.max_seq_len // 2
    bos = ""
    if metadata.bos_token and tokenizer.bos_token_id is not None:
        bos = str(tokenizer.bos_token)

    comparison = Comparison()
    for sample, document in zip(samples, encoded_documents, strict=True):
        rendered = sample.rendered
        if document.prefix_is_cut or document.suffix_length >= max_suffix:
            comparison.num_cut += 1
        elif not metadata.special_tokens_in_text and _spells_out(sample, special_tokens):
            comparison.num_spelled_out += 1
        else:
            string = f"{bos}{rendered.full_text}{tokenizer.eos_token}"
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
    """Compares the ids of a string with the ids in training, and counts the result."""
    comparison.documents += 1
    expected = [*document.prefix_ids.tolist(), *document.ids.tolist()]
    ids = tokenizer(string, add_special_tokens=False, verbose=False)["input_ids"]
    if ids == expected:
        return

    comparison.num_other_ids += 1
    if not comparison.difference:
        start = _find_first_difference(ids, expected)
        shown_part = slice(start, start + _TOKENS_SHOWN)
        comparison.difference = (
            f"{tokenizer.convert_ids_to_tokens(ids[shown_part])} instead of "
            f"{tokenizer.convert_ids_to_tokens(expected[shown_part])}"
        )


def _find_first_difference(ids: Sequence[int], expected: Sequence[int]) -> int:
    """Returns the first index at which two sequences differ; 0 if one begins with the other."""
    for index, (left, right) in enumerate(zip(ids, expected, strict=False)):
        if left != right:
            return index
    return 0


def _compare_strings(
    sample: Sample,
    string: str,
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    comparison: Comparison,
) -> None:
    """Compares the template's result with the string that training encodes, and counts it."""
    messages = [
        {"role": "metadata", "content": sample.metadata},
        {"role": "text", "content": sample.rendered.text},
    ]
    try:
        result = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        problem = str(error)
    else:
        if result == string:
            return
        problem = f"metadata {', '.join(sample.metadata)}: rendered differently"

    comparison.num_unlike_training += 1
    comparison.first_problem = comparison.first_problem or problem


def _make_samples(config: DataConfig, lines: Mapping[str, Sequence[bytes]]) -> Iterator[Sample]:
    """Yields the documents of the lines, then for each type a document with its example."""
    metadata = config.metadata_config
    renderer = Renderer(metadata)
    for name, data in build_source_configs(config).items():
        decoder = make_decoder(metadata, data.columns, name, data.content)
        for line in lines.get(name, ()):
            with contextlib.suppress(BadDocument):
                yield _make_sample(decoder.decode(line), renderer, metadata)

    for key in metadata.metadata_list:
        example = Document(EXAMPLE_TEXT, None, {key: [find_type(key).make_example_record(key)]})
        with contextlib.suppress(BadDocument):  # an example may be invalid under the settings
            yield _make_sample(example, renderer, metadata)


def _make_sample(document: Document, renderer: Renderer, config: MetadataConfig) -> Sample:
    """Renders a document with all of its metadata, but without insertions in its text.

    Raises:
        BadDocument: If its records are invalid.
    """
    rendered = renderer.render(document, config.metadata_list)
    announced_types = set(rendered.prefix_token_types.tolist())
    content: dict[str, Any] = {}
    for token_type, key in enumerate(config.metadata_list, start=1):
        if find_type(key).is_local or find_type(key).always_present:
            if token_type in announced_types:
                content[key] = True
        elif key in rendered.types:
            records = document.records(key)
            content[key] = [record.value for record in records if not record.is_local()]

    text = rendered.text[:MAX_TEXT_CHARS]
    text_rendering = replace(
        rendered,
        text=text,
        body=text,
        spans=NO_SPANS,
        span_token_types=NO_TOKEN_TYPES,
        configured=NO_SPANS,
    )
    return Sample(content, text_rendering)


def _spells_out(sample: Sample, special_tokens: set[str]) -> bool:
    """Whether a text or a value contains a special token, which training encodes as text."""
    strings = [sample.rendered.text]
    strings += [str(value) for value in sample.metadata.values()]
    return any(token in string for token in special_tokens for string in strings)
