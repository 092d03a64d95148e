"""A report of every kind, written by the code that writes real ones, from made-up measurements.

Every name that comes from data or from a configuration can be given a mark of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

from bsmeta.config.programs.evaluating import EvaluateConfig, SliceConfig
from bsmeta.core.printable import make_printable
from bsmeta.studies.config import ArmConfig, ClaimConfig, MeasureConfig, StudyConfig
from bsmeta.studies.report import write_report
from bsmeta.studies.results import compute_results
from bsmeta.studies.runs import hash_settings, locate_measurement
from bsmeta.tasks.causal_lm.evaluation import report as evaluation
from bsmeta.tasks.causal_lm.evaluation.arms import list_comparisons
from bsmeta.tasks.causal_lm.evaluation.readings import (
    BYTES,
    COLUMNS,
    NATS_WITH,
    NATS_WITHOUT,
    TOKENS,
    TOKENS_WITH,
)
from bsmeta.tasks.causal_lm.evaluation.results import (
    ComparisonSums,
    ModelReport,
    Report,
    ShownDocument,
    compute_paired_metrics,
    make_rows,
    make_slice_rows,
)
from bsmeta.tasks.causal_lm.evaluation.slices import list_slices
from bsmeta.tasks.causal_lm.shown_tokens import Part, ShownToken
from bsmeta.tasks.classification import report as classification
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.results import Results, TestSet, compare_systems
from bsmeta.tasks.disambiguation import report as disambiguation
from bsmeta.tasks.spelling import evaluate as spelling
from bsmeta.tasks.spelling.config import SecConfig
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.run_folder.logs import Log
from tests.annotate.helpers import RAWPAGES, WORDS, annotate, write_pages
from tests.studies.simulated import measurement
from tests.tasks.disambiguation.test_report import scored

TYPES = ("title", "url", "datasource", "website_description", "timestamp", "html", "entity")
ARMS = {
    "none": ("text alone", 0.0),
    "url": ("URL", -0.020),
    "title": ("title", -0.012),
    "all": ("all types", -0.035),
    "shuffled": ("URL of another document", 0.004),
    "constant": ("constant prefix", 0.002),
    "random": ("random tokens", 0.006),
    "longer": ("text alone, the same text tokens", -0.001),
    "meco": ("URL, with cooldown", -0.024),
}
CONTROLS = ("shuffled", "constant", "random")
CHECKPOINT = "runs/a_model_with_a_long_name/checkpoint-600step"
INTERVALS = "bootstrap, 200 resamples, seed 1"


Marks = Sequence[str]
"""What is added to the names, one after the other, beginning again where there are more names."""
PLAIN: Marks = ("",)


def marked(names: Sequence[str], marks: Marks) -> list[str]:
    """Returns the names with their marks."""
    return [f"{name}{marks[number % len(marks)]}" for number, name in enumerate(names)]


def evaluation_page(folder: Path, marks: Marks = PLAIN) -> Path:
    """Writes seven types and their controls over 60 documents, with slices and curves."""
    random, edges, count = np.random.default_rng(0), [0, 128, 512, 2048], 60
    checkpoint, file, reason, *types = marked(
        [CHECKPOINT, "c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz", "too short", *TYPES], marks
    )
    config = EvaluateConfig(checkpoint=checkpoint, bootstrap_resamples=200, seed=1)
    comparisons = list_comparisons(config, types)
    sizes = random.integers(200, 2000, (count, 1, len(edges))).repeat(2, axis=1).astype(float)
    sums = {}
    for comparison in comparisons:
        values = np.zeros((*sizes.shape, COLUMNS))
        values[..., BYTES], values[..., TOKENS] = sizes, sizes / 4
        values[..., NATS_WITHOUT] = 1.5 * sizes
        gain = random.normal(-0.01, 0.02) + random.normal(0, 0.02, sizes.shape)
        values[..., NATS_WITH] = (1.5 + gain) * sizes
        values[..., TOKENS_WITH] = values[..., TOKENS]
        everyone = np.ones(count, bool)
        sums[comparison.name] = ComparisonSums(values, everyone, random.random(count) < 0.2)
    totals = sizes[:, 0].sum(1)
    metrics_of = partial(compute_paired_metrics, resamples=200, seed=1)
    slices = list_slices(
        [SliceConfig(by="length", edges=[3000])], {"length": totals.astype(int).tolist()}
    )
    names = marked([f"held-out.jsonl.gz:{number}" for number in range(count)], marks)
    hosts = marked([f"site{number % 3}.example.org" for number in range(count)], marks)
    texts = marked(["Title: Sets", " ||| ", "A set", " has", " no\n", "order.", "<eos>"], marks)
    parts = [Part.PREFIX, Part.PREFIX, Part.TEXT, Part.LOCAL, Part.TEXT, Part.TEXT, Part.END]
    tokens = [
        ShownToken(number, make_printable(text), part, [1, 0, 0, 3, 0, 0, 0][number], number > 1)
        for number, (text, part) in enumerate(zip(texts, parts, strict=True))
    ]
    shown_documents = [
        ShownDocument(index, difference, tokens * 20, 200)
        for index, difference in ((4, -0.5), (7, -0.25), (1, 0.125))
    ]
    model = ModelReport(
        checkpoint=checkpoint,
        model=checkpoint,
        data={"file": file, "documents": count, "left_out": {reason: 3},
              "metadata_list": types, "max_seq_len": 1024},
        rows=make_rows(comparisons, sums, totals, edges, metrics_of),
        names=names, digests=[*range(count)], totals={n: own.totals for n, own in sums.items()},
        slices=make_slice_rows(slices, comparisons, sums, metrics_of),
        hosts=hosts,
        shown_documents=shown_documents,
    )  # fmt: skip
    folder.mkdir(parents=True)
    events = [
        {"event": "step", "step": step, "loss": 8 - step**0.3,
         "counts": {"documents": 10} | {f"documents/{t}": 9 - n for n, t in enumerate(types)}}
        for step in range(1, 400)
    ]  # fmt: skip
    events += [
        {"event": "eval", "step": step, "split": "held-out",
         "bits_per_byte_without": 3 - step / 500, "bits_per_byte_with": 2.95 - step / 500}
        for step in (100, 200, 300, 400)
    ]  # fmt: skip
    metrics = folder / "metrics.jsonl"
    log = Log(metrics)
    for event in events:
        log.write(event)
    log.close()
    evaluation.write_report(Report(asdict(config), [model]), folder, metrics)
    return folder / "report.html"


def study_page(folder: Path, marks: Marks = PLAIN) -> Path:
    """Writes the report of nine arms, five seeds and nine claims."""
    title, *labels = marked(["Nine arms", *(label for label, _ in ARMS.values())], marks)
    label_of = dict(zip(ARMS, labels, strict=True))
    random, count, targets = (
        np.random.default_rng(0),
        30,
        (500_000, 1_000_000, 2_000_000, 4_000_000),
    )
    claims = {
        arm: ClaimConfig(
            label=f"{label} lowers the bits per byte of text alone, at equal text tokens", arm=arm,
            smallest_difference=0.01, pilot_deviation=0.008,
        )
        for arm, label in label_of.items() if arm != "none"
    }  # fmt: skip
    claims["content"] = ClaimConfig(
        label="the own URL beats that of another document, each used with metadata", arm="url",
        metadata="with", against="shuffled", against_metadata="with", smallest_difference=0.01,
    )  # fmt: skip
    study = StudyConfig(
        title=title, out_dir=str(folder), results_dir=str(folder / "kept"), config="demo",
        baseline="none", seeds=[1, 2, 3, 4, 5], curve=[0.125, 0.25, 0.5, 1.0], claims=claims,
        arms={
            name: ArmConfig(label=label, control_of="url" if name in CONTROLS else None)
            for name, label in label_of.items()
        },
        measure=MeasureConfig(position_edges=[0, 256, 1024, 4096]),
    )  # fmt: skip
    pages = random.normal(0, 0.15, (count, 4))
    for arm, (_, gain) in ARMS.items():
        for seed in study.seeds:
            without = np.stack([
                bits + pages + gain * (number + 1) / 4 + random.normal(0, 0.003)
                + random.normal(0, 0.01, pages.shape)
                for number, bits in enumerate((2.6, 2.35, 2.15, 2.0))
            ])  # fmt: skip
            has_metadata = arm not in ("none", "longer")
            change = 0.001 if arm in CONTROLS else -0.02
            shown = without + change + random.normal(0, 0.004, without.shape)
            run = measurement(
                without, shown if has_metadata else None,
                {"url": without[-1] - 0.01, "title": without[-1] - 0.004} if has_metadata else None,
                targets=targets, lengths=np.arange(count) * 200 + 300,
                sites=np.array([f"site{number % 3}.example.org" for number in range(count)]),
                tokens=np.array(targets) * (1.15 if has_metadata else 1.0),
                flops=np.array(targets) * 6e9 * (1.15 if has_metadata else 1.0),
            )  # fmt: skip
            run = replace(run, settings=hash_settings(study, arm, seed))
            run.save(locate_measurement(study, arm, seed))
    commands = {
        f"{arm} seed {seed}": f"BSMETA_CONFIG=demo bash experiments/train.sh seed={seed} "
        f"'data_config.metadata_config.metadata_list=[{arm}]' out_dir=runs/{arm}-seed{seed}"
        f"{marks[0]}"
        for arm in ARMS
        for seed in study.seeds
    }
    write_report(compute_results(study), Path("experiments/studies/nine.yaml"), commands, [])
    return folder / "report.html"


def classification_page(folder: Path, marks: Marks = PLAIN) -> Path:
    """Writes the report of nine labels, one with a long name, and six epochs."""
    random, count = np.random.default_rng(0), 400
    names = ["center", "left", "right", "lean left", "lean right", "satire", "unknown", "mixed",
             "a label whose name is much longer than a column"]  # fmt: skip
    source, note, checkpoint, *names = marked(
        ["leanings.csv, test split", "1 of 400 rows repeats the text of an earlier row", CHECKPOINT,
         *names], marks
    )  # fmt: skip
    truth = random.integers(0, len(names), count)
    predicted = {
        system: np.where(random.random(count) < share, truth, random.integers(0, 9, count))
        for system, share in {"model": 0.8, "TF-IDF + linear SVM": 0.7, "most frequent label": 0.1,
                              "model, first chunk only": 0.78}.items()
    }  # fmt: skip
    systems = compare_systems(truth, predicted, truth, len(names), resamples=200, seed=1)
    counts = dict(zip(names, np.bincount(truth).tolist(), strict=True))
    test = TestSet(
        source, tuple(names), [Chunk([], 0, 1, 0, "")] * 450,
        [str(row) for row in range(count)], "distinct texts",
        distribution=dict.fromkeys(("train", "dev", "test"), counts),
        notes=[note],
    )  # fmt: skip
    scores = {"accuracy": systems[0].scores["accuracy"].value}
    results = Results(test, systems, scores, folded=40)
    epochs = [
        {"epoch": float(n), "step": 50 * n, "training_loss": 2 / n,
         "training_accuracy": 1 - 0.5 / n, "validation_loss": 1.8 / n + n / 20,
         "validation_accuracy": 1 - 0.6 / n,
         "validation_balanced_accuracy": 0.7, "validation_macro_f1": 0.7, "validation_mcc": 0.6}
        for n in range(1, 7)
    ]  # fmt: skip
    facts = {"checkpoint": checkpoint}
    classification.report_results(results, epochs, folder, facts)
    return folder / "report.html"


def spelling_page(folder: Path, marks: Marks = PLAIN) -> Path:
    """Writes the report of a corrector on two test sets, with baselines."""
    right = [f"we received some mail on day {number}" for number in range(40)]
    wrong = [line.replace("received", "recieved") for line in right]
    sets = [
        spelling.TestSet(name, wrong, right, right, [False] * len(right))
        for name in marked(["webdocs/dev", "webdocs/test_of_a_longer_name"], marks)
    ]

    def judge(lines: list[str]) -> list[str]:
        return [line.replace("recieved", "received") for line in lines[:30]] + lines[30:]

    config = SecConfig(bootstrap_resamples=200, seed=1)
    results = spelling.score_test_sets(config, sets, judge, ALONE)
    checkpoint, texts = marked([CHECKPOINT, "data/spelling"], marks)
    facts = {"checkpoint": checkpoint, "test sets": texts, "intervals": INTERVALS}
    spelling.report_results("sec", results, facts, folder)
    return folder / "report.html"


def disambiguation_page(folder: Path, marks: Marks = PLAIN) -> Path:
    """Writes the report of all slices, with another model and the most popular candidate."""
    random = np.random.default_rng(0)
    counts = random.choice([0, 1, 3, 8, 20, 80, 200, 700, 4000], 600)
    rows = [
        (int(random.random() > 0.8), int(random.random() > 0.6), 5, int(number))
        for number in counts
    ]
    some = scored(rows)
    earlier, source, checkpoint = marked(["an earlier model", "dev.jsonl.gz", CHECKPOINT], marks)
    results = disambiguation.compute_results(
        some, {earlier: random.random(600) < 0.7}, source=source, chosen=None, resamples=200,
        seed=1,
    )  # fmt: skip
    facts = {"checkpoint": checkpoint, "intervals": INTERVALS}
    disambiguation.report_results(results, [], folder, facts)
    return folder / "report.html"


def annotation_page(folder: Path, marks: Marks = PLAIN) -> Path:
    """Writes the report of shipped raw pages, for types without a model; some pages have marks."""
    names = ["html", "url", "title", "timestamp", "website_description", "datasource", "length"]
    pages = next(RAWPAGES.glob("*.gz"))
    if marks is not PLAIN:
        pages = write_pages(
            folder.with_suffix(".jsonl.gz"),
            [
                {
                    "url": f"https://example.org/{mark}",
                    "html": f"<title>{mark}</title><p>{WORDS}{mark}",
                }
                for mark in marks
            ],
        )
    annotate(str(pages), folder, report=True, report_pages=2, annotators=names)
    return folder / "report.html"


KINDS = {
    "evaluation": evaluation_page,
    "study": study_page,
    "classification": classification_page,
    "spelling": spelling_page,
    "disambiguation": disambiguation_page,
    "annotation": annotation_page,
}
