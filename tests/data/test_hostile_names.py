"""Names in listings and manifests that lead out of the folder: nothing is written, or read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.programs.copying import StageConfig
from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.data.io.file_sets import Entry, FileSet, read_manifest
from bsmeta.data.stage import quote_argument, stage_data
from tests.core.hostile_names import HOSTILE_NAMES
from tests.data.cloud_storage_server import Storage
from tests.data.helpers import small_config
from tests.data.hub_server import REPO, Hub

CONTENT = b'{"text": "a"}\n'

# Servers send names in UTF-8, in which half a surrogate pair cannot be written.
SENT_NAMES = [name for name in HOSTILE_NAMES if "\ud800" not in name and "\udcff" not in name]


def all_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def try_to_stage(folder: Path, url: str, held_out: str | None = None) -> str:
    """Stages from a URL; returns the refusal or "", and checks that only `out` is written."""
    data = small_config(
        folder, train_file=url, validation_file=held_out, cache_dir=str(folder / "cache")
    )
    out = folder / "deep/er/out"
    out.parent.mkdir(parents=True)
    message = ""
    try:
        stage_data(StageConfig(data_config=data, out=str(out)), out)
    except UserError as error:
        message = str(error)

    inside = ("cache", "deep/er/out/", "deep/er/out.part")
    others = [name for name in all_files(folder) if not name.startswith(inside)]
    assert {*others} <= {"deep", "deep/er", "deep/er/out", "deep/er/out.lock"}
    if "cannot be used for a file" in message:  # before the first byte
        assert not [*out.parent.glob("out.part/*/**/*")]
    return message


def is_refused_in_a_listing(name: str) -> bool:
    """Whether a name is hostile inside another name: slashes and dots may then be harmless."""
    return ".." in name.split("/") or "\\" in name or not name.isprintable() or len(name) > 200


def test_a_traversal_name_from_cloud_storage_is_refused(gs: Storage, tmp_path: Path) -> None:
    """Two base names are equal, so that shards are named after their folders."""
    gs.put({"d/authorized_keys": CONTENT, "d/../../../../victim/.ssh/authorized_keys": CONTENT})
    message = try_to_stage(tmp_path, "gs://corpus/**")
    assert (
        "gs://corpus/d/../../../../victim/.ssh/authorized_keys: the name "
        "'train/../../../../victim/.ssh/authorized_keys' cannot be used for a file in"
    ) in message
    assert "Rename it there, or leave it out" in message


@pytest.mark.parametrize("name", SENT_NAMES, ids=ascii)
def test_hostile_names_in_a_listing_of_cloud_storage_are_refused(
    gs: Storage, tmp_path: Path, name: str
) -> None:
    gs.put({f"d/{name}/x.jsonl": CONTENT, "d/x.jsonl": CONTENT})
    message = try_to_stage(tmp_path, "gs://corpus/**")
    assert bool(message) >= is_refused_in_a_listing(name)


@pytest.mark.parametrize("name", SENT_NAMES, ids=ascii)
def test_hostile_names_in_a_listing_of_the_hub_are_refused(
    hub: Hub, tmp_path: Path, name: str
) -> None:
    hub.files = hub.listed = {f"d/{name}/x.jsonl": CONTENT, "d/x.jsonl": CONTENT}
    message = try_to_stage(tmp_path, f"hf://datasets/{REPO}/**")
    assert bool(message) >= is_refused_in_a_listing(name)


def test_a_held_out_file_with_a_hostile_name_is_refused(gs: Storage, tmp_path: Path) -> None:
    gs.put({"d/x.jsonl": CONTENT, "e/..": CONTENT})
    message = try_to_stage(tmp_path, "gs://corpus/d/x.jsonl", "gs://corpus/e/..")
    assert "the name 'validation/..' cannot be used" in message


def test_a_name_that_a_shell_would_run_is_quoted(gs: Storage, tmp_path: Path) -> None:
    name = "$(touch x);'`.jsonl"
    gs.put({"d/x.jsonl": CONTENT, f"e/{name}": CONTENT})
    data = small_config(
        tmp_path, train_file="gs://corpus/d/x.jsonl", validation_file="gs://corpus/e/*touch*",
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    text = stage_data(StageConfig(data_config=data, out=str(tmp_path / "out")), tmp_path / "out")
    expected = quote_argument(f"{tmp_path}/out/validation/{name}")
    assert f"data_config.validation_file={expected}" in text
    assert expected == f"""'"{tmp_path}/out/validation/$(touch x);'"'"'`.jsonl"'"""


def test_a_manifest_of_copies_with_a_hostile_name_is_refused(tmp_path: Path) -> None:
    """Someone shares a folder that claims to be a complete copy."""
    shard = tmp_path / "x.jsonl"
    shard.write_bytes(CONTENT)
    data = DataConfig(train_file=str(shard))
    out = tmp_path / "out"
    stage_data(StageConfig(data_config=data, out=str(out)), out)
    manifest = out / "staged.jsonl"
    (line,) = manifest.read_text().splitlines()
    for name in HOSTILE_NAMES:
        manifest.write_text(json.dumps({**json.loads(line), "name": name}) + "\n")
        with pytest.raises(UserError, match="contains other data|is damaged"):
            stage_data(StageConfig(data_config=data, out=str(out)), out)


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
@pytest.mark.parametrize("key", ["path", "unpack"])
def test_a_manifest_of_downloads_with_a_hostile_name_is_refused(
    tmp_path: Path, key: str, name: str
) -> None:
    source = tmp_path / "source.tar"
    source.write_bytes(CONTENT)
    entry: dict[str, Any] = {
        "path": "source.tar",
        "address": source.as_uri(),
        "bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "unpack": "folder",
        "unpacked_bytes": 100,
    }
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"files": [{**entry, key: name}]}))
    before = all_files(tmp_path)
    with pytest.raises(ConfigurationError, match="manifest"):
        read_manifest(manifest)

    # Whoever makes entries without a manifest passes the same gate.
    target = tmp_path / "deep/er/target"
    files = FileSet([Entry(**{**entry, key: name})], target, True, 0, 1.0)
    with pytest.raises((DataError, ConfigurationError)):
        files.fetch()
    assert {*all_files(tmp_path)} - {*before} <= {
        "deep", "deep/er", "deep/er/target", "deep/er/target/.download",
        "deep/er/target/.download/lock", "deep/er/target/source.tar",
    }  # fmt: skip
