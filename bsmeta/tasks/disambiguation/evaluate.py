"""`evaluate.py` for `task=disambiguation`: the test split again, or another file of sentences.

Bands follow from the training data of the run, which must still be there. Another model is scored
beside with `+overrides.compare_with=RUN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import transformers

from bsmeta.config.checks.problems import refuse_out_of_bounds
from bsmeta.config.disambiguation import DisambiguationConfig
from bsmeta.config.errors import DataError
from bsmeta.config.evaluation import EvaluateConfig, refuse_unused, saved_config
from bsmeta.evaluation.checkpoints import Location
from bsmeta.evaluation.ranks import Ranks
from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.disambiguation.data import Data
from bsmeta.tasks.disambiguation.finish import score_and_report
from bsmeta.tasks.disambiguation.model import load_model

USED = (
    "checkpoint", "training_config", "overrides", "out_dir", "validation_file",
    "per_device_eval_batch_size", "bootstrap_resamples", "seed",
)  # fmt: skip
"""The keys of `EvaluateConfig` that have a meaning for this task."""


def run(
    config: EvaluateConfig, locations: Sequence[Location], ranks: Ranks, device: torch.device
) -> None:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    refuse_out_of_bounds(config)
    refuse_unused(config, USED, "task=disambiguation")
    transformers.utils.logging.disable_progress_bar()
    for location in locations:
        _evaluate(config, location, ranks, device)


def _evaluate(
    config: EvaluateConfig, location: Location, ranks: Ranks, device: torch.device
) -> None:
    file = location.config if config.training_config is None else Path(config.training_config)
    assert file is not None  # the task is known from it
    train = saved_config(file, {"disambiguation": DisambiguationConfig}, config.overrides)
    assert isinstance(train, DisambiguationConfig)
    train = replace(train, bootstrap_resamples=config.bootstrap_resamples, seed=config.seed)
    train.tokenizer_name = location.model
    own = train.data_config
    if config.per_device_eval_batch_size is not None:
        own.per_device_eval_batch_size = config.per_device_eval_batch_size
    split, folder = "dev" if own.test_file is None else "test", "evaluation"
    if config.validation_file is not None:
        own.test_file = config.validation_file
        name = Path(config.validation_file).name.partition(".")[0]
        split, folder = f"other-{name}", f"evaluation-{name}"
    out_dir = Path(location.run_folder or location.model) / folder
    if config.out_dir is not None:
        out_dir = Path(config.out_dir)
    model = load_model(Path(location.model)).to(device)
    context = EvaluationContext(ranks.rank, ranks.world_size, device, ranks.gather)
    if score_and_report(train, Data(train), model, split, context, out_dir) is None:
        raise DataError(
            f"checkpoint={location.name}: its run has neither a dev_file nor a test_file; name "
            "sentences: validation_file=FILE"
        )
