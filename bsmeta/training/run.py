"""A run from its folder to its exit code: what `train.py` calls after all checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bsmeta.config.compose import EXIT_FAILURE, EXIT_PREEMPTED, EXIT_USER_ERROR
from bsmeta.config.errors import UserError
from bsmeta.config.schema import TrainConfig
from bsmeta.tasks.base import Task
from bsmeta.training import checkpoint
from bsmeta.training.distributed import Processes, seed_everything, start
from bsmeta.training.run_folder import RunFolder, write_status
from bsmeta.training.trainer import Outcome, Trainer


def run(config: TrainConfig, task: Task, deepspeed_config: dict[str, Any] | None) -> int:
    """Trains, leaves `status.json` behind, and returns the exit code (0 done, 75 preempted).

    Raises:
        UserError: If the folder, the data or the launch is not what the configuration says.
        CheckpointError: If there is no whole checkpoint to resume from, but a damaged one.
    """
    accelerator = start(config, deepspeed_config)
    processes = Processes.of(accelerator)
    seed_everything(config.seed)
    folder = RunFolder(Path(config.out_dir).resolve())
    resume = config.resume_from_checkpoint_dir is not None
    processes.on_main(
        lambda: folder.open(config, resume=resume, overwrite=config.overwrite_out_dir)
    )
    trainer: Trainer | None = None
    try:
        saved = None
        if config.resume_from_checkpoint_dir is not None:
            saved = checkpoint.choose(config.resume_from_checkpoint_dir, folder.path, processes)
        _status(processes, folder, "running", saved.step if saved else 0, None)
        trainer = Trainer(config, task, accelerator, folder)
        outcome = trainer.train(saved)
        if outcome is Outcome.PREEMPTED:
            _status(processes, folder, "preempted", trainer.progress.step, EXIT_PREEMPTED)
            accelerator.end_training()
            return EXIT_PREEMPTED
        trainer.export(folder.path / "model")
        _status(processes, folder, "done", trainer.progress.step, 0)
        accelerator.end_training()
        return 0
    except Exception as error:
        code = EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILURE
        step = trainer.progress.step if trainer else 0
        _status(processes, folder, "failed", step, code, str(error))
        raise


def _status(
    processes: Processes,
    folder: RunFolder,
    state: str,
    step: int,
    exit_code: int | None,
    message: str = "",
) -> None:
    if processes.is_main:
        write_status(folder.path, state, step, exit_code, message)
