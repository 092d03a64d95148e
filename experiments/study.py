"""Runs a study: every arm with every seed, then the measurements, then the report.

    python experiments/study.py experiments/studies/meco_small.yaml

Each run is started by the launch script that the study names, whose environment variables choose
the devices, in its own folder under that of the study. The same command continues a study: finished
runs and measurements are kept, the run in progress is resumed, arms and seeds may be added.

    --dry-run    print what would be started
    --status     only the table of the runs
    --train      only the runs (with several_machines.sh: on each of the machines)
    --run N      only the N-th run, from 0: for the tasks of a SLURM array
    --report     only measure what is there, and write the report

Exit codes: 0 done, 75 stopped by a signal (the run has saved), 1 a run failed (the others were
run), 2 an error that you can fix.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bsmeta.config.compose import exit_code
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.study import StudyConfig, load_study
from bsmeta.studies.launching import Launcher, show_progress
from bsmeta.studies.runs import Run, check, keep_settings, runs_of


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="the file of the study")
    only = parser.add_mutually_exclusive_group()
    for name in ("dry-run", "status", "train", "report"):
        only.add_argument(f"--{name}", action="store_true")
    only.add_argument("--run", type=int, metavar="N")
    return parser.parse_args()


def main() -> int:
    """Run the study; returns the exit code."""
    given = arguments()
    study = load_study(given.study)
    check(study)
    runs = runs_of(study)
    launcher = Launcher(study)
    if given.status:
        show_progress(study, runs)
        return 0
    if given.dry_run:
        for run in runs:
            print(launcher.line(run) or f"# {run.name}: its length follows from other runs")
        return 0
    keep_settings(study)
    if given.run is not None:
        if not 0 <= given.run < len(runs):
            raise ConfigurationError(f"--run {given.run}: expected 0 to {len(runs) - 1}")
        runs = [runs[given.run]]
    if not given.report:
        launcher.catch_signals()
        code = launcher.make_all(runs)
        show_progress(study, runs)
        if code or given.train or given.run is not None:
            return code
    return finish(study, given.study, runs, launcher)


def finish(study: StudyConfig, file: Path, runs: Sequence[Run], launcher: Launcher) -> int:
    """Measure what has been trained, write the report, and print its main tables."""
    import torch  # here, with what needs it: it takes seconds to load
    from rich.console import Console

    from bsmeta.evaluation.output import WIDTH_OF_A_FILE, rich_table
    from bsmeta.studies.downstream import downstream_tables, score_study
    from bsmeta.studies.measuring import measure_all
    from bsmeta.studies.report import write_report
    from bsmeta.studies.results import results_of
    from bsmeta.studies.tables import tables_of

    device = "cuda" if torch.cuda.is_available() else "cpu"
    measure_all(study, runs, torch.device(device))
    for line in score_study(study, runs, device):
        print(line, flush=True)
    results = results_of(study)
    further = downstream_tables(study, list(results.arms), results.seeds)
    commands = {run.name: launcher.line(run) or "" for run in runs}
    files = write_report(results, file, commands, further)
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE, markup=False)
    for table in [*tables_of(results)[:3], *further]:
        console.print(rich_table(table))
    print(f"written to {study.out_dir}: {', '.join(file.name for file in files)}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
