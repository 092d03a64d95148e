"""The README of an exported model: data, metadata format, metrics, and the training command.

Written next to the weights whenever a model is exported. Its content comes from the configuration
and the run's `metrics.jsonl`; the renderer of the training data renders the examples.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import BY_TEXT, SCHEME, DataConfig, metadata_room, train_entries
from bsmeta.config.metadata import MetadataConfig, phase_configs
from bsmeta.core.files import redact, redact_values
from bsmeta.metadata.metadata_type import EXAMPLE_TEXT
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import BadDocument, Document
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.report.inference import rough_intervals
from bsmeta.tasks.checkpoints import RECIPE
from bsmeta.training.run_folder import last_events

METRICS = {
    "bits_per_byte_without": "bits per byte without metadata",
    "bits_per_byte_with": "bits per byte with all metadata, same text",
    "difference": "difference",
    "text_bits_per_byte": "bits per byte of all documents, text alone",
}

_PLACES = {"prepend": "before", "append": "after", "both": "before and after"}


def model_card(config: CausalLMConfig, metrics: Path, command: Sequence[str]) -> str:
    """The card, as Markdown with the front matter of the Hub.

    Args:
        metrics: Its `metrics.jsonl`; may be missing.
        command: The command line of the training process (`sys.argv`).
    """
    events = last_events(metrics)
    parts = [
        _front_matter(config),
        f"# {config.push_to_hub or Path(config.out_dir).name}",
        _introduction(config, events.get("step")),
        "## How a document must read",
        *_recipe(config.data_config),
        "## Metrics",
        _metrics(config, events.get("eval")),
        "## Training",
        *_training(config, events.get("step"), command),
    ]
    return redact("\n\n".join(part for part in parts if part)) + "\n"


def write_card(config: CausalLMConfig, metrics: Path, command: Sequence[str], folder: Path) -> None:
    """Write the card, and the metadata configuration that it describes to `metadata.yaml`."""
    (folder / "README.md").write_text(model_card(config, metrics, command), encoding="utf-8")
    data = config.data_config
    recipe: dict[str, Any] = {"metadata_config": asdict(data.metadata_config)}
    if data.row_budget == BY_TEXT:
        recipe |= {"row_budget": BY_TEXT, "row_metadata_budget": data.row_metadata_budget}
    recipe = redact_values({"data_config": recipe})
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


def _table(first: str, second: str, rows: Mapping[str, str]) -> str:
    lines = (f"| {name} | {value} |" for name, value in rows.items())
    return "\n".join([f"| {first} | {second} |", "|---|---|", *lines])


def _front_matter(config: CausalLMConfig) -> str:
    values: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["bsmeta", "metadata"],
    }
    if config.model_config_file is None and not Path(config.model_name).exists():
        values["base_model"] = config.model_name
    card = asdict(config.model_card)
    dataset = f"{SCHEME}datasets/"  # of entries hf://datasets/owner/name@revision/…
    for _, entry in train_entries(config.data_config):
        if entry.startswith(dataset):
            owner, name = entry.removeprefix(dataset).split("/")[:2]
            card["datasets"].append(f"{owner}/{name.partition('@')[0]}")
    card["datasets"] = list(dict.fromkeys(card["datasets"]))
    values |= {name: given for name, given in card.items() if given}
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---"


def _introduction(config: CausalLMConfig, step: dict[str, Any] | None) -> str:
    types = ", ".join(config.data_config.metadata_config.metadata_list)
    documents = f"documents together with their metadata ({types})" if types else "documents"
    start = f"the weights of {_public(config.model_name)}"
    if config.model_config_file is not None:
        start = "random weights"
    length = f", for {step['step']:,} steps ({step['tokens']:,} tokens)" if step else ""
    return (
        f"A language model, trained with `bsmeta` from {start}{length} on {documents}. It loads "
        "with `AutoModelForCausalLM` and `AutoTokenizer`."
    )


def _recipe(data: DataConfig) -> Iterator[str]:
    config = data.metadata_config
    if config.metadata_list:
        yield from _metadata_recipe(data)
    else:
        yield f"As text alone. {_lengths(data)} No loss was taken on {_without_loss(data)}."
    yield f"`{RECIPE}` has all settings of the metadata; `bsmeta` reads them from there."


def _metadata_recipe(data: DataConfig) -> Iterator[str]:
    config = data.metadata_config
    parts = "The prefix is tokenized by itself"
    suffix = "" if config.metadata_position == "prepend" else " and suffix"
    if data.row_budget == BY_TEXT:
        parts = f"Prefix{suffix}, text and tags are tokenized each by itself"
    elif suffix:
        parts = "Prefix and suffix are tokenized each by itself"
    yield (
        f"Metadata comes {_PLACES[config.metadata_position]} the text (global types) and in it "
        "(local types), exactly as below; types that a document lacks are left out. "
        f"{parts}. {_lengths(data)}"
    )
    yield _block(example(config).whole)
    alone = {f"`{key}`": _alone(key, config) for key in config.metadata_list}
    yield _table("type", "alone, it reads", alone)
    yield f"{_shares(config)} No loss was taken on {_without_loss(data)}."
    kinds = {key: type_of(key) for key in config.metadata_list}
    given = [
        f'metadata={{{key}: "{kind.example}"}}'
        for key, kind in kinds.items()
        if not kind.is_local and kind.example is not None
    ]
    if given and config.metadata_position != "append":
        yield _block(
            f"python bsmeta/generate.py checkpoint=THIS_FOLDER {shlex.quote(given[0])} "
            f"'prompt=\"{EXAMPLE_TEXT[:12]}\"'",
            "sh",
        )


def _lengths(data: DataConfig) -> str:
    config, room = data.metadata_config, ""
    if data.row_budget == BY_TEXT and config.metadata_list:
        room = f" of text and {metadata_room(data):,} of metadata"
    return (
        f"A sequence has at most {config.max_seq_len:,} tokens{room}, a document ends with the "
        "end-of-text token."
    )


def _shares(config: MetadataConfig) -> str:
    """How many of the training documents had metadata."""
    shares = sorted({phase.metadata_probability for phase in phase_configs(config)})
    percent = " to ".join(f"{share:.0%}" for share in dict.fromkeys((shares[0], shares[-1])))
    phases = ", in phases (see below)" if config.schedule else ""
    alone = ""
    if shares[0] < 1:
        alone = "; all others are text alone, and so the model can be used without metadata, too"
    return f"In training {percent} of the documents had metadata{phases}{alone}."


def _without_loss(data: DataConfig) -> str:
    config = data.metadata_config
    first = "a first token that nothing precedes"
    if not config.loss_on_first_text or (data.row_budget == BY_TEXT and not config.bos_token):
        first = "the first token of the text"
    if config.loss_on_metadata or not config.metadata_list:
        return first
    suffix = "" if config.metadata_position == "prepend" else " and the suffix"
    tags = "" if config.treat_local_metadata_as_regular_text else " and the tags in the text"
    return f"the prefix{suffix}{tags}, nor on {first}"


def _alone(key: str, config: MetadataConfig) -> str:
    try:
        shown = _with_types(Renderer(config), key)
    except BadDocument:
        return ""
    return "`" + shown.whole.replace("|", "\\|").replace("\n", "↵") + "`"


def _metrics(config: CausalLMConfig, event: dict[str, Any] | None) -> str:
    if event is None:
        return "Not evaluated."
    rows = {METRICS[name]: f"{event[name]:.4f}" for name in METRICS if event.get(name) is not None}
    interval = ""
    if "difference_low" in event:
        low, high = event["difference_low"], event["difference_high"]
        sentence = f"The difference lies in {low:+.4f} to {high:+.4f} (95% bootstrap interval)."
        interval = " ".join(["", sentence, *rough_intervals(event["documents"], "documents")])
    return (
        f"The evaluation during training, at step {event['step']:,}: on {event['documents']:,} "
        f"documents with metadata among the first {config.eval_documents:,} of the held-out "
        "shard (`eval_documents`), in the chunks used in training, most of which begin without "
        f"context, over identical text bytes.{interval}\n\n"
        "`python bsmeta/evaluate.py checkpoint=RUN` scores the whole shard in overlapping "
        "windows, where metadata helps less; with `windows=all_pieces "
        f"max_documents={config.eval_documents}` it repeats the metrics here.\n\n"
        + _table("metric", "value", rows)
    )


def _training(
    config: CausalLMConfig, step: dict[str, Any] | None, command: Sequence[str]
) -> Iterator[str]:
    data = config.data_config
    files = [_public(entry) for _, entry in train_entries(data)]
    rows = {
        "training shards": ", ".join(files) or "none",
        "held-out shard": _public(data.validation_file or "none"),
        "steps": f"{config.max_train_steps:,}",
        "peak learning rate": f"{config.learning_rate:g}, {config.lr_scheduler_type}, "
        f"{config.num_warmup_steps:,} steps of warm-up",
        "precision": config.mixed_precision,
        "seed": str(config.seed),
    }
    if step is not None:
        rows["loss of the last step"] = f"{step['loss']:.4f} nats per token"
    yield _table("what", "value", rows)
    if command and Path(command[0]).stem.removeprefix("bsmeta ") == "train":
        given = [
            argument.removeprefix("++")
            for argument in command[1:]
            if not argument.startswith("hydra")
        ]
        yield _block(shlex.join(["accelerate", "launch", "bsmeta/train.py", *given]), "sh")


def _public(path: str) -> str:
    """The last part of a path on this machine; names on the Hub stay as they are."""
    return Path(path).name if Path(path).is_absolute() else path


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"
