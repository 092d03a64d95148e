"""The auxiliary loss of a mixture of experts, and the load of its experts.

With `output_router_logits` in its config, a class of transformers that is called with labels adds
`router_aux_loss_coef` times an auxiliary loss, which grows with the imbalance of its experts (Fedus
et al. 2022, arXiv 2101.03961, equation 4). The training calls it without labels and adds the loss
itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from bsmeta.models.shapes import find_text_shape

_COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")


class RouterLoss:
    """The auxiliary loss and the load of the experts in the last forward pass of a model.

    A forward hook on the unwrapped model reads both from its outputs, so it works under the wrapper
    of any engine.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        text = find_text_shape(model.config)
        self._coefficient = _find_coefficient(model, text)
        self._experts_per_token = int(getattr(text, "num_experts_per_tok", 1))
        self._auxiliary: torch.Tensor | None = None
        self._logits: tuple[torch.Tensor, ...] = ()
        model.register_forward_hook(self._record_outputs)

    @staticmethod
    def is_enabled(model_config: PretrainedConfig) -> bool:
        """Whether a transformers config makes the model's class add the auxiliary loss."""
        configs = (model_config, find_text_shape(model_config))
        return any(getattr(config, "output_router_logits", False) for config in configs)

    def _record_outputs(self, _: nn.Module, __: Any, outputs: Any) -> None:
        self._auxiliary = getattr(outputs, "aux_loss", None)
        logits = getattr(outputs, "router_logits", None) or ()
        self._logits = tuple(layer.detach() for layer in logits if layer is not None)

    def compute_loss(self, targets: torch.Tensor) -> torch.Tensor:
        """Computes the auxiliary loss times its coefficient and the number of targets.

        The auxiliary loss is a mean over the tokens of the batch, padding included, as in the
        model's class.

        Args:
            targets: Number of targets of the batch, a scalar tensor.
        """
        if self._auxiliary is None:
            return targets * 0.0
        return self._coefficient * self._auxiliary.float() * targets

    def count_tokens(self) -> torch.Tensor | None:
        """Counts the tokens routed to each expert, summed over all layers: float32 [experts].

        Returns None if the model returned no router logits.
        """
        if not self._logits:
            return None

        experts = torch.arange(self._logits[0].shape[-1], device=self._logits[0].device)
        counts = torch.zeros(len(experts), device=experts.device)
        for layer in self._logits:
            per_token = min(self._experts_per_token, len(experts))
            routed = layer.topk(per_token, dim=-1).indices
            counts += (routed.reshape(-1, 1) == experts).sum(0)
        return counts


def _find_coefficient(model: PreTrainedModel, text: Any) -> float:
    """Returns the coefficient of the auxiliary loss; 0 if neither model nor config has one."""
    for owner in (model, text):
        for name in _COEFFICIENTS:
            value = getattr(owner, name, None)
            if value is not None:
                return float(value)
    return 0.0
