"""Runs a sweep: one run for each combination of values, in sequence, and a table of the results.

    python experiments/hpsearch/sweep.py runs/sweep --config demo \\
        learning_rate=1e-3,4e-3 'data_config.metadata_config.metadata_list=[url],[title,url]'

A key with several values (Hydra's syntax: `a,b`, `choice(a,b)`, `range(1,4)`) is swept, the others
apply to all runs. Each run is started by `experiments/train.sh`, whose environment variables choose
the devices, in its own folder under the sweep's folder. The same command continues a sweep: it
skips finished runs and resumes stopped or failed ones; values may be added.

Exit codes: 0 all runs are done, 75 stopped by a signal (the run has saved), 1 a run failed (the
others were run), 2 an error that you can fix.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from results import read_result, write_report

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.command_line import format_pasteable_command
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.exit_codes import EXIT_FAILURE, EXIT_PREEMPTED
from bsmeta.core.process import run_and_report
from bsmeta.core.secrets import redact, redact_values

TRAIN = Path(__file__).resolve().parents[1] / "train.sh"
SETTINGS = "sweep.json"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Run:
    """The run of one combination.

    Attributes:
        folder: Its run folder.
        values: The swept keys with their values in this run, in override syntax.
    """

    folder: Path
    values: dict[str, str]

    @property
    def overrides(self) -> list[str]:
        """The values as overrides."""
        return [f"{key}={value}" for key, value in self.values.items()]


def combinations(overrides: Sequence[str]) -> tuple[list[str], list[dict[str, str]]]:
    """The overrides that apply to all runs, and the values of each run's swept keys.

    Raises:
        ConfigurationError: An override is invalid or repeated, or no key is swept.
    """
    parsed = [_parse(one) for one in overrides]
    swept = [one for one in parsed if one.is_sweep_override()]
    fixed = [str(one.input_line) for one in parsed if not one.is_sweep_override()]
    try:
        chosen = BasicSweeper.split_arguments(swept, max_batch_size=None)[0]
    except HydraException as error:
        raise ConfigurationError(str(error)) from error
    if not swept:
        raise ConfigurationError("nothing is swept: give a key several values, learning_rate=1,2")
    keys = [str(one.key_or_group) for one in parsed]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigurationError(f"{', '.join(twice)}: given twice; expected once")
    for one in parsed:
        if one.key_or_group in ("out_dir", "resume_from_checkpoint_dir", "overwrite_out_dir"):
            raise ConfigurationError(f"{one.input_line}: the sweep sets {one.key_or_group} itself")
    return fixed, [dict(one.split("=", 1) for one in values) for values in chosen]


def _parse(override: str) -> Override:
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise ConfigurationError(f"{override}: {str(error).splitlines()[0]}") from error


def folder_name(values: dict[str, str]) -> str:
    """A folder name with the values, which does not depend on the other runs of the sweep.

    The hash distinguishes values that differ only in characters that a folder name cannot have.
    """
    said = [
        f"{key.rsplit('.', 1)[-1]}-{re.sub(r'[^a-zA-Z0-9.]+', '-', value).strip('-')}"
        for key, value in values.items()
    ]
    plain = "_".join(said)
    exact = json.dumps(values, sort_keys=True).encode()
    return f"{plain[:100]}-{hashlib.sha256(exact).hexdigest()[:6]}"


def keep_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings that all runs share to the folder of the sweep.

    Raises:
        ConfigurationError: The folder contains a sweep with other settings.
    """
    file, settings = folder / SETTINGS, redact_values(settings)
    if file.exists():
        earlier = json.loads(file.read_text())
        differing = [name for name in settings if earlier.get(name) != settings[name]]
        if differing:
            raise ConfigurationError(
                "; ".join(
                    f"{folder} holds a sweep with {name} {earlier.get(name)}, found "
                    f"{settings[name]}"
                    for name in differing
                )
                + "; expected the same, or another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings, indent=2) + "\n")


class Sweep:
    """Runs the combinations in sequence; a signal is forwarded to the run, and ends the sweep."""

    def __init__(self, config: str, fixed: Sequence[str]) -> None:
        self._own = {"BSMETA_RESUME": "", "BSMETA_CONFIG": config}
        self._fixed = fixed
        self._running: subprocess.Popen[bytes] | None = None
        self.stopped = False
        for number in SIGNALS:
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        if self._running is not None:
            self._running.send_signal(signal.SIGTERM)

    def command(self, run: Run) -> list[str]:
        """The command that starts or resumes a run."""
        placed = [f"out_dir='{run.folder}'", "resume_from_checkpoint_dir=latest"]
        return [str(TRAIN), *self._fixed, *run.overrides, *placed]

    def line(self, run: Run) -> str:
        """The command and its environment, as a line for a shell."""
        return redact(format_pasteable_command(self.command(run), **self._own))

    def make(self, run: Run) -> int:
        """Execute a run, with its output logged next to its folder; returns its exit code."""
        with run.folder.with_name(f"{run.folder.name}.log").open("ab") as log:
            self._running = subprocess.Popen(
                self.command(run),
                env={**os.environ, **self._own},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            if self.stopped:  # by a signal that arrived just before
                self._running.send_signal(signal.SIGTERM)
            return self._running.wait()

    def make_all(self, runs: Sequence[Run]) -> int:
        """Execute the runs that are not done yet; returns the exit code of the sweep."""
        failed = False
        for number, run in enumerate(runs, start=1):
            said = " ".join(
                f"{key.rsplit('.', 1)[-1]}={value}" for key, value in run.values.items()
            )
            place = f"[{number}/{len(runs)}] {said}:"
            if read_result(run.folder).state == "done":
                print(place, "done before", flush=True)
                continue
            print(place, "running …", flush=True)
            code = self.make(run)
            result = read_result(run.folder)
            print(place, result.state, f"(step {result.step}, exit code {code})", flush=True)
            if self.stopped or code == EXIT_PREEMPTED:
                return EXIT_PREEMPTED
            failed |= code != 0
        return EXIT_FAILURE if failed else 0


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder of the sweep")
    parser.add_argument("overrides", nargs="+", metavar="key=value", help="of all runs, or swept")
    parser.add_argument(
        "--config", default=os.environ.get("BSMETA_CONFIG"), help="as BSMETA_CONFIG of train.sh"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be started")
    parser.add_argument("--report", action="store_true", help="only the table of what is there")
    return parser.parse_args()


def main() -> int:
    """Run the sweep and write its report; returns the exit code."""
    given = arguments()
    folder = given.folder.resolve()
    if not given.config:
        raise ConfigurationError("--config is missing: a name in hydra_configs/, or a YAML file")
    fixed, chosen = combinations(given.overrides)
    runs = [Run(folder / folder_name(values), values) for values in chosen]
    if not given.config.endswith(".yaml"):
        for run in runs:  # find a misspelled key or value before the first run starts
            compose_command_line(CausalLMConfig, given.config, [*fixed, *run.overrides])
    runner = Sweep(given.config, fixed)
    if given.dry_run:
        for run in runs:
            print(runner.line(run))
        return 0
    keep_settings(folder, {"config": given.config, "overrides": fixed})
    code = 0 if given.report else runner.make_all(runs)
    write_report(folder, {run.folder: run.values for run in runs})
    return code


if __name__ == "__main__":
    sys.exit(run_and_report(main))
