"""A window and the seeds of choices about it."""

from __future__ import annotations

from dataclasses import replace

from bsmeta.data.io.shards import Shard
from bsmeta.data.stream.window import Window

WINDOW = Window(0, Shard("a.jsonl", "/data/a.jsonl", 100), [7, 8, 9], [b"x", b"y"])


def test_seeds_depend_on_run_purpose_epoch_shard_and_first_document_number() -> None:
    assert WINDOW.derive_seed(1, "window") == 14352459509849753865
    others = [
        WINDOW.derive_seed(2, "window"),
        WINDOW.derive_seed(1, "shuffled"),
        replace(WINDOW, epoch=1).derive_seed(1, "window"),
        replace(WINDOW, numbers=[8, 9]).derive_seed(1, "window"),
        replace(WINDOW, shard=Shard("b.jsonl", "/data/a.jsonl", 100)).derive_seed(1, "window"),
    ]
    assert len({WINDOW.derive_seed(1, "window"), *others}) == 6


def test_seeds_do_not_depend_on_where_the_shard_is_nor_on_its_lines() -> None:
    moved = replace(WINDOW, shard=Shard("a.jsonl", "/other/a.jsonl", 100), lines=[])
    assert moved.derive_seed(1, "window") == WINDOW.derive_seed(1, "window")
