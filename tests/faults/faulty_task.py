"""The toy task with a fault that the environment asks for: the script of the fault tests.

`FAULT=kind:when[:rank]`, for example `FAULT=nan:5:1`: rank 1's loss of step 5 is not a number.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

HERE = Path(__file__).resolve().parent
sys.path.pop(0)
sys.path.insert(0, str(HERE.parent / "training"))

import toy_task  # noqa: E402

from bsmeta.config.causal_lm import CausalLMConfig  # noqa: E402
from bsmeta.config.entry_point import run_entry_point  # noqa: E402
from bsmeta.core.errors import UserError  # noqa: E402
from bsmeta.data.batch import set_up_worker  # noqa: E402
from bsmeta.training.task import Loss  # noqa: E402

KIND, _, _WHEN = os.environ.get("FAULT", "none:").partition(":")
WHEN, _, _RANK = _WHEN.partition(":")
HERE_TOO = _RANK in ("", os.environ.get("RANK", "0"))


def die(kind: str) -> None:
    """Ends or stops this process in the way of the fault."""
    if kind == "exit":
        os._exit(0)
    if kind == "hang":
        time.sleep(10_000)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])


def kill_after_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function, after which the launcher and all ranks are killed, this process last."""

    def wrapped(*arguments: Any, **named: Any) -> Any:
        function(*arguments, **named)
        assert os.environ["WORLD_SIZE"] != "1", "the parent would be the test itself"
        ranks = subprocess.run(
            ["pgrep", "-P", str(os.getppid())], capture_output=True, text=True, check=True
        )
        others = {int(pid) for pid in ranks.stdout.split()} - {os.getpid()}
        for pid in (os.getppid(), *others, os.getpid()):
            os.kill(pid, signal.SIGKILL)

    return wrapped


def kill_after(phase: str) -> None:
    """Kills this process after a phase of its first save."""
    from bsmeta.training import saving
    from bsmeta.training.checkpoints import checkpoint
    from bsmeta.training.engines import training_engine
    from bsmeta.training.retention import Retention

    owner, name = {
        "begin": (checkpoint.Writer, "_begin"),
        "state": (training_engine, "write_state"),
        "rng": (saving, "write_rng"),
        "export": (toy_task.ToyTask, "export"),
        "data": (checkpoint.Writer, "write_json"),
        "manifest": (checkpoint.Writer, "_describe_file"),
        "commit": (checkpoint.Writer, "_seal"),
        "pruned": (Retention, "prune"),
    }[phase]
    save = saving.Saver.save

    def save_and_die(*arguments: Any) -> None:
        setattr(owner, name, kill_after_call(getattr(owner, name)))
        save(*arguments)

    saving.Saver.save = save_and_die  # the rehearsal calls the same functions, but not this one


def kill_in_save(number: int) -> None:
    """Kills this process in a save after it has written its files; 0 is the rehearsal."""
    from bsmeta.training.checkpoints import checkpoint

    commit = checkpoint.Writer.commit
    saves = itertools.count()

    def killed(writer: checkpoint.Writer) -> checkpoint.Checkpoint:
        if next(saves) == number:
            die("kill")
        return commit(writer)

    checkpoint.Writer.commit = killed


def spoil(out_dir: Path, step: int) -> None:
    """Damages the checkpoint of a step, and adds an intact checkpoint of a step far ahead."""
    later = out_dir / "checkpoint-40step"
    shutil.copytree(out_dir / "checkpoint-2step", later)
    manifest = json.loads((later / "manifest.json").read_text())
    (later / "manifest.json").write_text(json.dumps({**manifest, "step": 40}))
    (out_dir / f"checkpoint-{step}step" / "trainer_state.json").write_text("{")


class UnportableError(LookupError):
    """Cannot be pickled, like many errors that hold a connection."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


def read_late() -> None:
    """Makes the loop begin each step before the previous is read, as on a GPU."""
    from bsmeta.training import trainer

    class LateRunner(trainer.StepRunner):
        def __init__(self, *arguments: Any, max_norm: float, lag: int) -> None:
            super().__init__(*arguments, max_norm=max_norm, lag=1)

    class LateTrainer(trainer.Trainer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._lag = 1

    trainer.StepRunner = LateRunner
    import bsmeta.training.run

    bsmeta.training.run.Trainer = LateTrainer


class FaultyLoader(IterableDataset):
    """The stream through a loader process, which dies or raises at a batch of one rank."""

    def __init__(self, stream: toy_task.ToyStream) -> None:
        self._stream = stream
        self.fingerprint = stream.fingerprint
        self.state = stream.state
        self.merge = stream.merge

    def __iter__(self) -> Iterator[Any]:
        if KIND in ("data_hang", "data_raise", "data_signal"):
            return self._inside()
        if get_worker_info() is None:
            return iter(
                DataLoader(self, batch_size=None, num_workers=1, worker_init_fn=set_up_worker)
            )
        return self._inside()

    def _inside(self) -> Iterator[Any]:
        for number, step in enumerate(self._stream):
            size = len(step.micro_batches)
            if HERE_TOO and int(WHEN) in range(number * size, (number + 1) * size):
                if KIND == "loader_kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if KIND.endswith("_hang"):
                    time.sleep(10_000)
                if KIND == "data_signal":
                    os.kill(os.getpid(), signal.SIGTERM)
                if KIND == "data_raise":
                    raise UserError("a broken document")
                raise ValueError("a broken document")
            yield step


class FaultyTask(toy_task.ToyTask):
    """Counts the steps, and performs the fault of FAULT in one of them."""

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__(config)
        self.batch = 0
        self.deleted = False

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        is_at_fault = f"checkpoint-{WHEN}step" in str(folder) and not self.deleted
        if KIND == "delete_model_in_save" and is_at_fault:
            self.deleted = True
            shutil.rmtree(folder)  # as the first entry that `rm -rf out_dir` deletes
        super().export(model, weights, folder)
        if KIND == "raise_in_save" and f"checkpoint-{WHEN}step" in str(folder):
            raise UnportableError("no such token in the vocabulary")
        if KIND == "delete_in_save" and is_at_fault:
            self.deleted = True
            shutil.rmtree(self.config.out_dir)
        if KIND == "tell":  # what a tracker or a model card would keep of the command line
            (folder / "command_line.json").write_text(json.dumps(sys.argv))

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> Any:
        stream = super().train_stream(rank, world_size, state)
        self.batch = (stream.first_step - 1) * self.config.gradient_accumulation_steps
        if KIND == "other_data" and HERE_TOO:
            stream.fingerprint = {**stream.fingerprint, "shards": {"a.jsonl.gz": 5}}
        return FaultyLoader(stream) if KIND.startswith(("loader", "data_")) else stream

    def build_model(self) -> nn.Module:
        if KIND == "start_hang" and HERE_TOO:
            time.sleep(10_000)
        return super().build_model()

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        step = self.batch // self.config.gradient_accumulation_steps + 1
        self.batch += 1
        loss = super().loss(model, batch)
        if not HERE_TOO:
            return loss
        if KIND == "spoiled_spike" and str(step) == WHEN:
            if not (Path(self.config.out_dir) / "checkpoint-40step").exists():
                spoil(Path(self.config.out_dir), step - 1)
            return Loss(loss.sum * 1e4, loss.parts)
        if KIND in ("nan", "spike") and str(step) in WHEN.split(","):
            factor = float("nan") if KIND == "nan" else 1e4
            return Loss(loss.sum * factor, loss.parts)
        if KIND == "nan_from" and step >= int(WHEN):
            return Loss(loss.sum * float("nan"), loss.parts)
        if KIND in ("kill", "exit", "stop", "hang") and str(step) == WHEN:
            die(KIND)
        if KIND in ("delete_folder", "delete_and_raise") and str(step) == WHEN:
            shutil.rmtree(self.config.out_dir, ignore_errors=True)
            if KIND == "delete_and_raise":
                raise RuntimeError("lost")
        if KIND == "empty_folder" and str(step) == WHEN:  # as `rm -rf out_dir/*` does
            for entry in Path(self.config.out_dir).glob("[!.]*"):
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:  # gone, if a save has just renamed it
                    entry.unlink(missing_ok=True)
        if KIND == "raise" and str(step) == WHEN:
            raise RuntimeError(f"401 for {os.environ['HF_TOKEN']}, {os.environ['WANDB_API_KEY']}")
        if KIND == "slow":
            time.sleep(float(WHEN))
        return loss


def main(config: CausalLMConfig) -> int:
    if KIND == "kill_after" and HERE_TOO:
        kill_after(WHEN)
    if KIND == "kill_in_save" and HERE_TOO:
        kill_in_save(int(WHEN))
    if os.environ.get("TOY_READS_LATE"):
        read_late()
    toy_task.ToyTask = FaultyTask
    return toy_task.main(config)


if __name__ == "__main__":
    run_entry_point(main, CausalLMConfig, "causal_lm_config")
