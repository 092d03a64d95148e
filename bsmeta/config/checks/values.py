"""Checks of single values and of combinations of values, without the launch and the data."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bsmeta.config.composing.composition import EMPTY_COMPOSITION, Composition
from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.schema import TRACKERS, WSD, ModelCardConfig, RunConfig
from bsmeta.config.steps import EPOCH_KEYS, read_branch_step
from bsmeta.core.errors import HYDRA, Problem, format_value
from bsmeta.core.keys import find_bound_problems

# Names of models on the Hub, with their owner, by the rules of huggingface_hub's validate_repo_id.
_HUB_NAME = re.compile(r"(?!.*(--|\.\.))(\w[\w-]*)/(\w[\w.-]{0,93}\w|\w)(?<!\.git)", re.ASCII)

_CARD_FORMS = {
    "license": (r"[a-z0-9]+([.-][a-z0-9]+)*", "identifiers of the Hub", "apache-2.0"),
    "datasets": (r"[\w.-]+(/[\w.-]+)?", "names of data sets on the Hub", "OWNER/NAME"),
    "language": (r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*", "codes of ISO 639", "en"),
}
"""For each list on the model card: a pattern of its entries, what they are, and an example."""


def find_value_problems(
    config: RunConfig, composition: Composition = EMPTY_COMPOSITION
) -> Iterator[Problem]:
    """Yields problems with single values and with combinations of values."""
    yield from find_bound_problems(config)

    yield from _find_unused_overrides(config, composition)

    if config.corruption_check_steps and not config.deterministic:
        expected = "true, because corruption_check_steps compares two computations bit for bit"
        fix = "deterministic=true, or corruption_check_steps=0"
        yield describe_refusal(config, "deterministic", expected, fix)

    for step in config.extra_steps_to_eval_save_at:
        if step > config.max_train_steps and config.num_train_epochs is None:
            expected = f"steps of the run, from 1 to {config.max_train_steps} (max_train_steps)"
            fix = f"drop {step} from extra_steps_to_eval_save_at"
            yield Problem("extra_steps_to_eval_save_at", HYDRA, format_value(step), expected, fix)

    if config.push_to_hub is not None and not _HUB_NAME.fullmatch(config.push_to_hub):
        expected = "OWNER/NAME, of letters, digits, '-', '_' and '.'"
        yield describe_refusal(
            config, "push_to_hub", expected, "push_to_hub=me/my-model, for example"
        )

    yield from _find_model_card_problems(config.model_card)
    yield from _find_tracker_problems(config.trackers)
    yield from _find_decay_problems(config)


def _find_unused_overrides(config: RunConfig, composition: Composition) -> Iterator[Problem]:
    """Yields a problem for each override in steps of which a share or epochs take the place."""
    for replacement, key in {"warmup_share": "num_warmup_steps", **EPOCH_KEYS}.items():
        value = getattr(config, replacement)
        if value is not None and key in composition.overridden:
            expected = f"no such override: {replacement}={value:g} takes its place"
            fix = f"{replacement}=null {key}={getattr(config, key)}, or only {replacement}"
            yield describe_refusal(config, key, expected, fix)


def _find_decay_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with a decay that is too long, or with a branch in its own folder."""
    has_known_length = config.num_train_epochs is None
    if has_known_length and RatePlan.of(config, config.max_train_steps).decays_in_warm_up:
        found = f"{WSD}, with warm-up and decay longer than {config.max_train_steps:,} steps"
        expected = "both within the run (max_train_steps)"
        fix = "lower num_warmup_steps (warmup_share) or num_decay_steps (decay_share)"
        yield Problem("lr_scheduler_type", HYDRA, found, expected, fix)

    if config.decay_from is None:
        return

    if read_branch_step(config.decay_from) is None:
        expected = "a checkpoint folder, named checkpoint-{step}step"
        fix = "decay_from=runs/stable/checkpoint-1000step, for example"
        yield describe_refusal(config, "decay_from", expected, fix)
    elif Path(config.out_dir).resolve() in Path(config.decay_from).resolve().parents:
        expected = "another folder than that of decay_from, whose run it would replace"
        yield describe_refusal(config, "out_dir", expected, "out_dir=runs/decayed, for example")

    if config.lr_scheduler_type != WSD:
        expected = f"{WSD}, because decay_from is set"
        yield describe_refusal(config, "lr_scheduler_type", expected, f"lr_scheduler_type={WSD}")
    if config.num_decay_steps is None:
        expected = "the number of steps to decay for, because decay_from is set"
        yield describe_refusal(
            config, "num_decay_steps", expected, "num_decay_steps=1000, for example"
        )
    if config.num_train_epochs is not None:
        expected = "null, because decay_from and num_decay_steps say how long the run is"
        yield describe_refusal(config, "num_train_epochs", expected, "num_train_epochs=null")


def _find_model_card_problems(model_card: ModelCardConfig) -> Iterator[Problem]:
    """Yields a problem for each value of the model card that the Hub would reject."""
    for name, (pattern, expected, example) in _CARD_FORMS.items():
        values = getattr(model_card, name)
        if not all(re.fullmatch(pattern, value) for value in values):
            key = f"model_card.{name}"
            yield Problem(
                key, HYDRA, format_value(values), expected, f"{key}=[{example}], for example"
            )


def _find_tracker_problems(trackers: Sequence[str]) -> Iterator[Problem]:
    """Yields a problem for each tracker whose library is not installed."""
    for name in trackers:
        # Without TensorBoard, tensorboardX also writes its files.
        modules = (name, "tensorboardX") if name == "tensorboard" else (name,)
        if name in TRACKERS and not any(map(importlib.util.find_spec, modules)):
            fix = f"pip install {modules[-1]}, or leave it out of trackers"
            yield Problem("trackers", HYDRA, format_value(name), "an installed library", fix)


def describe_refusal(config: RunConfig, key: str, expected: str, fix: str) -> Problem:
    """Returns the problem of a key at the top level, with its value."""
    return Problem(key, HYDRA, format_value(getattr(config, key)), expected, fix)
