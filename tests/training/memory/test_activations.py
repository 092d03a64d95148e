"""Counted activations, compared with real forward passes and with torch's memory tracker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.activations import NewGELUActivation

from bsmeta.config.schema import OPTIMIZERS
from bsmeta.models.layers import list_layers, recompute_activations
from bsmeta.training.memory.activations import estimate_activations
from bsmeta.training.memory.cuda_rules import follow_cuda_rules
from bsmeta.training.memory.states import count_optimizer_bytes, count_parameters, count_state
from bsmeta.training.task import Shape
from tests.conftest import REPOSITORY
from tests.training.memory.small_models import gpt2, llama


def measure_saved_bytes(model: torch.nn.Module, half: bool) -> int:
    """Returns the bytes that a forward pass saves for the backward pass, except weights."""
    weight_storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weight_storages:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    ids = torch.ones(4, 128, dtype=torch.long)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=half):
        output = model(input_ids=ids, use_cache=False)  # alive, as what it keeps is
    assert output is not None
    return sum(kept.values())


def make_shape(model: Any, **values: Any) -> Shape:
    return Shape(
        model, model.base_model, list_layers(model), rows=4, length=128, outputs=512, **values
    )


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize(("half", "copies"), [(False, False), (True, False), (True, True)])
def test_activations_equal_a_real_forward_pass(make: Any, half: bool, copies: bool) -> None:
    with torch.device("meta"):
        counted = estimate_activations(make_shape(make()), half=half, copies=copies)
    model = make().base_model
    model = model if copies or not half else model.bfloat16()
    output = 4 * 128 * 64 * (2 if half else 4)
    assert counted.layers == measure_saved_bytes(model, half) + output


def gpt2_xl(fused: bool) -> GPT2LMHeadModel:
    """GPT-2 XL without weights; `fused` computes the same activation by one kernel."""
    shape = GPT2Config(n_embd=1600, n_layer=48, n_head=25)
    shape.attn_pdrop = shape.embd_pdrop = shape.resid_pdrop = 0.0
    with torch.device("meta"):
        model = GPT2LMHeadModel(shape)
    for layer in list_layers(model):
        layer.mlp.act = torch.nn.GELU(approximate="tanh") if fused else NewGELUActivation()
    return model


def estimate_xl_gib(model: GPT2LMHeadModel) -> float:
    """Returns the GiB of activations of 8 x 1,024 tokens in bf16, without the loss."""
    shape = Shape(model, model.base_model, list_layers(model), rows=8, length=1024, outputs=50257)
    return round(estimate_activations(shape, half=True, copies=True).layers / 2**30, 1)


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="counts by the rules of CUDA in any case")
def test_autocast_on_cuda_keeps_more_than_on_a_cpu() -> None:
    assert estimate_xl_gib(gpt2_xl(fused=False)) == 40.4
    with follow_cuda_rules():
        assert estimate_xl_gib(gpt2_xl(fused=False)) == 54.4
        assert estimate_xl_gib(gpt2_xl(fused=True)) == 26.3
    assert estimate_xl_gib(gpt2_xl(fused=False)) == 40.4


def test_deepspeed_computes_all_operations_in_half_precision() -> None:
    counted = estimate_activations(make_shape(gpt2()), half=True, copies=False, casts=False)
    output = 4 * 128 * 64 * 2
    model = gpt2().base_model.bfloat16()
    ids = torch.ones(4, 128, dtype=torch.long)
    weight_storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weight_storages:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(input_ids=ids, use_cache=False)
    assert result is not None
    assert counted.layers == sum(kept.values()) + output


@pytest.mark.parametrize("every", [1, 2])
def test_activations_with_recomputation_equal_a_real_forward_pass(every: int) -> None:
    model = llama().train()
    counted = estimate_activations(
        make_shape(model, recompute_every=every), half=False, copies=False
    )
    plain = measure_saved_bytes(model.base_model, half=False)
    recompute_activations(model, every)
    left = measure_saved_bytes(model.base_model, half=False)
    hidden = 4 * 128 * 64 * 4
    layer = (plain - left) / (4 // every) + hidden
    assert counted.layers_recomputed == pytest.approx(left + hidden + layer, rel=0.02)


@pytest.fixture
def eight_devices() -> Iterator[DeviceMesh]:
    """A mesh of eight fake processes, whose collectives do nothing."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield init_device_mesh("cpu", (8,))
    torch.distributed.destroy_process_group()


def make_llama(layers: int) -> LlamaForCausalLM:
    shape = LlamaConfig.from_json_file(REPOSITORY / "hydra_configs/model/llama_0.6b.json")
    shape.num_hidden_layers = layers
    return LlamaForCausalLM(shape)


def test_the_memory_tracker_of_torch_agrees(eight_devices: DeviceMesh) -> None:
    with torch.device("meta"):
        model = make_llama(2)
    wide = {"rows": 2, "length": 512, "outputs": model.config.vocab_size}
    counted = estimate_activations(
        Shape(model, model.base_model, list_layers(model), **wide), half=True, copies=False
    )
    size = count_optimizer_bytes(model, OPTIMIZERS["adamw"])
    parts = count_state(count_parameters(model), size, "FSDP2", 8, half=True)
    with FakeTensorMode():
        model = make_llama(2)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in (*model.model.layers, model):
            fully_shard(layer, mesh=eight_devices, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        tracker = FSDPMemTracker(model, optimizer)
        ids = torch.zeros(2, 512, dtype=torch.long)
        with tracker:
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
            forward = tracker.get_tracker_snapshot()[torch.device("cpu")]
            logits.sum().backward()
            optimizer.step()
            after = tracker.get_tracker_snapshot()[torch.device("cpu")]
    tracked = {kind.value: size for kind, size in after.items() if kind != "Total"}
    assert (parts.weights, parts.gradients) == (tracked["Sharded Param"], tracked["Sharded Grad"])
    assert parts.optimizer == pytest.approx(tracked["OptState"], rel=1e-6)
    live = {str(kind): size for kind, size in forward.items()}["_FSDPRefType.ACT"]
    assert counted.layers == pytest.approx(live, rel=0.05)


def test_a_model_that_needs_more_than_ids_has_no_activations() -> None:
    model = torch.nn.Linear(2, 2)
    needs = Shape(model, model, [], rows=1, length=1, outputs=2)
    with pytest.raises(TypeError, match="input_ids"):
        estimate_activations(needs, half=False, copies=False)
