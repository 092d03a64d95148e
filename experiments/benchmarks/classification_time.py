"""Measures the CPU time of a linear classifier's training run, and of its parts.

    python experiments/benchmarks/classification_time.py TABLE LABEL_COLUMN [--rounds 5]

TABLE is a CSV file with the columns `text` and LABEL_COLUMN. Each part runs in a process of its
own, and the parts take turns for `--rounds` rounds, so that other work on the machine disturbs all
of them alike. Prints the median, minimum and maximum of each part as JSON, in CPU seconds of all
threads, and each round on standard error:

    run             the whole command, `bsmeta/train.py method=linear`
    imports         importing the modules that the run needs, without running it
    reading         building the database: reading, dividing texts into chunks, splits
    fit             computing features, fitting the SVM, and scaling its logits
    report          scores, intervals, tables and plots: all of the run but imports, reading and fit
    sklearn         a script that only reads the table and fits the same features and SVM
    sklearn_fit     the fit of this script alone

With `--checkouts A B`, `run` and its scores are also measured for other checkouts of this
repository in the same rounds, to compare versions.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bsmeta.core.process import run_and_report

REPOSITORY = Path(__file__).resolve().parents[2]

# The modules that a run with method=linear loads.
IMPORTS = """
import matplotlib.backends.backend_agg, matplotlib.backends.backend_svg, matplotlib.figure
import sklearn.feature_extraction.text, sklearn.model_selection, sklearn.svm
import torch
from transformers import AutoTokenizer
import bsmeta.train, bsmeta.tasks.classification.task, bsmeta.training.run
"""

FIT = """
import sys, time
from pathlib import Path
from bsmeta.tasks.classification.examples import Examples
from bsmeta.tasks.classification.systems import Fitting, read_split
import sklearn.feature_extraction.text, sklearn.svm
examples = Examples(Path(sys.argv[1]))
begin = time.process_time()
splits = [read_split(examples, split) for split in ("train", "validation")]
Fitting(examples.labels, [1.0] * len(examples.labels), *splits).fit(["linear"])
print(time.process_time() - begin)
"""

SKLEARN = """
import csv, sys, time
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC
with open(sys.argv[1], newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
begin = time.process_time()
texts = [row["text"] for row in rows[: len(rows) * 8 // 10]]
labels = [row[sys.argv[2]] for row in rows[: len(rows) * 8 // 10]]
vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\\b\\w+\\b")
model = LinearSVC(C=1.0, random_state=0).fit(vectorizer.fit_transform(texts), labels)
model.predict(vectorizer.transform([row["text"] for row in rows[len(rows) * 8 // 10 :]]))
print(time.process_time() - begin)
"""


def main() -> None:
    """Measures all parts in turns, and prints their medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="CSV file with a column named text")
    parser.add_argument("label_column", help="name of the column of labels")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (5)")
    parser.add_argument(
        "--checkouts", type=Path, nargs="*", default=[], help="other checkouts to compare"
    )
    parser.add_argument(
        "--keys",
        nargs="*",
        default=[],
        help="further keys of the run, such as data_config.split_by",
    )
    arguments = parser.parse_args()

    rounds: list[dict[str, float]] = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(
                measure_round(
                    arguments.table.resolve(),
                    arguments.label_column,
                    Path(folder),
                    [path.resolve() for path in arguments.checkouts],
                    arguments.keys,
                )
            )
        print(f"round {number + 1}: {json.dumps(rounds[-1])}", file=sys.stderr, flush=True)
    print(json.dumps(summarize(rounds), indent=1))


def measure_round(
    table: Path, label_column: str, folder: Path, checkouts: Sequence[Path], keys: Sequence[str]
) -> dict[str, float]:
    """Measures each part once, in CPU seconds; returns them, and accuracies, by name."""
    seconds: dict[str, float] = {}
    for checkout in [REPOSITORY, *checkouts]:
        name = "run" if checkout == REPOSITORY else f"run {checkout.name}"
        run_folder = folder / name.replace(" ", "_")
        seconds[name], _ = run_python(
            list_run_arguments(table, label_column, run_folder, keys), checkout
        )
        scores = json.loads((run_folder / "evaluation" / "evaluation.json").read_text())["scores"]
        seconds[f"{name}: accuracy"] = scores.get("accuracy", scores.get("micro_f1"))
        seconds[f"{name}: macro F1"] = scores["macro_f1"]

    seconds["imports"], _ = run_python(["-c", IMPORTS], REPOSITORY)

    preparation = list_run_arguments(table, label_column, folder / "prepared", keys)
    whole, _ = run_python([*preparation, "prep_only=true"], REPOSITORY)
    opened, _ = run_python([*preparation, "prep_only=true"], REPOSITORY)  # the database exists now
    seconds["reading"] = whole - opened

    _, output = run_python(["-c", FIT, str(folder / "prepared.sqlite")], REPOSITORY)
    seconds["fit"] = float(output)
    seconds["report"] = seconds["run"] - seconds["imports"] - seconds["reading"] - seconds["fit"]

    seconds["sklearn"], output = run_python(["-c", SKLEARN, str(table), label_column], REPOSITORY)
    seconds["sklearn_fit"] = float(output)
    return seconds


def list_run_arguments(
    table: Path, label_column: str, folder: Path, keys: Sequence[str]
) -> list[str]:
    """Lists the arguments of a training run whose files are all in `folder` and beside it."""
    examples = REPOSITORY / "examples"
    return [
        "bsmeta/train.py",
        "--config-name=classification",
        f"data_config.csv={table}",
        f"data_config.label_column={label_column}",
        f"data_config.database={folder.with_name(f'{folder.name}.sqlite')}",
        "method=linear",
        f"tokenizer_name={examples / 'tokenizer'}",
        f"model_config_file={examples / 'leanings' / 'config.json'}",
        f"out_dir={folder}",
        f"results_dir={folder.with_name(f'{folder.name}_results')}",
        *keys,
    ]


def run_python(arguments: Sequence[str], checkout: Path) -> tuple[float, str]:
    """Runs Python in a checkout; returns its CPU seconds, and its output.

    Raises:
        subprocess.CalledProcessError: If it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=checkout, env=environment, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, done.stdout.decode()


def summarize(rounds: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Returns median, minimum and maximum of each value over the rounds."""
    summary: dict[str, list[float]] = {}
    for name in rounds[0]:
        values = [values_of_round[name] for values_of_round in rounds]
        statistics_of_values = (statistics.median(values), min(values), max(values))
        summary[name] = [round(value, 3) for value in statistics_of_values]
    return summary


if __name__ == "__main__":
    sys.exit(run_and_report(main))
