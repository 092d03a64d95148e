"""Weights that are not exactly the model's are refused by name, wherever a model is loaded."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModel,
    AutoModelForTokenClassification,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    ElectraConfig,
    ElectraForPreTraining,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from bsmeta.core.errors import DataError
from bsmeta.core.model_files import read_model_and_report, read_model_config
from bsmeta.models.pretrained import (
    check_encoder_weights,
    load_exported,
    load_weights,
    record_tokenizer,
)
from tests.models.saved_models import save_model

Weights = dict[str, torch.Tensor]
REPOSITORY = Path(__file__).resolve().parents[2]
TOKENIZER = REPOSITORY / "examples" / "tokenizer"
PROJECTION = "transformer.h.0.mlp.c_proj.weight"
SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def remove_projection(weights: Weights) -> Weights:
    return {name: value for name, value in weights.items() if name != PROJECTION}


def add_layer(weights: Weights) -> Weights:
    return {**weights, "transformer.h.9.ln_1.weight": torch.zeros(8)}


def change_shape(weights: Weights) -> Weights:
    return {**weights, PROJECTION: torch.zeros(3, 3)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_projection, rf"1 missing \(they would be random\): {PROJECTION}"),
        (add_layer, r"1 unexpected \(they would be ignored\): transformer.h.9.ln_1.weight"),
        (change_shape, rf"1 of another shape: {PROJECTION} \(\[3, 3\] instead of \[32, 8\]\)"),
    ],
)
def test_weights_that_do_not_fit_the_model_are_refused_by_name(
    change: Callable[[Weights], Weights], message: str, tmp_path: Path
) -> None:
    file = save_model(tmp_path / "model") / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    with pytest.raises(DataError, match=f"(?s)^model_name=x: .*{message}"):
        load_weights(str(tmp_path / "model"), "model_name=x")


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_need_not_be_in_the_file(tied: bool, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", tied=tied)
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) is not tied
    assert load_weights(str(folder), "model_name=x").lm_head.weight.shape == (50, 8)


def test_a_tied_output_embedding_of_another_vocabulary_is_named(
    tmp_path: Path,
) -> None:
    file = save_model(tmp_path / "model") / "model.safetensors"
    weights = {**load_file(file), "lm_head.weight": torch.ones(64, 8)}
    save_file(weights, file, metadata={"format": "pt"})
    folder = tmp_path / "model"
    with pytest.raises(DataError) as refused:
        load_weights(str(folder), f"model_name={folder}")
    assert str(refused.value) == (
        f"model_name={folder}: {folder} has weights of another vocabulary than vocab_size of its "
        "config.json; expected 50 rows, one for each token. Copy the folder again; or, if its "
        "weights are right, set vocab_size to their rows:\n"
        f"  {file}: lm_head.weight has 64 rows"
    )


def test_a_truncated_file_is_refused_with_a_message(tmp_path: Path) -> None:
    file = save_model(tmp_path / "model") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"model_name=x: .* cannot be loaded: .*not fully covered"):
        load_weights(str(tmp_path / "model"), "model_name=x")


def zero_weights(weights: Weights, *names: str) -> Weights:
    return {
        name: torch.zeros_like(value) if not names or name in names else value
        for name, value in weights.items()
    }


def add_nan(weights: Weights) -> Weights:
    weights[PROJECTION][3, 1] = torch.nan
    return weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (zero_weights, rf"6 of 6 matrices are wholly zero: .*{PROJECTION}"),
        (
            lambda weights: zero_weights(weights, "transformer.wte.weight"),
            r"1 of 6 matrices are wholly zero: transformer.wte.weight",
        ),
        (add_nan, rf"model.safetensors: {PROJECTION} has values that are not finite"),
    ],
)
def test_zero_and_nan_weights_are_refused_by_name(
    change: Callable[[Weights], Weights], message: str, tmp_path: Path
) -> None:
    file = save_model(tmp_path / "model") / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    with pytest.raises(DataError, match=f"(?s)^model_name=x: .*is damaged; .*{message}"):
        load_weights(str(tmp_path / "model"), "model_name=x")


def test_a_single_matrix_of_zeros_is_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = save_model(tmp_path / "model") / "model.safetensors"
    save_file(zero_weights(load_file(file), PROJECTION), file, metadata={"format": "pt"})
    assert (
        not load_weights(str(tmp_path / "model"), "model_name=x")
        .transformer.h[0]
        .mlp.c_proj.weight.any()
    )
    assert f"wholly zero: {PROJECTION}" in caplog.text


def swap_tokens(file: Path) -> None:
    parts = json.loads(file.read_text())
    vocabulary = parts["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(parts))


def test_a_swapped_vocabulary_is_refused_without_a_manifest(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
    record_tokenizer(folder)
    file = folder / "tokenizer.json"
    parts = json.loads(file.read_text())
    file.write_text(json.dumps(parts))  # formatted otherwise: the same tokenizer
    load_weights(str(folder), "model_name=x")
    swap_tokens(file)
    with pytest.raises(DataError, match=r"(?s)tokenizer.json: its tokens .* delete tokenizer_xxh3"):
        load_weights(str(folder), "model_name=x")
    file.unlink()
    record_tokenizer(folder)
    assert "tokenizer_xxh3" not in json.loads((folder / "config.json").read_text())


@pytest.mark.slow
def test_an_evaluation_compares_the_tokenizer_with_the_recorded_hash(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    settings = "max_train_steps=1 num_warmup_steps=0 eval_steps=0 trackers=[]"
    train, evaluate = (REPOSITORY / "bsmeta" / name for name in ("train.py", "evaluate.py"))
    launch(train, "--config-name", "demo", *settings.split(), f"out_dir={tmp_path / 'run'}")
    model = tmp_path / "run" / "model"
    (model / "manifest.json").unlink()
    arguments = (f"checkpoint={model}", "max_documents=1", f"out_dir={tmp_path / 'report'}")
    launch(evaluate, *arguments)
    swap_tokens(model / "tokenizer.json")
    refused = launch(evaluate, *arguments, check=False)
    assert refused.returncode == 2
    assert "tokenizer.json: its tokens and ids" in refused.stderr


ENCODERS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SMALL)),
    "bert alone": lambda: BertModel(BertConfig(**SMALL)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SMALL)),
    "electra": lambda: ElectraForPreTraining(ElectraConfig(**SMALL, embedding_size=16)),
    "albert": lambda: AlbertForMaskedLM(AlbertConfig(**SMALL, embedding_size=16)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
}


def load_encoder(folder: Path, model_class: Any, **changes: Any) -> list[str]:
    """Loads and checks an encoder; returns the names of its new weights."""
    shape = read_model_config(folder, **changes)
    model, loading_report = read_model_and_report(
        model_class, folder, config=shape, ignore_mismatched_sizes=True
    )
    return check_encoder_weights(model, loading_report, str(folder), "model_name=x")


@pytest.mark.parametrize("name", ENCODERS)
def test_only_the_weights_of_a_head_may_be_new(tmp_path: Path, name: str) -> None:
    model = ENCODERS[name]()
    model.save_pretrained(tmp_path)
    assert all("pooler" in weight for weight in load_encoder(tmp_path, AutoModel))
    head = load_encoder(tmp_path, AutoModelForTokenClassification)
    assert {weight.split(".")[0] for weight in head} <= {"classifier", "score"}

    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    lost = max(weights, key=lambda weight: (".0." in weight or ".inner_group" in weight, weight))
    del weights[lost]
    save_file(weights, file, metadata={"format": "pt"})
    for model_class in (AutoModel, AutoModelForTokenClassification):
        with pytest.raises(DataError, match=r"^model_name=x: .*\(1 missing \(they would be random"):
            load_encoder(tmp_path, model_class)


@pytest.mark.parametrize("name", ["bert", "bert alone", "roberta", "electra", "llama"])
def test_weights_of_an_encoder_that_would_be_ignored_are_counted(tmp_path: Path, name: str) -> None:
    """Whether or not the names in the file begin with the prefix of the encoder."""
    ENCODERS[name]().save_pretrained(tmp_path)
    layer = sum(".1." in weight for weight in load_file(tmp_path / "model.safetensors"))
    for model_class in (AutoModel, AutoModelForTokenClassification):
        message = rf"\({layer} unexpected \(they would be ignored\): .* and {layer - 5} others\)"
        with pytest.raises(DataError, match=message):
            load_encoder(tmp_path, model_class, num_hidden_layers=1)


def test_weights_of_another_head_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ENCODERS["bert"]().save_pretrained(tmp_path)
    caplog.set_level(logging.INFO)
    load_encoder(tmp_path, AutoModel)
    assert caplog.messages[-1] == (
        "model_name=x: 5 weights of another head are not used: cls.predictions.bias, "
        "cls.predictions.transform.LayerNorm.bias, cls.predictions.transform.LayerNorm.weight, "
        "cls.predictions.transform.dense.bias, cls.predictions.transform.dense.weight"
    )


def test_an_export_with_other_weights_than_its_config_is_refused(tmp_path: Path) -> None:
    """Without the last layer in `config.json`, its weights would be ignored."""
    ENCODERS["bert alone"]().save_pretrained(tmp_path)
    assert not load_exported(AutoModel, tmp_path, "encoder", "task=x", optional=".pooler.").training

    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "num_hidden_layers": 1}))
    with pytest.raises(DataError) as error:
        load_exported(AutoModel, tmp_path, "encoder", "task=x", optional=".pooler.")
    assert str(error.value) == (
        f"{tmp_path}: its weights are not those of the encoder of its config.json: 16 unexpected "
        "(they would be ignored): encoder.layer.1.attention.output.LayerNorm.bias, "
        "encoder.layer.1.attention.output.LayerNorm.weight, "
        "encoder.layer.1.attention.output.dense.bias, "
        "encoder.layer.1.attention.output.dense.weight, encoder.layer.1.attention.self.key.bias "
        "and 11 others. Expected the model/ of a run or checkpoint of task=x"
    )
