"""Checks of paths and of names on the Hub: the run folder, models, tokenizers, and input files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bsmeta.config.checks.model_shape import find_shape_problems
from bsmeta.config.run_location import is_in_bucket, locate_run_folder
from bsmeta.config.schema import PretrainedConfig, RunConfig
from bsmeta.config.steps import explain_export, lacks_model
from bsmeta.core.errors import HYDRA, Problem, format_value, suggest_nearest
from bsmeta.core.files import describe_write_obstacle


def find_folder_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with the run folder and the checkpoint to resume from."""
    if config.accelerate_config_file is None:  # else the launch may be on another machine
        folder_key = "staging_dir" if is_in_bucket(config.out_dir) else "out_dir"
        yield from _find_run_folder_problems(folder_key, locate_run_folder(config))

    resume = config.resume_from_checkpoint_dir
    if resume not in (None, "latest") and not Path(str(resume)).expanduser().is_dir():
        key = "resume_from_checkpoint_dir"
        yield describe_missing_file(key, resume, "latest, or a checkpoint folder", f"{key}=latest")


def _find_run_folder_problems(key: str, path: Path) -> Iterator[Problem]:
    """Yields a problem if the run folder cannot be created or written; creates nothing."""
    obstacle = describe_write_obstacle(path)
    if obstacle is not None:
        yield Problem(key, HYDRA, obstacle, "a folder, or a new name", f"{key}=runs/first")


def uses_model_name(config: PretrainedConfig) -> bool:
    """Whether the weights or the tokenizer come from `model_name`."""
    return None in (config.model_config_file, config.tokenizer_name)


def find_model_problems(config: PretrainedConfig) -> Iterator[Problem]:
    """Yields problems with local files that are missing, or with the shape of new weights.

    Names on the Hub (OWNER/NAME) are not checked.
    """
    for key in ("model_config_file", "model_name", "tokenizer_name"):
        name = getattr(config, key)
        is_used = key != "model_name" or uses_model_name(config)
        if name is None or not is_used:
            continue
        if os.path.isdir(name) and not (Path(name) / "config.json").exists():
            has_weights = key == "model_name" and config.model_config_file is None
            yield from _find_other_folder_problems(key, name, has_weights=has_weights)
        if not is_path(name) or os.path.exists(name):
            continue

        folder = Path(name).parent
        if Path(name).name == "model" and lacks_model(folder):
            yield describe_missing_file(
                key, name, "a folder, or a name on the Hub", explain_export(folder)
            )
            continue

        expected = "the JSON of a transformers config" if key == "model_config_file" else "a folder"
        yield describe_missing_file(
            key, name, f"{expected}, or a name on the Hub", f"correct {key}"
        )
    yield from find_shape_problems(config)


def _find_other_folder_problems(key: str, name: str, *, has_weights: bool) -> Iterator[Problem]:
    """Yields a problem if a folder without a model is an adapter, or has a model in `model/`.

    Args:
        has_weights: Whether the weights come from the folder, and not only a tokenizer, which an
            adapter may have.
    """
    folder = Path(name)
    expected = "the folder of a whole model, with config.json"
    if has_weights and (folder / "adapter_config.json").exists():
        fix = (
            f"merge the adapter into its base: AutoPeftModelForCausalLM.from_pretrained({name!r})"
            ".merge_and_unload().save_pretrained(FOLDER), from peft; then name FOLDER"
        )
        yield Problem(
            key, HYDRA, f"{format_value(name)}, an adapter without its base", expected, fix
        )
    elif (folder / "model" / "config.json").exists():
        fix = f"{key}={folder / 'model'}"
        yield Problem(key, HYDRA, f"{format_value(name)}, the folder of a run", expected, fix)


def is_on_machine(name: str) -> bool:
    """Whether a model or tokenizer is on this machine: a folder, or in the cache of the Hub."""
    from huggingface_hub import try_to_load_from_cache  # slow to import, and rarely needed

    if is_path(name) or os.path.isdir(name):
        return os.path.isdir(name)
    files = ("tokenizer.json", "tokenizer_config.json", "config.json")
    try:
        return any(isinstance(try_to_load_from_cache(name, file), str) for file in files)
    except ValueError:  # no name that the Hub accepts
        return False


def is_offline() -> bool:
    """Whether the environment forbids access to the Hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def is_path(name: str) -> bool:
    """Whether a name is a path rather than one on the Hub (OWNER/NAME)."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith(".json")


def describe_missing_file(key: str, name: object, expected: str, fix: str) -> Problem:
    """Returns the problem of a missing file, with the most similar name in its folder."""
    folder = Path(str(name)).parent
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    suggestion = suggest_nearest(Path(str(name)).name, names)
    return Problem(
        key, HYDRA, f"{format_value(name)}, which is not there{suggestion}", expected, fix
    )
