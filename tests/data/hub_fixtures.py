"""What the tests against the Hub's stand-in have in common."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from bsmeta.data.io.file_ref import HUB, FileRef, RemoteSettings
from bsmeta.data.io.remote import remote_file, store
from bsmeta.data.io.remote.hub import resolve_commit
from tests.data.hub_server import COMMIT, REPO, TOKEN, Hub, etag_of, shards_in, used_hub

BLOCK = 1000
CONTENT = random.Random(0).randbytes(7700)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server with one file, small blocks and short delays."""
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(store, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(store, "MAX_DELAY_S", 0.02)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    resolve_commit.cache_clear()
    close_session()
    with used_hub(Hub({"data.bin": CONTENT}), monkeypatch) as server:
        yield server
    close_session()


@pytest.fixture
def stored(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A server with the shards of `folder`, private, in blocks of which a shard has several."""
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 300)
    hub.files = hub.listed = shards_in(folder)
    hub.token = TOKEN
    return hub


def hub_file(folder: Path, *, cache_bytes: int = 10**6, retries: int = 4) -> FileRef:
    """Returns the path of the only file of the server."""
    settings = RemoteSettings(str(folder), cache_bytes, retries)
    return FileRef(len(CONTENT), etag_of(CONTENT), settings, HUB, REPO, "data.bin", COMMIT)
