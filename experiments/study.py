"""Runs a study: every arm with every seed, then the measurements, then the report.

    python experiments/study.py experiments/studies/meco_small.yaml

Each run is started by the launch script that the study names, whose environment variables choose
the devices, in its own folder under that of the study, and measured when it has finished. The same
command continues a study: finished runs and measurements are kept, the run in progress is resumed,
arms and seeds may be added. Runs whose measurements are in the study's `results_dir` are not made
again, and --report needs nothing else.

    --claims     print the declared claims, and the power to decide them
    --dry-run    print what would be started
    --status     only the table of the runs
    --train      only the runs (with several_machines.sh: on each of the machines)
    --seed N     only the runs of the N-th seed of that order, from 0: for the tasks of a SLURM
                 array, so that all arms of a seed are trained on one machine
    --run N      only the N-th run, from 0
    --measure    only measure the runs that are done
    --report     only measure what is there, and write the report

Exit codes: 0 done, 75 stopped by a signal (the run has saved), 1 a run failed (the others were
run), 2 an error that you can fix.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.process import run_and_report
from bsmeta.studies.config import StudyConfig, load_study
from bsmeta.studies.declaration import declare_study, restore_declared_order
from bsmeta.studies.runs import Launcher, Run, check_study, list_runs, show_progress

if TYPE_CHECKING:
    from bsmeta.report.page import Table


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="the file of the study")
    only = parser.add_mutually_exclusive_group()
    for name in ("claims", "dry-run", "status", "train", "measure", "report"):
        only.add_argument(f"--{name}", action="store_true")
    only.add_argument("--run", type=int, metavar="N")
    only.add_argument("--seed", type=int, metavar="N")
    return parser.parse_args()


def main() -> int:
    """Run the study; returns the exit code."""
    given = arguments()
    study = restore_declared_order(load_study(given.study))
    check_study(study)
    runs = list_runs(study)
    launcher = Launcher(study)
    if given.claims:
        from bsmeta.studies.claim_report import make_declared_table

        print_tables([make_declared_table(study)])
        return 0
    if given.status:
        show_progress(study, runs)
        return 0
    if given.dry_run:
        for run in runs:
            print(launcher.format_command(run) or f"# {run.name}: needs other runs")
        return 0
    declare_study(study)
    if given.run is not None:
        if not 0 <= given.run < len(runs):
            raise ConfigurationError(f"--run {given.run}: expected 0 to {len(runs) - 1}")
        runs = [runs[given.run]]
    if given.seed is not None:
        seeds = list(dict.fromkeys(run.seed for run in runs))
        if not 0 <= given.seed < len(seeds):
            raise ConfigurationError(f"--seed {given.seed}: expected 0 to {len(seeds) - 1}")
        runs = [run for run in runs if run.seed == seeds[given.seed]]
    if given.measure:
        measure(study, runs)
        return 0
    if not given.report:
        launcher.catch_signals()
        only_train = given.train or given.run is not None or given.seed is not None
        own = [sys.executable, __file__, str(given.study), "--measure"]
        code = launcher.make_all(runs, [] if only_train else own)
        show_progress(study, runs)
        if code or only_train:
            return code
    return finish(study, given.study, runs, launcher)


def finish(study: StudyConfig, file: Path, runs: Sequence[Run], launcher: Launcher) -> int:
    """Measure what has been trained, write the report, and print its main tables."""
    # here, what loads torch: it takes seconds
    from bsmeta.studies.claim_report import format_sentences, make_claim_tables
    from bsmeta.studies.downstream import make_downstream_tables
    from bsmeta.studies.report import make_exploratory_tables, write_report
    from bsmeta.studies.results import compute_results

    measure(study, runs)
    results = compute_results(study)
    further = make_downstream_tables(results.study, list(results.arms), results.seeds)
    commands = {run.name: launcher.format_command(run) or "" for run in runs}
    files = write_report(results, file, commands, further)
    print_tables([*make_claim_tables(results)[:1], *make_exploratory_tables(results)[:2], *further])
    print(*format_sentences(results), sep="\n")
    print(f"written to {study.out_dir}: {', '.join(file.name for file in files)}")
    return 0


def measure(study: StudyConfig, runs: Sequence[Run]) -> None:
    """Measure the runs that are done, and have not been measured yet; then downstream tasks."""
    import torch

    from bsmeta.studies.downstream import score_study
    from bsmeta.studies.measuring import measure_all

    device = "cuda" if torch.cuda.is_available() else "cpu"
    measure_all(study, runs, torch.device(device))
    for line in score_study(study, runs, device):
        print(line, flush=True)


def print_tables(tables: Sequence[Table]) -> None:
    """Print tables, without their notes."""
    from bsmeta.report.page import create_report_console, print_table

    console = create_report_console()
    for table in tables:
        print_table(console, replace(table, note=""))


if __name__ == "__main__":
    sys.exit(run_and_report(main))
