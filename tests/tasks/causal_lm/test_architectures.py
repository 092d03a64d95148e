"""Many architectures of transformers: each trains, packs and exports, or is refused with a reason.

The models are tiny, and the documents are random tokens.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.core.errors import ConfigurationError
from bsmeta.models.pretrained import load_weights
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.conftest import REPOSITORY
from tests.models.architectures import ARCHITECTURES, Architecture

FIRST, SECOND = 28, 20  # tokens of the documents in a row
OFTEN = ("gpt2", "bloom", "mixtral", "mamba", "gemma3", "bart")
"""Those of the ordinary test run: tied, refused, a mixture, recurrent, nested, a decoder."""

architectures = pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(entry, id=entry.name, marks=[] if entry.name in OFTEN else [pytest.mark.slow])
        for entry in ARCHITECTURES
    ],
)


def documents(*, packed: bool = True) -> dict[str, torch.Tensor]:
    """Returns two rows of two documents each; without packing, of one document each."""
    length = FIRST + SECOND
    ids = torch.randint(2, 4096, (2, length), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(length)
    if packed:
        positions = torch.cat([torch.arange(FIRST), torch.arange(SECOND)])
    positions = positions.expand(2, -1)
    return {
        "input_ids": ids,
        "position_ids": positions,
        "loss_mask": positions > 0,
        "document_types": torch.zeros(2, length, dtype=torch.int32),
    }


def run(folder: Path, *keys: str) -> tuple[CausalLanguageModel, nn.Module]:
    """Returns a task and its model after the rehearsal before the first step."""
    common = ("data_config.metadata_config.max_seq_len=64", f"out_dir={folder}/run")
    task = CausalLanguageModel(compose_command_line(CausalLMConfig, "demo", [*common, *keys]))
    torch.manual_seed(0)
    model = task.build_model()
    task.rehearse(model)
    return task, model


def train(task: CausalLanguageModel, model: nn.Module, *, packed: bool) -> list[float]:
    """Trains two steps on the same documents; returns the loss of each, in nats per target."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    batch, losses = documents(packed=packed), []
    model.train()
    for _ in range(2):
        loss = task.loss(model, batch)
        mean = loss.sum / int(batch["loss_mask"].sum())
        mean.backward()
        assert all(weight.grad is not None for weight in trained)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(mean.detach()))
    model.eval()
    return losses


def check_packing(task: CausalLanguageModel, model: nn.Module) -> None:
    """Checks that packed documents have the same losses as alone."""
    batch = documents()
    with torch.no_grad():
        packed = task.compute_batch_losses(model, batch)[1]
        alone = [
            task.compute_batch_losses(
                model, {name: value[:, part] for name, value in batch.items()}
            )[1]
            for part in (slice(0, FIRST), slice(FIRST, None))
        ]
    torch.testing.assert_close(packed[:, : FIRST - 1], alone[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(packed[:, FIRST:], alone[1], rtol=0, atol=1e-4)


def check_exported(task: CausalLanguageModel, model: nn.Module, folder: Path) -> None:
    """Checks that the exported model has the same logits."""
    task.export(model, model.state_dict(), folder)
    loaded = load_weights(str(folder), "checkpoint").eval()
    ids = documents()["input_ids"]
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(
            loaded(input_ids=ids, use_cache=False).logits, expected, rtol=1e-4, atol=1e-4
        )


def try_model(folder: Path, refused: str, *keys: str) -> None:
    """Trains and exports a model; packed, unless the model refuses packing."""
    task, model = run(folder, *keys)
    if refused:
        with pytest.raises(ConfigurationError, match=refused):
            task.loss(model, documents())
        task, model = run(folder, *keys, "data_config.packing=pad")
    first, second = train(task, model, packed=not refused)
    assert first != pytest.approx(second, abs=1e-5)
    if not refused:
        check_packing(task, model)
    check_exported(task, model, folder / "model")


@architectures
def test_a_model_trains_packs_and_exports(
    architecture: Architecture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bsmeta")
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps(architecture.shape().to_dict()))
    try_model(tmp_path, architecture.refused, f"model_config_file={shape}")
    frozen = [line for line in caplog.messages if "get no gradient" in line]
    assert bool(frozen) is bool(architecture.frozen)
    assert all(part in frozen[0] for part in architecture.frozen)


@architectures
def test_adapters_train_and_export(architecture: Architecture, tmp_path: Path) -> None:
    base = tmp_path / "base"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(architecture.shape()).save_pretrained(base)
    AutoTokenizer.from_pretrained(REPOSITORY / "examples/tokenizer").save_pretrained(base)
    keys = ["model_config_file=null", "tokenizer_name=null", f"model_name={base}", "lora.rank=4"]
    if architecture.lora_refused:
        with pytest.raises(ConfigurationError, match=architecture.lora_refused) as error:
            run(tmp_path, *keys)
        targets = str(error.value).rpartition("Fix: ")[2]  # which work
        keys.append(targets)
    try_model(tmp_path, architecture.refused, *keys)
