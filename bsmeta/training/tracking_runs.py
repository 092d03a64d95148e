"""Starts Accelerate's trackers (tensorboard, wandb, trackio), so that a resumed run stays one run.

The run's name at the trackers is generated once and stored in the run folder (`trackers.json`): a
resumed run continues the same wandb run and the same trackio run, and tensorboard drops what was
logged after the step that the run resumes from. No secrets are passed: each library reads its own
key (`WANDB_API_KEY`, `HF_TOKEN`).
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, Protocol

from bsmeta.config.checks.problems import HYDRA, Problem, refuse
from bsmeta.config.schema import RunConfig
from bsmeta.training.tracking import flat, keep_tensorflow_out

RUNS = "trackers.json"


class Starter(Protocol):
    """The method of an Accelerator that starts trackers."""

    def init_trackers(
        self, project_name: str, config: dict[str, Any], init_kwargs: dict[str, Any]
    ) -> None: ...


def start_trackers(accelerator: Starter, config: RunConfig, folder: Path, step: int) -> None:
    """Starts every tracker of the configuration; called on rank 0.

    Args:
        accelerator: Created with `log_with=config.trackers`.
        config: The run; `run_name` is the project's name at the trackers.
        folder: The run folder.
        step: The step that the run resumes from, 0 at its beginning.

    Raises:
        ConfigurationError: If a tracker cannot start (no key, no network).
    """
    if not config.trackers:
        return
    keep_tensorflow_out()
    try:
        accelerator.init_trackers(
            config.run_name, config=flat(config), init_kwargs=arguments(folder, step)
        )
    except Exception as error:
        expected = "trackers that can start; wandb needs WANDB_API_KEY, or WANDB_MODE=offline"
        found = f"{', '.join(config.trackers)}: {type(error).__name__}: {error}"
        refuse([Problem("trackers", HYDRA, found, expected, "mend that, or leave it out")])


def arguments(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """The arguments for each library that make a resumed run continue the same run there."""
    name = run_name(folder)
    return {
        "tensorboard": {"purge_step": step + 1} if step else {},
        "wandb": {"id": name, "name": name, "resume": "allow", "dir": str(folder)},
        "trackio": {"name": name, "resume": "allow"},
    }


def run_name(folder: Path) -> str:
    """The run's name at wandb and trackio: the folder's with eight letters, generated only once.

    An empty file counts as missing: it was being written when the machine crashed.
    """
    file = folder / RUNS
    try:
        return str(json.loads(file.read_text())["run"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        name = f"{_plain(folder.name)}-{secrets.token_hex(4)}"
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"run": name}) + "\n")
        os.replace(temporary, file)
        return name


def _plain(name: str) -> str:
    """Replaces characters that a wandb id must not contain (`/\\#?%:`), and truncates it (128)."""
    return "".join(one if one.isalnum() or one in "-_." else "-" for one in name)[:100]
