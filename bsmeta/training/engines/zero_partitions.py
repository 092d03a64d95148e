"""Where DeepSpeed keeps the weights that the optimizer of this rank updates.

The model computes with weights that may be rounded (bf16, fp16). The optimizer updates a copy in
full precision, the master weights. ZeRO flattens and divides them: a rank has a partition of each
parameter group, which holds consecutive ranges of several weights, and padding. Without ZeRO, every
rank has all of them, each in its shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from bsmeta.training.checkpoints.fragments import Fragment


@dataclass(frozen=True)
class MasterRange:
    """A range of the elements of a weight that the optimizer of this rank updates.

    Attributes:
        name: Name of the weight in a checkpoint.
        shape: Shape of the whole weight.
        start: Index of the first element in the flattened weight.
        numel: Number of elements.
        master: The tensor that the optimizer updates, which holds the range.
        position: Index of the first element in `master`, if that is flat.
    """

    name: str
    shape: torch.Size
    start: int
    numel: int
    master: torch.Tensor
    position: int

    def cut(self, values: torch.Tensor) -> torch.Tensor | Fragment:
        """Returns the range of values that have the shape of `master`, not copied."""
        if values.shape == self.shape:
            return values.detach()
        flat_range = values.detach().narrow(0, self.position, self.numel)
        return Fragment(self.shape, self.start, flat_range)


def list_master_ranges(engine: Any, names: dict[int, str]) -> list[MasterRange]:
    """Lists the ranges of all trained weights that the optimizer of this rank updates.

    Args:
        engine: DeepSpeed's engine.
        names: Names of the weights, by their `id`.
    """
    if engine.zero_optimization_partition_weights():
        return [*_list_ranges_of_stage_3(engine.optimizer, names)]
    if engine.zero_optimization():
        return [*_list_ranges_of_stages_1_and_2(engine, names)]
    return [*_list_whole_weights(engine.optimizer, names)]


def _list_ranges_of_stages_1_and_2(engine: Any, names: dict[int, str]) -> Iterator[MasterRange]:
    """Yields the ranges of the flat parameter groups that are on this rank."""
    for weight in engine.module.parameters():
        # None if the whole weight is on other ranks; a frozen weight has no such attribute.
        mapping = getattr(weight, "_hp_mapping", None)
        if mapping is None:
            continue

        (partition,) = engine.optimizer.param_groups[mapping.param_group_index]["params"]
        yield MasterRange(
            names[id(weight)],
            weight.shape,
            mapping.lp_fragment_address.start,
            mapping.lp_fragment_address.numel,
            partition,
            mapping.hp_fragment_address.start,
        )


def _list_ranges_of_stage_3(optimizer: Any, names: dict[int, str]) -> Iterator[MasterRange]:
    """Yields this rank's range of each weight, in the order of DeepSpeed's flat sub-groups."""
    sub_groups = zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True)
    for weights, partition in sub_groups:
        position = 0
        for weight in weights:
            start, numel = _locate_shard(weight)
            if numel > 0:
                name = names[id(weight)]
                yield MasterRange(name, weight.ds_shape, start, numel, partition, position)
            position += weight.partition_numel()


def _locate_shard(weight: Any) -> tuple[int, int]:
    """Returns where this rank's shard of a weight under ZeRO-3 begins, and its length.

    The length does not count padding; it is not positive if the shard is nothing else.
    """
    shard_numel = weight.partition_numel()
    start = dist.get_rank(weight.ds_process_group) * shard_numel
    return start, min(shard_numel, weight.ds_numel - start)


def _list_whole_weights(optimizer: Any, names: dict[int, str]) -> Iterator[MasterRange]:
    """Yields all weights, which every rank has."""
    for weight, master in _pair_whole_weights(optimizer):
        yield MasterRange(names[id(weight)], weight.shape, 0, weight.numel(), master, 0)


def _pair_whole_weights(optimizer: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields each trained weight and its master weight, which is the same if it is not rounded."""
    masters = [master for group in optimizer.param_groups for master in group["params"]]
    weights = masters
    if hasattr(optimizer, "fp16_groups"):
        weights = [weight for group in optimizer.fp16_groups for weight in group]
    yield from zip(weights, masters, strict=True)


def is_trained(tensor: torch.Tensor) -> bool:
    """Whether the optimizers of DeepSpeed update a weight or a buffer."""
    numel = getattr(tensor, "ds_numel", tensor.numel())  # under ZeRO-3, a weight is empty
    return tensor.requires_grad and numel > 0


def cut_untrained(tensor: Any) -> torch.Tensor | Fragment | None:
    """Returns this rank's part of a frozen weight or a buffer, not copied; None if it has none."""
    if not hasattr(tensor, "ds_tensor"):
        whole_tensor: torch.Tensor = tensor.detach()
        return whole_tensor

    start, numel = _locate_shard(tensor)
    if numel <= 0:
        return None
    return Fragment(tensor.ds_shape, start, tensor.ds_tensor.detach().narrow(0, 0, numel))


def round_weights(engine: Any) -> None:
    """Rounds the master weights to the weights that the model computes with, as after a step."""
    optimizer = engine.optimizer
    if engine.zero_optimization_partition_weights():
        for number in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(number)
    elif engine.zero_optimization():
        optimizer.update_lp_params()
    else:
        for weight, master in _pair_whole_weights(optimizer):
            weight.data.copy_(master.data)
