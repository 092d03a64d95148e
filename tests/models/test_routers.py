"""The auxiliary loss of a mixture of experts: that of its class, in the loss of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.models.architectures import make_shape

MIXTURES = ["mixtral", "qwen3_moe", "granitemoe", "gpt_oss", "jetmoe"]
LOADS = [f"expert_{number}_load" for number in range(4)]


def build(
    name: str, folder: Path, *overrides: str, **changes: object
) -> tuple[CausalLanguageModel, nn.Module]:
    shape = make_shape(name)
    shape.update(changes)
    file = folder / "shape.json"
    file.write_text(json.dumps(shape.to_dict()))
    keys = (
        f"model_config_file={file}",
        "data_config.metadata_config.max_seq_len=64",
        "data_config.packing=pad",  # GPT-OSS cannot keep documents apart
        *overrides,
    )
    task = CausalLanguageModel(compose_command_line(CausalLMConfig, "demo", keys))
    torch.manual_seed(0)
    return task, task.build_model().eval()


def batch(rows: int = 2, length: int = 24) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(4096, (rows, length), generator=generator),
        "position_ids": torch.arange(length).expand(rows, -1),
        "loss_mask": torch.arange(length).expand(rows, -1) > 0,
        "document_types": torch.zeros(rows, length, dtype=torch.int32),
    }


@pytest.mark.parametrize("chunk", [0, 65536])
@pytest.mark.parametrize("name", MIXTURES)
def test_a_run_trains_on_the_loss_of_the_class(name: str, chunk: int, tmp_path: Path) -> None:
    """Value and gradient are equal, also if the logits are computed in chunks."""
    task, model = build(name, tmp_path, f"loss_chunk_logits={chunk}")
    inputs = batch()
    class_loss = model(
        input_ids=inputs["input_ids"], labels=inputs["input_ids"], use_cache=False
    ).loss
    class_loss.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    loss = task.loss(model, inputs)
    (loss.sum / 46).backward()
    torch.testing.assert_close(loss.sum / 46, class_loss.detach(), rtol=1e-5, atol=1e-5)
    for weight, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[weight], rtol=1e-3, atol=1e-6)

    parts = {name: float(total / weight) for name, (total, weight) in loss.parts.items() if weight}
    assert parts["router"] > 0
    assert parts["without_metadata"] + parts["router"] == pytest.approx(float(class_loss), rel=1e-4)
    assert sum(parts[name] for name in LOADS) == pytest.approx(1)


def test_the_loss_of_a_router_is_weighted_by_targets(tmp_path: Path) -> None:
    """Two micro-batches with different numbers of targets."""
    task, model = build("mixtral", tmp_path)
    terms, targets = [], []
    for length in (8, 24):
        loss = task.loss(model, batch(1, length))
        total, weight = loss.parts["router"]
        outputs = model(input_ids=batch(1, length)["input_ids"], use_cache=False)
        assert float(total / weight) == pytest.approx(10 * float(outputs.aux_loss), rel=1e-4)
        terms.append(float(loss.sum - loss.parts["without_metadata"][0]))
        targets.append(int(weight))
    assert targets == [7, 23]
    assert terms[0] / 7 != pytest.approx(terms[1] / 23)


def test_without_targets_there_is_no_loss(tmp_path: Path) -> None:
    task, model = build("mixtral", tmp_path)
    inputs = batch()
    loss = task.loss(model, {**inputs, "loss_mask": torch.zeros_like(inputs["loss_mask"])})
    assert float(loss.sum) == 0


def test_a_class_without_a_router_loss_trains_on_cross_entropy_alone(tmp_path: Path) -> None:
    """The coefficient alone changes nothing: the class needs `output_router_logits`."""
    task, model = build("mixtral", tmp_path, output_router_logits=False)
    inputs = batch()
    class_loss = model(
        input_ids=inputs["input_ids"], labels=inputs["input_ids"], use_cache=False
    ).loss
    loss = task.loss(model, inputs)
    assert float(loss.sum / 46) == pytest.approx(float(class_loss), rel=1e-5)
    assert not {"router", *LOADS} & {*loss.parts}
