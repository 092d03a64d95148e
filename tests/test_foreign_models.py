"""A model of someone else, with Python code beside it: no program runs that, whatever is piped in.

transformers asks whether it may, and takes the answer from standard input.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.saved_runs import format_yaml
from bsmeta.config.schema import RunConfig
from bsmeta.tasks.classification.config import ClassificationConfig, ClassificationDataConfig
from bsmeta.tasks.spelling.config import SecConfig, SedWordsConfig
from tests.conftest import REPOSITORY
from tests.waiting import STUCK_S

TOKENIZER = REPOSITORY / "examples" / "tokenizer"
SHORT = ("max_train_steps=1", "num_warmup_steps=0", "eval_steps=0", "trackers=[]")
DEMO = ("--config-name", "demo")

# One of each class that transformers looks for.
AUTO_MAP = {
    f"Auto{name}": "code.Any"
    for name in ("Config", "Model", "ModelForCausalLM", "ModelForSeq2SeqLM",
                 "ModelForSequenceClassification", "ModelForTokenClassification")
}  # fmt: skip


def write_model(folder: Path, marker: Path, *, in_tokenizer: bool = False) -> None:
    """Writes a model whose (tokenizer) configuration names a Python file beside it."""
    folder.mkdir(parents=True)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    (folder / "code.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    shape = json.loads((REPOSITORY / "examples" / "model" / "config.json").read_text())
    if in_tokenizer:
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["code.Any"] * 2}}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    else:
        shape |= {"model_type": "its_own", "auto_map": AUTO_MAP}
    (folder / "config.json").write_text(json.dumps(shape))


def write_run(folder: Path, config: RunConfig, marker: Path) -> None:
    """Writes a finished run of such a model, and its last checkpoint."""
    write_model(folder / "model", marker)
    checkpoint = folder / "checkpoint-1step"
    write_model(checkpoint / "model", marker)
    for place in (folder, checkpoint):
        (place / "config.yaml").write_text(format_yaml(config))
    (folder / "metrics.jsonl").write_text("")
    (folder / "status.json").write_text('{"state": "done", "step": 1, "exit_code": 0}')


PROGRAMS: dict[str, Sequence[str]] = {
    "generate": ("bsmeta/generate.py", "checkpoint=RUN", "prompt=hello"),
    "generate from a model alone": ("bsmeta/generate.py", "checkpoint=MODEL", "prompt=hello"),
    "generate, the tokenizer": ("bsmeta/generate.py", "checkpoint=TOKENIZER", "prompt=hello"),
    "evaluate": ("bsmeta/evaluate.py", "checkpoint=RUN"),
    "evaluate a classifier": ("bsmeta/evaluate.py", "checkpoint=CLASSIFIER"),
    "predict": ("bsmeta/predict.py", "checkpoint=CLASSIFIER", "input=TABLE", "output=out.csv"),
    "predict corrections": ("bsmeta/predict.py", "checkpoint=CORRECTOR", "input=TEXT"),
    "predict errors": ("bsmeta/predict.py", "checkpoint=DETECTOR", "input=TEXT", "show=json"),
    "explain": ("bsmeta/explain.py", *DEMO, "tokenizer_name=TOKENIZER"),
    "train from a model": (
        "bsmeta/train.py", *DEMO, *SHORT, "model_name=MODEL", "model_config_file=null",
        "out_dir=new",
    ),
    "train of a shape": (
        "bsmeta/train.py", *DEMO, *SHORT, "model_config_file=MODEL/config.json", "out_dir=new"
    ),
    "train with a tokenizer": (
        "bsmeta/train.py", *DEMO, *SHORT, "tokenizer_name=TOKENIZER", "out_dir=new"
    ),
    "train adapters, to be merged": (
        "bsmeta/train.py", *DEMO, *SHORT, "model_name=MODEL", "model_config_file=null",
        "lora.rank=2", "out_dir=new",
    ),
    "estimate": (
        "bsmeta/train.py", *DEMO, "model_name=MODEL", "model_config_file=null", "estimate=true"
    ),
    "prepare": ("bsmeta/data/prepare.py", *DEMO, "tokenizer_name=TOKENIZER", "out=prepared"),
    "measure a study": ("experiments/study.py", "STUDY", "--measure"),
    "downstream tasks": ("experiments/downstream.py", "RUN"),
}  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=[] if name == "generate" else pytest.mark.slow) for name in PROGRAMS],
)
def test_code_beside_a_model_is_not_run(program: str, tmp_path: Path) -> None:
    marker = tmp_path / "was_run"
    demo = compose_command_line(
        CausalLMConfig, "demo", ["max_train_steps=1", f"out_dir={tmp_path / 'run'}"]
    )
    write_run(tmp_path / "RUN", demo, marker)
    write_run(tmp_path / "study" / "runs" / "none-seed1", demo, marker)
    write_model(tmp_path / "MODEL", marker)
    write_model(tmp_path / "TOKENIZER", marker, in_tokenizer=True)
    (tmp_path / "TABLE.csv").write_text("text,label\nhello there,a\nand here,b\n")
    (tmp_path / "TEXT").write_text("Hello.\n")
    data = ClassificationDataConfig(csv=str(tmp_path / "TABLE.csv"))
    table = ClassificationConfig(data_config=data)
    write_run(tmp_path / "CLASSIFIER", table, marker)
    write_run(tmp_path / "CORRECTOR", SecConfig(model_name="x"), marker)
    write_run(tmp_path / "DETECTOR", SedWordsConfig(model_name="x"), marker)
    study = {
        "out_dir": "study", "config": "demo", "seeds": [1], "baseline": "none",
        "arms": {"none": {"overrides": ["data_config.metadata_config.metadata_list=[]"]}},
        "curve": [1.0],
    }  # fmt: skip
    (tmp_path / "STUDY.yaml").write_text(yaml.safe_dump(study))

    script, *arguments = PROGRAMS[program]
    for name in ("RUN", "MODEL", "TOKENIZER", "CLASSIFIER", "CORRECTOR", "DETECTOR", "TEXT"):
        arguments = [argument.replace(name, str(tmp_path / name)) for argument in arguments]
    for name, file in {"TABLE": "TABLE.csv", "STUDY": "STUDY.yaml"}.items():
        arguments = [argument.replace(name, str(tmp_path / file)) for argument in arguments]
    environment = {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / script), *arguments],
        input="y\nhello\n" * 9, cwd=tmp_path, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=STUCK_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr[-3000:]
    assert "auto_map asks to run Python code that comes with the model" in done.stderr
    assert "Do you wish to run" not in done.stdout + done.stderr
    assert not marker.exists()
