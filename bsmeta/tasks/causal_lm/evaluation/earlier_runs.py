"""Follows the initial model of a run (`model_name`) to the earlier runs that it was trained in.

The configuration of each run names its initial model. The chain ends at a model that no run of this
project has trained, such as one of the Hub, or at one whose run cannot be read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.paths import is_path
from bsmeta.core.errors import UserError
from bsmeta.tasks.causal_lm.checkpoints import read_run_config
from bsmeta.tasks.checkpoints import Location, locate_model


@dataclass(frozen=True)
class TrainingRun:
    """A run in which a model was trained.

    Attributes:
        location: The model that the run has exported.
        config: The configuration of the run.
    """

    location: Location
    config: CausalLMConfig


@dataclass(frozen=True)
class RunChain:
    """The runs in which a model was trained.

    Attributes:
        runs: The run of the model, then the run of its initial model, and so on.
        unread: The initial model at the end of the chain whose run cannot be read; None if the
            chain is complete.
    """

    runs: list[TrainingRun]
    unread: str | None


def follow_initial_models(location: Location, config: CausalLMConfig) -> RunChain:
    """Lists the run of a model and the earlier runs, from the last to the first.

    A run that was listed before ends the chain.

    Args:
        config: The configuration of the model's run.
    """
    runs = [TrainingRun(location, config)]
    listed_models = {os.path.realpath(location.model)}
    while (name := _find_initial_model(runs[-1].config)) is not None:
        try:
            earlier = locate_model(name)
            earlier_config = read_run_config(earlier, None, {})
        except UserError:
            return RunChain(runs, name)

        if earlier.config is None:  # trained by another program
            break
        if not earlier.has_run_config:
            return RunChain(runs, name)
        model = os.path.realpath(earlier.model)
        if model in listed_models:
            break
        listed_models.add(model)
        runs.append(TrainingRun(earlier, earlier_config))
    return RunChain(runs, None)


def _find_initial_model(config: CausalLMConfig) -> str | None:
    """Returns the folder of a run's initial weights; None if they are new or from the Hub."""
    if config.model_config_file is not None:
        return None
    name = config.model_name
    return name if is_path(name) or os.path.isdir(name) else None
