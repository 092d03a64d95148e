"""Starts the trackers of a run (tensorboard, wandb, …) so that a resumed run continues there.

A resumed run stays one run at its trackers: its name there is generated once and stored in the run
folder (`trackers.json`), the run of this name or id is continued, and tensorboard drops all values
after the step that the run resumes from. aim and mlflow name their runs themselves: there, each
start is a run of its own with the same label. No secrets are passed: each library reads its own key
(`WANDB_API_KEY`, `HF_TOKEN`).
"""

from __future__ import annotations

import dataclasses
import math
import re
import secrets
import sys
import types
from pathlib import Path
from typing import Any, Protocol

import xxhash

from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import HYDRA, Problem, raise_problems
from bsmeta.core.files import write_json
from bsmeta.core.parsing import parse_json
from bsmeta.core.secrets import redact, redact_values
from bsmeta.training.reporting.flat_values import flatten_values

TRACKERS_FILE = "trackers.json"
"""File in the run folder with the name of the run at its trackers."""

_SWANLAB_ID_CHARS = 21  # lower-case letters and digits


class ExternalTracker(Protocol):
    """A tracker that Accelerate creates for a name in `trackers` (tensorboard, wandb, …)."""

    def log(self, values: dict[str, Any], step: int | None) -> None: ...

    def finish(self) -> None: ...


def start_trackers(accelerator: Any, config: RunConfig, folder: Path, step: int) -> None:
    """Starts every tracker of the configuration; called on rank 0.

    Args:
        accelerator: Created with `log_with=config.trackers`.
        step: The step that the run resumes from, 0 at its beginning.

    Raises:
        ConfigurationError: If a tracker cannot start (no key, no network).
    """
    if not config.trackers:
        return

    # Otherwise tensorboard would import TensorFlow if it is installed (0.5 GB, seconds).
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))

    # Trackers expect settings on one level, with plain values.
    settings = {}
    for name, value in flatten_values(redact_values(dataclasses.asdict(config))):
        settings[name] = value if _is_plain(value) else str(value)

    try:
        accelerator.init_trackers(
            redact(config.run_name),
            config=settings,
            init_kwargs=make_tracker_arguments(folder, step),
        )
    except Exception as error:
        reason = f"{', '.join(config.trackers)}: {type(error).__name__}: {error}"
        expected = "trackers that can start; wandb needs WANDB_API_KEY, or WANDB_MODE=offline"
        raise_problems([Problem("trackers", HYDRA, reason, expected, "fix that, or leave it out")])


def _is_plain(value: Any) -> bool:
    """Whether trackers accept a value unchanged; tensorboard warns of infinity and NaN."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (int, str, bool))


def make_tracker_arguments(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """Returns arguments for each tracker with which a resumed run continues the same run there."""
    name = ensure_run_name(folder)
    digest = xxhash.xxh3_128_hexdigest(name.encode())
    is_resumed = step > 0
    return {
        "tensorboard": {"purge_step": step + 1} if is_resumed else {},
        "wandb": {"id": name, "name": name, "resume": "allow", "dir": str(folder)},
        "trackio": {"name": name, "resume": "allow"},
        "aim": {"experiment": name},
        # The run itself records its arguments and models.
        "clearml": {
            "task_name": name,
            "continue_last_task": is_resumed,
            "reuse_last_task_id": is_resumed,
            "auto_connect_arg_parser": False,
            "auto_connect_frameworks": False,
        },
        "comet_ml": {"experiment_key": digest},  # 32 to 50 letters and digits
        # Files only, without commits in the repository of the working folder.
        "dvclive": {
            "dir": str(folder / "dvclive"),
            "resume": is_resumed,
            "save_dvc_exp": False,
            "dvcyaml": None,
        },
        "mlflow": {"run_name": name},
        "swanlab": {
            "experiment_name": name,
            "id": digest[:_SWANLAB_ID_CHARS],
            "resume": "allow",
            "logdir": str(folder / "swanlab"),
        },
    }


def ensure_run_name(folder: Path) -> str:
    """Returns the name of the run at its trackers; generates and stores it on the first call.

    It consists of the name of the folder and eight hexadecimal digits. An empty file counts as
    missing: it was being written when the machine crashed. A wandb id must not contain any of
    `/\\#?%:`, nor have more than 128 characters.
    """
    file = folder / TRACKERS_FILE
    try:
        return str(parse_json(file.read_text())["run"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        safe_folder_name = re.sub(r"[^\w.-]", "-", folder.name)[:100]
        name = f"{safe_folder_name}-{secrets.token_hex(4)}"
        write_json(file, {"run": name})
        return name
