"""An exported model in EleutherAI's lm-evaluation-harness, on a task of three questions, offline.

The harness asks for an older python-dateutil than ours, so it lives in an environment of its own;
its command is found on PATH, or named by LM_EVAL.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.waiting import STUCK_S

LM_EVAL = os.environ.get("LM_EVAL") or shutil.which("lm_eval")

QUESTIONS = [
    {"question": "A set is an unordered", "choices": ["collection", "banana"], "answer": 0},
    {"question": "Import the", "choices": ["colour", "module"], "answer": 1},
    {"question": "The default value is", "choices": ["None", "rain"], "answer": 0},
]


@pytest.mark.slow
@pytest.mark.skipif(
    LM_EVAL is None,
    reason="lm_eval is not installed: pip install lm_eval into an environment of its own, and "
    "name its command in LM_EVAL",
)
def test_the_harness_scores_an_exported_model(tmp_path: Path) -> None:
    assert LM_EVAL is not None
    config = compose_command_line(CausalLMConfig, "demo", [f"out_dir={tmp_path}"])
    task = CausalLanguageModel(config)
    torch.manual_seed(0)
    model = task.build_model()
    task.export(model, model.state_dict(), tmp_path / "model")
    write_task(tmp_path / "task")
    done = subprocess.run(
        [
            *(LM_EVAL, "--model", "hf", "--model_args", f"pretrained={tmp_path / 'model'}"),
            *("--tasks", "bsmeta_questions", "--include_path", str(tmp_path / "task")),
            *("--device", "cpu", "--batch_size", "2", "--output_path", str(tmp_path / "out")),
        ],
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "HF_HOME": str(tmp_path / "hf"),
        },
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = (tmp_path / "out").rglob("results_*.json")
    accuracy = json.loads(path.read_text())["results"]["bsmeta_questions"]["acc,none"]
    assert accuracy * 3 == pytest.approx(round(accuracy * 3))


def write_task(folder: Path) -> None:
    """Writes a task of the harness: its YAML, and its data beside it."""
    folder.mkdir()
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    settings = {
        "task": "bsmeta_questions",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (folder / "questions.yaml").write_text(yaml.safe_dump(settings))
