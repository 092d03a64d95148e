"""Folders of models: checked for damage, and loaded.

A copy without a manifest is recognized by the tokens that `config.json` records for its weights.

Missing and unexpected weights are refused: `from_pretrained` initializes the former randomly and
ignores the latter, and reports either only in its log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open

from bsmeta.config.schema import PretrainedConfig
from bsmeta.config.steps import CHECKPOINT_NAME
from bsmeta.core.errors import CheckpointError, ConfigurationError, DataError
from bsmeta.core.model_files import read_model_and_report, read_shape
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import report_progress
from bsmeta.models.manifest import MANIFEST, UNCHECKED, fault_of, read_manifest
from bsmeta.models.shapes import positions_of

if TYPE_CHECKING:  # slow to import; a run that is refused should fail fast
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOKENS_HASH = "tokenizer_xxh3"
"""Key of an exported model's `config.json`: the hash of the tokens and ids of its tokenizer."""
NAMES_SHOWN = 5
OUTPUT_EMBEDDINGS = ("lm_head.weight", "embed_out.weight")
TOKEN_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "shared.weight")
_UNLOADABLE = (OSError, ValueError, RuntimeError, KeyError, SafetensorError)

logger = logging.getLogger(__name__)


def record_tokenizer(folder: Path) -> None:
    """Records the tokens of the tokenizer in a model folder in its `config.json`.

    Without a `tokenizer.json`, a record of the model that this one was trained from is removed.
    """
    config = folder / "config.json"
    if not config.is_file():
        return
    content = parse_json(config.read_text(encoding="utf-8"))
    content.pop(TOKENS_HASH, None)
    digest = _tokens_hash(folder)
    if digest is not None:
        content[TOKENS_HASH] = digest
    config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _tokens_hash(folder: Path) -> str | None:
    """The hash of the tokens and ids in `tokenizer.json`, however it is formatted; None without."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    parts = parse_json(file.read_text(encoding="utf-8"))
    vocabulary = parts["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = set(vocabulary.items())
    else:  # Unigram: pieces with their scores, in the order of their ids
        tokens = {(entry[0], number) for number, entry in enumerate(vocabulary)}
    tokens |= {(added["content"], added["id"]) for added in parts.get("added_tokens", [])}
    return xxhash.xxh3_128(json.dumps(sorted(tokens)).encode()).hexdigest()


def check_files(source: str, where: str) -> None:
    """Refuses a model folder whose files differ from its manifest.

    Without a manifest, weights that no training leaves and a tokenizer of another model are
    refused: numbers that are not finite, token embeddings or most matrices that are wholly zero.

    Raises:
        DataError: With a line for each file or weight.
    """
    folder = Path(source)
    if not folder.is_dir():
        return
    problems = model_damage(folder)
    if problems is None:
        problems = [*_weight_faults(folder), *_tokenizer_faults(folder)]
    if problems:
        raise DataError(
            f"{where}: {source} is damaged; copy it again, or name another checkpoint:\n  "
            + "\n  ".join(problems)
        )


def model_damage(model: Path) -> list[str] | None:
    """Lists the faults of the files of a model folder, one line each; empty if there are none.

    The manifest is the folder's own or that of the checkpoint that contains it. Returns None for a
    folder from elsewhere, which has neither.
    """
    above = model.resolve().parent
    if (model / MANIFEST).is_file():
        root, start = model, ""
    elif CHECKPOINT_NAME.fullmatch(above.name):
        root, start = above, f"{model.resolve().name}/"
    else:
        return None
    try:
        entries = read_manifest(root).files
    except CheckpointError as error:
        return [str(error)]
    found = (
        fault_of(root / file, entry)
        for file, entry in entries.items()
        if file.startswith(start) and file.removeprefix(start) not in UNCHECKED
    )
    return [fault for fault in found if fault is not None]


def _tokenizer_faults(folder: Path) -> list[str]:
    """Describes a tokenizer in a model folder that is not the one its `config.json` records."""
    try:
        recorded = parse_json((folder / "config.json").read_text(encoding="utf-8"))[TOKENS_HASH]
        found = _tokens_hash(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # not recorded, or unreadable, which is reported when it is loaded
    if found in (None, recorded):
        return []
    return [
        f"{folder / 'tokenizer.json'}: its tokens and ids (xxh3 {found}) are not those that the "
        f"model was trained with ({TOKENS_HASH} of config.json: {recorded}). Restore it; if you "
        f"changed it on purpose, delete {TOKENS_HASH} from config.json"
    ]


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


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - NAMES_SHOWN} others" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more


def default_device() -> torch.device:
    """A GPU if there is one, else the CPU: where a model that one process uses runs."""
    import torch

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
    from transformers import AutoModelForCausalLM

    check_files(source, where)
    try:
        model, info = read_model_and_report(
            AutoModelForCausalLM, source, ignore_mismatched_sizes=True, **how
        )
    except _UNLOADABLE as error:
        # Tied weights of different shapes fail inside torch, with an error that names neither.
        refuse_other_vocabulary(source, where)
        raise DataError(
            f"{where}: {source} cannot be loaded: {error}. Expected a folder, a file of one, or a "
            "name on the Hub, of a causal language model"
        ) from error
    other_shapes = [
        f"{name} ({list(found)} instead of {list(expected)})"
        for name, found, expected in info["mismatched_keys"]
    ]
    lists = {
        "missing (they would be random):": info["missing_keys"],
        "unexpected (they would be ignored):": info["unexpected_keys"],
        "of another shape:": other_shapes,
        "unreadable:": info["error_msgs"],
    }
    problems = [f"{word} {_some(names)}" for word, names in lists.items() if names]
    if problems:
        raise DataError(
            f"{where}: the weights in {source} are not those of a {type(model).__name__} of its "
            f"config.json: {'; '.join(problems)}. Expected exactly its weights: copy the folder "
            "again, or fix its config.json"
        )
    return model


def refuse_other_vocabulary(source: str, where: str) -> None:
    """Refuses a model whose embeddings have another number of rows than its config.json says.

    Args:
        source: A folder, or a name on the Hub whose files have been downloaded.
        where: The key and its value, for messages.

    Raises:
        DataError: With a line for each weight.
    """
    folder = _folder_of(source)
    try:
        rows = parse_json((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    faults = [
        f"{file}: {name} has {found:,} rows"
        for file, name, found in _vocabulary_rows(folder)
        if found != rows
    ]
    if faults:
        raise DataError(
            f"{where}: {source} has weights of another vocabulary than vocab_size of its "
            f"config.json; expected {rows:,} rows, one for each token. Copy the folder again; or, "
            "if its weights are right, set vocab_size to their rows:\n  " + "\n  ".join(faults)
        )


def _folder_of(source: str) -> Path:
    """The folder of a model; of a name on the Hub, in the cache."""
    if Path(source).is_dir():
        return Path(source)
    try:
        cached = try_to_load_from_cache(source, "config.json")
    except ValueError:  # no name that the Hub allows
        cached = None
    return Path(cached).parent if isinstance(cached, str) else Path(source)


def _vocabulary_rows(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Yields the rows of the embeddings in the safetensors files of a model, which it maps."""
    for file in sorted(folder.glob("model*.safetensors")):
        with suppress(OSError, SafetensorError), safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (it is no mapping)
                if name.endswith((*TOKEN_EMBEDDINGS, *OUTPUT_EMBEDDINGS)):
                    yield file, name, weights.get_slice(name).get_shape()[0]


def load_exported(
    kind: Any, folder: Path, name: str, tasks: str, *, optional: str | None = None
) -> PreTrainedModel:
    """A trained model in evaluation mode, from a folder that a run has exported.

    Args:
        kind: The class, with `from_pretrained`.
        name: What messages call the model.
        tasks: The tasks that export it, as messages name them.
        optional: Part of the names of weights that may be missing.

    Raises:
        DataError: If it is damaged or incomplete.
    """
    import torch

    check_files(str(folder), f"{folder}")
    try:
        with whole_weights():
            model, info = read_model_and_report(kind, folder, dtype=torch.float32)
    except _UNLOADABLE as error:
        raise DataError(f"{folder}: the {name} cannot be loaded: {error}") from error
    missing = [key for key in info["missing_keys"] if optional is None or optional not in f".{key}"]
    if missing or info["mismatched_keys"]:
        raise DataError(
            f"{folder}: weights are missing, {sorted(missing)[:3]}; expected the model/ of a run "
            f"or checkpoint of {tasks}"
        )
    exported: PreTrainedModel = model.eval()
    return exported


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
        return read_shape(source)


@contextmanager
def explained(key: str, source: str, kind: Any) -> Iterator[None]:
    """Names the key in errors about a model that is to be one of the class `kind`."""
    try:
        yield
    except _UNLOADABLE as error:
        raise ConfigurationError(
            f"{key}: {source} cannot be loaded: {error}. Expected a folder, or a name on the Hub, "
            f"of a model that {kind.__name__} knows"
        ) from error


def token_limit(shape: Any, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The most tokens of a text that model and tokenizer accept; None: without a limit.

    Args:
        shape: The transformers config of the model.
    """
    limit = int(tokenizer.model_max_length)  # 10^30 if it has none
    positions = positions_of(shape)
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
