"""The language model: what a token sees, what its loss is made of, and what comes out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, MixtralConfig

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.text.tokenizer import load_tokenizer
from bsmeta.models import layers
from bsmeta.tasks.causal_lm.checkpoints import read_run_config
from bsmeta.tasks.causal_lm.task import CausalLanguageModel, are_rows_whole
from bsmeta.tasks.checkpoints import locate_model
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.task import Metric
from tests.conftest import REPOSITORY
from tests.tasks.training import train_with_deepspeed


@pytest.fixture(scope="module")
def config() -> CausalLMConfig:
    return compose_command_line(
        CausalLMConfig,
        "demo",
        [
            "data_config.metadata_config.metadata_list=[url,title]",
            "data_config.metadata_config.max_seq_len=64",
        ],
    )


@pytest.fixture(scope="module")
def task(config: CausalLMConfig) -> CausalLanguageModel:
    return CausalLanguageModel(config)


@pytest.fixture(scope="module")
def model(task: CausalLanguageModel) -> nn.Module:
    torch.manual_seed(0)
    return task.build_model().eval()


def test_packed_documents_do_not_attend_to_each_other(model: nn.Module) -> None:
    first, second = torch.randint(1, 4000, (2, 9)), torch.randint(1, 4000, (2, 7))
    positions = torch.cat([torch.arange(9), torch.arange(7)]).expand(2, -1)
    with torch.no_grad():
        packed = model(
            input_ids=torch.cat([first, second], 1), position_ids=positions, use_cache=False
        ).logits
        alone = [model(input_ids=ids, use_cache=False).logits for ids in (first, second)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-5)


def test_documents_attend_to_each_other_with_cross_document_attention(
    config: CausalLMConfig, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses of a batch equal those of one document as long as the sequence."""
    data = replace(config.data_config, cross_document_attention=True)
    joined = CausalLanguageModel(replace(config, data_config=data))
    joined.build_model()
    batch = next(iter(joined.train_stream(0, 1, None))).micro_batches[0].tensors
    assert batch["position_ids"].tolist() == [list(range(64))] * 2
    looked: list[bool] = []
    monkeypatch.setattr(layers, "check_isolation", lambda *_: looked.append(True))
    with torch.no_grad():
        loss = joined.loss(model, batch)
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1]
    each = functional.cross_entropy(
        logits.flatten(0, 1), batch["input_ids"][:, 1:].flatten(), reduction="none"
    ).view(2, 63)
    torch.testing.assert_close(loss.sum, each[batch["loss_mask"][:, 1:]].sum())
    assert not looked  # whether documents are kept apart


def test_the_loss_is_summed_over_targets_and_over_documents_by_type(
    task: CausalLanguageModel, model: nn.Module
) -> None:
    ids = torch.randint(1, 4000, (2, 6))
    mask = torch.tensor([[0, 1, 1, 0, 1, 1], [0, 0, 0, 1, 1, 0]]).bool()
    types = torch.tensor([[3, 3, 3, 2, 2, 2], [0, 0, 0, 0, 0, 0]], dtype=torch.int32)
    batch = {
        "input_ids": ids,
        "position_ids": torch.arange(6).expand(2, -1),
        "loss_mask": mask,
        "document_types": types,
    }
    with torch.no_grad():
        loss = task.loss(model, batch)
        logits = model(input_ids=ids, use_cache=False).logits
    each = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).view(2, 5)
    torch.testing.assert_close(loss.sum, each[mask[:, 1:]].sum())
    parts = {name: (float(part), int(weight)) for name, (part, weight) in loss.parts.items()}
    assert {name: weight for name, (_, weight) in parts.items()} == {
        "without_metadata": 2,
        "with_url": 2,
        "with_title": 4,
    }
    assert parts["with_url"][0] == pytest.approx(float(each[0, :2].sum()), rel=1e-5)
    assert parts["without_metadata"][0] == pytest.approx(float(each[1, 2:4].sum()), rel=1e-5)


def test_a_batch_without_targets_has_no_loss_and_no_nan(
    task: CausalLanguageModel, model: nn.Module
) -> None:
    batch = {
        "input_ids": torch.ones(1, 4, dtype=torch.int64),
        "position_ids": torch.arange(4)[None],
        "loss_mask": torch.zeros(1, 4, dtype=torch.bool),
        "document_types": torch.zeros(1, 4, dtype=torch.int32),
    }
    loss = task.loss(model, batch)
    loss.sum.backward()
    assert loss.sum.item() == 0.0
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(math.isfinite(float(gradient.sum())) for gradient in gradients)


def test_reading_data_does_not_change_the_generator_of_dropout(
    task: CausalLanguageModel, model: nn.Module
) -> None:
    before = torch.get_rng_state()
    batch = next(iter(task.train_stream(0, 1, None))).micro_batches[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert batch.tokens + batch.padding == batch.tensors["input_ids"].numel()


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3", "varlen"])
def test_flash_attention_receives_the_borders_of_documents(
    name: str, config: CausalLMConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = CausalLanguageModel(config)
    monkeypatch.setattr(task, "attention", name)
    stream = task.train_stream(0, 1, None)
    step = next(iter(stream))
    batch = step.micro_batches[0]
    borders = batch.tensors["document_borders"].tolist()
    starts = batch.tensors["position_ids"].flatten() == 0
    assert borders == [*starts.nonzero().flatten().tolist(), 128]
    assert stream.merge([step.state]) == step.state
    assert "shards" in stream.fingerprint


def test_compiled_layers_receive_a_constant_number_of_borders(
    config: CausalLMConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = CausalLanguageModel(replace(config, torch_compile=True))
    monkeypatch.setattr(task, "attention", "varlen")
    for step, _ in zip(task.train_stream(0, 1, None), range(20), strict=False):
        for batch in step.micro_batches:
            borders = batch.tensors["document_borders"].tolist()
            starts = (batch.tensors["position_ids"].flatten() == 0).nonzero().flatten().tolist()
            assert len(borders) == 128 // 16 + 1
            assert borders == starts + [128] * (9 - len(starts))


def compute_losses(
    config: CausalLMConfig, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[float], list[str], set[str]]:
    """Returns losses of two batches, the arguments of the model, and the tensors of the batches."""
    torch.manual_seed(0)
    task = CausalLanguageModel(replace(config, attn_implementation=implementation))
    model = task.build_model().eval()
    step = next(iter(task.train_stream(0, 1, None)))
    task.loss(model, step.micro_batches[0].tensors)  # with the checks of the first step
    given: list[str] = []
    forward = model.forward

    def record(**inputs: Any) -> Any:
        given.extend(inputs)
        return forward(**inputs)

    monkeypatch.setattr(model, "forward", record)
    losses = [task.loss(model, batch.tensors).sum.item() for batch in step.micro_batches[:2]]
    return losses, given, set(step.micro_batches[0].tensors)


@pytest.mark.parametrize(
    ("rows", "have_borders"),
    [({}, True), ({"packing": "pad"}, False), ({"cross_document_attention": True}, False)],
    ids=["packed", "padded", "joined"],
)
def test_a_run_with_varlen_attention_has_the_losses_of_sdpa(
    rows: dict[str, Any],
    have_borders: bool,
    config: CausalLMConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(config, data_config=replace(config.data_config, **rows))
    expected, _, _ = compute_losses(config, "sdpa", monkeypatch)
    losses, given, tensors = compute_losses(config, "varlen", monkeypatch)
    assert losses == pytest.approx(expected, rel=1e-6)
    assert ("document_borders" in tensors) == have_borders
    assert ("cu_seq_lens_q" in given) == have_borders
    assert "attention_mask" not in given


@pytest.mark.parametrize(
    "rows", [{"packing": "pad"}, {"cross_document_attention": True}], ids=["padded", "joined"]
)
def test_flash_attention_receives_the_borders_of_whole_rows(
    rows: dict[str, Any], config: CausalLMConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without borders, it would infer documents from the positions."""
    task = CausalLanguageModel(replace(config, data_config=replace(config.data_config, **rows)))
    task.build_model()
    monkeypatch.setattr(task, "attention", "flash_attention_2")
    batch = next(iter(task.train_stream(0, 1, None))).micro_batches[0].tensors
    starts = (batch["position_ids"].flatten() == 0).nonzero().flatten().tolist()
    assert batch["document_borders"].tolist() == [*starts, 128]


def test_rows_with_padding_are_not_whole_for_a_router() -> None:
    """The router loss is a mean over all tokens, including padding."""
    padded = DataConfig(packing="pad")
    joined = DataConfig(cross_document_attention=True)
    routed, plain = (MixtralConfig(output_router_logits=added) for added in (True, False))
    assert [are_rows_whole(data, plain) for data in (padded, joined, DataConfig())] == [
        True, True, False,
    ]  # fmt: skip
    assert [are_rows_whole(data, routed) for data in (padded, joined, DataConfig())] == [
        False, True, False,
    ]  # fmt: skip


def test_a_run_logs_its_attention_and_the_reason(
    config: CausalLMConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        CausalLanguageModel(replace(config, attn_implementation="varlen")).build_model()
        CausalLanguageModel(config).build_model()
    assert "attention: varlen (as configured; in float32 by sdpa with a mask)" in caplog.text
    assert "attention: sdpa (there is no GPU)" in caplog.text


@pytest.mark.parametrize(
    ("changes", "is_enabled"),
    [
        (["data_config.row_budget=text"], False),
        (["data_config.row_budget=text", "torch_compile=true"], True),
        ([], True),
    ],
)
def test_rows_of_varying_length_use_no_attention_planned_by_shape(
    changes: list[str], is_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = ["data_config.metadata_config.metadata_list=[url,title]", *changes]
    config = compose_command_line(
        CausalLMConfig, "demo", [*arm, "data_config.metadata_config.max_seq_len=64"]
    )
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        CausalLanguageModel(config).build_model()
        assert torch.backends.cuda.cudnn_sdp_enabled() is is_enabled
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def test_a_model_whose_documents_attend_to_each_other_is_refused(config: CausalLMConfig) -> None:
    task = CausalLanguageModel(config)
    model = task.build_model()
    forward = model.forward

    def leaking(**inputs: torch.Tensor) -> Any:
        return forward(**{**inputs, "position_ids": None})

    model.forward = leaking  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="attn_implementation: under sdpa the documents"):
        task.loss(model, next(iter(task.train_stream(0, 1, None))).micro_batches[0].tensors)


def test_the_evaluation_compares_the_first_held_out_documents(
    config: CausalLMConfig, model: nn.Module
) -> None:
    task = CausalLanguageModel(replace(config, eval_documents=2))
    metrics = task.evaluate(model, ALONE)
    assert Metric("documents", 2, better=None) in metrics
    assert metrics == task.evaluate(model, ALONE)
    nothing = replace(config, data_config=replace(config.data_config, validation_file=None))
    assert CausalLanguageModel(nothing).evaluate(model, ALONE) == []


def test_the_export_loads_with_transformers_and_has_the_same_outputs(
    task: CausalLanguageModel, model: nn.Module, tmp_path: Path
) -> None:
    task.export(model, model.state_dict(), tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = torch.tensor([tokenizer("Metadata before the text").input_ids])
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, model(ids).logits, atol=1e-5)
    assert tokenizer.eos_token == "<|endoftext|>"
    assert "Title: The first program ||| Ada" in (tmp_path / "README.md").read_text()
    found = locate_model(str(tmp_path))  # a model that was copied out of its run knows its metadata
    assert found.config == tmp_path / "metadata.yaml"
    metadata = read_run_config(found, None, {}).data_config.metadata_config
    assert metadata == task._config.data_config.metadata_config


def test_an_export_has_its_dtype(config: CausalLMConfig, model: nn.Module, tmp_path: Path) -> None:
    task = CausalLanguageModel(replace(config, export_dtype="bfloat16"))
    task.export(model, model.state_dict(), tmp_path)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert exported.dtype == torch.bfloat16
    for name, weight in exported.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name].bfloat16()), name


def test_a_model_that_export_dtype_cannot_hold_is_refused_before_the_first_step(
    config: CausalLMConfig,
) -> None:
    task = CausalLanguageModel(replace(config, export_dtype="float16"))
    model = task.build_model()
    task.rehearse(model)
    model.get_parameter("model.norm.weight").data[3] = 1e5
    message = "export_dtype=float16: model.norm.weight has values of up to 100,000"
    with pytest.raises(ConfigurationError, match=message):
        task.rehearse(model)


@pytest.mark.slow
def test_zero_3_keeps_a_vocabulary_larger_than_the_tokenizer(tmp_path: Path) -> None:
    """ZeRO 3 partitions weights while they are built, so that their shape has no rows."""
    shape = json.loads((REPOSITORY / "examples/model/config.json").read_text())
    shape |= {"vocab_size": 4224, "num_hidden_layers": 1, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    keys = ["max_train_steps=1", "num_warmup_steps=0", "eval_steps=0", "trackers=[]"]
    keys += ["gradient_accumulation_steps=1", "data_config.metadata_config.max_seq_len=64"]
    keys += [f"model_config_file={tmp_path}/config.json", f"out_dir={tmp_path}/run"]
    train_with_deepspeed(tmp_path, 3, ["--config-name", "demo", *keys])
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert weights["model.embed_tokens.weight"].shape == (4224, 128)
    assert json.loads((tmp_path / "run/model/config.json").read_text())["vocab_size"] == 4224


def test_special_tokens_are_added_and_exported_with_embeddings(tmp_path: Path) -> None:
    more = compose_command_line(
        CausalLMConfig,
        "demo",
        [
            "data_config.metadata_config.metadata_list=[html]",
            "data_config.metadata_config.local_metadata_special_token_state=true",
            "data_config.metadata_config.local_metadata_special_token_start={html: '<HTML>'}",
            "data_config.metadata_config.local_metadata_special_token_end={html: '</HTML>'}",
        ],
    )
    task = CausalLanguageModel(more)
    assert task.tokenizer.convert_tokens_to_ids(["<HTML>", "</HTML>"]) == [4096, 4097]
    model = task.build_model()
    assert model.get_input_embeddings().weight.shape[0] >= 4098
    task.export(model, model.state_dict(), tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_input_embeddings().weight.shape == model.get_input_embeddings().weight.shape
    ids = tokenizer("<HTML><b></HTML>a").input_ids
    assert (ids[0], ids[-2]) == (4096, 4097)
    assert again(torch.tensor([ids])).logits.shape[-1] >= 4098


SPECIAL = [
    "data_config.metadata_config.metadata_list=[html,meta_tokens]",
    "data_config.metadata_config.treat_local_metadata_as_regular_text=false",
    "data_config.metadata_config.local_metadata_special_token_state=true",
    "data_config.metadata_config.local_metadata_special_token_start={html: '<HTML>'}",
    "data_config.metadata_config.local_metadata_special_token_end={html: '</HTML>'}",
]


def test_arms_of_the_same_text_start_with_the_same_weights() -> None:
    """With and without special tokens, embeddings have equal rows."""
    arms = [SPECIAL, ["data_config.metadata_config.metadata_list=[]"]]
    models, tokenizers = [], []
    for arm in arms:
        task = CausalLanguageModel(
            compose_command_line(CausalLMConfig, "demo", [*arm, "data_config.row_budget=text"])
        )
        torch.manual_seed(3)
        models.append(task.build_model().state_dict())
        tokenizers.append(task.tokenizer)
        assert len(task.tokenizer) == len(models[-1]["model.embed_tokens.weight"])
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(weights, models[1][name]) for name, weights in models[0].items())
    known = [set(tokenizer.get_vocab()) for tokenizer in tokenizers]
    assert {"<HTML>", "</HTML>", "<|meta_0|>"} <= known[0] - known[1]


def test_more_special_tokens_than_all_arms_have_room_for_are_refused() -> None:
    many = [*SPECIAL, "data_config.metadata_config.num_meta_tokens=63"]
    config = compose_command_line(CausalLMConfig, "demo", [*many, "data_config.row_budget=text"])
    with pytest.raises(ConfigurationError, match="65 special tokens .* reserves 64"):
        load_tokenizer(config)


def test_a_missing_model_is_named_with_its_key() -> None:
    config = compose_command_line(
        CausalLMConfig, "demo", ["model_config_file=null", "model_name=/nowhere/model"]
    )
    with pytest.raises(ConfigurationError, match=r"model_name: /nowhere/model cannot be loaded"):
        CausalLanguageModel(config).build_model()


def test_an_initial_model_without_some_weight_is_refused(
    config: CausalLMConfig, model: nn.Module, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(weight for weight in weights if "mlp" in weight)
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    started = replace(
        config,
        model_config_file=None,
        model_name=str(tmp_path),
        tokenizer_name=config.tokenizer_name or config.model_name,
    )
    with pytest.raises(DataError, match=rf"model_name={tmp_path}: .*missing .*: {name}"):
        CausalLanguageModel(started).build_model()


def test_a_model_folder_without_a_tokenizer_is_refused(
    config: CausalLMConfig, tmp_path: Path
) -> None:
    GPT2Config().save_pretrained(tmp_path)  # transformers makes up a tokenizer of one token
    started = replace(config, model_name=str(tmp_path), tokenizer_name=None)
    with pytest.raises(ConfigurationError, match=rf"tokenizer_name: {tmp_path}: there is no token"):
        _ = CausalLanguageModel(started).tokenizer


def test_exposure_reports_configured_and_observed_shares() -> None:
    config = compose_command_line(
        CausalLMConfig,
        "demo",
        [
            "data_config.metadata_config.metadata_list=[html,url]",
            "data_config.metadata_config.metadata_probability=0.75",
            "data_config.metadata_config.html_overall_sample_rate=0.25",
            "data_config.metadata_config.random_sample_metadata_weights.url=2",
        ],
    )
    counts = {"documents": 8, "documents_with_metadata": 6, "documents/html": 1, "documents/url": 4}
    assert CausalLanguageModel(config).exposure(counts, phase=0) == {
        "documents": 8,
        "with_metadata": {"configured": 0.75, "realized": 0.75},
        "types": {
            "html": {"weight": 1.0, "left_out": 0.75, "realized": 0.125},
            "url": {"weight": 2.0, "left_out": 0.0, "realized": 0.5},
        },
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 3}, "The hidden size .128. is not a multiple"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor .*: 1, 2, 4"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0; expected a divisor"),
        ({"hidden_size": "many"}, "Field 'hidden_size' expected int, got str"),
        ({"hidden_size": -4}, "negative dimension -4"),
        ({"hidden_act": "gelou"}, "KeyError.'gelou'."),
        ({"model_type": "lama"}, "does not recognize this architecture"),
    ],
    ids=str,
)
def test_a_shape_that_transformers_rejects_is_refused_by_its_key(
    change: dict[str, Any], message: str, config: CausalLMConfig, tmp_path: Path
) -> None:
    assert config.model_config_file is not None
    file = tmp_path / "shape.json"
    file.write_text(json.dumps(json.loads(Path(config.model_config_file).read_text()) | change))
    task = CausalLanguageModel(replace(config, model_config_file=str(file)))
    with pytest.raises(ConfigurationError, match=rf"(?s)model_config_file: {file} .*{message}"):
        task.build_model()
    with pytest.raises(ConfigurationError, match=f"model_config_file: {file} cannot be loaded"):
        task.shape()
