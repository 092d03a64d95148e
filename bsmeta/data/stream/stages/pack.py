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
    """Packs the chunks of a window's documents into sequences, and counts the documents in each.

    Args:
        seed: Seed of the run.
    """
    metadata = config.metadata_config
    chunks: list[Chunk] = []
    for document in documents:
        chunks += document.chunks

    # For each chunk, the index of its document.
    document_indices = np.repeat(
        np.arange(len(documents)), [len(document.chunks) for document in documents]
    )
    is_first = np.diff(document_indices, prepend=-1) > 0
    numbers = np.array([document.number for document in documents], np.int64)
    types = encode_types(documents, metadata)[document_indices]

    by_text = config.row_budget == BY_TEXT
    return PackedWindow(
        chunks,
        numbers[document_indices],
        types,
        count_documents(types, is_first, metadata.metadata_list),
        shard=window.shard.name,
        packing=config.packing,
        capacity=metadata.max_seq_len,
        metadata_room=compute_metadata_room(config) if by_text else None,
        seed=window.derive_seed(seed, "window"),
    )


def encode_types(documents: Sequence[WindowDocument], metadata: MetadataConfig) -> np.ndarray:
    """Encodes the metadata types of each document as a bit mask (int32 [documents]).

    Bit i stands for `metadata_list[i]`. No bit is set under `without_metadata_same_context`, which
    trains on the documents without their metadata.
    """
    bits: dict[str, int] = {}
    if not metadata.without_metadata_same_context:
        bits = {key: 1 << index for index, key in enumerate(metadata.metadata_list)}
    masks = np.zeros(len(documents), np.int32)
    for index, document in enumerate(documents):
        masks[index] = sum(bits.get(key, 0) for key in document.rendered.types)
    return masks
