"""Runs tasks of lm-evaluation-harness on an exported model, with and without conditional prompts.

    python experiments/downstream.py runs/demo --prompt 'url: {url} ||| '
    python experiments/downstream.py runs/demo --tasks bsmeta_word bsmeta_title bsmeta_site
    python experiments/downstream.py exported_model --validation-file pages.jsonl.gz
    python experiments/downstream.py runs/demo --tasks arc_easy --prompt 'url: bbc.com ||| '

Without --tasks it is bsmeta_cloze: which of four continuations belongs to this page? It is made
from the held-out file of the model's run (offline), or from --validation-file, as are bsmeta_word
(the next word), bsmeta_title and bsmeta_site (the title and the host of a page, which are
metadata). A prompt may name fields of a question ({url}).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.process import run_and_report
from bsmeta.studies.config import DownstreamConfig


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder of an exported model, or of its run")
    parser.add_argument("--tasks", nargs="+", default=["bsmeta_cloze"], help="names of tasks")
    parser.add_argument("--validation-file", help="held-out pages; default: those of its run")
    parser.add_argument("--include-path", help="folder with task files of your own")
    parser.add_argument("--shots", nargs="+", type=int, default=[0, 5])
    parser.add_argument("--prompt", help="the conditional prompt; without it, none is compared")
    parser.add_argument("--limit", type=int, help="number of questions of a task, from the first")
    parser.add_argument("--out", type=Path, help="file for the answers, as JSON")
    return parser.parse_args()


def main() -> int:
    """Run the tasks and print the table; returns the exit code."""
    given = arguments()
    import torch  # here, with what needs it: it takes seconds to load

    from bsmeta.report.page import create_report_console, print_table
    from bsmeta.studies.downstream import (
        explain_missing_harness,
        generate_tasks,
        make_model_table,
        score_model,
    )
    from bsmeta.studies.task_scores import TaskScores, save_scores
    from bsmeta.tasks.checkpoints import locate_model

    reason = explain_missing_harness()
    if reason is not None:
        raise ConfigurationError(reason)

    prompts = {} if given.prompt is None else dict.fromkeys(given.tasks, given.prompt)
    wanted = DownstreamConfig(
        tasks=given.tasks, include_path=given.include_path, shots=given.shots, prompts=prompts,
        limit=given.limit,
    )  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with generate_tasks(wanted, given.model, given.validation_file) as made:
        scores = score_model(Path(locate_model(str(given.model)).model), wanted, device, made)
    if given.out is not None:
        save_scores(TaskScores("", {}, scores), given.out)
    print_table(create_report_console(), make_model_table(str(given.model), scores))
    return 0


if __name__ == "__main__":
    sys.exit(run_and_report(main))
