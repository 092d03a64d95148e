"""Checks and summary of a disambiguation run, before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bsmeta.config.checks.run import missing, model_problems
from bsmeta.config.launch import Launch
from bsmeta.config.task_entry import Row
from bsmeta.core.problems import HYDRA, Problem, look_up, show
from bsmeta.tasks.disambiguation.config import ENTITY_TEXT, DisambiguationConfig

FILES = {
    "train_file": "a .jsonl or .jsonl.gz file of sentences with mentions",
    "dev_file": "a .jsonl or .jsonl.gz file of sentences with mentions",
    "test_file": "a .jsonl or .jsonl.gz file of sentences with mentions",
    "entity_table": "a folder that was built from profiles of entities",
}
REQUIRED = ("train_file", "entity_table")


def value_problems(
    config: DisambiguationConfig, overridden: Collection[str] = ()
) -> Iterator[Problem]:
    """Yields problems that do not depend on the launch."""
    yield from _files(config)
    yield from model_problems(config)
    yield from _encoders(config)
    yield from _texts(config)
    data = config.data_config
    if data.dev_file is None and config.keep_best_by is not None:
        expected = "null, because data_config.dev_file=null leaves nothing to evaluate on"
        fix = "keep_best_by=null export_best=false early_stopping_patience=null, or a dev_file"
        yield Problem("keep_best_by", HYDRA, show(config.keep_best_by), expected, fix)
    if data.mask_rarest > data.mask_most_frequent:
        expected = f"at most data_config.mask_most_frequent={data.mask_most_frequent}"
        fix = "exchange them, or set both to 0 to mask nothing"
        yield Problem("data_config.mask_rarest", HYDRA, show(data.mask_rarest), expected, fix)
    if config.compare_with is not None and not os.path.isdir(config.compare_with):
        what = "the run folder of another model"
        yield missing("compare_with", config.compare_with, what, "correct compare_with")


def _files(config: DisambiguationConfig) -> Iterator[Problem]:
    is_checked = config.accelerate_config_file is None  # that of another machine is not here
    for name, what in FILES.items():
        key, value = f"data_config.{name}", getattr(config.data_config, name)
        if value is None and name in REQUIRED:
            yield Problem(key, HYDRA, "null", what, f"{key}=PATH")
        elif value is not None and is_checked and not os.path.exists(value):
            yield missing(key, value, what, f"correct {key}")


def _encoders(config: DisambiguationConfig) -> Iterator[Problem]:
    if config.model_config_file is not None:
        expected = "null, because the weights of entities' encoder before training are used"
        for key, is_wrong in (
            ("train_entity_layers", config.train_entity_layers is not None),
            ("hard_negatives", config.hard_negatives > 0),
        ):
            if is_wrong:
                found = show(config.model_config_file)
                fix = f"model_name=FOLDER without model_config_file, or without {key}"
                yield Problem("model_config_file", HYDRA, found, expected, fix)
    for key in ("encoder_layers", "train_layers", "train_entity_layers"):
        if config.share_encoders and getattr(config, key) is not None:
            expected = "null, because share_encoders=true makes it the encoder of entities, too"
            fix = f"{key}=null, or share_encoders=false"
            yield Problem(key, HYDRA, show(getattr(config, key)), expected, fix)


def _texts(config: DisambiguationConfig) -> Iterator[Problem]:
    parts = config.data_config.entity_text
    if not parts or len({*parts}) < len(parts):
        key, expected = "data_config.entity_text", "at least one part, and each once"
        yield Problem(key, HYDRA, show(parts), expected, f"{key}=[{', '.join(ENTITY_TEXT)}]")


def start_problems(
    config: DisambiguationConfig, _: Launch, document: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields problems that depend on the launch."""
    stage = None if document is None else look_up(document, "zero_optimization.stage")
    if config.train_entity_layers and stage == 3:
        expected = "null or 0 under ZeRO-3, whose processes must run the layers equally often"
        fix = "use a DeepSpeed JSON of stage 2, or train_entity_layers=null"
        yield Problem("train_entity_layers", HYDRA, show(config.train_entity_layers), expected, fix)


def summary_rows(config: DisambiguationConfig, launch: Launch) -> list[Row]:
    """Rows for model, sentences and entities."""
    data = config.data_config
    model = config.model_name
    if config.model_config_file is not None:
        model = f"{config.model_config_file} (random weights)"
    trained = config.train_entity_layers
    entities = "of its own" if trained is None else f"of its own, {trained} layers trained"
    if config.share_encoders:
        entities = "that of the mentions"
    held_out = [f"{name}: {getattr(data, f'{name}_file')}" for name in ("dev", "test")]
    return [
        ("encoder", f"{model}; one pass a {data.mention_encoding}; of entities: {entities}"),
        ("entities", f"{data.entity_table}: {', '.join(data.entity_text)}"),
        ("training data", str(data.train_file)),
        ("held-out data", "; ".join(held_out).replace("None", "–")),
    ]
