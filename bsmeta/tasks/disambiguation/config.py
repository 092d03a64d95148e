"""The configuration of `task=disambiguation`: its schema, checks and summary."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bsmeta.config.checks.paths import describe_missing_file, find_model_problems
from bsmeta.config.composing.composition import EMPTY_COMPOSITION, Composition
from bsmeta.config.launch import Launch
from bsmeta.config.schema import PretrainedConfig, TableDataConfig
from bsmeta.config.task_entry import Row
from bsmeta.core.errors import HYDRA, Problem, format_value, look_up
from bsmeta.core.keys import inherit_key, key

ENTITY_TEXT = ("title", "types", "relations", "description")
"""The possible parts of the text of an entity, in order."""

DICTIONARY = "dictionary"
DETECTOR = "detector"
BOTH = "both"

FILE_DESCRIPTIONS = {
    **dict.fromkeys(
        ("train_file", "dev_file", "test_file"),
        "a .jsonl or .jsonl.gz file of sentences with mentions",
    ),
    "entity_table": "a folder that was built from profiles of entities",
}
REQUIRED_FILES = ("train_file", "entity_table")


@dataclass(frozen=True, kw_only=True)
class DisambiguationDataConfig(TableDataConfig):
    """The sentences, the table of entities, and how both become batches."""

    train_file: str | None = key(
        None, "training sentences: .jsonl or .jsonl.gz, a line each", is_path=True
    )
    dev_file: str | None = key(None, "sentences of the evaluations during training", is_path=True)
    test_file: str | None = key(None, "sentences of the evaluation after training", is_path=True)
    entity_table: str | None = key(
        None, "folder of the table of entities, built from their profiles", is_path=True
    )
    prep_dir: str | None = key(
        None,
        "folder of the encoded sentences; null: prep beside the training sentences",
        is_path=True,
    )
    vectors_dir: str | None = key(
        None,
        "folder of the vectors of entities, each computed once for a model; null: beside "
        "entity_table, with its name and .vectors",
        is_path=True,
    )
    overwrite_prep: bool = key(
        False,
        "encode the sentences again if the file or a setting has changed since; false: refuse",
    )
    prep_workers: int = key(1, "processes that encode the sentences on a machine", at_least=1)
    max_mentions: int = key(
        10, "mentions of a row; a sentence with more becomes several rows", at_least=1
    )
    max_words: int = key(100, "words of a row; a longer sentence becomes several rows", at_least=1)

    use_weak_labels: bool = key(
        True,
        "train on mentions with gold=false, which are never scored; false: as if training "
        "sentences did not have them",
    )

    alias_form: str = key(
        "text",
        "how an alias is written in a text, to detect mentions; text: as it is; lemma_pos: "
        "`vice_president.n` as `vice president`",
        choices=("text", "lemma_pos"),
    )
    min_mention_share: float = key(
        0.05,
        "words that are mentions in a smaller share of their occurrences in the training "
        "sentences are not detected as mentions",
        at_least=0,
        at_most=1,
    )

    unmarked_match_weight: float = key(
        1.0,
        "weight, in the loss of the mention detector, of tokens that are in no mention of a line, "
        "but that the dictionary detects; 1: lines mark all of their mentions; less: they mark "
        "only some, such as links; 0: these tokens are ignored",
        at_least=0,
        at_most=1,
    )

    mention_encoding: str = key(
        "sentence",
        "sentence: one encoder pass for all mentions of a row; window: one for each mention, with "
        "the mention between [ent_start] and [ent_end]",
        choices=("sentence", "window"),
    )
    window_length: int = key(64, "tokens of a window, with the special ones", at_least=8)
    entity_text: list[str] = key(
        list(ENTITY_TEXT),
        "parts of the text of an entity; [title] is the text-only baseline",
        choices=ENTITY_TEXT,
    )
    max_entity_length: int = key(
        128, "tokens of the text of an entity, with the special ones", at_least=8
    )
    mask_rarest: float = key(
        0.5,
        "probability that a mention is masked, and the title of a candidate, in training: for the "
        "least frequent entity",
        at_least=0,
        below=1,
    )
    mask_most_frequent: float = key(
        0.95,
        "the same for the most frequent entity; those between by the percentile of their count",
        at_least=0,
        below=1,
    )

    batch_size: int = key(
        32,
        "rows of a step (batch_scope=total) or of a micro-batch of one process (per_device)",
        deepspeed="train_micro_batch_size_per_gpu",
        at_least=1,
    )
    batch_scope: str = key(
        "total",
        "total: batch_size is divided among processes and gradient_accumulation_steps, exactly; "
        "per_device: it is that of each",
        choices=("total", "per_device"),
    )
    per_device_eval_batch_size: int = inherit_key(TableDataConfig, "per_device_eval_batch_size", 64)


@dataclass(frozen=True, kw_only=True)
class DisambiguationConfig(PretrainedConfig):
    """A training run of an entity disambiguator."""

    micro_batch_key: ClassVar[str | None] = "data_config.batch_size"
    batch_scope_key: ClassVar[str | None] = "data_config.batch_scope"

    task: str = inherit_key(PretrainedConfig, "task", "disambiguation")
    data_config: DisambiguationDataConfig = key(
        DisambiguationDataConfig, "the sentences and the entities"
    )

    model_name: str = key(
        "google-bert/bert-base-uncased",
        "a folder or Hub name of the encoder to load; its weights unless model_config_file",
        is_path=True,
        heading="Model",
    )
    encoder_layers: int | None = key(
        None,
        "number of layers of the encoder of mentions that are used, from the first; null: all",
        at_least=1,
    )
    train_layers: int | None = key(
        None,
        "number of layers of the encoder of mentions that are trained, from the last, without its "
        "embeddings of tokens; null: all of it",
        at_least=0,
    )
    share_encoders: bool = key(
        False, "one encoder for mentions and entities, instead of one for each"
    )
    train_entity_layers: int | None = key(
        None,
        "number of layers of the encoder of entities that are trained, from the last; what the "
        "layers below make of each text is computed once; 0: only the layer on top of the encoder "
        "is trained; null: all of it",
        at_least=0,
    )
    embedding_size: int = key(200, "size of the embeddings that are compared", at_least=1)
    pooling: str = key(
        "mean",
        "what of a text's tokens becomes its vector: the mean, or the first token (of a mention in "
        "a sentence always the mean of its tokens)",
        choices=("mean", "first"),
    )
    temperature: float = key(
        0.01, "scores are cosines divided by this (Bootleg 1.1: 0.01)", above=0
    )
    log_prior: str = key(
        "none",
        "trained weights times the logarithms of a candidate's share of its alias's scores, and of "
        "its rank, are added to its score; leave_one_out: less the training mentions of the same "
        "document, for tables whose scores count these",
        choices=("none", "scores", "leave_one_out"),
    )

    max_kept_tokens: int | None = key(
        4096,
        "tokens of sentences or windows in a micro-batch, with padding, up to which the "
        "activations of the encoder of mentions are kept for the backward pass; those of a larger "
        "micro-batch are computed again, layer by layer, with the same result (not under ZeRO-3); "
        "null: no limit",
        at_least=0,
    )

    mention_detection: str = key(
        DICTIONARY,
        "mentions of new texts; dictionary: the forms of aliases; detector: spans that a layer on "
        "the encoder of mentions tags, which is trained with it; both: spans of the detector, and "
        "forms that overlap none of them",
        choices=(DICTIONARY, DETECTOR, BOTH),
        heading="Detection of mentions",
    )
    detection_loss_weight: float = key(
        1.0,
        "factor of the loss of the mention detector (a sum over tokens), which is added to the "
        "loss of the entities (a sum over mentions)",
        above=0,
    )

    train_in_candidates: bool = key(
        True,
        "true: the entity of every mention must be one of its candidates, and a mention without it "
        "counts as wrong; false: there is a further candidate, none of them (NIL)",
        heading="Loss",
    )
    negatives: str = key(
        "batch",
        "candidates that a mention is compared with in training: those of all mentions of the "
        "micro-batch, or its own",
        choices=("batch", "own"),
    )
    max_train_candidates: int | None = key(
        None,
        "candidates of a mention in training: its entity and the most popular others; null: all",
        at_least=2,
    )
    hard_negatives: int = key(
        0,
        "further entities for each mention in training: those whose texts are most similar to that "
        "of its entity before training",
        at_least=0,
    )

    eval_slices: list[str] | None = key(
        None, "slices that evaluations report; null: all", heading="Evaluation and prediction"
    )
    compare_with: str | None = key(
        None,
        "run folder of another model, scored beside this one at the end, such as one trained with "
        "data_config.entity_text=[title]",
        is_path=True,
    )
    min_score: float = key(
        0.0,
        "predictions whose probability among the candidates is lower are dropped",
        at_least=0,
        at_most=1,
    )
    bootstrap_resamples: int = key(
        2000, "resamples of the documents for each interval of the report", at_least=1
    )

    prep_only: bool = key(False, "encode the sentences, and stop", heading="Data")


def find_value_problems(
    config: DisambiguationConfig, _: Composition = EMPTY_COMPOSITION
) -> Iterator[Problem]:
    """Yields the problems of a configuration that do not depend on the launch."""
    yield from _find_file_problems(config)
    yield from find_model_problems(config)
    yield from _find_encoder_problems(config)

    data = config.data_config
    if not data.entity_text or len({*data.entity_text}) < len(data.entity_text):
        key = "data_config.entity_text"
        expected = "at least one part, and each once"
        fix = f"{key}=[{', '.join(ENTITY_TEXT)}]"
        yield Problem(key, HYDRA, format_value(data.entity_text), expected, fix)

    if data.dev_file is None and config.keep_best_by is not None:
        expected = "null, because data_config.dev_file=null leaves nothing to evaluate on"
        fix = "keep_best_by=null export_best=false early_stopping_patience=null, or a dev_file"
        yield Problem("keep_best_by", HYDRA, format_value(config.keep_best_by), expected, fix)

    if config.mention_detection != DICTIONARY and data.mention_encoding != "sentence":
        expected = "dictionary with data_config.mention_encoding=window, which encodes no sentence"
        fix = "mention_detection=dictionary, or data_config.mention_encoding=sentence"
        yield Problem(
            "mention_detection", HYDRA, format_value(config.mention_detection), expected, fix
        )

    if data.mask_rarest > data.mask_most_frequent:
        expected = f"at most data_config.mask_most_frequent={data.mask_most_frequent}"
        fix = "exchange them, or set both to 0 to mask nothing"
        yield Problem(
            "data_config.mask_rarest", HYDRA, format_value(data.mask_rarest), expected, fix
        )

    if config.compare_with is not None and not os.path.isdir(config.compare_with):
        expected = "the run folder of another model"
        yield describe_missing_file(
            "compare_with", config.compare_with, expected, "correct compare_with"
        )


def _find_file_problems(config: DisambiguationConfig) -> Iterator[Problem]:
    """Yields a problem for each required file that is not set, and each missing one."""
    # The paths of a launch on another machine cannot be checked here.
    is_local = config.accelerate_config_file is None
    for name, description in FILE_DESCRIPTIONS.items():
        key = f"data_config.{name}"
        path = getattr(config.data_config, name)
        if path is None and name in REQUIRED_FILES:
            yield Problem(key, HYDRA, "null", description, f"{key}=PATH")
        elif path is not None and is_local and not os.path.exists(path):
            yield describe_missing_file(key, path, description, f"correct {key}")


def _find_encoder_problems(config: DisambiguationConfig) -> Iterator[Problem]:
    """Yields a problem for each key that contradicts `model_config_file` or `share_encoders`."""
    if config.model_config_file is not None:
        expected = "null, because the weights of entities' encoder before training are used"
        for key, is_set in (
            ("train_entity_layers", config.train_entity_layers is not None),
            ("hard_negatives", config.hard_negatives > 0),
        ):
            if is_set:
                value = format_value(config.model_config_file)
                fix = f"model_name=FOLDER without model_config_file, or without {key}"
                yield Problem("model_config_file", HYDRA, value, expected, fix)

    if config.share_encoders:
        for key in ("encoder_layers", "train_layers", "train_entity_layers"):
            layers = getattr(config, key)
            if layers is not None:
                expected = "null, because share_encoders=true makes it the encoder of entities, too"
                fix = f"{key}=null, or share_encoders=false"
                yield Problem(key, HYDRA, format_value(layers), expected, fix)


def find_start_problems(
    config: DisambiguationConfig, _: Launch, document: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields the problems of a configuration that depend on the launch.

    Args:
        document: The DeepSpeed JSON, if there is one.
    """
    stage = None if document is None else look_up(document, "zero_optimization.stage")
    if config.train_entity_layers and stage == 3:
        expected = "null or 0 under ZeRO-3, whose processes must run the layers equally often"
        fix = "use a DeepSpeed JSON of stage 2, or train_entity_layers=null"
        yield Problem(
            "train_entity_layers", HYDRA, format_value(config.train_entity_layers), expected, fix
        )


def list_summary_rows(config: DisambiguationConfig, launch: Launch) -> list[Row]:
    """Returns the rows of the start-up table for model, sentences and entities."""
    data = config.data_config
    if config.model_config_file is not None:
        model = f"{config.model_config_file} (random weights)"
    else:
        model = config.model_name

    if config.share_encoders:
        entities = "that of the mentions"
    elif config.train_entity_layers is None:
        entities = "of its own"
    else:
        entities = f"of its own, {config.train_entity_layers} layers trained"

    held_out = [f"{name}: {getattr(data, f'{name}_file')}" for name in ("dev", "test")]
    return [
        ("encoder", f"{model}; one pass a {data.mention_encoding}; of entities: {entities}"),
        ("entities", f"{data.entity_table}: {', '.join(data.entity_text)}"),
        ("training data", str(data.train_file)),
        ("held-out data", "; ".join(held_out).replace("None", "–")),
    ]
