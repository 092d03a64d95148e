"""Lists and launches the runs of a study, and reads their progress and measurements.

Seeds come first in the order of the runs, so that an interrupted study has whole comparisons. The
arms of a seed differ only in their overrides: everything that the seed decides (weights, dropout,
the order of the documents) is the same, as far as the arms allow.

Runs are started through the launch scripts, one after the other. A study can be killed at any
moment: the same command skips the finished runs, resumes the interrupted one from its newest
checkpoint, and starts the others. If an earlier call left a run in progress, it is waited for.

The measurement of a run is one small file, and a report needs nothing else. If these files are kept
with the file of the study (`results_dir`), a run that was measured on any machine is not repeated,
and the report can be recomputed from the files alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from rich import box
from rich.table import Table

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.values import find_value_problems
from bsmeta.config.composing.command_line import format_pasteable_command
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.schema import WSD
from bsmeta.core.environment import hash_machine_name
from bsmeta.core.errors import ConfigurationError, DataError, raise_problems
from bsmeta.core.exit_codes import EXIT_FAILURE, EXIT_PREEMPTED
from bsmeta.core.files import ROOT, replace_atomically
from bsmeta.core.parsing import parse_json
from bsmeta.core.secrets import redact
from bsmeta.core.terminal import Console
from bsmeta.metadata.checks import find_metadata_problems, find_row_budget_problems
from bsmeta.studies.config import WITH, WITHOUT, StudyConfig
from bsmeta.training.run_folder.events import METRICS, read_environments, read_last_events
from bsmeta.training.run_folder.status import STATUS, read_status

DONE = "done"
NOT_STARTED = "not started"
WAITS = "waits"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
POLL_INTERVAL_S = 2.0

_DOCUMENT_ARRAYS = ("digests", "lengths", "sites", "sizes")
_ARRAYS = (
    "steps",
    "targets",
    "tokens",
    "flops",
    *_DOCUMENT_ARRAYS,
    "step_documents",
    "logged_targets",
)
"""Arrays of a measurement with the same name in its file."""

_NATS_NAMES = {"nats_without": "without", "nats_with": "shown", "nats_averaged": "averaged"}
"""Names in the file of the arrays of nats per checkpoint."""

_TYPE_PREFIX = "types/"
"""Begins the names in the file of the arrays of `nats_by_types`."""


@dataclass(frozen=True)
class Measurement:
    """The checkpoints of a run on the held-out documents.

    Attributes:
        settings: Hash of the settings of the run and of its measurement.
        facts: Facts about the run for the report: learning rate schedule, last loss, initial
            weights, hash of the training shards, bytes that are left out because the tokenizer
            loses them, position in the `order` of the runs, environments in which it was `trained`
            and `measured` (`describe_environment`), and the `losses` of the logged steps. Older
            files lack the last four.
        steps: int64 [checkpoints].
        targets: int64 [checkpoints], tokens trained on (text, unless metadata has a loss).
        tokens: int64 [checkpoints], tokens that the model was given, without padding.
        flops: float64 [checkpoints], forward and backward FLOPs of these tokens.
        digests: uint64 [documents], hash of each text.
        lengths: int64 [documents], bytes of the whole text.
        sites: str [documents], host; empty if unknown.
        sizes: float64 [documents, bins], bytes scored, by position in the document.
        nats_without: float64 [checkpoints, documents, bins], nats of these bytes without metadata.
        nats_with: float64 [checkpoints, documents, bins], nats with all metadata, as in training;
            no checkpoints if the arm has no metadata.
        nats_by_types: The nats at the last checkpoint with one metadata type alone (or types joined
            by +), float64 [documents, bins]; NaN for a document that lacks one of the types.
        nats_averaged: float64 [1, documents, bins], nats without metadata of the mean of the last
            checkpoints' weights; [0, documents, bins] if it was not measured.
        step_documents: uint16 [steps], a hash of the documents of each step.
        logged_targets: int64 [logged steps], `targets` at each step that was logged.
    """

    settings: str
    facts: dict[str, Any]
    steps: np.ndarray
    targets: np.ndarray
    tokens: np.ndarray
    flops: np.ndarray
    digests: np.ndarray
    lengths: np.ndarray
    sites: np.ndarray
    sizes: np.ndarray
    nats_without: np.ndarray
    nats_with: np.ndarray
    nats_by_types: dict[str, np.ndarray]
    nats_averaged: np.ndarray
    step_documents: np.ndarray
    logged_targets: np.ndarray

    def save(self, path: Path) -> None:
        """Writes the file atomically, with nats in single precision."""
        values = {name: getattr(self, name) for name in _ARRAYS}
        for name in ("lengths", "sizes"):
            values[name] = values[name].astype(np.uint32)
        for name, name_in_file in _NATS_NAMES.items():
            values[name_in_file] = getattr(self, name).astype(np.float32)
        for types, nats in self.nats_by_types.items():
            values[_TYPE_PREFIX + types] = nats.astype(np.float32)

        header = json.dumps({"settings": self.settings, "facts": self.facts}, sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as part:
            np.savez_compressed(part, header=np.array(header), **values)

    def select_by_index(self, indices: np.ndarray) -> Measurement:
        """Returns the measurement of the documents at these indices, in their order."""
        return replace(
            self,
            **{name: getattr(self, name)[indices] for name in _DOCUMENT_ARRAYS},
            **{name: getattr(self, name)[:, indices] for name in _NATS_NAMES},
            nats_by_types={types: nats[indices] for types, nats in self.nats_by_types.items()},
        )

    @classmethod
    def load(cls, path: Path) -> Measurement:
        """Reads the file.

        Raises:
            DataError: If it is damaged.
        """
        try:
            with np.load(path) as archive:
                header = parse_json(str(archive["header"]))
                arrays = {name: archive[name] for name in _ARRAYS}
                arrays["nats_without"] = archive[_NATS_NAMES["nats_without"]]
                arrays["nats_with"] = archive[_NATS_NAMES["nats_with"]]
                if _NATS_NAMES["nats_averaged"] in archive.files:
                    arrays["nats_averaged"] = archive[_NATS_NAMES["nats_averaged"]]
                else:  # the file is older than the array
                    arrays["nats_averaged"] = arrays["nats_without"][:0]
                nats_by_types = {
                    name.removeprefix(_TYPE_PREFIX): archive[name].astype(np.float64)
                    for name in archive.files
                    if name.startswith(_TYPE_PREFIX)
                }
            for name in ("sizes", *_NATS_NAMES):
                arrays[name] = arrays[name].astype(np.float64)
            return cls(**header, **arrays, nats_by_types=nats_by_types)
        except Exception as error:  # numpy raises many kinds for a damaged archive
            raise DataError(
                f"{path}: not a measurement that can be read ({error}); delete it, and the run is "
                "measured again"
            ) from error


def hash_settings(study: StudyConfig, arm: str, seed: int) -> str:
    """Hashes the settings of a run and of its measurement; equal on every machine."""
    settings = study.arms[arm]
    values: dict[str, Any] = {
        "config": study.config,
        "overrides": _list_arm_overrides(study, arm),
        "text_tokens_of": settings.text_tokens_of,
        "seed": seed,
        "curve": study.curve,
        "measure": select_measure_settings(study),
    }
    if settings.branch_of is not None:
        values["branch"] = [settings.branch_of, settings.branch_at, settings.decay_steps]
    return hash_values(values)


def select_measure_settings(study: StudyConfig) -> dict[str, Any]:
    """Returns the settings of `measure` that affect the values of a measurement."""
    left_out = {"length_edges", "sites"}  # they only group the values
    if study.measure.average_last == 1:
        left_out.add("average_last")  # so that measurements older than the key stay valid
    return {name: value for name, value in asdict(study.measure).items() if name not in left_out}


def hash_values(values: Any) -> str:
    """Returns a short hash of JSON-serializable values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def locate_results(study: StudyConfig) -> Path:
    """Returns the folder of the measurements.

    It is `results_dir` if that is set, otherwise a folder in `out_dir` named by the hash of the
    settings.
    """
    if study.results_dir is not None:
        return Path(study.results_dir)
    return Path(study.out_dir) / f"measured-{hash_values(select_measure_settings(study))[:8]}"


def locate_measurement(study: StudyConfig, arm: str, seed: int) -> Path:
    """Returns the path of a run's measurement."""
    return locate_results(study) / f"{arm}-seed{seed}.npz"


def find_measurement(study: StudyConfig, arm: str, seed: int) -> Measurement | None:
    """Reads the measurement of a run; None if it has not been measured.

    Raises:
        DataError: If the file is damaged, or was made with other settings.
    """
    path = locate_measurement(study, arm, seed)
    if not path.exists():
        return None
    measurement = Measurement.load(path)
    parts = "config, overrides, curve or measure"
    refuse_other_settings(path, measurement.settings, hash_settings(study, arm, seed), parts)
    return measurement


def refuse_other_settings(path: Path, settings: str, expected: str, parts: str) -> None:
    """Refuses a file of results that was made with other settings of the study.

    Args:
        settings: The hash of the settings in the file.
        expected: The hash of the study's settings.
        parts: The settings that the hash covers, for the message.

    Raises:
        DataError: If the hashes differ.
    """
    if settings != expected:
        raise DataError(
            f"{path}: made with other settings (hash {settings}, expected {expected}): {parts} of "
            "the study have changed; restore them, or give the study another results_dir"
        )


@dataclass(frozen=True)
class Run:
    """The training of one arm with one seed.

    Attributes:
        folder: The run folder.
    """

    arm: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The run's name in tables and logs."""
        return f"{self.arm} seed {self.seed}"


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        state: The state in its status.json; `not started` if there is none.
        step: The last step logged.
        tokens: Tokens that the model was given up to that step, without padding.
        targets: Tokens that it was trained on (the text tokens, unless metadata has a loss).
        loss: The loss of that step.
    """

    state: str
    step: int = 0
    tokens: int = 0
    targets: int = 0
    loss: float | None = None


def list_runs(study: StudyConfig) -> list[Run]:
    """Lists all runs in the order of their execution; arms follow the arms that they depend on.

    With `random_order`, seeds are sorted by a hash: the order is the same on every machine, and
    adding a seed does not reorder the others.
    """
    folder = Path(study.out_dir)
    seeds = list(study.seeds)
    if study.random_order:
        seeds.sort(key=lambda seed: hash_values([study.title, study.config, seed]))

    runs = []
    for seed in seeds:
        for arm in _sort_arms(study):
            runs.append(Run(arm, seed, folder / "runs" / f"{arm}-seed{seed}"))
    return runs


def _sort_arms(study: StudyConfig) -> list[str]:
    """Sorts the arms: the baseline first, and each arm after the arms that it depends on."""

    def rank_arm(name: str) -> tuple[bool, bool]:
        needs_tokens_of_another = study.arms[name].text_tokens_of is not None
        return name != study.baseline, needs_tokens_of_another

    sorted_arms: list[str] = []

    def add_arm(name: str) -> None:  # ends, because no arms need each other (`load_study`)
        for needed in study.arms[name].list_needed_arms():
            add_arm(needed)
        if name not in sorted_arms:
            sorted_arms.append(name)

    for name in sorted(study.arms, key=rank_arm):
        add_arm(name)
    return sorted_arms


def read_progress(study: StudyConfig, run: Run) -> Progress:
    """Reads the progress of a run from its folder, or from its measurement if it has no status.

    Raises:
        DataError: If the measurement is damaged, or was made with other settings.
    """
    if (run.folder / STATUS).exists():
        state = read_status(run.folder)["state"]
        last_step = read_last_events(run.folder / METRICS).get("step", {})
        return Progress(
            state,
            step=last_step.get("step", 0),
            tokens=last_step.get("tokens", 0),
            targets=last_step.get("targets", 0),
            loss=last_step.get("loss"),
        )

    measurement = find_measurement(study, run.arm, run.seed)
    if measurement is None:
        return Progress(NOT_STARTED)
    return Progress(
        DONE,
        step=int(measurement.steps[-1]),
        tokens=int(measurement.tokens[-1]),
        targets=int(measurement.targets[-1]),
        loss=measurement.facts.get("loss"),
    )


def list_overrides(study: StudyConfig, run: Run) -> list[str] | None:
    """Returns the overrides of a run; None if a run that it depends on is not done."""
    arm = study.arms[run.arm]
    overrides = [*_list_arm_overrides(study, run.arm), f"seed={run.seed}"]
    if arm.text_tokens_of is not None:
        matching_steps = _compute_matching_steps(study, run, arm.text_tokens_of)
        if matching_steps is None:
            return None
        overrides.append(f"max_train_steps={matching_steps}")

    if arm.branch_of is not None:
        stable = find_stable_run(study, run)
        if read_progress(study, stable).state != DONE:
            return None
        checkpoint = stable.folder.resolve() / f"checkpoint-{arm.branch_at}step"
        overrides.append(f"decay_from='{checkpoint}'")

    steps = _compose_run(study, overrides).max_train_steps
    saved_steps = set(list_curve_steps(study, run.arm, steps)) | _list_branch_steps(study, run.arm)
    step_list = ",".join(str(step) for step in sorted(saved_steps))
    overrides += [
        f"extra_steps_to_eval_save_at=[{step_list}]",
        "keep_last_checkpoints=0",
        "export_steps=null",
        "log_documents=true",
    ]
    return drop_replaced_overrides(overrides)


def _list_arm_overrides(study: StudyConfig, name: str) -> list[str]:
    """Returns the overrides of an arm's runs; a branch inherits the overrides of its stable arm."""
    arm = study.arms[name]
    if arm.branch_of is None:
        return [*study.overrides, *arm.overrides]

    assert arm.branch_at is not None
    assert arm.decay_steps is not None
    return [
        *study.overrides,
        *study.arms[arm.branch_of].overrides,
        *arm.overrides,
        f"lr_scheduler_type={WSD}",
        f"num_decay_steps={arm.decay_steps}",
        f"max_train_steps={arm.branch_at + arm.decay_steps}",
    ]


def find_stable_run(study: StudyConfig, run: Run) -> Run:
    """Returns the run of the same seed from which a branch starts."""
    (stable,) = (
        other
        for other in list_runs(study)
        if other.seed == run.seed and other.arm == study.arms[run.arm].branch_of
    )
    return stable


def _list_branch_steps(study: StudyConfig, stable: str) -> set[int]:
    """Returns the steps at which arms branch from a stable arm."""
    return {
        arm.branch_at
        for arm in study.arms.values()
        if arm.branch_of == stable and arm.branch_at is not None
    }


def drop_replaced_overrides(overrides: Sequence[str]) -> list[str]:
    """Drops the overrides that a later override of the same key replaces.

    An override of a mapping adds to the one before, so both are kept.
    """
    last_positions: dict[str, int] = {}
    for position, override in enumerate(overrides):
        key, _, value = override.partition("=")
        if not value.lstrip().startswith("{"):
            last_positions[key] = position
    return [
        override
        for position, override in enumerate(overrides)
        if position >= last_positions.get(override.partition("=")[0], 0)
    ]


def list_curve_steps(study: StudyConfig, arm: str, steps: int) -> list[int]:
    """Returns the steps of a run after which its model is measured, ascending.

    The last step is always one of them; a branch has only steps after it began.

    Args:
        steps: Number of steps of the run.
    """
    curve_steps = {max(round(share * steps), 1) for share in study.curve} | {steps}
    first_step = study.arms[arm].branch_at or 0
    return sorted(step for step in curve_steps if step > first_step)


def _compute_matching_steps(study: StudyConfig, run: Run, other: str) -> int | None:
    """Computes the steps in which a run sees the number of text tokens of another arm of its seed.

    Returns:
        The steps, from the baseline's text tokens per step; None if the run of the other arm, or of
        the baseline, is not done.
    """
    progress_by_arm = {
        sibling.arm: read_progress(study, sibling)
        for sibling in list_runs(study)
        if sibling.seed == run.seed
    }
    other_progress = progress_by_arm[other]
    baseline_progress = progress_by_arm[study.baseline]
    if other_progress.state != DONE or baseline_progress.state != DONE:
        return None

    targets_per_step = baseline_progress.targets / baseline_progress.step
    return max(round(other_progress.targets / targets_per_step), 1)


def check_study(study: StudyConfig) -> None:
    """Checks the configurations of all arms, and the metadata types of all claims.

    Call it before the first run starts.

    Raises:
        ConfigurationError: If one is invalid; the message names the arm or the claim.
    """
    types_by_arm: dict[str, list[str]] = {}
    steps_by_arm: dict[str, int] = {}
    for name in study.arms:
        try:
            config = _compose_run(study, _list_arm_overrides(study, name))
            data = config.data_config
            problems = [*find_value_problems(config), *find_metadata_problems(data.metadata_config)]
            raise_problems([*problems, *find_row_budget_problems(data)])
        except ConfigurationError as error:
            raise ConfigurationError(f"arm {name}: {error}", error.keys) from error
        types_by_arm[name] = config.data_config.metadata_config.metadata_list
        steps_by_arm[name] = config.max_train_steps

    for name, arm in study.arms.items():
        if arm.branch_of and arm.branch_at and arm.branch_at > steps_by_arm[arm.branch_of]:
            raise ConfigurationError(
                f"arms.{name}.branch_at={arm.branch_at}: expected a step of {arm.branch_of}, which "
                f"has {steps_by_arm[arm.branch_of]} (max_train_steps)"
            )
    for name in study.claims:
        _check_types_of_claim(study, name, types_by_arm)


def _check_types_of_claim(
    study: StudyConfig, name: str, types_by_arm: dict[str, list[str]]
) -> None:
    """Checks that the arms of a claim are trained with the metadata types that it compares.

    Args:
        name: The name of the claim.
        types_by_arm: The metadata types that each arm is trained with.

    Raises:
        ConfigurationError: If an arm is not trained with them.
    """
    claim = study.claims[name]
    arms = [("metadata", claim.arm), ("against_metadata", claim.against or study.baseline)]
    if claim.minus_arm:
        arms += [("metadata", claim.minus_arm), ("against_metadata", claim.minus_against)]

    for key, arm in arms:
        metadata = getattr(claim, key)
        trained_types = types_by_arm[arm]
        if metadata == WITHOUT:
            is_trained = True
        elif metadata == WITH:
            is_trained = bool(trained_types)
        else:
            is_trained = set(metadata.split("+")) <= set(trained_types)
        if not is_trained:
            raise ConfigurationError(
                f"claims.{name}.{key}={metadata}: expected metadata that the arm {arm} is trained "
                f"with: without, or some of {trained_types}"
            )


def _compose_run(study: StudyConfig, overrides: list[str]) -> CausalLMConfig:
    """Composes the configuration of a run.

    Raises:
        ConfigurationError: If the configuration does not exist or is invalid.
    """
    path = Path(study.config)
    if path.suffix != ".yaml" and len(path.parts) == 1:  # as choose_run of experiments/common.sh
        return compose_command_line(CausalLMConfig, study.config, overrides)
    if not path.is_file():
        raise ConfigurationError(
            f"config={path}: there is no such file (from {Path.cwd()}); expected a name in "
            "hydra_configs/ or the path of a YAML file"
        )
    return compose_command_line(CausalLMConfig, path.stem, overrides, path.parent.resolve())


class Launcher:
    """Trains and measures runs, one after the other.

    A signal is forwarded to the run in progress, and then ends the study.
    """

    def __init__(self, study: StudyConfig) -> None:
        self._study = study
        self._script = ROOT / "experiments" / study.launch
        self._environment = {"BSMETA_RESUME": "", "BSMETA_CONFIG": study.config}
        self._running: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def catch_signals(self) -> None:
        """Makes signals stop the run in progress, which saves a checkpoint, and then the study."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop_study)

    def _stop_study(self, number: int, frame: FrameType | None) -> None:
        self._is_stopped = True
        if self._running is not None:
            self._running.send_signal(signal.SIGTERM)

    def build_command(self, run: Run) -> list[str] | None:
        """Returns the command that starts or resumes a run; None if it must wait for others."""
        overrides = list_overrides(self._study, run)
        if overrides is None:
            return None
        folder = f"out_dir='{run.folder.resolve()}'"
        return [str(self._script), *overrides, folder, "resume_from_checkpoint_dir=latest"]

    def format_command(self, run: Run) -> str | None:
        """Returns the command of a run and its environment as a line for a shell.

        Returns None if the run must wait for others.
        """
        command = self.build_command(run)
        if command is None:
            return None
        return redact(format_pasteable_command(command, **self._environment))

    def launch_all(self, runs: Sequence[Run], measure_command: Sequence[str] = ()) -> int:
        """Trains and measures the runs that are not done yet; returns the exit code of the study.

        Args:
            runs: The runs.
            measure_command: The command that measures finished runs, executed after each run in a
                separate process, so that it frees the memory of the device. Empty: nothing is
                measured.
        """
        has_failed = False
        for number, run in enumerate(runs, start=1):
            code = self._launch_run(run, f"[{number}/{len(runs)}] {run.name}:", measure_command)
            if self._is_stopped or code == EXIT_PREEMPTED:
                return EXIT_PREEMPTED
            has_failed |= code != 0
        return EXIT_FAILURE if has_failed else 0

    def _launch_run(self, run: Run, prefix: str, measure_command: Sequence[str]) -> int:
        """Trains a run unless it is done, then measures it; returns an exit code.

        Args:
            prefix: Begins each line that is printed about the run.
        """
        self._wait_until_unused(run, prefix)
        if read_progress(self._study, run).state == DONE:
            print(prefix, "done before", flush=True)
            return 0 if self._measure_run(run, measure_command) else EXIT_FAILURE

        command = self.build_command(run)
        if command is None:
            print(prefix, "needs runs that are not done", flush=True)
            return EXIT_FAILURE

        missing_checkpoint = self._describe_missing_checkpoint(run)
        if missing_checkpoint:
            print(prefix, missing_checkpoint, flush=True)
            return EXIT_FAILURE

        code = self._train_run(run, command, prefix)
        if code != 0 or self._is_stopped:
            return code
        return 0 if self._measure_run(run, measure_command) else EXIT_FAILURE

    def _train_run(self, run: Run, command: Sequence[str], prefix: str) -> int:
        """Executes the command that trains a run, and prints its outcome; returns its exit code."""
        for warning in self._warn_of_other_machines(run):
            print(prefix, warning, flush=True)
        print(prefix, "running …", flush=True)

        started = time.monotonic()
        code = self.execute(command, run)
        if code and is_in_use(run.folder):  # by the run of an earlier call, which just started
            self._wait_until_unused(run, prefix)
            code = 0 if read_progress(self._study, run).state == DONE else code

        progress = read_progress(self._study, run)
        details = f"step {progress.step}, {time.monotonic() - started:,.0f} s, exit code {code}"
        print(prefix, f"{progress.state} ({details})", flush=True)
        return code

    def _describe_missing_checkpoint(self, run: Run) -> str:
        """Explains why a branch cannot start although its stable run is done; "" if it can."""
        branch_at = self._study.arms[run.arm].branch_at
        if branch_at is None:
            return ""

        stable = find_stable_run(self._study, run)
        checkpoint = stable.folder / f"checkpoint-{branch_at}step"
        if checkpoint.is_dir():
            return ""

        return (
            f"needs {checkpoint}: {stable.name} was trained on another machine, or before this arm "
            "was added, or its checkpoints have been removed; train all arms of a seed on one "
            f"machine (--seed), or delete {locate_measurement(self._study, stable.arm, run.seed)} "
            "and the folder of that run, which repeats it"
        )

    def _warn_of_other_machines(self, run: Run) -> list[str]:
        """Returns a warning if other arms of the seed were trained on another machine."""
        machines = set()
        for other in list_runs(self._study):
            if other.seed == run.seed and other.arm != run.arm:
                for environment in list_environments(self._study, other):
                    machines.add(environment.get("machine"))
        if machines <= {hash_machine_name()}:
            return []

        return [
            f"other arms of seed {run.seed} were trained on another machine; a difference between "
            "them may be one of machines, which the report cannot tell apart (train all arms of a "
            "seed on one machine: --seed)"
        ]

    def _measure_run(self, run: Run, command: Sequence[str]) -> bool:
        """Measures a finished run that has not been measured; returns whether nothing failed.

        Args:
            command: Measures finished runs; empty: nothing is measured.
        """
        if not command or find_measurement(self._study, run.arm, run.seed) is not None:
            return True
        return self.execute(command, run) == 0

    def execute(self, command: Sequence[str], run: Run) -> int:
        """Executes a command, and appends its output to a log beside the run folder.

        Returns:
            The exit code of the command.
        """
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        with run.folder.with_name(f"{run.folder.name}.log").open("ab") as log:
            self._running = subprocess.Popen(
                command,
                env={**os.environ, **self._environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            if self._is_stopped:  # by a signal that arrived just before
                self._running.send_signal(signal.SIGTERM)
            return self._running.wait()

    def _wait_until_unused(self, run: Run, prefix: str) -> None:
        """Waits until no process trains in the folder of the run."""
        if is_in_use(run.folder) and not self._is_stopped:
            print(prefix, "still running, started by an earlier call; waiting …", flush=True)
        while is_in_use(run.folder) and not self._is_stopped:
            time.sleep(POLL_INTERVAL_S)


def list_environments(study: StudyConfig, run: Run) -> list[dict[str, Any]]:
    """Reads the environments in which a run was trained, from its folder or its measurement."""
    if run.folder.exists():
        return read_environments(run.folder)

    measurement = find_measurement(study, run.arm, run.seed)
    return [] if measurement is None else list(measurement.facts.get("trained", []))


def is_in_use(folder: Path) -> bool:
    """Whether a process has locked a run folder."""
    if not (folder / ".lock").exists():
        return False
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True


def show_progress(study: StudyConfig, runs: Sequence[Run]) -> None:
    """Prints a table of the runs: state, step, tokens and loss."""
    table = Table(title=study.title, box=box.SIMPLE, title_justify="left")
    for name in ("arm", "seed", "state", "step", "text tokens", "all tokens", "loss"):
        table.add_column(name, justify="left" if name in ("arm", "state") else "right")

    for run in runs:
        progress = read_progress(study, run)
        must_wait = progress.state != DONE and list_overrides(study, run) is None
        state = WAITS if must_wait else progress.state
        counts = [f"{count:,}" for count in (progress.step, progress.targets, progress.tokens)]
        loss = "–" if progress.loss is None else f"{progress.loss:.4f}"
        table.add_row(run.arm, str(run.seed), state, *counts, loss)
    Console().print(table)
