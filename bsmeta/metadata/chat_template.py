"""Writes the chat template of a configuration: the renderer that an exported model carries.

transformers, vLLM, TGI and llama.cpp build the prefix with it, from a message with the role
`metadata`; the text is in further messages. The template renders global records from their values.
It only announces local types in the prefix, because inserting their records takes code.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bsmeta.config.metadata import MetadataConfig, choose_separators
from bsmeta.core.dates import MONTHS
from bsmeta.metadata.chat_form import ChatForm
from bsmeta.metadata.metadata_type import OWN, SHUFFLED, MetadataType
from bsmeta.metadata.processors import make_types

_TEMPLATE = Path(__file__).with_name("chat_template.j2")

_RENDERING_METHODS = ("render_global", "_render_value")
"""Methods of a type whose result its chat form must reproduce."""


def takes_chat_template(config: MetadataConfig) -> bool:
    """Whether a template can render the metadata of a configuration.

    It cannot if there are no types, or if constant or random tokens replace their values.
    """
    return bool(config.metadata_list) and config.metadata_values in (OWN, SHUFFLED)


def render_chat_template(
    config: MetadataConfig, *, has_bos: bool = False, bare_lead: str | None = None
) -> str:
    """Returns the chat template of a configuration, in Jinja.

    Args:
        has_bos: Whether documents begin with the tokenizer's BOS token.
        bare_lead: The part of the lead to render if no text follows, because the tokenizer merges
            the rest with the first word that the model generates; None: the whole lead.
    """
    separators = choose_separators(config)
    types: list[dict[str, Any]] = []
    for key, metadata_type in make_types(config).items():
        form = asdict(find_chat_form(metadata_type, config))
        settings = {name: value for name, value in form.items() if value}
        prefix_only = metadata_type.is_local or metadata_type.prefix_only
        types.append({"key": key, "prefix_only": prefix_only, **settings})

    trained: dict[str, Any] = {
        "keys": config.metadata_list,
        "types": types,
        "prepends": config.metadata_position != "append",
        "appends": config.metadata_position != "prepend",
        "has_bos": has_bos,
        "start": config.metadata_prefix_start_seq,
        "separator": config.metadata_sep,
        "end": separators.prefix_end,
        "lead": separators.lead,
        "bare_lead": separators.lead if bare_lead is None else bare_lead,
        "suffix_start": separators.suffix_start,
        "months": MONTHS,
        "ascii": "".join(map(chr, range(128))),
    }

    # JSON without null is also a literal of Jinja.
    literal = json.dumps(trained, ensure_ascii=False)
    body = _TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
    return f"{{%- set trained = {literal} -%}}\n{body}"


def find_chat_form(metadata_type: MetadataType, config: MetadataConfig) -> ChatForm:
    """Returns the chat form of a type's global records, or of a local type's announcement."""
    if metadata_type.is_local:
        return _make_announcement_form(metadata_type.key, config)

    # A class that changes the rendering of its base class does not inherit the form.
    for cls in type(metadata_type).__mro__:
        if "make_chat_form" in vars(cls):
            break
        if any(name in vars(cls) for name in _RENDERING_METHODS):
            return ChatForm(kind="code", reason="its class renders it with code")
    return metadata_type.make_chat_form()


def _make_announcement_form(key: str, config: MetadataConfig) -> ChatForm:
    """Returns the form of a local type: its announcement, if the configuration has one."""
    announcements = config.local_metadata_special_tokens or {}
    announcement = announcements.get(key, key)
    if announcement and config.add_local_metadata_special_tokens_in_prefix:
        return ChatForm(kind="constant", text=announcement)
    return ChatForm(kind="code", reason="it is inserted into the text, which takes code")
