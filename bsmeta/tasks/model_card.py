"""The model card of an exported model: the front matter of the Hub, and the card of a task.

The card is the README of the folder. Its facts come from the configuration and from the run's
`metrics.jsonl`. The language model has a card of its own (`causal_lm/model_card.py`), which also
describes the format of its metadata.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from bsmeta.config.metric_table import list_card_metrics
from bsmeta.config.run_location import locate_run_folder
from bsmeta.config.schema import PretrainedConfig, RunConfig
from bsmeta.core.secrets import format_url, redact
from bsmeta.report import markdown
from bsmeta.report.page import load_template
from bsmeta.training.run_folder.events import METRICS, read_last_events

README = "README.md"
TEMPLATE = "tasks/model_card.md.j2"


def make_front_matter(
    config: RunConfig,
    pipeline_tag: str,
    *,
    library: str = "bsmeta",
    datasets: Sequence[str] = (),
    tags: Sequence[str] = (),
    results: Mapping[str, float] | None = None,
    held_out: str = "held-out data",
    split: str = "validation",
    is_pretrained: bool = True,
) -> str:
    """Returns the YAML of the front matter for the Hub, without its `---` delimiters.

    License, languages and data sets of `model_card` are left out if they describe other data than
    the run trains on.

    Args:
        pipeline_tag: The Hub's name of the task.
        datasets: Data sets of the Hub that the run trains on, in addition to `model_card.datasets`.
        tags: Tags of the task, in addition to `bsmeta`.
        results: Metrics by name, for the `model-index`.
        held_out: The name of the data on which the metrics were measured.
        split: The name of its split.
        is_pretrained: Whether the model has weights of `model_name`.
    """
    card = config.model_card if describes_training_data(config) else type(config.model_card)()
    names = list(dict.fromkeys([*card.datasets, *datasets]))
    data = ModelCardData(
        language=card.language or None,
        license=card.license or None,  # type: ignore[arg-type]  # the Hub accepts a list
        library_name=library,
        pipeline_tag=pipeline_tag,
        base_model=_name_base_model(config) if is_pretrained else None,
        datasets=names or None,
        tags=["bsmeta", *tags],
        model_name=name_model(config),
        eval_results=_make_results(pipeline_tag, results or {}, held_out, split),
    )
    return data.to_yaml() + "\n"


def describes_training_data(config: RunConfig) -> bool:
    """Whether `model_card` is about the data that the run trains on."""
    described = config.model_card.describes
    return described is None or described == attrgetter(config.training_data_key)(config)


def list_sources(config: RunConfig) -> list[str]:
    """Lists the texts and word lists that the model learns from, each with its license.

    The list is empty if `model_card` describes other data than the run trains on.
    """
    return config.model_card.sources if describes_training_data(config) else []


def name_model(config: RunConfig) -> str:
    """Returns the name of the model's repository, or without one the name of its run folder."""
    return config.push_to_hub or Path(config.out_dir).name


def write_task_card(
    config: RunConfig,
    folder: Path,
    *,
    pipeline_tag: str,
    about: str,
    prediction: str,
    is_pretrained: bool = True,
    has_steps: bool = True,
    is_export_tested: bool = True,
) -> None:
    """Writes the model card for any task but language modeling.

    Args:
        folder: The folder of the exported model.
        pipeline_tag: The Hub's name of the task.
        about: A sentence about the model.
        prediction: The arguments of `bsmeta predict`, other than the checkpoint.
        is_pretrained: Whether the model has weights of `model_name`.
        has_steps: Whether the model was trained step by step, rather than fitted.
        is_export_tested: Whether metrics of the test split are those of the exported weights.
    """
    event = read_last_events(locate_run_folder(config) / METRICS).get("eval", {})
    split = str(event.get("split", "validation"))
    results = {
        name: float(event[name])
        for name in list_card_metrics(config)
        if isinstance(event.get(name), (int, float)) and math.isfinite(event[name])
    }

    template = load_template(
        TEMPLATE, inline=escape_inline, fenced=format_code_block, cells=format_table
    )
    card = template.render(
        front_matter=make_front_matter(
            config, pipeline_tag, results=results, split=split, is_pretrained=is_pretrained
        ),
        name=name_model(config),
        repository=config.push_to_hub,
        about=about,
        prediction=f"bsmeta predict checkpoint=model {prediction}",
        step=event.get("step") if has_steps else None,
        split=split,
        metrics={escape_inline(name): f"{value:.4f}" for name, value in results.items()},
        facts={
            name: escape_inline(value)
            for name, value in _list_facts(config, has_steps=has_steps).items()
        },
        dtype=config.export_dtype if is_pretrained else None,
        is_export_measured=split == "test" and is_export_tested,
        command=config.model_card.command or describe_training_command(sys.argv),
        sources=list_sources(config),
    )
    text = redact(card.rstrip("\n")) + "\n"
    (folder / README).write_text(text, encoding="utf-8", errors="backslashreplace")


def _list_facts(config: RunConfig, *, has_steps: bool) -> dict[str, str]:
    """Returns facts about the training run, by name; of its steps only if it has any."""
    data = attrgetter(config.training_data_key)(config)
    files = data if isinstance(data, list) else [data]
    file_names = [shorten_to_public_name(str(file)) for file in files if file]
    facts = {"training data": ", ".join(file_names) or "none"}

    if has_steps:
        facts["length"] = f"{config.max_train_steps:,} steps"
        if config.num_train_epochs is not None:
            facts["length"] = f"{config.num_train_epochs:g} epochs"
        facts["peak learning rate"] = f"{config.learning_rate:g}, {config.lr_scheduler_type}"

    return {**facts, "precision": config.mixed_precision, "seed": str(config.seed)}


def describe_training_command(command: Sequence[str]) -> str | None:
    """Returns the training command for the card; None if `command` is not a training command."""
    if not command or Path(command[0]).stem.removeprefix("bsmeta ") != "train":
        return None
    arguments = [
        argument.removeprefix("++") for argument in command[1:] if not argument.startswith("hydra")
    ]
    return shlex.join(["accelerate", "launch", "bsmeta/train.py", *arguments])


def shorten_to_public_name(path: str) -> str:
    """Returns the last part of a path on this machine; names on the Hub stay as they are."""
    return Path(path).name if Path(path).is_absolute() else format_url(path)


# Secrets are redacted before they are escaped, because an escaped secret would not be recognized.
def escape_inline(text: str) -> str:
    """Redacts secrets in a text, and escapes it for a line of Markdown."""
    return markdown.escape_inline(redact(text))


def format_code_block(text: str, language: str) -> str:
    """Redacts secrets in a text, and formats it as a block of code in Markdown."""
    return markdown.format_code_block(redact(text), language)


def format_table(heads: Sequence[str], rows: Iterable[tuple[str, str]]) -> str:
    """Formats a table in Markdown, whose cells are Markdown already."""
    cells = [list(row) for row in rows]
    return markdown.format_table(heads, cells, [False] * len(heads))


def _name_base_model(config: RunConfig) -> str | None:
    """Returns the name of the initial model on the Hub; None if there was no such model."""
    if not isinstance(config, PretrainedConfig) or config.model_config_file is not None:
        return None
    return None if Path(config.model_name).exists() else config.model_name


def _make_results(
    pipeline_tag: str, results: Mapping[str, float], held_out: str, split: str
) -> list[EvalResult] | None:
    """Returns the metrics as entries of the `model-index`; None without metrics."""
    if not results:
        return None
    return [
        EvalResult(
            task_type=pipeline_tag,
            dataset_type=re.sub(r"[^\w.-]+", "-", held_out),
            dataset_name=held_out,
            dataset_split=split,
            metric_type=re.sub(r"\W+", "_", name),
            metric_name=name,
            metric_value=value,
        )
        for name, value in results.items()
    ]
