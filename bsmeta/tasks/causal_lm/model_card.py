"""The README of an exported model: data, metadata format, metrics, and the training command.

It is written next to the weights whenever a model is exported. `model_card.md.j2` is its template;
the values come from the configuration and the run's `metrics.jsonl`, and the examples are rendered
like training data.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import BY_TEXT, HUB_SCHEME, compute_metadata_room, iterate_train_entries
from bsmeta.config.metadata import MetadataConfig, configure_phases
from bsmeta.config.metric_table import list_card_metrics
from bsmeta.config.saved import change_texts, escape_interpolations
from bsmeta.core.secrets import redact, redact_values
from bsmeta.metadata.chat_template import find_chat_form
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import EXAMPLE_TEXT
from bsmeta.metadata.processors import find_type, make_types
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.report import markdown
from bsmeta.report.inference import warn_of_rough_intervals
from bsmeta.report.page import load_template
from bsmeta.tasks.causal_lm.metrics import METRICS
from bsmeta.tasks.causal_lm.one_string import ChatTemplate
from bsmeta.tasks.checkpoints import RECIPE
from bsmeta.tasks.model_card import (
    README,
    describe_training_command,
    escape_inline,
    format_code_block,
    format_table,
    list_sources,
    make_front_matter,
    name_model,
    shorten_to_public_name,
)
from bsmeta.training.run_folder.events import read_last_events

PROMPT = EXAMPLE_TEXT[:12]
"""The beginning of the example text, as a prompt."""


def render_model_card(
    config: CausalLMConfig,
    metrics: Path,
    command: Sequence[str],
    chat_template: ChatTemplate | None = None,
) -> str:
    """Returns the card, as Markdown with the front matter of the Hub.

    Args:
        metrics: The `metrics.jsonl` of the run; may be missing.
        command: The command line of the training process (`sys.argv`).
        chat_template: The template in the model's tokenizer, if it has one.
    """
    data = config.data_config
    metadata = data.metadata_config
    events = read_last_events(metrics)
    step = events.get("step")
    event = events.get("eval")
    results = _select_results(config, event or {})
    rendered = render_example(metadata)
    example_parts = [part for part in (rendered.prefix, rendered.lead + PROMPT) if part]

    template = load_template(
        "tasks/causal_lm/model_card.md.j2",
        public=shorten_to_public_name,
        percent="{:.0%}".format,
        inline=escape_inline,
        fenced=format_code_block,
        cells=format_table,
    )
    card = template.render(
        config=config,
        data=data,
        metadata=metadata,
        name=name_model(config),
        model=json.dumps(config.push_to_hub or "model"),
        parts=[json.dumps(part, ensure_ascii=False) for part in example_parts],
        chat=chat_template,
        messages=_format_messages(metadata),
        front_matter=_make_front_matter(config, results),
        room=compute_metadata_room(data),
        example=rendered.full_text,
        alone={
            markdown.format_code_cell(key): _render_alone(key, metadata)
            for key in metadata.metadata_list
        },
        given=_make_generate_command(config),
        # The share of documents with metadata in each phase; the card shows the range.
        shares=sorted(phase.metadata_probability for phase in configure_phases(metadata)),
        recipe=RECIPE,
        step=step,
        event=event,
        rough=warn_of_rough_intervals(event["documents"], "documents") if event else (),
        metrics={METRICS[name].description: f"{value:.4f}" for name, value in results.items()},
        training=_describe_training(config, step),
        command=config.model_card.command or describe_training_command(command),
        sources=list_sources(config),
    )
    return redact(card.rstrip("\n")) + "\n"


def _select_results(config: CausalLMConfig, event: Mapping[str, Any]) -> dict[str, float]:
    """Selects the values of the last evaluation that the card shows."""
    return {name: event[name] for name in list_card_metrics(config) if event.get(name) is not None}


def _make_generate_command(config: CausalLMConfig) -> str | None:
    """Returns a command that generates text with the first type that has an example value."""
    checkpoint = f"hf://{config.push_to_hub}" if config.push_to_hub else "model"
    prompt = f"'prompt=\"{PROMPT}\"'"
    for key in config.data_config.metadata_config.metadata_list:
        metadata_type = find_type(key)
        if not metadata_type.is_local and metadata_type.example is not None:
            metadata = shlex.quote(f'metadata={{{key}: "{metadata_type.example}"}}')
            return f"bsmeta generate checkpoint={checkpoint} {metadata} {prompt}"
    return None


def _format_messages(config: MetadataConfig) -> list[str]:
    """Formats the messages of an example as lines of Python: its metadata, then its text.

    Metadata about places in the text, and types that a template cannot render, are left out.
    """
    text_line = f'{{"role": "text", "content": {_format_literal(PROMPT)}}},'
    values = _list_example_values(config)
    if not values or config.metadata_position == "append":
        return [text_line]

    fields = []
    for key, value in values.items():
        fields.append(f"    {_format_literal(key)}: {_format_literal(value)},")
    return ['{"role": "metadata", "content": {', *fields, "}},", text_line]


def _list_example_values(config: MetadataConfig) -> dict[str, Any]:
    """Lists the example values that can be in a metadata message, by type."""
    metadata_types = make_types(config)
    values: dict[str, Any] = {}
    for key in render_example(config).types:
        metadata_type = metadata_types[key]
        form = find_chat_form(metadata_type, config)
        if form.kind != "code" and not metadata_type.is_local:
            example = metadata_type.make_example_record(key)
            values[key] = metadata_type.always_present or example.value
    return values


def _format_literal(value: str | int | float) -> str:
    """Returns a value as a Python literal; strings have double quotation marks."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def write_card(
    config: CausalLMConfig,
    metrics: Path,
    command: Sequence[str],
    folder: Path,
    chat_template: ChatTemplate | None = None,
) -> None:
    """Writes the card, and `metadata.yaml` with the metadata configuration that it describes."""
    card = render_model_card(config, metrics, command, chat_template)
    (folder / README).write_text(card, encoding="utf-8", errors="backslashreplace")

    data = config.data_config
    recipe: dict[str, Any] = {"metadata_config": asdict(data.metadata_config)}
    if data.row_budget == BY_TEXT:
        recipe |= {"row_budget": BY_TEXT, "row_metadata_budget": data.row_metadata_budget}
    recipe = change_texts(redact_values({"data_config": recipe}), escape_interpolations)
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    (folder / RECIPE).write_text(text, encoding="utf-8")


def render_example(config: MetadataConfig) -> Rendered:
    """Renders a small document with the examples of all types, as this model is trained on it.

    Types whose example is invalid under their settings are left out.
    """
    renderer = Renderer(config)
    rendered = Rendered(EXAMPLE_TEXT, body=EXAMPLE_TEXT)
    keys: list[str] = []
    for key in config.metadata_list:
        try:
            rendered = _render_types(renderer, *keys, key)
        except BadDocument:
            continue
        keys.append(key)
    return rendered


def _render_types(renderer: Renderer, *keys: str) -> Rendered:
    """Renders the example text with the example values of some types."""
    records = {key: [find_type(key).make_example_record(key)] for key in keys}
    return renderer.render(Document(EXAMPLE_TEXT, None, records), keys)


def _make_front_matter(config: CausalLMConfig, results: Mapping[str, float]) -> str:
    """Returns the front matter of the Hub, with the data sets on the Hub that the run reads."""
    prefix = f"{HUB_SCHEME}datasets/"  # of entries hf://datasets/owner/name@revision/…
    datasets = []
    for _, entry in iterate_train_entries(config.data_config):
        if entry.startswith(prefix):
            owner, name = entry.removeprefix(prefix).split("/")[:2]
            datasets.append(f"{owner}/{name.partition('@')[0]}")
    return make_front_matter(
        config,
        "text-generation",
        library="transformers",
        datasets=datasets,
        tags=["metadata"],
        results=results,
        held_out=shorten_to_public_name(config.data_config.validation_file or "none"),
    )


def _render_alone(key: str, config: MetadataConfig) -> str:
    """Renders a type by itself, as a cell of a table; "" if its example is invalid."""
    try:
        rendered = _render_types(Renderer(config), key)
    except BadDocument:
        return ""
    return markdown.format_code_cell(redact(rendered.full_text))


def _describe_training(config: CausalLMConfig, step: dict[str, Any] | None) -> dict[str, str]:
    """Returns facts about the training run by name, as Markdown.

    Args:
        step: The last step in the log, if there is one.
    """
    data = config.data_config
    shards = ", ".join(shorten_to_public_name(entry) for _, entry in iterate_train_entries(data))
    facts = {
        "training shards": shards or "none",
        "held-out shard": shorten_to_public_name(data.validation_file or "none"),
        "steps": f"{config.max_train_steps:,}",
        "peak learning rate": f"{config.learning_rate:g}, {config.lr_scheduler_type}, "
        f"{config.num_warmup_steps:,} steps of warm-up",
        "precision": config.mixed_precision,
        "seed": str(config.seed),
    }
    if step is not None:
        facts["loss of the last step"] = f"{step['loss']:.4f} nats per token"
    return {name: escape_inline(value) for name, value in facts.items()}
