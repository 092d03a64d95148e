"""Checks that the files and folders of a run exist, before anything is loaded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from bsmeta.config.schema import PretrainedConfig, RunConfig
from bsmeta.config.steps import how_to_export, lacks_model
from bsmeta.core.problems import HYDRA, Problem, nearest, show


def folder_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with the run folder and the checkpoint to resume from."""
    if config.accelerate_config_file is None:  # else the launch may be on another machine
        yield from _out_dir(config.out_dir)
    resume = config.resume_from_checkpoint_dir
    if resume not in (None, "latest") and not Path(str(resume)).expanduser().is_dir():
        expected = "latest, or a checkpoint folder"
        fix = "resume_from_checkpoint_dir=latest"
        yield missing("resume_from_checkpoint_dir", resume, expected, fix)


def _out_dir(name: str) -> Iterator[Problem]:
    """Yields a problem if the run folder cannot be created or written; creates nothing."""
    path = Path(name).absolute()
    folder = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    what = "" if folder == path else f"below {folder}, which is "
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except OSError as error:  # a dangling or circular link
        found = f"{what}a link that leads nowhere ({error.strerror})"
    else:
        if is_folder and os.access(folder, os.W_OK | os.X_OK):
            return
        found = f"{what}{'a folder that you may not write' if is_folder else 'a file'}"
    yield Problem("out_dir", HYDRA, found, "a folder, or a new name", "out_dir=runs/first")


def uses_model_name(config: PretrainedConfig) -> bool:
    """Whether the weights or the tokenizer come from `model_name`."""
    return None in (config.model_config_file, config.tokenizer_name)


def model_problems(config: PretrainedConfig) -> Iterator[Problem]:
    """Yields missing local files; names that may be on the Hub (OWNER/NAME) are not checked."""
    for key in ("model_config_file", "model_name", "tokenizer_name"):
        name = getattr(config, key)
        used = key != "model_name" or uses_model_name(config)
        if name is None or not used or not is_path(name) or os.path.exists(name):
            continue
        folder = Path(name).parent
        if Path(name).name == "model" and lacks_model(folder):
            yield missing(key, name, "a folder, or a name on the Hub", how_to_export(folder))
            continue
        expected = "the JSON of a transformers config" if key == "model_config_file" else "a folder"
        yield missing(key, name, f"{expected}, or a name on the Hub", f"correct {key}")


def is_path(name: str) -> bool:
    """Whether a name is a path rather than one on the Hub (OWNER/NAME)."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith(".json")


def missing(key: str, name: object, expected: str, fix: str) -> Problem:
    """The problem of a file that does not exist, with the most similar name in its folder."""
    folder = Path(str(name)).parent
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    close = nearest(Path(str(name)).name, names)
    return Problem(key, HYDRA, f"{show(name)}, which is not there{close}", expected, fix)
