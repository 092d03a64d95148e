"""Files of llama.cpp, read back by its own library and by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.gguf_file import GGUF_FILE, check_gguf, find_pre_tokenizer
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.data.helpers import small_tokenizer

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}
# 1,024 positions, because transformers does not read their number from a GGUF file.
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024, "vocab_size": 4100}
SHAPES = {"llama": LlamaConfig(**LLAMA), "gpt2": GPT2Config(**GPT2)}
MESSAGES = [
    {"role": "metadata", "content": {"title": "Sets"}},
    {"role": "text", "content": "A set is 12 naïve\n\n  things"},
]


@pytest.fixture(scope="module", params=sorted(SHAPES))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished model with random weights and a boundary token."""
    pytest.importorskip("gguf")
    folder = tmp_path_factory.mktemp(request.param)
    SHAPES[request.param].save_pretrained(folder / "shape")
    keys = [
        f"model_config_file={folder / 'shape' / 'config.json'}",
        "data_config.metadata_config.metadata_boundary_token='<|text|>'",
        "gguf=true",
        f"out_dir={folder}",
    ]
    task = CausalLanguageModel(compose_command_line(CausalLMConfig, "demo", keys))
    torch.manual_seed(0)
    model = task.build_model()
    for weight in model.parameters():  # biases and norms begin with equal values
        weight.data.add_(torch.randn_like(weight) * 0.05)
    task.export(model, model.state_dict(), folder / "model")
    task.finalize_export(folder / "model")
    return folder / "model"


def read_fields(folder: Path) -> dict[str, Any]:
    import gguf

    reader = gguf.GGUFReader(folder / GGUF_FILE)
    return {name: field.contents() for name, field in reader.fields.items()}


def test_the_file_has_the_weights(exported: Path) -> None:
    import gguf

    model = AutoModelForCausalLM.from_pretrained(exported)
    tensors = {
        tensor.name: np.array(tensor.data)
        for tensor in gguf.GGUFReader(exported / GGUF_FILE).tensors
    }
    embeddings = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(tensors["token_embd.weight"], embeddings)
    stored = sum(tensor.size for tensor in tensors.values())
    assert stored == sum(weight.numel() for weight in model.parameters())


def test_transformers_computes_the_same_with_the_file(exported: Path) -> None:
    expected = AutoModelForCausalLM.from_pretrained(exported)
    loaded = AutoModelForCausalLM.from_pretrained(
        exported, gguf_file=GGUF_FILE, dtype=torch.float32
    )
    ids = torch.arange(40).view(2, 20) * 7
    with torch.no_grad():
        difference = (loaded(ids).logits - expected(ids).logits).abs().max()
        scale = expected(ids).logits.abs().max()
    assert difference <= 1e-4 * scale


def test_the_file_has_the_tokenizer_and_its_template(exported: Path) -> None:
    fields = read_fields(exported)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    vocabulary = tokenizer.get_vocab()
    tokens = fields["tokenizer.ggml.tokens"]
    rows = AutoModelForCausalLM.from_pretrained(exported).config.vocab_size
    assert len(tokens) == len(fields["tokenizer.ggml.token_type"]) == rows
    assert {name: number for number, name in enumerate(tokens) if name in vocabulary} == vocabulary
    boundary = vocabulary["<|text|>"]
    assert fields["tokenizer.ggml.token_type"][boundary] == 3  # CONTROL: parsed in a prompt
    assert fields["tokenizer.ggml.model"] == "gpt2"
    assert fields["tokenizer.ggml.pre"] == "gpt-2"
    assert fields["tokenizer.ggml.eos_token_id"] == tokenizer.eos_token_id
    assert fields["tokenizer.ggml.add_bos_token"] is False  # as in training: bos_token=false
    assert fields["tokenizer.chat_template"] == tokenizer.chat_template


def test_the_tokens_and_merges_of_the_file_give_the_same_ids(exported: Path) -> None:
    """Builds a tokenizer from the file alone, like llama.cpp."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    fields = read_fields(exported)
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    rebuilt = Tokenizer(models.BPE({name: i for i, name in enumerate(tokens)}, merges))
    rebuilt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    control = [tokens[i] for i, kind in enumerate(fields["tokenizer.ggml.token_type"]) if kind == 3]
    rebuilt.add_special_tokens(control)

    tokenizer = AutoTokenizer.from_pretrained(exported)
    prompt = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    ids = tokenizer.apply_chat_template(MESSAGES, return_dict=False)
    assert rebuilt.encode(prompt, add_special_tokens=False).ids == ids


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (GPT2Config(**GPT2, activation_function="relu"), "activation_function of the model is rel"),
        (LlamaConfig(**LLAMA, attention_bias=True), "attention_bias of the model is True"),
        (
            LlamaConfig(
                **LLAMA,
                rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
            ),
            "rotary positions of the model are scaled",
        ),
    ],
)
def test_models_that_llama_cpp_would_compute_differently_are_refused(
    shape: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_gguf(shape, small_tokenizer())
    check_gguf(SHAPES[shape.model_type], small_tokenizer())


def test_other_architectures_and_tokenizers_are_refused() -> None:
    from tokenizers import pre_tokenizers
    from transformers import OPTConfig

    with pytest.raises(ConfigurationError, match="the model is a opt; expected gpt2 or llama"):
        check_gguf(OPTConfig(), small_tokenizer())
    tokenizer = small_tokenizer()
    assert find_pre_tokenizer(tokenizer) == "gpt-2"
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ConfigurationError, match="splits a text in a way that is not known"):
        find_pre_tokenizer(tokenizer)


def test_a_failure_leaves_the_finished_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("gguf")
    config = compose_command_line(CausalLMConfig, "demo", ["gguf=true", f"out_dir={tmp_path}"])
    (tmp_path / "model").mkdir()  # without a model
    CausalLanguageModel(config).finalize_export(tmp_path / "model")
    assert "model.gguf was not written" in caplog.text
    assert list((tmp_path / "model").iterdir()) == []
