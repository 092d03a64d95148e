"""Makes documents and configurations for the tests of the metadata package."""

from __future__ import annotations

import json
from typing import Any

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import Record
from bsmeta.metadata.rendering import Rendered, Renderer


def config(keys: list[str], **changes: Any) -> MetadataConfig:
    """Returns a configuration that always uses all of `keys`."""
    chances = {"metadata_probability": 1.0, "random_sample_metadata": False}
    return MetadataConfig(metadata_list=keys, **(chances | changes))


def local(key: str, value: Any, start: int, end: int, *relative: int, **more: Any) -> dict:
    """Returns a local record; `relative` is its relative start and end position, if any."""
    record = {"key": key, "type": "local", "value": value}
    record |= {"char_start_idx": start, "char_end_idx": end}
    if relative:
        record |= {"relative_start_pos": relative[0], "relative_end_pos": relative[1]}
    return record | more


def html(tag: str, start: int, end: int, *relative: int, **attributes: Any) -> dict:
    """Returns an html record."""
    names = {"attrs": list(attributes), "values": list(attributes.values())}
    return local("html", tag, start, end, *relative, html_attrs=names)


def global_record(key: str, value: Any) -> dict:
    """Returns a global record."""
    return {"key": key, "type": "global", "value": value}


def document(settings: MetadataConfig, text: str, *records: dict) -> Document:
    """Returns a document decoded from a line with a single list `metadata`."""
    line = json.dumps({"text": text, "metadata": records}).encode()
    return DocumentDecoder(settings).decode(line)


def page(number: int, **values: str) -> Document:
    """A document with these global records."""
    records = {key: [Record(value=value, key=key, type="global")] for key, value in values.items()}
    return Document(f"text {number}", None, records)


def entity_record(value: str, start: int) -> Record:
    """A local record about one character."""
    return Record(value, "entity", "local", char_start_idx=start, char_end_idx=start + 1)


def render(settings: MetadataConfig, text: str, *records: dict) -> Rendered:
    """Renders a document with every type of the configuration."""
    read = document(settings, text, *records)
    return Renderer(settings).render(read, settings.metadata_list)


def chunks(rendered: Rendered) -> list[str]:
    """Returns the inserted strings, cut by their spans."""
    return [rendered.body[start:end] for start, end in rendered.spans.tolist()]
