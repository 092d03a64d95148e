"""The training loop: the only one, for every task.

A step is an update of the weights. Its loss is the mean over the targets of the whole global batch,
however that is split over ranks and micro-batches: the sum of losses is divided by the number of
targets of the *step*, which all ranks add up before the first backward pass.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.config.errors import ConfigurationError, TrainingError
from bsmeta.config.schema import TrainConfig
from bsmeta.tasks.base import EvaluationContext, MicroBatch, Task
from bsmeta.training import checkpoint
from bsmeta.training.distributed import Processes
from bsmeta.training.optim import build_optimizer, learning_rate, set_learning_rate
from bsmeta.training.run_folder import LineLog, RunFolder, write_status
from bsmeta.training.signals import StopRequest
from bsmeta.training.throughput import Throughput
from bsmeta.training.tracking import Tracker, flat, keep_tensorflow_out


class Outcome(Enum):
    """How a run ended."""

    DONE = "done"
    PREEMPTED = "preempted"


@dataclass
class Progress:
    """What a run has done so far; saved with every checkpoint.

    Attributes:
        step: Completed updates.
        tokens: Tokens fed to the model, without padding.
        targets: Tokens that loss was taken on.
    """

    step: int = 0
    tokens: int = 0
    targets: int = 0


class Trainer:
    """Trains one task. All ranks build it and call `train` together."""

    def __init__(
        self, config: TrainConfig, task: Task, accelerator: Accelerator, run: RunFolder
    ) -> None:
        self.config = config
        self.task = task
        self.accelerator = accelerator
        self.processes = Processes.of(accelerator)
        self.run = run
        self.progress = Progress()
        self.stop = StopRequest()
        # States of all streams where the run resumed, and of this rank's streams since then.
        self._resumed_streams: dict[int, dict[str, Any]] = {}
        self._streams: dict[int, dict[str, Any]] = {}
        self._last_saved = -1
        self._documents: LineLog | None = None

        torch.manual_seed(config.seed)  # the same weights on every rank
        model = task.build_model()
        self.model: nn.Module
        self.model, self.optimizer = accelerator.prepare(model, build_optimizer(model, config))
        torch.manual_seed(config.seed + 1 + self.processes.rank)  # other dropout on every rank
        self.throughput = Throughput(model, self.processes.device)

    def train(self, resume_from: checkpoint.Checkpoint | None) -> Outcome:
        """Trains to `max_train_steps`, or until a signal; the state is saved either way."""
        self._open_stream(self._load(resume_from) if resume_from else None)
        self.processes.on_main(lambda: self.run.cut_logs(self.progress.step))
        if self.config.log_documents:
            file = self.run.path / f"documents-rank{self.processes.rank}.jsonl"
            self._documents = LineLog(file)
        with self._track() as self.tracker:
            if resume_from:
                self.tracker.event("resume", self.progress.step, checkpoint=str(resume_from.folder))
            if self.config.start_with_eval and not resume_from:
                self._evaluate()
            while self.progress.step < self.config.max_train_steps:
                batches, wait = self._fetch()
                totals, stopping = self._agree(batches)
                if stopping:
                    self._save()
                    self.tracker.event("stop", self.progress.step, reason=self.stop.name)
                    return Outcome.PREEMPTED
                self._update(batches, totals, wait)
                self._evaluate_and_save_if_due()
            self._save()
        return Outcome.DONE

    def _track(self) -> Tracker:
        if self.config.trackers:
            keep_tensorflow_out()
            self.accelerator.init_trackers("tracking", config=flat(self.config))
        return Tracker(
            self.run,
            main=self.processes.is_main,
            step=self.progress.step,
            total_steps=self.config.max_train_steps,
            external=self.accelerator.trackers,
        )

    # --- one step ---------------------------------------------------------------------------

    def _open_stream(self, state: dict[str, Any] | None) -> None:
        self.stream = self.task.train_stream(self.processes.rank, self.processes.size, state)
        self._batches: Iterator[MicroBatch] = iter(self.stream)

    def _fetch(self) -> tuple[list[MicroBatch], float]:
        """The micro-batches of the next step, and the seconds that the loop waited for them."""
        began = time.perf_counter()
        count = self.config.gradient_accumulation_steps
        return [next(self._batches) for _ in range(count)], time.perf_counter() - began

    def _agree(self, batches: list[MicroBatch]) -> tuple[dict[str, float], bool]:
        """The step's totals over all ranks, and whether any rank was asked to stop."""
        values = {
            "targets": sum(batch.weight for batch in batches),
            "tokens": float(sum(batch.tokens for batch in batches)),
            "stop": float(self.stop.name is not None),
        }
        for batch in batches:
            for name, count in batch.counts.items():
                values[f"counts/{name}"] = values.get(f"counts/{name}", 0.0) + count
        summed = torch.tensor(
            list(values.values()), dtype=torch.float64, device=self.processes.device
        )
        totals = dict(zip(values, self.processes.sum(summed).tolist(), strict=True))
        return totals, totals.pop("stop") > 0

    def _update(self, batches: list[MicroBatch], totals: dict[str, float], wait: float) -> None:
        """Forward, backward and the optimizer's step for one global batch."""
        began = time.perf_counter()
        self.model.train()
        rate = learning_rate(self.config, self.progress.step + 1)
        set_learning_rate(self.optimizer.param_groups, rate)
        # Accelerate (or DeepSpeed) divides by the accumulation and averages over ranks: undo both.
        scale = self.processes.size * len(batches) / max(totals["targets"], 1.0)
        sums: dict[str, torch.Tensor] = {}
        for batch in batches:
            with self.accelerator.accumulate(self.model):
                tensors = {
                    key: value.to(self.processes.device, non_blocking=True)
                    for key, value in batch.tensors.items()
                }
                with self.accelerator.autocast():
                    loss = self.task.loss(self.model, tensors)
                self.accelerator.backward(loss.sum * scale)
                _add(sums, "loss", loss.sum)
                for name, (part, weight) in loss.parts.items():
                    _add(sums, f"parts/{name}", part)
                    _add(sums, f"weights/{name}", weight)
                norm = self._clip() if self.accelerator.sync_gradients else None
                self.optimizer.step()
                self.optimizer.zero_grad()
        for batch in batches:
            self._streams.update(batch.states)
        self.progress.step += 1
        self.progress.tokens += int(totals["tokens"])
        self.progress.targets += int(totals["targets"])
        self._log(batches, totals, sums, rate, norm, wait, time.perf_counter() - began)

    def _clip(self) -> float | None:
        """Clips the gradients (DeepSpeed does it itself); the norm before, where there is one."""
        limit = self.config.gradient_clipping or float("inf")
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
        return None if norm is None else float(norm)

    def _log(
        self,
        batches: list[MicroBatch],
        totals: dict[str, float],
        sums: dict[str, torch.Tensor],
        rate: float,
        norm: float | None,
        wait: float,
        busy: float,
    ) -> None:
        step = self.progress.step
        summed = self.processes.sum(torch.stack([v.double() for v in sums.values()])).tolist()
        named = dict(zip(sums, summed, strict=True))
        loss = named["loss"] / max(totals["targets"], 1.0)
        if not math.isfinite(loss):
            raise TrainingError(f"step {step}: the loss is {loss}; no checkpoint of it was written")
        if self._documents is not None:
            documents = dict.fromkeys(name for batch in batches for name in batch.documents)
            self._documents.write({"step": step, "documents": list(documents)})
        if step % self.config.logging_steps and step != self.config.max_train_steps:
            return
        self.tracker.event(
            "step",
            step,
            loss=loss,
            learning_rate=rate,
            tokens=self.progress.tokens,
            targets=self.progress.targets,
            grad_norm=norm,
            data_wait_s=wait,
            **self.throughput.figures(totals["tokens"], wait + busy, self.processes.size),
            parts=_means(named),
            counts={k[len("counts/") :]: v for k, v in totals.items() if k.startswith("counts/")},
        )

    # --- evaluation and checkpoints -----------------------------------------------------------

    def _evaluate_and_save_if_due(self) -> None:
        step = self.progress.step
        extra = step in self.config.extra_steps_to_eval_save_at
        last = step == self.config.max_train_steps and self.config.eval_steps > 0
        if extra or last or _due(step, self.config.eval_steps):
            self._evaluate()
        if extra or _due(step, self.config.save_steps):
            self._save()

    def _evaluate(self) -> None:
        context = EvaluationContext(
            self.processes.rank, self.processes.size, self.processes.device, self.processes.gather
        )
        self.model.eval()
        figures = self.task.evaluate(self.model, context)
        if figures:
            self.tracker.event("eval", self.progress.step, split="validation", **figures)

    def _save(self) -> None:
        step = self.progress.step
        if step == self._last_saved:
            return
        began = time.perf_counter()
        writer = checkpoint.Writer(self.run.path, step, self.processes)
        self.accelerator.save_state(str(writer.folder / "state"))
        checkpoint.save_random_state(writer.folder, self.processes.rank)
        streams = dict(self._resumed_streams)
        for part in self.processes.gather(self._streams):
            streams.update(part)
        self._export(writer.folder / "model")
        if self.processes.is_main:
            data = {
                "fingerprint": self.stream.fingerprint,
                "streams": dict(sorted(streams.items())),
            }
            writer.write_json("data_state.json", data)
            state = {
                "progress": asdict(self.progress),
                "world_size": self.processes.size,
                "engine": self._engine(),
            }
            writer.write_json("trainer_state.json", state)
            (writer.folder / "config.yaml").write_text((self.run.path / "config.yaml").read_text())
        saved = writer.commit()
        self._last_saved = step
        if self.processes.is_main:
            checkpoint.keep_last(self.run.path, self.config.keep_last_checkpoints)
            write_status(self.run.path, "running", step, None)
        self.tracker.event(
            "save", step, checkpoint=saved.folder.name, seconds=time.perf_counter() - began
        )
        self.processes.barrier()

    def _export(self, folder: Path) -> None:
        """Writes the model for `from_pretrained`; every rank helps to gather the weights."""
        weights = self.accelerator.get_state_dict(self.model)
        model = self.accelerator.unwrap_model(self.model)
        self.processes.on_main(lambda: self.task.export(model, weights, folder))

    def export(self, folder: Path) -> None:
        """Replaces `folder` by the model as it is now."""
        temporary = folder.with_name(f".tmp-{folder.name}")
        self.processes.on_main(lambda: shutil.rmtree(temporary, ignore_errors=True))
        self._export(temporary)

        def replace() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)

        self.processes.on_main(replace)

    def _load(self, saved: checkpoint.Checkpoint) -> dict[str, Any]:
        """Restores everything but the data stream, whose state it returns."""
        state = json.loads((saved.folder / "trainer_state.json").read_text())
        self._check_launch(saved, state["world_size"], state["engine"])
        self.accelerator.load_state(str(saved.folder / "state"))
        self.progress = Progress(**state["progress"])
        self._last_saved = saved.step
        if not checkpoint.load_random_state(saved.folder, self.processes.rank):
            # More ranks than at the time of the save: dropout differs from then on, data does not.
            torch.manual_seed(self.config.seed + saved.step * 10_007 + self.processes.rank)
        data: dict[str, Any] = json.loads((saved.folder / "data_state.json").read_text())
        self._resumed_streams = {int(stream): state for stream, state in data["streams"].items()}
        return data

    def _check_launch(self, saved: checkpoint.Checkpoint, world_size: int, engine: str) -> None:
        """ZeRO's state is cut for a number of ranks; it cannot be read by another one."""
        if engine != self._engine():
            raise ConfigurationError(
                f"{saved.folder} was saved by {engine}, this run is {self._engine()}; resume with "
                "the accelerate configuration that the run was started with"
            )
        if engine != "torch" and world_size != self.processes.size:
            raise ConfigurationError(
                f"{saved.folder} was saved by {world_size} processes under {engine}, this run has "
                f"{self.processes.size}; resume with {world_size} processes"
            )

    def _engine(self) -> str:
        plugin = self.accelerator.state.deepspeed_plugin
        return "torch" if plugin is None else f"deepspeed ZeRO-{plugin.zero_stage}"


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _add(sums: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> None:
    value = value.detach()
    sums[name] = sums[name] + value if name in sums else value


def _means(sums: dict[str, float]) -> dict[str, float]:
    """The mean of each named part over its own weight; parts without weight are left out."""
    means = {}
    for name, weight in sums.items():
        if name.startswith("weights/") and weight > 0:
            part = name[len("weights/") :]
            means[part] = sums[f"parts/{part}"] / weight
    return means
