"""Loads weights from a folder or the Hub; refuses missing or unexpected weights.

`from_pretrained` initializes missing weights randomly and ignores unexpected ones; it reports
either only in its log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from bsmeta.config.schema import PretrainedConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.progress import report_progress
from bsmeta.models.manifest import has_manifest, model_damage, tokenizer_faults

logger = logging.getLogger(__name__)

NAMES_SHOWN = 5
TOKEN_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "shared.weight")


def default_device() -> torch.device:
    """A GPU if there is one, else the CPU: where a model that one process uses runs."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def vocabulary_of(model: PreTrainedModel) -> int:
    """The rows of the token embeddings, also of those that ZeRO-3 has partitioned already."""
    weight = model.get_input_embeddings().weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def load_weights(source: str, where: str, **how: Any) -> PreTrainedModel:
    """Loads a causal language model with exactly the weights in its files.

    Args:
        source: A folder, or a name on the Hub.
        where: The key and its value, for messages: `model_name=gpt2`.
        how: Further arguments of `from_pretrained`.

    Raises:
        DataError: If it cannot be loaded, a file differs from its manifest, or weights are missing,
            unexpected or of another shape. Tied weights need not be in the files.
    """
    check_files(source, where)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            source, output_loading_info=True, ignore_mismatched_sizes=True, **how
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise DataError(
            f"{where}: {source} cannot be loaded: {error}. Expected a folder, a file of one, or a "
            "name on the Hub, of a causal language model"
        ) from error
    problems = [
        f"{word} {_some(names)}"
        for word, names in (
            ("missing (they would be random):", info["missing_keys"]),
            ("unexpected (they would be ignored):", info["unexpected_keys"]),
            ("of another shape:", [_mismatched(entry) for entry in info["mismatched_keys"]]),
            ("unreadable:", info["error_msgs"]),
        )
        if names
    ]
    if problems:
        raise DataError(
            f"{where}: the weights in {source} are not those of a {type(model).__name__} of its "
            f"config.json: {'; '.join(problems)}. Expected exactly its weights: copy the folder "
            "again, or fix its config.json"
        )
    return model


def model_source(config: PretrainedConfig) -> tuple[str, str]:
    """The key that names the model of a run, and its value."""
    if config.model_config_file is not None:
        return "model_config_file", config.model_config_file
    return "model_name", config.model_name


def model_shape(config: PretrainedConfig, kind: Any) -> Any:
    """The transformers config of the model of a run, which is to be one of the class `kind`.

    Raises:
        ConfigurationError: If it cannot be loaded.
    """
    key, source = model_source(config)
    with explained(key, source, kind):
        return AutoConfig.from_pretrained(source)


@contextmanager
def explained(key: str, source: str, kind: Any) -> Iterator[None]:
    """Names the key in errors about a model that is to be one of the class `kind`."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ConfigurationError(
            f"{key}: {source} cannot be loaded: {error}. Expected a folder, or a name on the Hub, "
            f"of a model that {kind.__name__} knows"
        ) from error


def load_exported(
    kind: Any, folder: Path, name: str, tasks: str, *, optional: str | None = None
) -> PreTrainedModel:
    """A trained model in evaluation mode, from a folder that a run has exported.

    Args:
        kind: The class, with `from_pretrained`.
        folder: The folder.
        name: What messages call the model.
        tasks: The tasks that export it, as messages name them.
        optional: Part of the names of weights that may be missing.

    Raises:
        DataError: If it is damaged or incomplete.
    """
    check_files(str(folder), f"{folder}")
    try:
        with whole_weights():
            model, info = kind.from_pretrained(
                folder, output_loading_info=True, dtype=torch.float32
            )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise DataError(f"{folder}: the {name} cannot be loaded: {error}") from error
    missing = [key for key in info["missing_keys"] if optional is None or optional not in f".{key}"]
    if missing or info["mismatched_keys"]:
        raise DataError(
            f"{folder}: weights are missing, {sorted(missing)[:3]}; expected the model/ of a run "
            f"or checkpoint of {tasks}"
        )
    exported: PreTrainedModel = model.eval()
    return exported


def token_limit(shape: Any, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The most tokens of a text that model and tokenizer accept; None: without a limit.

    Args:
        shape: The transformers config of the model.
        tokenizer: Its tokenizer.
    """
    limit = int(tokenizer.model_max_length)  # 10^30 if it has none
    positions = getattr(shape, "max_position_embeddings", None)
    if positions is not None:
        # The positions of these begin after that of the padding.
        is_roberta = shape.model_type in ("roberta", "xlm-roberta", "camembert")
        limit = min(limit, positions - (shape.pad_token_id + 1 if is_roberta else 0))
    return None if limit > 1_000_000 else limit


@contextmanager
def whole_weights() -> Iterator[None]:
    """Loads models with all of their weights on every rank, also within a run under ZeRO-3.

    There transformers partitions every model that it builds, and only an engine can run those.
    """
    from transformers.integrations import deepspeed as integration

    configured = integration._hf_deepspeed_config_weak_ref
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        integration._hf_deepspeed_config_weak_ref = configured


def check_files(source: str, where: str) -> None:
    """Refuses a model folder whose files differ from its manifest.

    Without a manifest, weights that no training leaves and a tokenizer of another model are
    refused: numbers that are not finite, token embeddings or most matrices that are wholly zero.

    Raises:
        DataError: With a line for each file or weight.
    """
    folder = Path(source)
    problems = model_damage(folder) if folder.is_dir() else []
    if folder.is_dir() and not has_manifest(folder):
        problems = [*_weight_faults(folder), *tokenizer_faults(folder)]
    if problems:
        raise DataError(
            f"{where}: {source} is damaged; copy it again, or name another checkpoint:\n  "
            + "\n  ".join(problems)
        )


def _weight_faults(folder: Path) -> list[str]:
    """Lists the weights in the safetensors files of a model that no training leaves.

    Single matrices of zeros occur in sound models (RoBERTa's token types, new blocks that begin as
    the identity) and are only logged.
    """
    faults, zeros, matrices = [], [], 0
    for file in sorted(folder.glob("model*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (it is no mapping)
                    values = weights.get_tensor(name)
                    values = values.float() if values.element_size() == 1 else values
                    if not values.isfinite().all():
                        faults.append(f"{file}: {name} has values that are not finite")
                    if values.ndim > 1:
                        matrices += 1
                        zeros += [] if values.any() else [name]
                    report_progress()
        except (OSError, SafetensorError):
            return []  # reported when the model is loaded
    embeddings = [name for name in zeros if name.endswith(TOKEN_EMBEDDINGS)]
    if embeddings or 2 * len(zeros) > matrices:
        faults.append(
            f"{folder}: {len(zeros)} of {matrices} matrices are wholly zero: {_some(zeros)}"
        )
    elif zeros:
        logger.warning("%s: wholly zero: %s", folder, _some(zeros))
    return faults


def _mismatched(entry: tuple[str, Any, Any]) -> str:
    name, found, expected = entry
    return f"{name} ({list(found)} instead of {list(expected)})"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - NAMES_SHOWN} others" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more
