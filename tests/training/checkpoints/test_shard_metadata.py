"""The description of a sharded state: nothing but tensors, in its own folder."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)

from bsmeta.core.errors import CheckpointError
from bsmeta.training.checkpoints.shards import read_full_tensors, read_tensor_shapes
from tests.training.checkpoints.pickles import write_call

WEIGHT = torch.arange(6.0).reshape(2, 3)
with tempfile.TemporaryDirectory() as made:
    dcp.save({"a": WEIGHT}, storage_writer=dcp.FileSystemWriter(made), no_dist=True)
    DESCRIPTION = (Path(made) / ".metadata").read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = {"model/weight": WEIGHT, "optimizer/step/weight": torch.tensor(4.0)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    return tmp_path


def load_metadata(folder: Path) -> Metadata:
    metadata: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    return metadata


def test_an_entry_that_torch_would_unpickle_is_refused(folder: Path) -> None:
    metadata = load_metadata(folder)
    metadata.state_dict_metadata["model/weight"] = BytesStorageMetadata()
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="more than tensors"):
        read_full_tensors(folder, "model/")


def test_a_part_outside_the_folder_is_refused(folder: Path) -> None:
    metadata = load_metadata(folder)
    for part in metadata.storage_data.values():
        part.relative_path = "../other.distcp"
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"names \.\./other\.distcp, outside of its folder"):
        read_tensor_shapes(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", pickle.dumps(print), pickle.dumps({"a": 1}),
        b"\x80\x04K", b"\x80\x04\x8c\xff", b"\x80\x09.", b"\x80\x04h\x07.", b"\x80\x04t.",
        b"\x80\x04\x8a\x01\x00", b"ctorch\nSize\n(K\x01tR.", b"cos\nsystem\n.", b"ctorch\n\xff\n.",
        b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x0f.",  # a bytearray of 2^60 bytes
        b"\x80\x04Nr\xff\xff\xff\xff.",  # stored under the number 2^32 - 1
    ],
)  # fmt: skip
def test_other_contents_are_refused(folder: Path, content: bytes) -> None:
    """With little memory: Python's memo table for the last content would take 64 GB."""
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        read_tensor_shapes(folder)
    assert str(error.value).startswith(f"{folder / '.metadata'}: cannot be read (")


@given(st.lists(st.tuples(st.integers(0, 1000), st.binary(max_size=3), st.integers(0, 4))))
def test_a_changed_description_gives_tensors_or_a_data_error(
    changes: list[tuple[int, bytes, int]],
) -> None:
    """No other error is raised, and nothing but tensors returned."""
    content = bytearray(DESCRIPTION)
    for place, new, removed in changes:
        content[place : place + removed] = new
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ".metadata").write_bytes(content)
        (Path(folder) / "__0_0.distcp").write_bytes(bytes(10_000))
        try:
            shapes = read_tensor_shapes(Path(folder))
        except CheckpointError:
            return
    assert all(isinstance(dtype, torch.dtype) for _, dtype in shapes.values())


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("state_dict_metadata", [], "found no names of tensors"),
        ("state_dict_metadata", {1: 2}, "found no names of tensors"),
        ("storage_data", None, "found no parts of tensors"),
        ("storage_data", {"a": StorageMeta()}, "object has no attribute 'relative_path'"),
    ],
)
def test_a_malformed_description_is_refused(
    folder: Path, attribute: str, value: Any, reason: str
) -> None:
    metadata = load_metadata(folder)
    setattr(metadata, attribute, value)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=reason):
        read_tensor_shapes(folder)


def test_a_transformed_part_is_refused(folder: Path) -> None:
    """A compression would let a small file fill the memory."""
    metadata = load_metadata(folder)
    next(iter(metadata.storage_data.values())).transform_descriptors = ["zstd"]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"is transformed by \['zstd'\]"):
        read_tensor_shapes(folder)


def test_a_part_that_is_a_call_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the environment allows calls."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    call_file = folder / "call.pt"
    write_call(call_file)
    metadata = load_metadata(folder)
    for part in metadata.storage_data.values():
        part.relative_path, part.offset, part.length = "call.pt", 0, call_file.stat().st_size
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))

    with pytest.raises(CheckpointError, match="unsupported GLOBAL"):
        read_full_tensors(folder, "model/")
    assert not (folder / "was_run").exists()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "its parts have 0 elements, expected 6"),
        ([((0, 0), (1, 3))], "its parts have 3 elements, expected 6"),
        ([((0, 0), (1, 3)), ((0, 0), (1, 3))], "parts that overlap"),
        ([((0, 0), (1, 3)), ((2, 0), (1, 3))], "found a part outside of the shape"),
        ([((0,), (6,))], "found a part with another number of dimensions"),
    ],
)
def test_parts_that_do_not_make_up_their_tensor_are_refused(
    folder: Path, parts: list[tuple[tuple[int, ...], tuple[int, ...]]], reason: str
) -> None:
    """Torch would read what there is, and leave the other elements as they are in memory."""
    metadata = load_metadata(folder)
    entry = metadata.state_dict_metadata["model/weight"]
    assert isinstance(entry, TensorStorageMetadata)
    entry.chunks = [
        ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in parts
    ]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=rf"model/weight.*{reason}"):
        read_full_tensors(folder, "model/")


def test_a_scalar_without_parts_is_refused(folder: Path) -> None:
    metadata = load_metadata(folder)
    entry = metadata.state_dict_metadata["optimizer/step/weight"]
    assert isinstance(entry, TensorStorageMetadata)
    entry.chunks = []
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="its parts have 0 elements, expected 1"):
        read_full_tensors(folder, "optimizer/")


def test_a_size_larger_than_the_files_is_not_allocated(folder: Path) -> None:
    metadata = load_metadata(folder)
    entry = metadata.state_dict_metadata["model/weight"]
    assert isinstance(entry, TensorStorageMetadata)
    entry.size = torch.Size([10**9, 10**9])
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    expected = r"describes 4,000,000,000,000,000,004 bytes of tensors, but its files have \d,"
    with pytest.raises(CheckpointError, match=expected):
        read_full_tensors(folder, "model/")


def test_code_in_a_description_is_not_run(folder: Path, tmp_path: Path) -> None:
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
        read_tensor_shapes(folder)
    assert not (tmp_path / "was_run").exists()
