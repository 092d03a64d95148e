"""The plan of half an hour on one GPU: its items, in order of value, and what each decides.

`gpu_day.py` runs them; docs/performance.md says what is predicted. Items whose names begin with R
are also tests (`tests/gpu/`).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpu_values as values
from gpu_values import Finished
from shapes import GPT2, GPT2_XL, LLAMA_1B

TRAIN = "bsmeta/train.py"
LAUNCH_FILES = "experiments/accelerate"
BENCHMARKS = "experiments/benchmarks"
Results = Mapping[str, Mapping[str, Any]]
"""The values of the items that are done, by name."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of Python, run in the root of the checkout.

    Attributes:
        arguments: After `python`.
        training: The keys of a training run or an estimate that it starts; None: it is a script.
        launch_file: Of these, with one process; None: without a launcher.
        out_dir: The run folder; None: it has none.
        environment: Further variables.
        root: The checkout; None: this one.
        signal_at: Sends the signal once `metrics.jsonl` has the step.
    """

    arguments: tuple[str, ...]
    training: tuple[str, ...] | None = None
    launch_file: str | None = None
    out_dir: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None
    signal_at: tuple[int, signal.Signals] | None = None


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question to the device.

    Attributes:
        prediction: The expected answer, from reading and arithmetic.
        seconds: Expected duration; a command that takes `PATIENCE` times as long is ended.
        commands: Run one after the other; an exit code other than the expected one ends the item.
        exit_codes: The expected ones, by command; None: any.
        read: Computes the item's values from its commands.
    """

    name: str
    prediction: str
    seconds: int
    commands: Sequence[Command]
    read: Callable[[Sequence[Finished]], dict[str, Any]]
    exit_codes: Sequence[int | None] = ()


PATIENCE = 4
SMALL = (
    "mixed_precision=bf16",
    "data_config.metadata_config.max_seq_len=512",
    "data_config.per_device_train_batch_size=8",
    "eval_steps=0",
    "trackers=[]",
    "num_warmup_steps=2",
    "learning_rate=1e-4",
)
LARGE = (
    "mixed_precision=bf16",
    "gradient_accumulation_steps=1",
    "data_config.metadata_config.max_seq_len=1024",
    "data_config.validation_file=null",
    "eval_steps=0",
    "trackers=[]",
    "estimate=true",
    "estimate_steps=24",
)


class Plan:
    """Builds the items; `work` is a folder for runs and shapes, whose content is not kept."""

    def __init__(self, work: Path, done: Results, before: Path | None) -> None:
        self._work = work
        self._done = done
        self._before = before
        for name, shape in (("gpt2", GPT2), ("gpt2-xl", GPT2_XL), ("llama-1b", LLAMA_1B)):
            (work / f"{name}.json").write_text(json.dumps(shape))

    def items(self) -> list[Item]:
        """All items, the most valuable first."""
        return [*self._first_answers(), *self._speed_of_xl(), *self._details()]

    def train(
        self,
        name: str,
        *keys: str,
        launch_file: str | None = None,
        setting: str | None = None,
        **rest: Any,
    ) -> Command:
        """A training run of the demo's configuration, in a run folder of that name.

        Args:
            setting: Of `gpu_run.py`, under which it runs.
        """
        out_dir = self._work / name
        training = ("--config-name", "demo", *keys, f"out_dir={out_dir}")
        start: tuple[str, ...] = (TRAIN,)
        if launch_file is not None:
            file = f"{LAUNCH_FILES}/{launch_file}"
            start = ("-m", "accelerate.commands.launch", "--config_file", file)
            start = (*start, "--num_processes", "1", TRAIN)
        elif setting is not None:
            start = (f"{BENCHMARKS}/gpu_run.py", setting, "bsmeta.train")
        return Command(
            arguments=(*start, *training),
            training=training,
            launch_file=launch_file,
            out_dir=out_dir,
            **rest,
        )

    def small(self, name: str, *keys: str, **how: Any) -> Command:
        """A run of GPT-2."""
        return self.train(name, f"model_config_file={self._work}/gpt2.json", *SMALL, *keys, **how)

    def large(self, name: str, *keys: str, shape: str = "gpt2-xl", **how: Any) -> Command:
        """An estimate, with steps that are measured."""
        return self.train(
            name, f"model_config_file={self._work}/{shape}.json", *LARGE, *keys, **how
        )

    def _first_answers(self) -> list[Item]:
        keys = ("max_train_steps=3", "eval_steps=0", "trackers=[]", "num_warmup_steps=1")
        engines = [
            Item(
                name=f"R6-{engine}",
                prediction="the launch file works with one process; a run ends soon after its save",
                seconds=35,
                commands=[self.small(engine, "max_train_steps=6", launch_file=f"{engine}.yaml")],
                read=values.read_run,
            )
            for engine in ("ddp", "zero2", "zero3", "fsdp2")
        ]
        return [
            Item(
                name="imports",
                prediction="the demo trains with the packages of this machine",
                seconds=30,
                commands=[self.train("imports", *keys)],
                read=values.read_run,
            ),
            Item(
                name="R1",
                prediction="a mask goes to cuDNN, whose backward pass does not repeat exactly; "
                "causal attention is 2-3 x faster; a new length costs 50-150 ms",
                seconds=40,
                commands=[script("gpu_attention.py")],
                read=values.read_json,
            ),
            Item(
                name="R2",
                prediction="a skipped step changes nothing; the activation takes 4 ms a layer, "
                "fused .3; 50,257 tokens 1.5-3 x as long as 50,304; a GiB 250 ms, pinned 20",
                seconds=40,
                commands=[script("gpu_kernels.py")],
                read=values.read_json,
            ),
            *engines,
            self._resuming("R4", "two equal runs differ, and so does the resumed one"),
            self._resuming(
                "R4-deterministic",
                "two equal runs and the resumed one are the same",
                setting="deterministic",
                environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
            ),
        ]

    def _resuming(self, name: str, prediction: str, **how: Any) -> Item:
        keys = ("max_train_steps=20", "save_steps=10")
        checkpoint = self._work / f"{name}-first" / "checkpoint-10step"
        resumed = f"resume_from_checkpoint_dir={checkpoint}"
        return Item(
            name=name,
            prediction=prediction,
            seconds=90,
            commands=[
                self.small(f"{name}-first", *keys, **how),
                self.small(f"{name}-again", *keys, **how),
                self.small(f"{name}-resumed", *keys, resumed, **how),
            ],
            read=values.compare_runs,
        )

    def _speed_of_xl(self) -> list[Item]:
        arms = self._arms()
        return [
            *(
                Item(
                    name=name,
                    prediction=prediction,
                    seconds=75,
                    commands=[command],
                    read=values.read_estimate,
                    exit_codes=[None],  # out of memory is an answer, too
                )
                for name, (prediction, command) in arms.items()
            ),
            *(
                Item(
                    name=f"profile-{rank}",
                    prediction="the products take a quarter of the step, and most of it if fused",
                    seconds=60,
                    commands=[self._profile(rank, name)],
                    read=values.read_profile,
                    exit_codes=[None],
                )
                for rank, name in enumerate(values.fastest(self._done, list(arms)), 1)
            ),
        ]

    def _arms(self) -> dict[str, tuple[str, Command]]:
        """The variants of a step of GPT-2 XL and Llama 1B whose speed is measured."""
        rows = "data_config.per_device_train_batch_size="
        compiled, flex = "torch_compile=true", "attn_implementation=flex_attention"
        saving = "gradient_checkpointing=true"
        arms = {
            "R5-8-rows": (
                "activations of 54.4 GiB with an unfused activation (out of memory), 26.3 with a "
                "fused one (51 GiB in all)",
                self.large("xl-8", f"{rows}8"),
            ),
            "R5-4-rows": ("fits; MFU .15-.20, or .25-.28 fused", self.large("xl-4", f"{rows}4")),
            "xl-checkpointing": ("fits", self.large("xl-saving", f"{rows}8", saving)),
            "xl-compile": ("MFU .32-.38", self.large("xl-compiled", f"{rows}4", compiled)),
            "xl-flex": ("passes", self.large("xl-flex", f"{rows}4", flex)),
            "xl-zero1": (
                "MFU .21-.26, or .25-.28 fused",
                self.large("xl-zero1", f"{rows}8", launch_file="zero1.yaml"),
            ),
            "llama-1b": ("-", self.large("llama", f"{rows}8", shape="llama-1b")),
        }
        if self._before is not None:
            arms["before-4-rows"] = (
                "slower than R5-4-rows",
                self.large("xl-before", f"{rows}4", root=self._before),
            )
        return arms

    def _profile(self, rank: int, name: str) -> Command:
        estimated = self._arms()[name][1]
        assert estimated.training is not None
        dropped = ("estimate", "estimate_steps", "out_dir", "--config-name", "demo")
        keys = [key for key in estimated.training if key.split("=", 1)[0] not in dropped]
        # Ended by a signal, because a checkpoint at the end would take longer than the steps.
        steps = ("max_train_steps=1000", "num_warmup_steps=2", "save_steps=0")
        return self.train(
            f"profile-{rank}",
            *keys,
            *steps,
            "profile=true",
            "profile_steps=[10,12]",
            launch_file=estimated.launch_file,
            signal_at=(14, signal.SIGKILL),
        )

    def _details(self) -> list[Item]:
        evaluating = ("max_train_steps=4", "eval_steps=2", "eval_documents=16")
        saving = ("max_train_steps=40", "save_steps=10", "keep_last_checkpoints=2")
        return [
            Item(
                name="R3",
                prediction="the host waits in the checks of the first step only",
                seconds=60,
                commands=[
                    self.small("waits-12", "max_train_steps=12", "save_steps=0", setting="waits"),
                    self.small("waits-24", "max_train_steps=24", "save_steps=0", setting="waits"),
                ],
                read=values.compare_waits,
            ),
            self._interrupted(),
            Item(
                name="R7",
                prediction="compiled once, without recompilations",
                seconds=60,
                commands=[
                    self.small(
                        "compiled",
                        "max_train_steps=12",
                        "torch_compile=true",
                        environment={"TORCH_LOGS": "recompiles"},
                    )
                ],
                read=values.count_recompilations,
            ),
            Item(
                name="R8",
                prediction="flex attention trains as sdpa does, to rounding",
                seconds=70,
                commands=[
                    self.small("sdpa", "max_train_steps=12", "attn_implementation=sdpa"),
                    self.small("flex", "max_train_steps=12", "attn_implementation=flex_attention"),
                ],
                read=values.compare_runs,
            ),
            Item(
                name="saves",
                prediction="the pause of an asynchronous save is a copy of 1.5 GB",
                seconds=90,
                commands=[
                    self.small("save-in-loop", *saving),
                    self.small("save-beside", *saving, "async_save=true"),
                ],
                read=values.read_saves,
            ),
            Item(
                name="evaluation",
                prediction="faster without cuDNN, which builds a plan for each length",
                seconds=90,
                commands=[
                    self.small("evaluation", *evaluating),
                    self.small("evaluation-no-cudnn", *evaluating, setting="no-cudnn"),
                ],
                read=values.read_evaluations,
            ),
            Item(
                name="loop",
                prediction="ours / bare >= .97",
                seconds=120,
                commands=[
                    script(
                        "loop.py",
                        *("preset=gpt2", "rounds=3", "steps=10", "engines=torch"),
                        "arms=ours,bare",
                    )
                ],
                read=values.read_json,
            ),
        ]

    def _interrupted(self) -> Item:
        keys = (
            *("max_train_steps=600", "num_warmup_steps=2", "eval_steps=0", "save_steps=50"),
            *("trackers=[]", "resume_from_checkpoint_dir=latest"),
            *("gradient_accumulation_steps=1", "data_config.metadata_config.max_seq_len=128"),
        )
        return Item(
            name="R9",
            prediction="SIGTERM: exit 75 with a checkpoint; after SIGKILL, too, the run resumes",
            seconds=100,
            commands=[
                self.train("interrupted", *keys, signal_at=(60, signal.SIGTERM)),
                self.train("interrupted", *keys, signal_at=(200, signal.SIGKILL)),
                self.train("interrupted", *keys),
            ],
            read=values.read_interrupted,
            exit_codes=[75, -signal.SIGKILL, 0],
        )


def script(name: str, *keys: str) -> Command:
    """A benchmark of this folder."""
    return Command(arguments=(f"{BENCHMARKS}/{name}", *keys))
