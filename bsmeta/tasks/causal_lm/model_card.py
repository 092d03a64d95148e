"""The README of an exported model: data, metadata format, metrics, and the training command.

Written next to the weights whenever a model is exported. `model_card.md.j2` is its text; what that
is filled with comes from the configuration and the run's `metrics.jsonl`, and the renderer of the
training data renders the examples.
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
from bsmeta.config.data import BY_TEXT, SCHEME, metadata_room, train_entries
from bsmeta.config.metadata import MetadataConfig, phase_configs
from bsmeta.config.saved import changed_texts, mark
from bsmeta.core.secrets import redact, redact_values
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import EXAMPLE_TEXT
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.report import markdown
from bsmeta.report.inference import rough_intervals
from bsmeta.report.page import load_template
from bsmeta.tasks.checkpoints import RECIPE
from bsmeta.tasks.model_card import (
    README,
    fenced,
    front_matter,
    inline,
    model_name,
    public_name,
    table,
    training_command,
)
from bsmeta.training.run_folder import last_events

METRICS = {
    "bits_per_byte_without": "bits per byte without metadata",
    "bits_per_byte_with": "bits per byte with all metadata, same text",
    "difference": "difference",
    "text_bits_per_byte": "bits per byte of all documents, text alone",
}


def model_card(config: CausalLMConfig, metrics: Path, command: Sequence[str]) -> str:
    """The card, as Markdown with the front matter of the Hub.

    Args:
        metrics: Its `metrics.jsonl`; may be missing.
        command: The command line of the training process (`sys.argv`).
    """
    data, metadata = config.data_config, config.data_config.metadata_config
    events = last_events(metrics)
    step, event = events.get("step"), events.get("eval")
    kinds = {key: type_of(key) for key in metadata.metadata_list}
    given = [
        shlex.quote(f'metadata={{{key}: "{kind.example}"}}')
        for key, kind in kinds.items()
        if not kind.is_local and kind.example is not None
    ]
    checkpoint = f"hf://{config.push_to_hub}" if config.push_to_hub else "model"
    prompt = f"'prompt=\"{EXAMPLE_TEXT[:12]}\"'"
    results = {name: event[name] for name in METRICS if event and event.get(name) is not None}
    shown = example(metadata)
    template = load_template(
        "tasks/causal_lm/model_card.md.j2", public=public_name, percent="{:.0%}".format,
        inline=inline, fenced=fenced, cells=table,
    )  # fmt: skip
    card = template.render(
        config=config,
        data=data,
        metadata=metadata,
        name=model_name(config),
        model=json.dumps(config.push_to_hub or "model"),
        parts=[
            json.dumps(part, ensure_ascii=False)
            for part in (shown.prefix, shown.lead + EXAMPLE_TEXT[:12])
            if part
        ],
        front_matter=_front_matter(config, results),
        room=metadata_room(data),
        example=shown.whole,
        alone={markdown.code_cell(key): _alone(key, metadata) for key in kinds},
        given=f"bsmeta generate checkpoint={checkpoint} {given[0]} {prompt}" if given else None,
        # of the training documents that had metadata: the least and the most
        shares=sorted(phase.metadata_probability for phase in phase_configs(metadata)),
        recipe=RECIPE,
        step=step,
        event=event,
        rough=rough_intervals(event["documents"], "documents") if event else (),
        metrics={METRICS[name]: f"{value:.4f}" for name, value in results.items()},
        training=_training(config, step),
        command=training_command(command),
    )
    return redact(card.rstrip("\n")) + "\n"


def write_card(config: CausalLMConfig, metrics: Path, command: Sequence[str], folder: Path) -> None:
    """Write the card, and the metadata configuration that it describes to `metadata.yaml`."""
    card = model_card(config, metrics, command)
    (folder / README).write_text(card, encoding="utf-8", errors="backslashreplace")
    data = config.data_config
    recipe: dict[str, Any] = {"metadata_config": asdict(data.metadata_config)}
    if data.row_budget == BY_TEXT:
        recipe |= {"row_budget": BY_TEXT, "row_metadata_budget": data.row_metadata_budget}
    recipe = changed_texts(redact_values({"data_config": recipe}), mark)
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    (folder / RECIPE).write_text(text, encoding="utf-8")


def example(config: MetadataConfig) -> Rendered:
    """A small document with all types of the configuration, rendered for this model.

    Those are left out whose example value does not suit their settings.
    """
    renderer = Renderer(config)
    shown = Rendered(EXAMPLE_TEXT, body=EXAMPLE_TEXT)
    keys: list[str] = []
    for key in config.metadata_list:
        try:
            shown = _with_types(renderer, *keys, key)
        except BadDocument:
            continue
        keys.append(key)
    return shown


def _with_types(renderer: Renderer, *keys: str) -> Rendered:
    records = {key: [type_of(key).example_record(key)] for key in keys}
    return renderer.render(Document(EXAMPLE_TEXT, None, records), keys)


def _front_matter(config: CausalLMConfig, results: Mapping[str, float]) -> str:
    dataset = f"{SCHEME}datasets/"  # of entries hf://datasets/owner/name@revision/…
    names = []
    for _, entry in train_entries(config.data_config):
        if entry.startswith(dataset):
            owner, name = entry.removeprefix(dataset).split("/")[:2]
            names.append(f"{owner}/{name.partition('@')[0]}")
    held_out = public_name(config.data_config.validation_file or "none")
    return front_matter(
        config, "text-generation", library="transformers", datasets=names, results=results,
        held_out=held_out,
    )  # fmt: skip


def _alone(key: str, config: MetadataConfig) -> str:
    try:
        shown = _with_types(Renderer(config), key)
    except BadDocument:
        return ""
    return markdown.code_cell(redact(shown.whole))


def _training(config: CausalLMConfig, step: dict[str, Any] | None) -> dict[str, str]:
    """How the model was trained, as Markdown by name."""
    data = config.data_config
    rows = {
        "training shards": ", ".join(public_name(entry) for _, entry in train_entries(data))
        or "none",
        "held-out shard": public_name(data.validation_file or "none"),
        "steps": f"{config.max_train_steps:,}",
        "peak learning rate": f"{config.learning_rate:g}, {config.lr_scheduler_type}, "
        f"{config.num_warmup_steps:,} steps of warm-up",
        "precision": config.mixed_precision,
        "seed": str(config.seed),
    }
    if step is not None:
        rows["loss of the last step"] = f"{step['loss']:.4f} nats per token"
    return {name: inline(value) for name, value in rows.items()}
