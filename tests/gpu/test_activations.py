"""The rules of CUDA that an estimate follows on a CPU, against what a GPU keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.conftest import REPOSITORY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SHAPE = {"n_embd": 512, "n_layer": 2, "n_head": 8, "n_positions": 512}
ROWS, LENGTH = 4, 512

# In a process that sees no GPU
COUNT = f"""
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from bsmeta.models.layers import list_layers
from bsmeta.training.memory.activations import estimate_activations
from bsmeta.training.memory.cuda_rules import follow_cuda_rules
from bsmeta.training.task import Shape

for dropout in (0.0, 0.1):
    names = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), dropout)
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(**{SHAPE}, **names))
    layers = list_layers(model)
    shape = Shape(model, model.base_model, layers, rows={ROWS}, length={LENGTH}, outputs=2)
    with follow_cuda_rules():
        print(estimate_activations(shape, half=True, copies=True).layers)
"""


def measure_saved_bytes(dropout: float) -> int:
    """Returns the bytes that a forward pass on the GPU saves for the backward pass."""
    names = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), dropout)
    model = GPT2LMHeadModel(GPT2Config(**SHAPE, **names)).cuda().train().base_model
    weight_storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weight_storages:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.ones(ROWS, LENGTH, dtype=torch.long, device="cuda")
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cuda", torch.bfloat16):
        result = model(input_ids=ids, use_cache=False)
    assert result is not None
    return sum(kept.values())


def test_the_estimate_on_a_cpu_equals_the_bytes_kept_on_the_gpu() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", COUNT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    counted = [json.loads(line) for line in done.stdout.splitlines()]
    output = ROWS * LENGTH * SHAPE["n_embd"] * 2
    measured = [measure_saved_bytes(dropout) + output for dropout in (0.0, 0.1)]
    assert counted == pytest.approx(measured, rel=0.02)
