"""Folders of runs, and held-out files, without training."""

from __future__ import annotations

from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.tasks.checkpoints import Location


def write_run_folder(folder: Path, held_out: str, dataset: str | None = None) -> Location:
    folder.mkdir()
    data = DataConfig(validation_file=held_out, dataset_name=dataset)
    config = CausalLMConfig(data_config=data)
    (folder / "config.yaml").write_text(format_yaml(config))
    return Location(str(folder), str(folder / "model"), folder / "config.yaml", folder)


def write_held_out(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}\n")
    return file
