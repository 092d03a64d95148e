"""What every task reports to the loop: FLOPs per token, and losses."""

from __future__ import annotations

import torch

from bsmeta.training.task import Loss, compute_flops_per_token
from tests.training.tied_embeddings import Tied


def test_flops_per_token_leave_out_embeddings_that_are_only_looked_up() -> None:
    assert compute_flops_per_token(Tied()) == 6 * (100 * 8 + 8 * 8 + 8)


def test_a_loss_without_targets_is_zero_and_keeps_its_graph() -> None:
    weight = torch.tensor(3.0, requires_grad=True)
    loss = Loss(weight * 2, {"url": (weight, torch.tensor(4))}).without_targets()
    loss.sum.backward()
    assert (loss.sum.item(), weight.grad.item()) == (0.0, 0.0)
    assert [value.item() for value in loss.parts["url"]] == [0.0, 0]
