"""Last stage: the chunks of all documents of a window are packed into sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bsmeta.config.data import BY_TEXT, DataConfig, compute_metadata_room
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.stream.counts import count_documents
from bsmeta.data.stream.stages.items import WindowDocument
from bsmeta.data.stream.window import Window
from bsmeta.data.text.chunks import Chunk, PackedWindow


def pack_documents(
    documents: Sequence[WindowDocument], window: Window, config: DataConfig, seed: int
) -> PackedWindow:
    """Packs the chunks of a window's documents, with their contribution to the counts.

    Args:
        seed: Seed of the run.
    """
    metadata = config.metadata_config
    chunks: list[Chunk] = []
    for document in documents:
        chunks += document.chunks

    # Index of each chunk's document.
    owner = np.repeat(np.arange(len(documents)), [len(document.chunks) for document in documents])
    opens = np.diff(owner, prepend=-1) > 0
    numbers = np.array([document.number for document in documents], np.int64)
    types = encode_types(documents, metadata)[owner]

    by_text = config.row_budget == BY_TEXT
    return PackedWindow(
        chunks,
        numbers[owner],
        types,
        count_documents(types, opens, metadata.metadata_list),
        shard=window.shard.name,
        packing=config.packing,
        capacity=metadata.max_seq_len,
        metadata_room=compute_metadata_room(config) if by_text else None,
        seed=window.derive_seed(seed, "window"),
    )


def encode_types(documents: Sequence[WindowDocument], metadata: MetadataConfig) -> np.ndarray:
    """Returns the metadata types in each document's chunks as bits (int32 [documents]).

    Bit i stands for `metadata_list[i]`. Chunks without metadata that were cut like those with it
    have none.
    """
    bits: dict[str, int] = {}
    if not metadata.without_metadata_same_context:
        bits = {key: 1 << index for index, key in enumerate(metadata.metadata_list)}
    types = [sum(bits.get(key, 0) for key in document.rendered.types) for document in documents]
    return np.array(types, np.int32)
