"""Fifth stage: documents are rendered as the text that the model reads, up to a maximum length."""

from __future__ import annotations

from bsmeta.config.data import DataConfig
from bsmeta.data.stream.stages.items import ReadDocument, WindowDocument
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Rendered, Renderer


class DocumentRenderer:
    """Renders documents with the metadata types sampled for them."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._renderer = Renderer(config.metadata_config)

    def render(self, document: ReadDocument) -> WindowDocument:
        """Renders a document with the types sampled for it.

        Raises:
            BadDocument: If its records are invalid, or it is too long.
        """
        rendered = self._renderer.render(document.document, document.types)
        check_length(rendered, self._config)
        return WindowDocument(document.source.number, rendered)


def check_length(rendered: Rendered, config: DataConfig) -> None:
    """Refuses a document that would take too much memory to encode.

    Raises:
        BadDocument: If it has more than `max_document_chars` characters.
    """
    length = sum(map(len, (rendered.prefix, rendered.body, rendered.suffix)))
    if length > config.max_document_chars:
        raise BadDocument(
            "document_too_long",
            f"text and metadata have {length:,} characters, more than "
            f"data_config.max_document_chars={config.max_document_chars}",
        )
