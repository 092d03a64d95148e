"""Reads a run folder: configuration, status, checkpoints, metrics and evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.api.reports import EVALUATION, Report
from bsmeta.config.run_location import is_in_bucket
from bsmeta.config.saved_runs import read_saved_config
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import CHECKPOINT_NAME
from bsmeta.core.errors import DataError
from bsmeta.tasks import TASKS
from bsmeta.training.checkpoints.checkpoint import CONFIG_FILE, Checkpoint, list_checkpoints
from bsmeta.training.run_folder.events import METRICS, read_events
from bsmeta.training.run_folder.local_copy import RunCopy
from bsmeta.training.run_folder.status import STATUS, read_status

if TYPE_CHECKING:
    from bsmeta.api.models import Model


@dataclass(frozen=True)
class Status:
    """The status of a run.

    Attributes:
        state: `running`, `done`, `preempted` or `failed`. A run is only `running` while a process
            holds the lock of its folder: a killed run is `failed`, without an exit code.
        step: The last saved step; for a failed run, the last step before the failure.
        exit_code: Exit code of the process; None while it runs, and if it was killed.
        message: The reason for a failure; empty otherwise.
    """

    state: str
    step: int
    exit_code: int | None
    message: str


class Run:
    """A run folder; methods read its files at each call, because the run may be in progress.

    Attributes:
        path: The path of the folder; for a run in a bucket, of a local copy without models.

    Args:
        copy: Updates the copy of a run in a bucket.
    """

    def __init__(self, path: Path, copy: RunCopy | None = None) -> None:
        self.path = path
        self._copy = copy

    def __repr__(self) -> str:
        return f"bsmeta.open_run({self.__fspath__()!r})"

    def __fspath__(self) -> str:
        """Returns the path or the address, so that a run can be passed to `bsmeta.load`."""
        return str(self.path) if self._copy is None else self._copy.url

    def _update_copy(self) -> None:
        """Updates the local copy of a run in a bucket."""
        if self._copy is not None:
            self._copy.update()

    @cached_property
    def config(self) -> RunConfig:
        """The resolved configuration, in the schema of its task (such as `CausalLMConfig`).

        Raises:
            UserError: If `config.yaml` is not a configuration of this version.
        """
        return read_saved_config(self.path / CONFIG_FILE, TASKS, {})

    @property
    def task(self) -> str:
        """The name of the run's task: `causal_lm`, `classification`, …"""
        return self.config.task

    def status(self) -> Status:
        """Reads the current status of the run.

        Raises:
            UserError: If the run has not written a status yet, or the file is damaged.
        """
        self._update_copy()
        is_held = None if self._copy is None else self._copy.is_running
        file = self.path / STATUS
        try:
            return Status(**read_status(self.path, is_held))
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error}") from error
        except (TypeError, ValueError) as error:
            raise DataError(f"{file} is damaged: {error}") from error

    def checkpoints(self) -> list[Checkpoint]:
        """Lists the checkpoints, oldest first, each with `step` and `folder`.

        `bsmeta.load` accepts the folders that contain `model/`. For a run in a bucket, it takes
        the address of a checkpoint, because the folders of the copy contain only the manifest.
        """
        self._update_copy()
        return list_checkpoints(self.path)

    def metrics(self, event: str | None = None) -> list[dict[str, Any]]:
        """Reads the lines of `metrics.jsonl` as dicts, in the order of the run.

        `pandas.DataFrame(run.metrics("step"))` makes them the rows of a table.

        Args:
            event: Only lines of this event, such as `step`, `eval` or `save`; None: all lines.
        """
        self._update_copy()
        file = self.path / METRICS
        if not file.is_file():
            return []

        rows = read_events(file)
        return [row for row in rows if event is None or row.get("event") == event]

    def evaluation(self, name: str = "evaluation") -> Report:
        """Returns the report of `bsmeta evaluate`, or of the end of the run.

        Args:
            name: The subfolder of the evaluation; for another checkpoint or data `evaluation-…`.

        Raises:
            UserError: If there is no such evaluation.
        """
        self._update_copy()
        file = self.path / name / EVALUATION
        if file.is_file():
            return Report(file.parent)

        evaluations = sorted(result.parent.name for result in self.path.glob(f"*/{EVALUATION}"))
        raise DataError(
            f"{file} does not exist; evaluations of this run: {', '.join(evaluations) or 'none'}; "
            f"`bsmeta evaluate checkpoint={self.__fspath__()}` makes one"
        )

    def model(self) -> Model:
        """Loads the trained model; see `bsmeta.load`."""
        from bsmeta.api.models import load  # imports transformers

        return load(self)


def open_run(folder: str | Path) -> Run:
    """Opens the folder of a training run (`out_dir`) of any task, finished or not.

    A run in a bucket (`s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`) is copied, without models, to the
    cache of the user; the copy is updated at each call of a method. A killed process leaves it
    `running`.

    Raises:
        UserError: If there is no run in the folder.
    """
    if not isinstance(folder, (str, Path)):
        raise DataError(f"{folder!r}: expected the path of the folder of a run (its out_dir)")

    if isinstance(folder, str) and is_in_bucket(folder):
        copy = RunCopy(folder)
        copy.update()
        return Run(copy.folder, copy)

    path = Path(folder).expanduser()
    is_checkpoint = CHECKPOINT_NAME.fullmatch(path.resolve().name) is not None
    if (path / CONFIG_FILE).is_file() and not is_checkpoint:
        return Run(path)
    raise DataError(
        f"{folder}: {_explain_no_run(path)}; expected the folder of a run (its out_dir)"
    )


def _explain_no_run(path: Path) -> str:
    """Explains why a path is not the folder of a run, and names runs nearby."""
    if not path.exists():
        return f"there is no such folder (from {Path.cwd()})"
    if not path.is_dir():
        return "a file"

    for parent in path.resolve().parents[:2]:
        if (parent / METRICS).is_file():
            return f"a folder in the run {parent}, which bsmeta.load reads"

    explanation = f"no {CONFIG_FILE} in it"
    runs = sorted(config.parent.name for config in path.glob(f"*/{CONFIG_FILE}"))
    if runs:
        explanation += f", but it holds the runs {', '.join(runs)}"
    return explanation
