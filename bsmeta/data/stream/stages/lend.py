"""Fourth stage, only for `metadata_values=shuffled`: documents get metadata of other documents.

The donors are the other documents of the window, so the metadata of all its lines is decoded in
advance.
"""

from __future__ import annotations

from bsmeta.data.stream.stages.items import ReadDocument
from bsmeta.data.stream.window import Window
from bsmeta.metadata.decoding import Decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.donors import Donors
from bsmeta.metadata.metadata_type import SHUFFLED
from bsmeta.metadata.records import BadDocument, Line


class Lender:
    """Lends each document of a window the metadata values of another document.

    Args:
        keys: The metadata types whose values are lent.
        seed: Seed of the run.
    """

    def __init__(self, window: Window, decoder: Decoder, keys: list[str], seed: int) -> None:
        self._decoder = decoder
        self._keys = keys
        documents = [self._read_values(line) for line in window.lines]
        self._donors = Donors(documents, keys, window.derive_seed(seed, SHUFFLED))

    def lend(self, document: ReadDocument) -> ReadDocument:
        """Replaces the metadata values of a document in place, and returns it.

        Raises:
            BadDocument: If the document's own records are invalid.
        """
        index = document.source.window_index
        document.document = self._donors.replace_values(index, document.document, SHUFFLED)
        return document

    def _read_values(self, line: Line) -> Document:
        """Decodes a line to a document of only its metadata values.

        The document has no values if the line is bad; other stages reject the line.
        """
        try:
            document = self._decoder.decode(line)
            records = {key: document.records(key) for key in self._keys}
        except BadDocument:
            return Document("", None, {})

        values = {key: list(key_records) for key, key_records in records.items() if key_records}
        return Document("", None, values)
