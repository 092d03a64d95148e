"""A sweep: one run for each combination of values, one after the other, and a table of them all.

    python experiments/hpsearch/sweep.py runs/sweep --config demo \\
        learning_rate=1e-3,4e-3 'data_config.metadata_config.metadata_list=[url],[title,url]'

A key with several values (Hydra's syntax: `a,b`, `choice(a,b)`, `range(1,4)`) is swept, the others
hold for all runs. Each run is started by `experiments/train.sh`, whose variables say on what, in a
folder of its own under the sweep's. The same command again goes on: what is done stays, what was
stopped or failed is resumed; more values may be added.

Exit codes: 0 all done, 75 stopped by a signal (the run has saved), 1 a run has failed (the others
were made), 2 an error that you can mend.
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
from bsmeta.config.compose import EXIT_FAILURE, EXIT_PREEMPTED, EXIT_USER_ERROR, compose
from bsmeta.config.errors import ConfigurationError

TRAIN = Path(__file__).resolve().parents[1] / "train.sh"
SETTINGS = "sweep.json"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Run:
    """One combination.

    Attributes:
        folder: Its run folder.
        values: The swept keys with its values, as they are written in an override.
    """

    folder: Path
    values: dict[str, str]

    @property
    def overrides(self) -> list[str]:
        """The values as overrides."""
        return [f"{key}={value}" for key, value in self.values.items()]


def combinations(overrides: Sequence[str]) -> tuple[list[str], list[dict[str, str]]]:
    """The overrides that hold for all runs, and the values of each run's swept keys.

    Raises:
        ConfigurationError: If an override cannot be read, or none is swept.
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
    """A name that says the values, and is the same whatever else is swept beside them.

    The hash keeps those apart that differ only in characters which a folder cannot have.
    """
    said = [
        f"{key.rsplit('.', 1)[-1]}-{re.sub(r'[^a-zA-Z0-9.]+', '-', value).strip('-')}"
        for key, value in values.items()
    ]
    plain = "_".join(said)
    exact = json.dumps(values, sort_keys=True).encode()
    return f"{plain[:100]}-{hashlib.sha256(exact).hexdigest()[:6]}"


def keep_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Notes what all runs share; a folder of a sweep with other settings is refused.

    Raises:
        ConfigurationError: If the folder holds another sweep.
    """
    file = folder / SETTINGS
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
    """Runs the combinations one after the other; a signal is passed on, and ends the sweep."""

    def __init__(self, config: str, fixed: Sequence[str]) -> None:
        self._environment = {**os.environ, "BSMETA_CONFIG": config}
        self._environment.pop("BSMETA_RESUME", None)
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
        """What starts a run, or goes on with it."""
        placed = [f"out_dir='{run.folder}'", "resume_from_checkpoint_dir=latest"]
        return [str(TRAIN), *self._fixed, *run.overrides, *placed]

    def make(self, run: Run) -> int:
        """Makes one run, with its output beside its folder; its exit code."""
        with run.folder.with_name(f"{run.folder.name}.log").open("ab") as log:
            self._running = subprocess.Popen(
                self.command(run), env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
            if self.stopped:  # by a signal that came just before
                self._running.send_signal(signal.SIGTERM)
            return self._running.wait()

    def make_all(self, runs: Sequence[Run]) -> int:
        """Makes what is not done yet; the exit code of the sweep."""
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
    """The command line."""
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
    """Makes the sweep and its report; the exit code."""
    given = arguments()
    folder = given.folder.resolve()
    if not given.config:
        raise ConfigurationError("--config is missing: a name in hydra_configs/, or a YAML file")
    fixed, chosen = combinations(given.overrides)
    runs = [Run(folder / folder_name(values), values) for values in chosen]
    if not given.config.endswith(".yaml"):
        for run in runs:  # a misspelt key or value must not end the last run of a long night
            compose(CausalLMConfig, given.config, [*fixed, *run.overrides])
    sweep = Sweep(given.config, fixed)
    if given.dry_run:
        for run in runs:
            print(subprocess.list2cmdline(sweep.command(run)))
        return 0
    keep_settings(folder, {"config": given.config, "overrides": fixed})
    code = 0 if given.report else sweep.make_all(runs)
    write_report(folder, {run.folder: run.values for run in runs})
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigurationError as error:
        print(f"sweep.py: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
