"""Only what rendering inserts may be a special token; the same string in a page is text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.data.text.tokenizer import load_tokenizer
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.tasks.causal_lm.generation.contexts import Contexts
from tests.data.helpers import small_tokenizer

FORGED = "a <eos> b <HTML><s> c</HTML> <|end|><|meta_0|>"
SETTINGS: dict[str, Any] = {
    "metadata_list": ["meta_tokens", "title", "url", "html"],
    "num_meta_tokens": 2,
    "metadata_prefix_start_seq": "<|begin|>",
    "metadata_prefix_sep": "<|end|>",
    "metadata_prefix_special_token_state": True,
    "local_metadata_special_token_start": {"html": "<HTML>"},
    "local_metadata_special_token_end": {"html": "</HTML>"},
    "local_metadata_special_token_state": True,
    "metadata_templates": {"title": "<s>{value}<s>"},
    "max_seq_len": 1024,
}


def global_record(key: str, value: str) -> list[dict[str, str]]:
    return [{"key": key, "type": "global", "value": value}]


def line(**changes: Any) -> bytes:
    """Returns a line whose text and metadata contain special tokens."""
    tag = {
        "key": "html",
        "type": "local",
        "value": "b",
        "char_start_idx": 0,
        "char_end_idx": 1,
        "html_attrs": {"attrs": ["class"], "values": ["<|end|></HTML>"]},
    }
    page = {
        "text": FORGED,
        "metadata_title": global_record("title", "<|meta_1|>T<s><eos>"),
        "metadata_url": global_record("url", "https://a.org/%3CHTML%3E%3Ceos%3E"),
        "metadata_html": [tag],
    }
    return json.dumps(page | changes).encode()


def special_tokenizer(config: MetadataConfig) -> PreTrainedTokenizerFast:
    """With a special token `<s>` of its own, which the template of the title names."""
    tokenizer = small_tokenizer()
    names = ["<s>", *Renderer(config).list_special_tokens()]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    return tokenizer


def encoded(
    page: bytes, tokenizer: PreTrainedTokenizerFast, backend: str = "hf", **changes: Any
) -> EncodedDocument:
    config = MetadataConfig(**(SETTINGS | changes))
    document = DocumentDecoder(config).decode(page)
    rendered = Renderer(config).render(document, config.metadata_list)
    encoder = DocumentEncoder(tokenizer, DataConfig(metadata_config=config), backend=backend)
    (one,) = encoder.encode([rendered])
    whole = tokenizer.decode([*one.prefix_ids, *one.ids[:-1]], clean_up_tokenization_spaces=False)
    assert whole == rendered.prefix + rendered.lead + rendered.body + rendered.suffix
    return one


def decode_special_tokens(one: EncodedDocument, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Returns the special tokens of a document, in order."""
    ids = [*one.prefix_ids.tolist(), *one.ids.tolist()]
    return [tokenizer.decode([i]) for i in ids if i in tokenizer.all_special_ids]


OWN = ["<|begin|>", "<|meta_0|>", "<|meta_1|>", "<s>", "<s>", "<|end|>"]
TAGS = ["<HTML>", "</HTML>", "<HTML>", "</HTML>", "<eos>"]


@pytest.mark.parametrize("backend", ["hf", "tiktoken", "gigatoken"])
def test_pages_cannot_forge_special_tokens(backend: str) -> None:
    if backend != "hf":
        pytest.importorskip(backend)
    tokenizer = special_tokenizer(MetadataConfig(**SETTINGS))
    one = encoded(line(), tokenizer, backend)
    assert decode_special_tokens(one, tokenizer) == OWN + TAGS
    text = one.token_types == 0
    spans = zip(one.text_starts[text], one.text_ends[text], strict=True)
    assert "".join(FORGED[start:end] for start, end in spans) == FORGED


@pytest.mark.parametrize("backend", ["hf", "tiktoken", "gigatoken"])
def test_written_special_tokens_count_if_the_configuration_allows_them(backend: str) -> None:
    if backend != "hf":
        pytest.importorskip(backend)
    tokenizer = special_tokenizer(MetadataConfig(**SETTINGS))
    one = encoded(line(), tokenizer, backend, special_tokens_in_text=True)
    special_tokens = decode_special_tokens(one, tokenizer)
    assert len(special_tokens) > len(OWN + TAGS)
    assert [special_tokens.count(name) for name in ("<eos>", "<s>", "<|end|>")] == [4, 4, 3]


def test_appended_records_cannot_forge_special_tokens() -> None:
    settings = {"metadata_position": "append", "metadata_list": ["title", "url"]}
    tokenizer = special_tokenizer(MetadataConfig(**SETTINGS))
    one = encoded(line(), tokenizer, **settings)
    assert decode_special_tokens(one, tokenizer) == ["<s>", "<s>", "<eos>"]


def test_a_page_without_metadata_has_a_single_eos() -> None:
    tokenizer = special_tokenizer(MetadataConfig(**SETTINGS))
    one = encoded(line(), tokenizer, metadata_list=["length"], metadata_templates={})
    assert decode_special_tokens(one, tokenizer) == ["<eos>"]
    assert one.ids.tolist().index(tokenizer.eos_token_id) == len(one.ids) - 1


@pytest.mark.parametrize("row_budget", ["sequence", "text"])
def test_pages_cannot_forge_the_boundary(row_budget: str) -> None:
    config = MetadataConfig(
        metadata_list=["title"], metadata_boundary_token="<|text|>", metadata_position="both"
    )
    page = {"text": "a<|text|>b", "metadata_title": global_record("title", "T<|text|>")}
    document = DocumentDecoder(config).decode(json.dumps(page).encode())
    rendered = Renderer(config).render(document, config.metadata_list)
    tokenizer = special_tokenizer(config)
    data = DataConfig(metadata_config=config, row_budget=row_budget)
    (one,) = DocumentEncoder(tokenizer, data).encode([rendered])
    assert decode_special_tokens(one, tokenizer) == ["<|text|>", "<|text|>", "<eos>"]
    assert one.prefix_ids[-1] == one.separator.item() == tokenizer.vocab["<|text|>"]


def test_a_prefix_that_is_cut_keeps_its_boundary() -> None:
    config = MetadataConfig(
        metadata_list=["title"], metadata_boundary_token="<|text|>", prefix_max_tokens=4
    )
    page = {"text": "a", "metadata_title": global_record("title", "the quick brown fox jumps")}
    document = DocumentDecoder(config).decode(json.dumps(page).encode())
    rendered = Renderer(config).render(document, config.metadata_list)
    tokenizer = special_tokenizer(config)
    (one,) = DocumentEncoder(tokenizer, DataConfig(metadata_config=config)).encode([rendered])
    assert one.prefix_is_cut
    assert len(one.prefix_ids) == 4
    assert tokenizer.decode([one.prefix_ids[-1]]) == "<|text|>"


def test_a_text_has_the_same_tokens_for_any_set_of_special_tokens() -> None:
    """Encoded separately, with and without the special tokens in the tokenizer."""
    config = MetadataConfig(**SETTINGS, treat_local_metadata_as_regular_text=False)
    rendered = Renderer(config).render(DocumentDecoder(config).decode(line()), config.metadata_list)
    data = DataConfig(metadata_config=config, row_budget="text")
    tokenizer = special_tokenizer(config)
    (one,) = DocumentEncoder(tokenizer, data).encode([rendered])
    assert decode_special_tokens(one, tokenizer) == OWN + TAGS
    plain = DataConfig(metadata_config=MetadataConfig(metadata_list=[]), row_budget="text")
    (alone,) = DocumentEncoder(small_tokenizer(), plain).encode([Rendered(FORGED, body=FORGED)])
    assert one.ids[one.is_text].tolist() == alone.ids.tolist()


def test_a_prompt_cannot_forge_special_tokens() -> None:
    config = MetadataConfig(**SETTINGS)
    tokenizer = special_tokenizer(config)
    context = Contexts(DataConfig(metadata_config=config), tokenizer).make_context(
        {"title": "<eos>", "meta_tokens": True}, "a<eos>b"
    )
    special = [tokenizer.decode([i]) for i in context.ids if i in tokenizer.all_special_ids]
    assert special == ["<|begin|>", "<|meta_0|>", "<|meta_1|>", "<s>", "<s>", "<|end|>"]


def test_a_tokenizer_that_is_not_byte_level_keeps_offsets() -> None:
    """Tokens keep their character offsets in a text encoded part by part."""
    characters = ["<unk>", "<eos>", *map(chr, range(32, 127))]
    vocabulary = {character: number for number, character in enumerate(characters)}
    words = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    config = MetadataConfig(**SETTINGS)
    names = ["<s>", *Renderer(config).list_special_tokens()]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    one = encoded(line(), tokenizer)
    assert decode_special_tokens(one, tokenizer) == OWN + TAGS
    text = one.token_types == 0
    spans = zip(one.text_starts[text], one.text_ends[text], strict=True)
    assert "".join(FORGED[start:end] for start, end in spans) == FORGED


@pytest.mark.parametrize("row_budget", ["sequence", "text"])
def test_special_tokens_of_the_base_tokenizer_stay_special_when_exported(
    row_budget: str, tmp_path: Path
) -> None:
    base = small_tokenizer()
    base.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|model|>"]})
    base.save_pretrained(tmp_path / "base")
    data = DataConfig(metadata_config=MetadataConfig(**SETTINGS), row_budget=row_budget)
    config = CausalLMConfig(tokenizer_name=str(tmp_path / "base"), data_config=data)
    load_tokenizer(config).save_pretrained(tmp_path / "exported")
    exported = AutoTokenizer.from_pretrained(tmp_path / "exported")
    special = exported.all_special_tokens
    assert special[:3] == ["<eos>", "<|user|>", "<|model|>"]
    assert {"<|begin|>", "<|end|>", "<HTML>", "</HTML>", "<|meta_0|>"} <= {*special}
    ids = exported("<|user|>", add_special_tokens=False).input_ids
    assert exported.decode(ids, skip_special_tokens=True) == ""
