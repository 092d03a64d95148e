"""Trains both models with `bsmeta train`, from the same weights, on the same text in each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bsmeta.api.programs import train_model
from bsmeta.core.errors import DataError
from bsmeta.core.files import ROOT, build_atomically, write_json
from bsmeta.metadata.processors import ADDRESS_KEY
from bsmeta.quick.config import QuickConfig
from bsmeta.quick.documents import Page
from bsmeta.quick.folder import PLAN, read_sizes, write_sizes
from bsmeta.quick.sizes import Device, Sizes, choose_sizes, choose_vocabulary_size
from bsmeta.training.run_folder.status import STATUS, read_status

WITHOUT = "without"
"""Name of the run on text alone, and of its folder."""

WITH = "with"
"""Name of the run with metadata, and of its folder."""

SAMPLE_TOKENIZER = ROOT / "examples" / "tokenizer"

_TRAINING_FILE = "train.jsonl"
_HELD_OUT_FILE = "held_out.jsonl"
_MODEL_FILE = "model_config.json"
_TOKENIZER_FOLDER = "tokenizer"
_SAMPLED_BYTES = 4_000_000  # of training text, from which its number of tokens is estimated


@dataclass(frozen=True)
class Data:
    """The pages of both runs.

    Attributes:
        types: The metadata types to train on.
        training: The training pages, in the order of the files.
        held_out: The held-out pages, in the order of the files.
    """

    types: list[str]
    training: list[Page]
    held_out: list[Page]


@dataclass(frozen=True)
class Plan:
    """The settings that both runs share.

    Attributes:
        tokenizer: A folder, or a name on the Hub.
    """

    sizes: Sizes
    tokenizer: str


def prepare_training(config: QuickConfig, data: Data, device: Device, folder: Path) -> Plan:
    """Writes the data and the tokenizer, and chooses the sizes unless an earlier start saved them.

    Raises:
        DataError: If the saved sizes are damaged.
    """
    write_data(data, folder / "data", config.seed)
    tokenizer = choose_tokenizer(config, data.training, device, folder)
    saved_sizes = read_sizes(folder)
    if saved_sizes is not None:
        try:
            return Plan(msgspec.convert(saved_sizes, Sizes), tokenizer)
        except msgspec.ValidationError as error:
            raise DataError(
                f"{folder / PLAN}: {error}; set overwrite_out_dir=true to start over"
            ) from error

    text_tokens, vocabulary_size = count_tokens(tokenizer, data.training)
    sizes = choose_sizes(text_tokens, vocabulary_size, device, config)
    write_json(folder / _MODEL_FILE, sizes.make_model_config())
    write_sizes(folder, asdict(sizes))
    return Plan(sizes, tokenizer)


def write_data(data: Data, folder: Path, seed: int) -> None:
    """Writes the pages of both runs, training pages in random order, because files may be sorted.

    A file with the same content stays untouched, because a run identifies it by its time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(seed).permutation(len(data.training))
    shuffled = [data.training[index] for index in order]
    for name, pages in ((_TRAINING_FILE, shuffled), (_HELD_OUT_FILE, data.held_out)):
        file = folder / name
        content = b"".join(page.encode_line() for page in pages)
        if not file.exists() or file.read_bytes() != content:
            with build_atomically(file) as part:
                part.write_bytes(content)


def choose_tokenizer(
    config: QuickConfig, pages: Sequence[Page], device: Device, folder: Path
) -> str:
    """Returns the configured tokenizer, one trained on the pages, or the sample's.

    If there is too little text to train one, it is the sample's, unless `vocabulary_size` is set.

    Returns:
        A folder, or a name on the Hub.
    """
    if config.tokenizer is not None:
        return config.tokenizer

    text_bytes = sum(len(page.text.encode()) for page in pages)
    size = config.vocabulary_size or choose_vocabulary_size(text_bytes, device)
    if size is None:
        return str(SAMPLE_TOKENIZER)

    trained_folder = folder / _TOKENIZER_FOLDER
    if not trained_folder.exists():
        from bsmeta.data.text.tokenizer_training import train_tokenizer

        with build_atomically(trained_folder) as part:
            train_tokenizer(_iterate_strings(pages), size).save_pretrained(part)
    return str(trained_folder)


def count_tokens(name: str, pages: Sequence[Page]) -> tuple[int, int]:
    """Returns the estimated number of tokens of the pages' text, and the size of the vocabulary.

    Args:
        name: The tokenizer: a folder, or a name on the Hub.
    """
    from bsmeta.data.text.tokenizer import load_tokenizer_from

    tokenizer = load_tokenizer_from(name)
    sample: list[str] = []
    sampled_bytes = 0
    total_bytes = 0
    for page in pages:
        length = len(page.text.encode())
        total_bytes += length
        if sampled_bytes < _SAMPLED_BYTES:
            sample.append(page.text)
            sampled_bytes += length

    all_ids = tokenizer(sample, add_special_tokens=False)["input_ids"]
    sampled_tokens = sum(len(ids) for ids in all_ids)
    return round(sampled_tokens * total_bytes / sampled_bytes), len(tokenizer)


def train_run(
    config: QuickConfig, plan: Plan, data: Data, folder: Path, name: str, precision: str
) -> Path:
    """Trains a model unless its run is done, or resumes the run; returns its folder.

    Args:
        name: `WITHOUT` or `WITH`.
        precision: The value of `mixed_precision`.

    Raises:
        UserError: If the run is refused, or stopped by a signal.
        RuntimeError: If it fails.
    """
    run_folder = folder / name
    if not _is_done(run_folder):
        overrides = list_overrides(config, plan, data, folder, name, precision)
        train_model("quick_run", overrides)
    return run_folder


def list_overrides(
    config: QuickConfig, plan: Plan, data: Data, folder: Path, name: str, precision: str
) -> dict[str, Any]:
    """Returns the keys of a run that `hydra_configs/quick_run.yaml` does not set.

    Takes the arguments of `train_run`.
    """
    sizes = plan.sizes
    columns = {key: key for key in dict.fromkeys([*data.types, ADDRESS_KEY])}
    return {
        "data_config.train_file": str(folder / "data" / _TRAINING_FILE),
        "data_config.validation_file": str(folder / "data" / _HELD_OUT_FILE),
        "data_config.columns": columns,
        "data_config.per_device_train_batch_size": sizes.rows,
        "data_config.per_device_eval_batch_size": sizes.rows,
        "data_config.metadata_config.metadata_list": data.types if name == WITH else [],
        "data_config.metadata_config.max_seq_len": sizes.max_seq_len,
        "model_config_file": str(folder / _MODEL_FILE),
        "tokenizer_name": plan.tokenizer,
        "mixed_precision": precision,
        "learning_rate": sizes.learning_rate,
        "num_warmup_steps": max(sizes.steps // 20, 1),
        "max_train_steps": sizes.steps,
        "save_steps": max(sizes.steps // 4, 1),
        "seed": config.seed,
        "out_dir": str(folder / name),
        "resume_from_checkpoint_dir": "latest",
        **config.overrides,
    }


def _iterate_strings(pages: Sequence[Page]) -> Iterator[str]:
    """Yields the texts and metadata values of pages, from which a tokenizer is trained."""
    for page in pages:
        yield page.text
        for value in page.values.values():
            yield str(value)


def _is_done(folder: Path) -> bool:
    """Whether a run has finished."""
    try:
        return (folder / STATUS).is_file() and read_status(folder)["state"] == "done"
    except (OSError, ValueError, KeyError):
        return False  # training reports the error
