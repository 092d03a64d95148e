"""Checks that the optimizer and scheduler blocks of the DeepSpeed JSON match the trainer.

The trainer builds AdamW and the schedule from Hydra's values, so the blocks are not needed. Where
they are present (for other trainers, or for the reader), they must be correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bsmeta.config.checks.problems import Problem, nearest, show
from bsmeta.config.checks.shared import AUTO, Shared, compare, look_up, override_of
from bsmeta.config.schema import RunConfig

# lr_scheduler_type of Hydra -> scheduler.type of DeepSpeed.
SCHEDULERS = {"linear": "WarmupDecayLR", "cosine": "WarmupCosineLR", "constant": "WarmupLR"}
OPTIMIZERS = ("AdamW", "Adam")
SCHEDULE = "the trainer's schedule, which begins at 0 and warms up on a line"


def optimizer_problems(
    document: Mapping[str, Any], config: RunConfig, file: str
) -> Iterator[Problem]:
    """Yields values in these blocks that differ from Hydra, or that DeepSpeed would fill in."""
    if "optimizer" in document:
        kind = look_up(document, "optimizer.type")
        if kind not in OPTIMIZERS:
            expected = f"AdamW, the trainer's optimizer{nearest(kind, OPTIMIZERS)}"
            fix = 'write "type": "AdamW", or delete the optimizer block'
            yield Problem("optimizer.type", file, show(kind), expected, fix)
        known = [*_optimizer(config), *_variants()]
        yield from _parameters(document, "optimizer", known, file)
    if "scheduler" in document:
        yield from _scheduler_problems(document, config, file)


def _scheduler_problems(
    document: Mapping[str, Any], config: RunConfig, file: str
) -> Iterator[Problem]:
    kind = look_up(document, "scheduler.type")
    wanted = SCHEDULERS.get(config.lr_scheduler_type)
    if wanted is None:  # reported by the checks of Hydra's values
        return
    if kind == wanted:
        yield from _parameters(document, "scheduler", _scheduler(config, wanted), file)
        if kind == "WarmupDecayLR" and config.min_learning_rate_ratio:
            lowest = show(config.min_learning_rate_ratio)
            expected = f"no scheduler that falls to 0 (min_learning_rate_ratio={lowest} of Hydra)"
            fix = "delete the scheduler block, or pass min_learning_rate_ratio=0"
            yield Problem("scheduler.type", file, show(kind), expected, fix)
        return
    expected = f"{wanted} (lr_scheduler_type={config.lr_scheduler_type} of Hydra)"
    fix = f'write "type": "{wanted}", or delete the scheduler block'
    for hydra, name in SCHEDULERS.items():
        if name == kind:
            fix += f", or pass lr_scheduler_type={hydra}"
    yield Problem("scheduler.type", file, show(kind), expected + nearest(kind, [wanted]), fix)


def _parameters(
    document: Mapping[str, Any], block: str, known: list[Shared], file: str
) -> Iterator[Problem]:
    for shared in known:
        yield from compare(document, shared, file)
    parameters = look_up(document, f"{block}.params")
    names = {shared.key for shared in known}
    for name in parameters if isinstance(parameters, Mapping) else ():
        key = f"{block}.params.{name}"
        if key not in names:
            close = nearest(name, [known_name.rpartition(".")[2] for known_name in names])
            expected = f"a parameter that the trainer has{close}"
            yield Problem(key, file, show(parameters[name]), expected, "delete it")


def _optimizer(config: RunConfig) -> list[Shared]:
    def shared(name: str, owner: str, value: Any, default: str) -> Shared:
        key = f"optimizer.params.{name}"
        override = None if name == "betas" else override_of(owner)
        return Shared(
            key=key, owner=f"{owner} of Hydra", value=value, default=default, override=override
        )

    betas = [config.adam_beta1, config.adam_beta2]
    return [
        shared("lr", "learning_rate", config.learning_rate, "0.001"),
        shared("betas", "adam_beta1, adam_beta2", betas, "[0.9, 0.999]"),
        shared("eps", "adam_epsilon", config.adam_epsilon, "1e-08"),
        shared("weight_decay", "weight_decay", config.weight_decay, "0"),
    ]


def _variants() -> list[Shared]:
    """Switches of DeepSpeed's Adam without a Hydra key: they are fixed in the trainer's AdamW."""
    return [
        Shared(key=f"optimizer.params.{name}", owner="AdamW", value=value)
        for name, value in (
            ("torch_adam", True),
            ("adam_w_mode", True),
            ("bias_correction", True),
            ("amsgrad", False),
        )
    ]


def _scheduler(config: RunConfig, kind: str) -> list[Shared]:
    def shared(name: str, owner: str, value: Any, default: str, override: bool = True) -> Shared:
        return Shared(
            key=f"scheduler.params.{name}",
            owner=f"{owner} of Hydra" if override else owner,
            value=value,
            default=default,
            override=override_of(owner) if override else None,
        )

    known = [
        shared("warmup_num_steps", "num_warmup_steps", config.num_warmup_steps, "1000"),
        shared("warmup_type", SCHEDULE, "linear", '"log"', override=False),
    ]
    if kind == "WarmupCosineLR":
        known += [
            Shared(key="scheduler.params.warmup_min_ratio", owner=SCHEDULE, value=0.0),
            shared(
                "cos_min_ratio",
                "min_learning_rate_ratio",
                float(config.min_learning_rate_ratio),
                "0.0001",
            ),
        ]
    else:
        known += [
            Shared(key="scheduler.params.warmup_min_lr", owner=SCHEDULE, value=0.0),
            shared("warmup_max_lr", "learning_rate", config.learning_rate, "0.001"),
        ]
    if kind != "WarmupLR":  # no default: DeepSpeed fails without it
        known.append(
            Shared(
                key="scheduler.params.total_num_steps",
                owner="max_train_steps of Hydra",
                value=config.max_train_steps,
                override=override_of("max_train_steps"),
            )
            if config.num_train_epochs is None
            else Shared(
                key="scheduler.params.total_num_steps",
                owner="the steps of num_train_epochs of Hydra, which follow from the data",
                value=AUTO,
            )
        )
    return known
