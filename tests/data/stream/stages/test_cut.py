"""Encoded documents are cut into chunks."""

from __future__ import annotations

from typing import Any

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.stream.stages.cut import cut_documents
from bsmeta.data.stream.stages.encode import encode_documents
from bsmeta.data.stream.stages.render import DocumentRenderer
from bsmeta.data.text.encoding import DocumentEncoder
from tests.data.helpers import word_tokenizer
from tests.data.stream.stages.helpers import read, title_line

TEXT = "fox dog fox dog fox dog fox dog fox dog"


def chunk_texts(*, also_plain: bool = False, **changes: Any) -> list[str]:
    """The chunks of a document with the title `dog`, at most twelve tokens each."""
    metadata = MetadataConfig(metadata_list=["title"], max_seq_len=12, **changes)
    config = DataConfig(metadata_config=metadata)
    tokenizer = word_tokenizer(["fox", "dog", "title", ":", "|||"])
    line = title_line(TEXT, "dog")
    document = DocumentRenderer(config).render(read(line, metadata, ["title"]))
    encoder = DocumentEncoder(tokenizer, config)
    encodings = encode_documents([document], encoder, also_plain=also_plain)
    (cut_document,) = cut_documents(encodings, config)
    assert cut_document is document
    return [tokenizer.decode(chunk.ids.tolist()) for chunk in document.chunks]


def test_a_long_document_has_several_chunks() -> None:
    assert chunk_texts() == [
        "Title: dog ||| fox dog fox dog fox dog",
        "Title: dog ||| fox dog fox dog<eos>",
    ]


def test_a_truncated_document_has_only_its_first_chunk() -> None:
    assert chunk_texts(long_documents="truncate") == ["Title: dog ||| fox dog fox dog fox dog"]


def test_without_metadata_each_chunk_has_the_same_text() -> None:
    assert chunk_texts(also_plain=True, without_metadata_same_context=True) == [
        " fox dog fox dog fox dog",
        " fox dog fox dog<eos>",
    ]
