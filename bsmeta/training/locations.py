"""Locates the model of a checkpoint, a run or the Hub, and the files saved with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import hf_hub_download

from bsmeta.config.steps import CHECKPOINT_NAME, how_to_export, lacks_model
from bsmeta.core.errors import DataError
from bsmeta.training.checkpoint import list_checkpoints

HUB = "hf://"
RECIPE = "metadata.yaml"
"""File in an exported model with the part of the run's configuration that using it requires."""


@dataclass(frozen=True, slots=True)
class Location:
    """A checkpoint that was found.

    Attributes:
        name: The checkpoint as the user gave it.
        model: The argument of `from_pretrained`: a folder, or a Hub name.
        config: `config.yaml` of the run, or the model's own `metadata.yaml`, if there is one.
        run_folder: The run's folder (with its `metrics.jsonl`), if there is one.
        untrained: Whether this refers to the initial model of the run.
    """

    name: str
    model: str
    config: Path | None
    run_folder: Path | None
    untrained: bool = False

    @property
    def is_on_hub(self) -> bool:
        """Whether the model is a Hub repository rather than a folder."""
        return not Path(self.model).is_dir()

    @property
    def has_run_config(self) -> bool:
        """Whether `config` is the complete configuration of the run."""
        return self.config is not None and self.config.name != RECIPE


def locate(checkpoint: str) -> Location:
    """Find the model in a run folder, a checkpoint folder, a model folder, or on the Hub."""
    if checkpoint.startswith(HUB):
        name = checkpoint.removeprefix(HUB)
        return Location(checkpoint, name, _recipe_on_hub(name), None)
    folder = Path(checkpoint)
    if folder.name == "model" and lacks_model(folder.parent):
        raise DataError(f"checkpoint={checkpoint}: {how_to_export(folder.parent)}")
    if not folder.is_dir():
        raise DataError(
            f"checkpoint={checkpoint}: there is no such folder (from {Path.cwd()}). Expected a run "
            "folder, a checkpoint-{step}step folder, or a folder that from_pretrained loads; "
            f"a model of the Hub is named {HUB}owner/name"
        )
    model = _model_folder(folder)
    if model is None:
        saved = [found.folder for found in list_checkpoints(folder)]
        without = [path for path in (folder, *saved) if lacks_model(path)]
        if without:
            raise DataError(f"checkpoint={checkpoint}: {how_to_export(without[-1])}")
        raise DataError(
            f"checkpoint={checkpoint}: no model in it. Expected config.json, model/config.json or "
            "a checkpoint-{step}step folder (a run has its first at save_steps)"
        )
    near = (model / "config.yaml", *_configs_of_run(model.resolve()), model / RECIPE)
    config = next((path for path in near if path.is_file()), None)
    above = [folder.resolve(), *folder.resolve().parents[:2]]
    run_folder = next((folder for folder in above if (folder / "metrics.jsonl").is_file()), None)
    return Location(checkpoint, str(model), config, run_folder)


def _configs_of_run(model: Path) -> list[Path]:
    """Where the run that wrote a model has its configuration; any other file is not of the run."""
    if model.name != "model":
        return []
    folders = [model.parent]
    if CHECKPOINT_NAME.fullmatch(model.parent.name):
        folders.append(model.parent.parent)
    return [folder / "config.yaml" for folder in folders]


def untrained(location: Location) -> Location:
    """The initial model of the run that wrote this checkpoint."""
    return replace(location, name=f"untrained ({location.name})", untrained=True)


def _recipe_on_hub(name: str) -> Path | None:
    """The `metadata.yaml` of a repository; None if it has none or cannot be accessed.

    Problems with the repository itself are reported when its model is loaded.
    """
    try:
        return Path(hf_hub_download(name, RECIPE))
    except (OSError, ValueError):
        return None


def _model_folder(folder: Path) -> Path | None:
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    models = [saved.folder / "model" for saved in list_checkpoints(folder)]
    return next((model for model in reversed(models) if (model / "config.json").is_file()), None)
