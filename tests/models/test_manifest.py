"""Manifests of models and checkpoints that list files outside their folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bsmeta.core.errors import CheckpointError, DataError
from bsmeta.models.manifest import read_manifest, write_model_manifest
from bsmeta.models.pretrained import check_model_folder, list_model_damage, load_weights
from tests.core.hostile_names import HOSTILE_NAMES
from tests.models.saved_models import save_model


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_manifest_cannot_list_a_file_outside_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_text("content")
    write_model_manifest(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"]["x"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))

    with pytest.raises(CheckpointError) as error:
        read_manifest(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{tmp_path}/manifest.json: ")
    if not message.endswith("expected sizes and checksums of files"):  # JSON has no such text
        assert f"the name {name!r} cannot be used for a file in {tmp_path}" in message
    assert list_model_damage(tmp_path) == [message]


def test_files_may_be_links_into_the_cache_of_the_hub(tmp_path: Path) -> None:
    blob = tmp_path / "blobs/0"
    blob.parent.mkdir()
    blob.write_text("content")
    snapshot = tmp_path / "snapshots/0"
    snapshot.mkdir(parents=True)
    (snapshot / "x").symlink_to("../../blobs/0")
    write_model_manifest(snapshot)
    assert list_model_damage(snapshot) == []


def test_a_flipped_byte_is_detected_by_the_manifest(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    (folder / "README.md").write_text("# A model")
    write_model_manifest(folder)
    (folder / "README.md").write_text("# My model")  # people edit it
    assert list_model_damage(folder) == []
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"is damaged; .*\n .*model.safetensors: \d+ bytes, xxh3"):
        load_weights(str(folder), "model_name=x")
    (folder / "config.json").unlink()
    assert len(list_model_damage(folder)) == 2


@pytest.mark.parametrize("folder_name", ["model", "checkpoint-3step/model"])
def test_files_added_to_a_model_are_refused_if_they_would_be_loaded(
    folder_name: str, tmp_path: Path
) -> None:
    folder = save_model(tmp_path / folder_name)
    root = folder if folder_name == "model" else folder.parent
    (folder / "README.md").write_text("# A model")
    write_model_manifest(root)
    for name in ("LICENSE.txt", ".gitattributes", "._config.json", "model.gguf", "config.yaml"):
        (folder / name).write_text("{}")  # nothing loads these
    (folder / "onnx").mkdir()
    (folder / "onnx/config.json").write_text("{}")
    assert list_model_damage(folder) == []

    # transformers would add the adapter to the weights, and replace the special tokens.
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "special_tokens_map.json").write_text('{"eos_token": "e"}')
    advice = (
        "is not listed in manifest.json, but would be loaded with the model; remove it if you do "
        "not know where it is from, else move it to another folder"
    )
    assert list_model_damage(folder) == [
        f"{folder}/adapter_config.json: {advice}",
        f"{folder}/special_tokens_map.json: {advice}",
    ]
    with pytest.raises(DataError, match="is damaged"):
        load_weights(str(folder), "model_name=x")


def test_pipes_in_a_model_folder_are_refused_before_they_are_read(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(DataError, match=r"^\S*/model.safetensors is a pipe, a socket or a device;"):
        check_model_folder(str(folder), "model_name=x")


def test_a_model_in_a_checkpoint_is_compared_with_the_checkpoints_manifest(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "checkpoint-3step" / "model")
    (problem,) = list_model_damage(folder)
    assert "manifest.json: cannot be read" in problem
    write_model_manifest(folder.parent)
    assert list_model_damage(folder) == []
    (folder / "config.json").write_text("{}")
    (folder.parent / "state").mkdir()  # of no concern to the model
    (problem,) = list_model_damage(folder)
    assert "config.json: 2 bytes" in problem
