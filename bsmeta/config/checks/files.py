"""Checks that the files and folders of a run exist, before anything is loaded."""

from __future__ import annotations

import glob
import json
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.problems import HYDRA, Problem, nearest, show
from bsmeta.config.data import in_dataset, local_dataset, metadata_room, train_entries
from bsmeta.config.schema import PretrainedConfig, RunConfig

# Suffixes of common training data formats that are not supported.
FOREIGN = (".arrow", ".csv", ".tsv", ".warc", ".warc.gz", ".tar", ".tar.gz", ".zip")


def folder_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with the run folder and the checkpoint to resume from."""
    if config.accelerate_config_file is None:  # else the launch may be on another machine
        yield from _out_dir(config.out_dir)
    resume = config.resume_from_checkpoint_dir
    if resume not in (None, "latest") and not Path(str(resume)).expanduser().is_dir():
        expected = "latest, or a checkpoint folder"
        fix = "resume_from_checkpoint_dir=latest"
        yield missing("resume_from_checkpoint_dir", resume, expected, fix)


def file_problems(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields missing model and data files; data only if it is to be read on this machine.

    The Hub and other remote file systems are not queried; the run itself does that.
    """
    yield from model_problems(config)
    yield from _positions(config)
    if config.accelerate_config_file is None:
        yield from _data(config)
        yield from _held_out(config)


def _data(config: CausalLMConfig) -> Iterator[Problem]:
    data = config.data_config
    if data.prepared is not None:
        if not Path(data.prepared).is_dir():
            fix = "make it with python -m bsmeta.data.prepare … out=FOLDER"
            yield missing("data_config.prepared", data.prepared, "a folder", fix)
        return
    folder = local_dataset(data)
    if folder is not None and not os.path.isdir(folder):
        fix = "correct it, or name a data set on the Hub (OWNER/NAME)"
        yield missing("data_config.dataset_name", folder, "the folder of the shards", fix)
        return
    for key, entry in missing_shards(config):
        start = "the working folder" if folder is None else f"data_config.dataset_name={folder}"
        fix = f"correct it; a relative path begins in {start}"
        expected = "shards: a file, a folder or a glob that matches some"
        yield missing(key, entry, expected, fix)
    yield from _foreign(config)


def _held_out(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields a held-out file that is missing; a folder is none.

    Without it, its documents could not be kept out of training. Prepared data had it when it was
    made: a run on it needs the file for evaluations only.
    """
    data = config.data_config
    held_out = data.validation_file and in_dataset(data.validation_file, data)
    if not held_out or not _is_here(held_out) or os.path.isfile(held_out):
        return
    if os.path.isdir(held_out):
        names = sorted(name for name in os.listdir(held_out) if ".jsonl" in name)
        fix = f"data_config.validation_file={os.path.join(held_out, (names or ['FILE'])[0])}"
        found = f"{show(held_out)}, which is a folder"
        yield Problem("data_config.validation_file", HYDRA, found, "one file", fix)
    elif not glob.has_magic(held_out) and (data.prepared is None or _evaluates(config)):
        expected = "the held-out file, whose documents are kept out of training"
        fix = "correct it, or data_config.validation_file=null to train without a held-out file"
        yield missing("data_config.validation_file", held_out, expected, fix)


def _evaluates(config: CausalLMConfig) -> bool:
    return (
        config.eval_steps > 0 or config.start_with_eval or bool(config.extra_steps_to_eval_save_at)
    )


def _foreign(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields files in an unsupported format, judging by their names."""
    data = config.data_config
    entries = [*train_entries(data)]
    if data.validation_file:
        entries.append(("data_config.validation_file", data.validation_file))
    for key, entry in entries:
        suffix = next((end for end in FOREIGN if entry.lower().endswith(end)), None)
        if suffix is not None:
            expected = "lines of JSON (.jsonl.gz, .jsonl.zst or .jsonl) or Parquet"
            fix = 'write each document as a line of JSON, with its text under "text"'
            yield Problem(key, HYDRA, show(entry), expected, fix)


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


def missing_shards(config: CausalLMConfig) -> list[tuple[str, str]]:
    """The local entries of `train_file` that match no file on this machine, with their keys."""
    data = config.data_config
    if data.prepared is not None:
        return []
    return [
        (key, entry)
        for key, entry in train_entries(data)
        if _is_here(entry) and not _names_something(entry)
    ]


def _is_here(entry: str) -> bool:
    """Whether an entry is a path rather than an address such as hf://… or gs://…."""
    return "://" not in entry


def _names_something(entry: str) -> bool:
    return os.path.exists(entry) or next(glob.iglob(entry, recursive=True), None) is not None


def uses_model_name(config: PretrainedConfig) -> bool:
    """Whether the weights or the tokenizer come from `model_name`."""
    return None in (config.model_config_file, config.tokenizer_name)


def model_name_problems(config: CausalLMConfig, overridden: Collection[str]) -> Iterator[Problem]:
    """Yields a `model_name` of the command line that other keys of a file override."""
    if "model_name" in overridden and not uses_model_name(config):
        expected = (
            f"no such override: model_config_file ({config.model_config_file}, random weights) and "
            "tokenizer_name are set, and take the place of model_name"
        )
        fix = f"model_config_file=null tokenizer_name=null model_name={config.model_name}"
        yield Problem("model_name", HYDRA, show(config.model_name), expected, fix)


def model_problems(config: PretrainedConfig) -> Iterator[Problem]:
    """Yields missing local files; names that may be on the Hub (OWNER/NAME) are not checked."""
    for key in ("model_config_file", "model_name", "tokenizer_name"):
        name = getattr(config, key)
        used = key != "model_name" or uses_model_name(config)
        if name is None or not used or not is_path(name) or os.path.exists(name):
            continue
        expected = "the JSON of a transformers config" if key == "model_config_file" else "a folder"
        yield missing(key, name, f"{expected}, or a name on the Hub", f"correct {key}")


def _positions(config: CausalLMConfig) -> Iterator[Problem]:
    """Checks the positions of the model, if its config is on this disk."""
    key = "model_config_file" if config.model_config_file is not None else "model_name"
    name = getattr(config, key)
    file = os.path.join(name, "config.json") if os.path.isdir(name) else name
    try:
        shape = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # on the Hub, or refused when it is loaded
        return
    if isinstance(shape, dict):
        names = ("max_position_embeddings", "n_positions")
        known = [shape[name] for name in names if isinstance(shape.get(name), int)]
        yield from positions_problems(config, known[0] if known else None, f"{key}={name}")


def positions_problems(
    config: CausalLMConfig, positions: int | None, source: str
) -> Iterator[Problem]:
    """Yields a problem if sequences are longer than the model has positions for.

    Args:
        positions: Positions of the model; None: unlimited.
        source: The key that names the model, and its value.
    """
    data = config.data_config
    length, room = data.metadata_config.max_seq_len, metadata_room(data)
    if positions is not None and length + room > positions:
        key = "data_config.metadata_config.max_seq_len"
        expected = f"at most {positions}, the positions of the model ({source})"
        found, fix = show(length), f"{key}={positions}"
        if room:
            expected += ", with the tokens of metadata (data_config.row_metadata_budget)"
            found += f" and {room} of metadata"
            fix = f"{key}={positions // 2} data_config.row_metadata_budget={positions // 2}"
        yield Problem(key, HYDRA, found, expected, fix)


def is_path(name: str) -> bool:
    """Whether a name is a path rather than one on the Hub (OWNER/NAME)."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith(".json")


def missing(key: str, name: object, expected: str, fix: str) -> Problem:
    """The problem of a file that does not exist, with the most similar name in its folder."""
    folder = Path(str(name)).parent
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    close = nearest(Path(str(name)).name, names)
    return Problem(key, HYDRA, f"{show(name)}, which is not there{close}", expected, fix)
