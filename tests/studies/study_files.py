"""Files of small studies, and the program that runs them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml

from bsmeta.studies.config import StudyConfig, load_study

NONE = "data_config.metadata_config.metadata_list=[]"
URL = "data_config.metadata_config.metadata_list=[url]"
SMALL_STUDY = {
    "out_dir": "study",
    "config": "demo",
    "seeds": [3, 1],
    "random_order": False,
    "baseline": "none",
    "overrides": ["max_train_steps=20"],
    "arms": {
        "short": {"overrides": [NONE], "text_tokens_of": "url"},
        "url": {"overrides": [URL]},
        "none": {"overrides": [NONE]},
    },
    "curve": [0.1, 0.52, 1.0],
}

DECAY = {"branch_at": 16, "decay_steps": 2}
BRANCHED = {
    "none_18": {"branch_of": "none", **DECAY},
    "none": {"overrides": [NONE]},
    "url": {"overrides": [URL]},
    "url_18": {"branch_of": "url", **DECAY, "overrides": ["save_steps=1"]},
}
"""Two arms at a constant rate, and a decay of each."""

CLAIM = {"label": "URL beats text", "arm": "url", "smallest_difference": 0.01}


def study_file(folder: Path, **changes: object) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**SMALL_STUDY, **changes}, sort_keys=False))
    return path


def loaded(folder: Path, **changes: object) -> StudyConfig:
    return replace(load_study(study_file(folder, **changes)), out_dir=str(folder / "study"))


def finished(folder: Path, name: str, step: int, targets: int) -> None:
    """Writes a run folder as a finished run leaves it."""
    run = folder / "study" / "runs" / name
    run.mkdir(parents=True)
    (run / "status.json").write_text('{"state": "done"}')
    event = {"event": "step", "step": step, "loss": 2.5, "tokens": 4096, "targets": targets}
    (run / "metrics.jsonl").write_text(json.dumps(event) + "\n")
