"""The loss that a mixture of experts adds to the cross-entropy, and the load of its experts.

With `output_router_logits` in its config, a class of transformers adds an auxiliary loss, which
grows with the imbalance of its experts (Fedus et al. 2022, arXiv 2101.03961, equation 4), times
`router_aux_loss_coef`, when it is called with labels. The training calls it without labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from bsmeta.models.shapes import text_shape

_COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")


class RouterLoss:
    """The auxiliary loss and the load of the experts in the last forward pass of a model.

    A hook of the model itself takes them from its outputs, so that it does not matter what an
    engine wraps the model in.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        text = text_shape(model.config)
        values = (getattr(owner, name, None) for owner in (model, text) for name in _COEFFICIENTS)
        self._coefficient = next((float(value) for value in values if value is not None), 0.0)
        self._chosen = int(getattr(text, "num_experts_per_tok", 1))
        self._auxiliary: torch.Tensor | None = None
        self._logits: tuple[torch.Tensor, ...] = ()
        model.register_forward_hook(self._keep)

    @staticmethod
    def is_added(shape: PretrainedConfig) -> bool:
        """Whether the model's class adds the loss, as its config says."""
        shapes = (shape, text_shape(shape))
        return any(getattr(part, "output_router_logits", False) for part in shapes)

    def _keep(self, _: nn.Module, __: Any, outputs: Any) -> None:
        self._auxiliary = getattr(outputs, "aux_loss", None)
        logits = getattr(outputs, "router_logits", None) or ()
        self._logits = tuple(layer.detach() for layer in logits if layer is not None)

    def total(self, targets: torch.Tensor) -> torch.Tensor:
        """The loss that is added, as a sum over the targets of the batch.

        It is a mean over the tokens of the batch, padding included, as in the model's class.

        Args:
            targets: The number of targets, a scalar tensor.
        """
        if self._auxiliary is None:
            return targets * 0.0
        return self._coefficient * self._auxiliary.float() * targets

    def load(self) -> torch.Tensor | None:
        """How many tokens each expert was chosen for, in all layers: float32 [experts]."""
        if not self._logits:
            return None
        experts = torch.arange(self._logits[0].shape[-1], device=self._logits[0].device)
        counts = torch.zeros(len(experts), device=experts.device)
        for layer in self._logits:
            chosen = layer.topk(min(self._chosen, len(experts)), dim=-1).indices
            counts += (chosen.reshape(-1, 1) == experts).sum(0)
        return counts
