"""Matrix products have the same bits wherever their operands lie in memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRODUCTS = """
import bsmeta
import torch

def moved(values, places):
    memory = torch.empty(values.numel() + 64)[places : places + values.numel()].view(values.shape)
    return memory.copy_(values)

torch.manual_seed(0)
found = set()
for rows in (1, 5, 33, 64):
    texts, weights = torch.randn(rows, 64), torch.randn(512, 64)
    products = {
        torch.nn.functional.linear(moved(texts, places), moved(weights, own)).numpy().tobytes()
        for places in (0, 1, 3, 8) for own in (0, 1, 5)
    }
    found.add(len(products))
print(found)
"""


@pytest.mark.long
def test_the_memory_layout_of_the_operands_does_not_change_the_bits() -> None:
    """On some processors MKL depends on it unless configured before its first use."""
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    command = [sys.executable, "-c", PRODUCTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "{1}\n"
