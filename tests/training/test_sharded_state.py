"""The description of a sharded state: nothing but tensors, in its own folder."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from bsmeta.core.errors import CheckpointError
from bsmeta.training.fsdp import described, read_whole

WEIGHT = torch.arange(6.0).reshape(2, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = {"model/weight": WEIGHT, "optimizer/step/weight": torch.tensor(4.0)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    return tmp_path


def change(folder: Path) -> Metadata:
    metadata: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    return metadata


def test_whole_tensors_by_prefix(folder: Path) -> None:
    assert described(folder) == {
        "model/weight": (torch.Size([2, 3]), torch.float32),
        "optimizer/step/weight": (torch.Size([]), torch.float32),
    }
    found = read_whole(folder, "model/")
    assert list(found) == ["weight"]
    assert torch.equal(found["weight"], WEIGHT)


def test_an_entry_that_torch_would_unpickle_is_refused(folder: Path) -> None:
    metadata = change(folder)
    metadata.state_dict_metadata["model/weight"] = BytesStorageMetadata()
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="more than tensors"):
        read_whole(folder, "model/")


def test_a_part_outside_of_the_folder_is_refused(folder: Path) -> None:
    metadata = change(folder)
    for part in metadata.storage_data.values():
        part.relative_path = "../other.distcp"
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"names \.\./other\.distcp, outside of its folder"):
        described(folder)


@pytest.mark.parametrize("content", [b"", b"{", pickle.dumps(print), pickle.dumps({"a": 1})])
def test_anything_else_is_refused(folder: Path, content: bytes) -> None:
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="metadata"):
        described(folder)


def test_code_is_not_run(folder: Path, tmp_path: Path) -> None:
    """The module of the description imports `os`, and pickle follows dots in a name."""
    command = f"touch {tmp_path / 'was_run'}"
    module, name = (
        pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode()
        for text in ("torch.distributed.checkpoint.metadata", "os.system")
    )
    argument = pickle.BINUNICODE + len(command).to_bytes(4, "little") + command.encode()
    call = module + name + pickle.STACK_GLOBAL + argument + pickle.TUPLE1 + pickle.REDUCE
    (folder / ".metadata").write_bytes(pickle.PROTO + b"\4" + call + pickle.STOP)
    with pytest.raises(CheckpointError, match=r"metadata\.os\.system does not describe a tensor"):
        described(folder)
    assert not (tmp_path / "was_run").exists()
