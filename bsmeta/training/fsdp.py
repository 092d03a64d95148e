"""FSDP2: the engine of sharded parameters, and its state on disk.

Each rank writes its part of every tensor. Torch's distributed checkpoint writes a file
`__{rank}_0.distcp` for each rank, and `.metadata`: where each part of each tensor is. Any number of
processes can read them; each reads the parts that it needs. `.metadata` is a pickle; only a
description of tensors is accepted from it.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from bsmeta.core.errors import CheckpointError
from bsmeta.core.progress import opaque_work, report_progress
from bsmeta.training.checkpoint import naming_file
from bsmeta.training.distributed import Accelerator
from bsmeta.training.engine import Snapshot
from bsmeta.training.engine_plain import PlainEngine
from bsmeta.training.processes import Processes

_MODEL, _OPTIMIZER = "model/", "optimizer/"
_METADATA = ".metadata"
# What a description of tensors consists of, beside dtypes. The classes are named one by one: their
# module also has `os`.
_GLOBALS = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
}  # fmt: skip

# What Python writes for them.
_OPCODES = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD",
    "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE",
    "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_TUPLE",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT",
    "SETITEM", "SETITEMS",
})  # fmt: skip
_STEPS_AT_ONCE = 1 << 20  # of a pickle, between reports of progress


class FSDPEngine(PlainEngine):
    """Torch's own optimizer on parameters that `fully_shard` has sharded over the ranks."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> None:
        super().__init__(accelerator, model, optimizer)
        if accelerator.native_amp:
            # As Accelerate does for plain torch: evaluations compute in the precision of training.
            casting = accelerator.autocast()(self.model.forward)
            self.model.forward = convert_outputs_to_fp32(casting)
        self._aside = Processes.of_group(accelerator.device).aside()
        first: dict[int, str] = {}
        # A tensor that the model has under several names is saved under the first.
        self._saved_as = {
            name: first.setdefault(id(tensor), name)
            for name, tensor in self.model.state_dict(keep_vars=True).items()
        }

    def clip(self, limit: float) -> torch.Tensor:
        norm = super().clip(limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def weights(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, tensor in self._model_state().items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.accelerator.is_main_process:
                found[name] = whole.to("cpu")
            report_progress()
        return self._by_all_names(found)

    def _by_all_names(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: found[first] for name, first in self._saved_as.items() if first in found}

    def _model_state(self) -> dict[str, torch.Tensor]:
        own = self.model.state_dict()
        return {name: own[name] for name in dict.fromkeys(self._saved_as.values())}

    def state(self) -> dict[str, torch.Tensor]:
        """The shards of weights and optimizer, not copied."""
        state = {_MODEL + name: tensor for name, tensor in self._model_state().items()}
        for name, parameter in self._parameters().items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                state[f"{_OPTIMIZER}{key}/{name}"] = value
        return state

    def _parameters(self) -> dict[str, nn.Parameter]:
        tensors = self.model.state_dict(keep_vars=True)
        names = {id(tensors[name]): name for name in self._saved_as.values()}
        groups = self.optimizer.param_groups
        return {names[id(own)]: own for group in groups for own in group["params"]}

    def save(self, folder: Path) -> None:
        write_shards(self.state(), folder, self._aside)

    def snapshot(self) -> Snapshot:
        copy = self.copy()

        def weights(folder: Path) -> dict[str, torch.Tensor]:
            return self._by_all_names(read_whole(folder, _MODEL)) if self._aside.is_main else {}

        return Snapshot(self._aside, partial(write_shards, copy, processes=self._aside), weights)

    def load(self, folder: Path) -> None:
        state = {_MODEL + name: tensor for name, tensor in self._model_state().items()}
        parameters = self._parameters()
        own: list[dict[str, torch.Tensor]] = [{} for _ in parameters]
        place = {name: number for number, name in enumerate(parameters)}
        for entry, (size, dtype) in described(folder).items():
            if entry in state:
                continue
            key, _, name = entry.removeprefix(_OPTIMIZER).partition("/")
            if name not in place:
                raise CheckpointError(f"{folder}: has {entry}, but the model has no such weight")
            parameter = parameters[name].detach()
            # Other sizes are those of step counters, which all ranks have.
            is_sharded = size == parameter.shape
            if not is_sharded and math.prod(size) > max(parameter.numel(), 1):
                raise CheckpointError(f"{folder}: {entry} has the shape {list(size)}")
            value = torch.zeros_like(parameter) if is_sharded else torch.zeros(size)
            state[entry] = own[place[name]][key] = value.to(dtype)
        read_shards(state, folder, self._aside)
        settings = self.optimizer.state_dict()["param_groups"]
        kept = {number: values for number, values in enumerate(own) if values}
        self.optimizer.load_state_dict({"state": kept, "param_groups": settings})


def write_shards(state: dict[str, torch.Tensor], folder: Path, processes: Processes) -> None:
    """Writes this rank's part of each tensor into a new folder; all ranks call it together.

    Args:
        state: DTensors, of which each rank has a shard, and tensors that all ranks have.

    Raises:
        Exception: On every rank, the first error that any of them met.
    """
    processes.on_main(folder.mkdir)  # torch would also create the folders above it
    with _one_error():
        dcp.save(state, storage_writer=_Writer(folder), process_group=processes.group)


def read_shards(state: dict[str, torch.Tensor], folder: Path, processes: Processes) -> None:
    """Fills the tensors with this rank's part of what `write_shards` wrote, on any number of ranks.

    All ranks call it together.

    Raises:
        CheckpointError: If the state is not that of these tensors.
    """
    with naming_file(folder), _one_error():
        dcp.load(state, storage_reader=_Reader(folder), process_group=processes.group)


def read_whole(folder: Path, prefix: str) -> dict[str, torch.Tensor]:
    """Reads the whole tensors whose names begin with a prefix, by the rest of their names.

    This rank reads them alone, into main memory.
    """
    found = {
        name: torch.empty(size, dtype=dtype)
        for name, (size, dtype) in described(folder).items()
        if name.startswith(prefix)
    }
    with naming_file(folder), _one_error(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(found, storage_reader=_Reader(folder), no_dist=True)
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}


def described(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """The whole shape and the type of each tensor in a folder, without reading it.

    Raises:
        CheckpointError: If the folder does not describe tensors alone.
    """
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in _read_metadata(folder).state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)  # as all are
    }


def _read_metadata(folder: Path) -> Metadata:
    file = folder / _METADATA
    with naming_file(file):
        content = file.read_bytes()
        _check_opcodes(content)
        metadata = _Unpickler(io.BytesIO(content)).load()
        if not isinstance(metadata, Metadata):
            raise ValueError(f"found a {type(metadata).__name__}, expected a Metadata")
        _check_tensors(metadata.state_dict_metadata)
        _check_parts(metadata.storage_data)
        needed = sum(
            math.prod(entry.size) * entry.properties.dtype.itemsize
            for entry in metadata.state_dict_metadata.values()
            if isinstance(entry, TensorStorageMetadata)  # as all are
        )
        held = sum(part.stat().st_size for part in folder.glob("*.distcp"))
        if needed > held:
            raise ValueError(f"describes {needed:,} bytes of tensors, but its files have {held:,}")
    return metadata


def _check_opcodes(content: bytes) -> None:
    """Refuses a pickle that does more than build values, or that would fill the memory.

    Python keeps a table whose length is the largest number that an object is stored under.
    """
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in _OPCODES:
            raise pickle.UnpicklingError(f"{opcode.name} does not describe a tensor")
        if opcode.name.endswith("PUT") and int(argument or 0) > count:
            raise pickle.UnpicklingError(f"{opcode.name} {argument} after {count} steps")
        if count % _STEPS_AT_ONCE == 0:
            report_progress()


def _check_tensors(entries: Any) -> None:
    """Refuses all but descriptions of tensors; torch would unpickle anything else."""
    if type(entries) is not dict or any(type(name) is not str for name in entries):
        raise ValueError("found no names of tensors")
    for name, entry in entries.items():
        if type(entry) is not TensorStorageMetadata:
            raise ValueError(f"{name}: found more than tensors; expected none but those")
        is_shape = isinstance(entry.size, torch.Size)
        if not is_shape or not isinstance(entry.properties.dtype, torch.dtype):
            raise ValueError(f"{name}: found no shape or no type")
        if min(entry.size, default=0) < 0:
            raise ValueError(f"{name}: found the shape {list(entry.size)}")


def _check_parts(parts: Any) -> None:
    """Refuses parts of tensors that are not in files of the folder."""
    if type(parts) is not dict:
        raise ValueError("found no parts of tensors")
    for part in parts.values():
        name = part.relative_path
        if type(name) is not str or Path(name).name != name:
            raise ValueError(f"names {name}, outside of its folder")
        if type(part.offset) is not int or type(part.length) is not int or part.offset < 0:
            raise ValueError(f"{name}: found no offset or no length")


class _Unpickler(pickle.Unpickler):
    """Refuses all that is not part of a description of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _GLOBALS.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not describe a tensor")


class _Writer(dcp.FileSystemWriter):
    """Reports what this rank writes, but not the wait for others, as progress."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        with opaque_work():
            return super().write_data(plan, planner)


class _Reader(dcp.FileSystemReader):
    """Reports what this rank reads, but not the wait for others, as progress."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metadata = _read_metadata(folder)

    def read_metadata(self) -> Metadata:
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        with opaque_work():
            return super().read_data(plan, planner)


@contextmanager
def _one_error() -> Iterator[None]:
    """Raises the error of the first rank that failed instead of torch's collection of all."""
    try:
        yield
    except CheckpointException as error:  # not an Exception
        rank, (cause, _) = min(error.failures.items())
        if isinstance(cause, OSError):
            raise cause from None
        raise CheckpointError(f"rank {rank}: {type(cause).__name__}: {cause}") from cause
