"""Loads weights from a folder or the Hub; refuses missing or unexpected weights.

`from_pretrained` initializes missing weights randomly and ignores unexpected ones; it reports
either only in its log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel

from bsmeta.config.errors import DataError
from bsmeta.models.manifest import model_damage

NAMES_SHOWN = 5


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
    """Refuses a model folder whose files differ from its manifest (a `DataError`)."""
    folder = Path(source)
    problems = model_damage(folder) if folder.is_dir() else []
    if problems:
        raise DataError(
            f"{where}: {source} is damaged; copy it again, or name another checkpoint:\n  "
            + "\n  ".join(problems)
        )


def _mismatched(entry: tuple[str, Any, Any]) -> str:
    name, found, expected = entry
    return f"{name} ({list(found)} instead of {list(expected)})"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - NAMES_SHOWN} others" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more
