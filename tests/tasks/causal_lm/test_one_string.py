"""Documents as one string, in other programs, have the token ids of training."""

from __future__ import annotations

import gzip
import json
import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    pipeline,
)

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.data import SourceConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.data.text.tokenizer import load_tokenizer
from bsmeta.metadata.decoding import make_decoder
from bsmeta.metadata.rendering import Renderer
from bsmeta.tasks.causal_lm.one_string import (
    ChatTemplate,
    Comparison,
    build_chat_template,
    check_boundary,
    prepare_tokenizer,
)
from bsmeta.tasks.causal_lm.task import CausalLanguageModel

REPOSITORY = Path(__file__).resolve().parents[3]
METADATA = "data_config.metadata_config."
BOUNDARY = f"{METADATA}metadata_boundary_token='<|text|>'"
BY_TEXT = "data_config.row_budget=text"
LONG = f"{METADATA}max_seq_len=2048"  # no prefix of the sample is cut


def compose(*overrides: str) -> CausalLMConfig:
    return compose_command_line(CausalLMConfig, "demo", overrides)


@cache
def read_lines() -> list[bytes]:
    (path,) = (REPOSITORY / "examples" / "webdocs").glob("*_pq00-000.jsonl.gz")
    with gzip.open(path) as file:
        return list(file)


def build(config: CausalLMConfig, tokenizer: PreTrainedTokenizerBase) -> ChatTemplate:
    template = build_chat_template(config.data_config, tokenizer, {"": read_lines()})
    assert template is not None
    return template


@pytest.mark.parametrize(
    "overrides",
    [
        [BOUNDARY],
        [BOUNDARY, BY_TEXT],
        [BOUNDARY, f"{METADATA}metadata_position=both"],
        [BOUNDARY, f"{METADATA}metadata_position=append"],
        [BOUNDARY, f"{METADATA}bos_token=true", f"{METADATA}metadata_list=[url,title,timestamp]"],
        [BOUNDARY, f"{METADATA}metadata_list=[meta_tokens,length,url]"],
        [BOUNDARY, f"{METADATA}metadata_sep=' ; '", f"{METADATA}metadata_key_value_sep='='"],
        [BOUNDARY, BY_TEXT, f"{METADATA}metadata_prefix_start_seq='[['"],
        ["+recipes=urls_help"],
        ["+recipes=meco", BOUNDARY],
    ],
)
def test_the_template_gives_the_ids_of_training_on_all_pages(overrides: list[str]) -> None:
    config = compose(LONG, *overrides)
    data = config.data_config
    metadata = data.metadata_config
    tokenizer = load_tokenizer(config)
    exported = prepare_tokenizer(data, tokenizer, build(config, tokenizer))

    decoder = make_decoder(metadata, data.columns)
    renderer = Renderer(metadata)
    documents = [decoder.decode(line) for line in read_lines()]
    rendered = [renderer.render(document, metadata.metadata_list) for document in documents]
    encoded = DocumentEncoder(tokenizer, data).encode(rendered)
    assert len(encoded) == 59
    for document, trained in zip(documents, encoded, strict=True):
        content: dict[str, Any] = {"meta_tokens": True}
        content = {key: content[key] for key in content if key in metadata.metadata_list}
        for key in metadata.metadata_list:
            if document.has(key):
                content[key] = [record.value for record in document.records(key)]
        messages = [
            {"role": "metadata", "content": content},
            {"role": "text", "content": document.text},
        ]
        ids = exported.apply_chat_template(messages, return_dict=False)
        assert ids == [*trained.prefix_ids.tolist(), *trained.ids.tolist()]


@pytest.mark.parametrize(
    ("overrides", "documents", "num_other_ids"),
    [
        ([BOUNDARY], 64, 0),
        ([BOUNDARY, BY_TEXT], 64, 0),
        ([], 64, 0),
        ([BY_TEXT], 64, 64),
        (["+recipes=meco"], 60, 60),
    ],
)
def test_the_comparison_detects_merges_across_the_separators(
    overrides: list[str], documents: int, num_other_ids: int
) -> None:
    """59 pages, and an example of each type."""
    config = compose(LONG, *overrides)
    template = build(config, load_tokenizer(config))
    assert template.comparison.documents == documents
    assert template.comparison.num_other_ids == num_other_ids
    assert template.has_training_ids == (num_other_ids == 0)
    assert bool(template.comparison.difference) == (num_other_ids > 0)
    assert (template.comparison.num_cut, template.comparison.num_unlike_training) == (0, 0)


def test_documents_that_training_renders_differently_are_counted_separately() -> None:
    config = compose(BOUNDARY, f"{METADATA}metadata_list=[title]")
    tokenizer = load_tokenizer(config)
    lines = [
        json.dumps({"text": text, "metadata_title": [{"key": "title", "value": title}]}).encode()
        for text, title in [
            ("one", "T"),
            ("two <|endoftext|>", "T"),
            ("three", "<|endoftext|>"),
            ("four", "long " * 200),
        ]
    ]
    template = build_chat_template(config.data_config, tokenizer, {"": lines})
    assert template is not None
    assert template.comparison == Comparison(documents=2, num_spelled_out=2, num_cut=1)


def test_documents_that_a_template_cannot_render_are_counted() -> None:
    config = compose(BOUNDARY, LONG, f"{METADATA}url_granularity=hash")
    comparison = build(config, load_tokenizer(config)).comparison
    assert (comparison.documents, comparison.num_other_ids) == (64, 0)
    assert comparison.num_unlike_training == 60  # all pages, and the example of the type
    assert comparison.first_problem.endswith("url_granularity=hash takes code")


def metaspace_tokenizer(folder: Path) -> Path:
    """Saves a tokenizer that adds a space before the first word of a text, not after a token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace()
    bytes_of_fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        special_tokens=["<unk>", "<s>", *bytes_of_fallback], show_progress=False
    )
    tokenizer.train_from_iterator(["a set is a collection of things"] * 9, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<s>", bos_token="<s>")
    fast.save_pretrained(str(folder))
    return folder


def test_a_tokenizer_without_a_stable_boundary_is_refused_before_step_1(tmp_path: Path) -> None:
    folder = metaspace_tokenizer(tmp_path / "tokenizer")
    config = compose(BOUNDARY, f"tokenizer_name={folder}", "data_config.max_lost_text=1")
    with pytest.raises(ConfigurationError) as caught:
        CausalLanguageModel(config).survey()
    message = str(caught.value)
    assert 'metadata_boundary_token="<|text|>": 29 of 29 documents have other ids' in message
    assert "such as byte-level BPE" in message


def test_a_boundary_token_that_occurs_in_texts_is_refused() -> None:
    config = compose(f"{METADATA}metadata_boundary_token='()'")
    tokenizer = load_tokenizer(config)
    with pytest.raises(ConfigurationError, match="Expected a token that no text contains"):
        check_boundary(config.data_config, tokenizer, {"": read_lines()})


@pytest.mark.parametrize("values", ["constant", "random", "shuffled"])
def test_a_control_may_use_the_same_boundary_token(values: str) -> None:
    config = compose(BOUNDARY, f"{METADATA}metadata_values={values}")
    tokenizer = load_tokenizer(config)
    check_boundary(config.data_config, tokenizer, {"": read_lines()})
    template = build_chat_template(config.data_config, tokenizer, {"": read_lines()})
    assert (template is not None) == (values == "shuffled")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model with a boundary token."""
    folder = tmp_path_factory.mktemp("run")
    config = compose(BOUNDARY, f"out_dir={folder}")
    task = CausalLanguageModel(config)
    torch.manual_seed(0)
    model = task.build_model()
    task.use_survey(task.survey())
    task.export(model, model.state_dict(), folder / "model")
    return folder / "model"


MESSAGES = [
    {"role": "metadata", "content": {"title": "Sets", "timestamp": "2019-04-22"}},
    {"role": "text", "content": "A set is"},
]
PREFIX = "Title: Sets | Year: 2019 | Month: April<|text|>A set is"


def test_an_exported_model_has_template_maximal_length_and_embeddings(exported: Path) -> None:
    settings = json.loads((exported / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 256
    assert settings["chat_template"].startswith("{%- set trained = {")
    assert json.loads((exported / "config.json").read_text())["vocab_size"] == 4097

    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert tokenizer.convert_tokens_to_ids("<|text|>") == 4096
    assert (
        tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
        == PREFIX
    )


def test_the_length_of_rows_of_text_includes_the_room_for_metadata() -> None:
    config = compose(BOUNDARY, BY_TEXT, "data_config.row_metadata_budget=100")
    tokenizer = load_tokenizer(config)
    assert prepare_tokenizer(config.data_config, tokenizer, None).model_max_length == 356
    assert tokenizer.model_max_length > 10**6  # that of training is unchanged


def test_a_pipeline_continues_the_text(exported: Path) -> None:
    generate = pipeline("text-generation", model=str(exported))
    (result,) = generate(MESSAGES, max_new_tokens=5, do_sample=False)
    continuation = result["generated_text"][-1]["content"]

    tokenizer = generate.tokenizer
    ids = torch.tensor([tokenizer(PREFIX, add_special_tokens=False).input_ids])
    expected = generate.model.generate(ids, max_new_tokens=5, do_sample=False)
    assert continuation == tokenizer.decode(expected[0, ids.shape[1] :])


def test_the_evaluation_harness_builds_the_same_prefix(exported: Path) -> None:
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    model = huggingface.HFLM(pretrained=str(exported), device="cpu")
    prompt = model.apply_chat_template(MESSAGES)
    assert prompt == PREFIX
    tokenizer = AutoTokenizer.from_pretrained(exported)
    expected = tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_dict=False
    )
    assert model.tok_encode(prompt) == expected


def test_differing_ids_are_reported_and_the_model_is_still_exported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = compose(BY_TEXT, f"out_dir={tmp_path}")
    task = CausalLanguageModel(config)
    with caplog.at_level(logging.WARNING):  # before step 1
        task.use_survey(task.survey())
    (warning,) = [record.message for record in caplog.records if "chat" in record.message]
    assert "as one string, 20 of 20 documents have other ids than in training ([" in warning

    model = task.build_model()
    task.export(model, model.state_dict(), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "**As one string, a document has other token ids than in training**" in card
    assert "# tokenized separately, as in training" in card
    assert "apply_chat_template(" not in card


def test_a_model_of_text_alone_keeps_the_template_of_its_tokenizer(tmp_path: Path) -> None:
    config = compose(f"{METADATA}metadata_list=[]")
    tokenizer = load_tokenizer(config)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    assert build_chat_template(config.data_config, tokenizer, {}) is None
    prepare_tokenizer(config.data_config, tokenizer, None).save_pretrained(str(tmp_path))
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == tokenizer.chat_template


def test_sources_of_a_mixture_have_separate_columns() -> None:
    config = compose(BOUNDARY, f"{METADATA}metadata_list=[title]", "data_config.train_file=null")
    web = SourceConfig(name="web", train_file="a", columns={"text": "body", "title": "head"})
    books = SourceConfig(name="books", train_file="b", columns={"text": "text", "title": "name"})
    data = replace(config.data_config, sources=[web, books])
    lines = {"web": [b'{"body": "A", "head": "T"}'], "books": [b'{"text": "B", "name": "U"}']}
    template = build_chat_template(data, load_tokenizer(config), lines)
    assert template is not None
    assert template.comparison == Comparison(documents=3)
