"""A table of ten thousand labels: scored, reported and trained on in bounded memory."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread

from tests.tasks.classification.helpers import write_csv
from tests.tasks.training import TRAIN

LABELS = 10_000

PEAK = """
import re
from pathlib import Path

def peak() -> int:
    # In MB, of this process since it was started; `getrusage` may give that of its parent.
    return int(re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[0]) >> 10
"""
SCORE = """
import resource, sys
from types import SimpleNamespace
import numpy as np
import torch
from bsmeta.training.ranks.processes import ALONE
from bsmeta.tasks.classification.evaluate import predict_baselines, write_predictions
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import Scorer
from bsmeta.tasks.classification.report import report_results
from bsmeta.tasks.classification.results import TestSet, compute_results, compute_scores
from bsmeta.tasks.classification.systems import Split
from tests.tasks.classification.helpers import bert_tokenizer

count, folder = int(sys.argv[1]), Path(sys.argv[2])

class Model(torch.nn.Module):
    # Right for the labels up to 9,000, whose number the first two tokens spell.
    def forward(self, input_ids, attention_mask):
        numbers = (input_ids[:, 0] - 1) * 100 + input_ids[:, 1] - 1
        logits = torch.nn.functional.one_hot(numbers.clamp(max=9000), count).float()
        return SimpleNamespace(logits=logits * 20)

chunks = [Chunk([label // 100 + 1, label % 100 + 1], label, row, 0, f"stop {label}")
          for row, label in enumerate((np.arange(2 * count) % count).tolist(), 1)]
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30),) * 2)
before = peak()
scored = Scorer(count, bert_tokenizer(), 64, ALONE).score(Model(), chunks)
labels = tuple(f"label {number}" for number in range(count))
write_predictions(folder / "predictions.csv", scored, labels)
texts = [chunk.text for chunk in chunks]
test = TestSet("many.csv, test split", labels, chunks, [*map(str, scored.sources)],
               "distinct texts", {"test": dict.fromkeys(labels, 2)}, [])
others, notes = predict_baselines(test, Split(scored.labels, texts), [1.0] * count)
test.notes.extend(notes)
scores = compute_scores(scored, [1.0] * count)
results = compute_results(test, scored, scores, others, resamples=200, seed=1)
report_results(results, [], folder / "evaluation", {})
print("grown by", peak() - before)
"""


@pytest.mark.slow
def test_ten_thousand_labels_are_scored_and_reported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK + SCORE, str(LABELS), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split("grown by")[-1]) < 500
    with (tmp_path / "predictions.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [*rows[0]] == ["row", "label", "prediction", "probability", "chunks"]
    assert (len(rows), rows[7]["prediction"], rows[7]["probability"]) == (
        20_000, "label 7", "0.999979"
    )  # fmt: skip
    saved = json.loads((tmp_path / "evaluation/evaluation.json").read_text())
    assert saved["scores"]["accuracy"] == 0.9001
    assert len(saved["per_label"]) == LABELS
    assert saved["systems"]["model"]["confusion"][9001:9003] == [[9001, 9000, 2], [9002, 9000, 2]]
    low, high = saved["systems"]["model"]["accuracy"]["interval"]
    assert 0.89 < low < 0.9001 < high < 0.91
    page = (tmp_path / "evaluation/evaluation.md").read_text()
    assert "| label 14 | 1.000 | 1.000 | 1.000 | 2 |" in page  # of the most frequent
    assert "| label 9015 | 0.000 | 0.000 | 0.000 | 2 |" in page  # of the worst
    assert "| label 9100 |" not in page
    assert "TF-IDF + linear SVM left out: with 10,000 labels" in page
    for name in ("confusion", "labels"):
        assert max(imread(tmp_path / f"evaluation/{name}.png").shape) < 4000


TRAINED = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("peak", peak())
"""


@pytest.mark.slow
def test_a_run_on_ten_thousand_labels(tmp_path: Path, encoder: Path) -> None:
    rows = [(f"stop {row} signs {row % LABELS}", f"label {row % LABELS}") for row in range(30_000)]
    table = write_csv(tmp_path / "many.csv", rows, ["text", "label"])
    done = subprocess.run(
        [
            sys.executable, "-c", PEAK + TRAINED, str(TRAIN), "--config-name", "classification",
            f"data_config.csv={table}", f"model_name={encoder}", f"out_dir={tmp_path}/run",
            "data_config.max_length=16", "trackers=[]", "num_train_epochs=null",
            "max_train_steps=2", "evals_per_epoch=null", "eval_steps=2",
            "data_config.per_device_eval_batch_size=64",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    saved = torch.load(tmp_path / "many_trained_model.sav", weights_only=True)
    assert len(saved["labels"]) == LABELS
    assert len((tmp_path / "many_testset_predictions.csv").read_text().splitlines()) == 10_001
    stats = json.loads((tmp_path / "many_train_test_stats.json").read_text())
    assert stats["test"]["texts"] == 10_000
    assert (
        int(done.stdout.split("peak")[-1]) < 1500
    )  # a matrix of labels x labels alone would be 763 MB for each system
