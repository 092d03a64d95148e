"""Before the first step: all splits are encoded, and what evaluations will need is checked.

What is wrong with a file, a slice or the model that is compared would otherwise end a run at its
first evaluation, or after its last step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.problems import nearest
from bsmeta.core.signals import release_signals
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.data import SPLITS, Data
from bsmeta.tasks.disambiguation.evaluate import compared_data
from bsmeta.tasks.disambiguation.results import (
    ALL_MENTIONS,
    BUILT_IN,
    QUALITIES,
    is_reported,
    name_of_own,
)

log = logging.getLogger(__name__)


def prepare(config: DisambiguationConfig) -> None:
    """Encodes the sentences of all splits, and what else is computed once for the training."""
    release_signals()  # nothing to save: a signal ends the process, and the next call continues
    data = Data(config)
    check_data(config, data)
    data.fill_frozen()
    data.neighbors  # noqa: B018 - computed when it is first read


def check_data(config: DisambiguationConfig, data: Data) -> None:
    """Opens all splits, encoding what is not encoded yet; every process calls it.

    Raises:
        DataError: If lines are invalid, or a held-out split has no gold mention.
        ConfigurationError: If a store is stale, or there is no such slice, metric or model.
    """
    splits = {name: data.split(name) for name in SPLITS}
    held_out = [found for name, found in splits.items() if found is not None and name != "train"]
    own = sorted({name for sentences in held_out for name in sentences.slices})
    for name in {*own} & {*BUILT_IN}:
        log.warning("the lines define the slice %s, too; theirs is %s", name, name_of_own(name))
    for name in config.eval_slices or []:
        known = [*dict.fromkeys([*BUILT_IN, *own])]
        if name not in known:
            raise ConfigurationError(
                f"eval_slices: there is no slice {name!r}{nearest(name, known)}; expected some of "
                f"{', '.join(known)}",
                ["eval_slices"],
            )
    metrics = [*_metrics(config, own)]
    if config.keep_best_by is not None and held_out and config.keep_best_by not in metrics:
        raise ConfigurationError(
            f"keep_best_by={config.keep_best_by}: evaluations have no such metric"
            f"{nearest(config.keep_best_by, metrics)}; expected one of {', '.join(metrics)}",
            ["keep_best_by"],
        )
    for sentences in held_out:
        sentences.gold()
    last = splits["test"] or splits["dev"]
    if config.compare_with is not None and last is not None:
        compared_data(config)[1].other(Path(last.path))


def _metrics(config: DisambiguationConfig, own: list[str]) -> Iterator[str]:
    """The metrics that can say which checkpoint is the best."""
    yield "loss"
    for name in (*BUILT_IN, *map(name_of_own, own)):
        if is_reported(name, config.eval_slices):
            prefix = "" if name == ALL_MENTIONS else f"{name}_"
            for quality in QUALITIES:
                yield f"{prefix}{quality}"
                yield f"{prefix}{quality}_in_candidates"
