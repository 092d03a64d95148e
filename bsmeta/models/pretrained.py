"""Checks folders of models for damage, and loads them.

In a copy without a manifest, the tokenizer is compared with the tokens that `config.json` records
for its weights.

Missing and unexpected weights are refused: `from_pretrained` initializes missing weights randomly,
ignores unexpected ones, and reports both only in its log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open

from bsmeta.config.schema import PretrainedConfig
from bsmeta.config.steps import CHECKPOINT_NAME
from bsmeta.core.errors import CheckpointError, ConfigurationError, DataError
from bsmeta.core.model_files import (
    read_model_and_report,
    read_model_config,
    refuse_special_files,
)
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import report_progress
from bsmeta.models.manifest import MANIFEST, UNCHECKED_FILES, find_fault, read_manifest
from bsmeta.models.shapes import count_positions

if TYPE_CHECKING:  # slow to import; a run that is refused should fail fast
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOKENS_HASH = "tokenizer_xxh3"
"""Key of an exported model's `config.json`: the hash of the tokens and ids of its tokenizer."""

MAX_NAMES_SHOWN = 5
"""Maximum number of names of weights in a message."""

OUTPUT_EMBEDDINGS = ("lm_head.weight", "embed_out.weight")
TOKEN_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "shared.weight")
LOADED_SUFFIXES = (".bin", ".jinja", ".json", ".model", ".npz", ".safetensors")
"""Suffixes of optional files that change a model or its tokenizer if they are in its folder."""

_LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, SafetensorError)

logger = logging.getLogger(__name__)


def record_tokenizer(folder: Path) -> None:
    """Records the hash of a model folder's tokenizer in its `config.json`, as `TOKENS_HASH`.

    Without a `tokenizer.json`, a hash inherited from the base model is removed.
    """
    config = folder / "config.json"
    if not config.is_file():
        return

    content = parse_json(config.read_text(encoding="utf-8"))
    content.pop(TOKENS_HASH, None)
    digest = _hash_tokens(folder)
    if digest is not None:
        content[TOKENS_HASH] = digest
    config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _hash_tokens(folder: Path) -> str | None:
    """Hashes the tokens and ids in `tokenizer.json`, regardless of its formatting.

    Returns None if there is no such file.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None

    # As transformers and tokenizers read it.
    content = parse_json(file.read_text(encoding="utf-8"), object_pairs_hook=dict)
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = set(vocabulary.items())
    else:  # Unigram: pieces with their scores, in the order of their ids
        tokens = {(piece, token_id) for token_id, (piece, *_) in enumerate(vocabulary)}
    tokens |= {(added["content"], added["id"]) for added in content.get("added_tokens", [])}
    return xxhash.xxh3_128(json.dumps(sorted(tokens)).encode()).hexdigest()


def check_model_folder(source: str, setting: str) -> None:
    """Refuses a model folder whose files differ from its manifest.

    Without a manifest, it refuses a tokenizer of another model, and weights that cannot be the
    result of training: non-finite numbers, zero token embeddings, or mostly zero matrices.

    Args:
        source: A folder, or a name on the Hub, which is not checked.
        setting: Key and value that name the folder, for messages: `model_name=folder`.

    Raises:
        DataError: If it is damaged, with a line for each file or weight at fault; or if a file is
            a pipe, a socket or a device.
    """
    refuse_special_files(source)
    folder = Path(source)
    if not folder.is_dir():
        return

    problems = list_model_damage(folder)
    if problems is None:
        problems = [*_list_weight_faults(folder), *_list_tokenizer_faults(folder)]
    if problems:
        raise DataError(
            f"{setting}: {source} is damaged; copy it again, or name another checkpoint:\n  "
            + "\n  ".join(problems)
        )


def list_model_damage(model: Path) -> list[str] | None:
    """Lists the faults of the files of a model folder, one line each; empty if there are none.

    A file that the manifest does not list is a fault if it would be loaded. The manifest may be in
    the folder or in the checkpoint that contains it. Returns None if there is neither, as in a
    folder that this package did not write.
    """
    parent = model.resolve().parent
    if (model / MANIFEST).is_file():
        root = model
        prefix = ""
    elif CHECKPOINT_NAME.fullmatch(parent.name):
        root = parent
        prefix = f"{model.resolve().name}/"
    else:
        return None

    try:
        entries = read_manifest(root).files
    except CheckpointError as error:
        return [str(error)]

    model_entries = {
        file.removeprefix(prefix): entry
        for file, entry in entries.items()
        if file.startswith(prefix) and file.removeprefix(prefix) not in UNCHECKED_FILES
    }
    faults = [find_fault(model / file, entry) for file, entry in model_entries.items()]
    return [
        *_list_added_files(model, model_entries),
        *(fault for fault in faults if fault is not None),
    ]


def _list_added_files(model: Path, manifest_names: Container[str]) -> list[str]:
    """Lists the files of a model folder that loading may read although its manifest lacks them.

    transformers loads an `adapter_config.json` on top of the weights, and takes special tokens from
    a `special_tokens_map.json`, without a warning. Files of other suffixes and hidden ones are
    not loaded.

    Args:
        manifest_names: The names in the manifest, relative to the folder.
    """
    return [
        f"{path}: is not listed in {MANIFEST}, but would be loaded with the model; remove it if "
        "you do not know where it is from, else move it to another folder"
        for path in sorted(model.iterdir())
        if path.suffix in LOADED_SUFFIXES
        and not path.name.startswith(".")
        and path.name != MANIFEST
        and path.name not in manifest_names
    ]


def _list_tokenizer_faults(folder: Path) -> list[str]:
    """Returns a fault if the tokenizer of a model folder differs from the hash in its config."""
    try:
        config = (folder / "config.json").read_text(encoding="utf-8")
        recorded = parse_json(config, object_pairs_hook=dict)[TOKENS_HASH]
        actual = _hash_tokens(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # not recorded; or unreadable, which loading will report
    if actual in (None, recorded):
        return []
    return [
        f"{folder / 'tokenizer.json'}: its tokens and ids (xxh3 {actual}) are not those that the "
        f"model was trained with ({TOKENS_HASH} of config.json: {recorded}). Restore it; if you "
        f"changed it on purpose, delete {TOKENS_HASH} from config.json"
    ]


def _list_weight_faults(folder: Path) -> list[str]:
    """Lists weights in the safetensors files of a model that cannot be the result of training.

    Single matrices of zeros occur in intact models (RoBERTa's token types, new blocks that begin as
    the identity) and are only logged.
    """
    faults = []
    zero_matrices = []
    num_matrices = 0
    try:
        for file, name, values in _iterate_weights(folder):
            if not values.isfinite().all():
                faults.append(f"{file}: {name} has values that are not finite")
            if values.ndim > 1:
                num_matrices += 1
                if not values.any():
                    zero_matrices.append(name)
    except (OSError, SafetensorError):
        return []  # loading the model reports the error

    has_zero_embeddings = any(name.endswith(TOKEN_EMBEDDINGS) for name in zero_matrices)
    if has_zero_embeddings or 2 * len(zero_matrices) > num_matrices:
        faults.append(
            f"{folder}: {len(zero_matrices)} of {num_matrices} matrices are wholly zero: "
            f"{_list_some(zero_matrices)}"
        )
    elif zero_matrices:
        logger.warning("%s: wholly zero: %s", folder, _list_some(zero_matrices))
    return faults


def _iterate_weights(folder: Path) -> Iterator[tuple[Path, str, torch.Tensor]]:
    """Yields the file, the name and the values of each weight in safetensors files."""
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (it is not a mapping)
                values = weights.get_tensor(name)
                if values.element_size() == 1:  # 8-bit floats lack some operations
                    values = values.float()
                yield file, name, values
                report_progress()


def _list_some(names: Iterable[str]) -> str:
    """Lists the first names, sorted, and the number of the others."""
    sorted_names = sorted(names)
    num_others = len(sorted_names) - MAX_NAMES_SHOWN
    others = f" and {num_others} others" if num_others > 0 else ""
    return ", ".join(sorted_names[:MAX_NAMES_SHOWN]) + others


def choose_device() -> torch.device:
    """Returns the device for a model that one process uses: a GPU if there is one, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def count_vocabulary(model: PreTrainedModel) -> int:
    """Returns the rows of the token embeddings, even if ZeRO-3 has partitioned them already."""
    weight = model.get_input_embeddings().weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def load_weights(source: str, setting: str, **options: Any) -> PreTrainedModel:
    """Loads a causal language model with exactly the weights in its files.

    Args:
        source: A folder, or a name on the Hub.
        setting: Key and value that name the model, for messages: `model_name=gpt2`.
        options: Further arguments of `from_pretrained`.

    Raises:
        DataError: If it cannot be loaded, a file differs from its manifest, or weights are missing,
            unexpected or of another shape. Tied weights need not be in the files.
    """
    from transformers import AutoModelForCausalLM

    check_model_folder(source, setting)
    try:
        model, loading_report = read_model_and_report(
            AutoModelForCausalLM, source, ignore_mismatched_sizes=True, **options
        )
    except _LOADING_ERRORS as error:
        # Tied weights of different shapes fail inside torch, with an error that names neither.
        refuse_other_vocabulary(source, setting)
        raise DataError(
            f"{setting}: {source} cannot be loaded: {error}. Expected a folder, a file of one, or "
            "a name on the Hub, of a causal language model"
        ) from error

    refuse_other_weights(model, loading_report, source, setting)
    return model


def refuse_other_weights(
    model: PreTrainedModel, loading_report: Mapping[str, Any], source: str, setting: str
) -> None:
    """Refuses a model whose files have other weights than the model.

    Args:
        loading_report: transformers' report of missing and unexpected weights.
        source: Folder or name of the model.
        setting: Key and value that name the model, for messages: `model_name=gpt2`.

    Raises:
        DataError: If weights are missing, unexpected, of another shape or unreadable.
    """
    problems = _list_loading_problems(loading_report)
    if problems:
        raise DataError(
            f"{setting}: the weights in {source} are not those of a {type(model).__name__} of its "
            f"config.json: {'; '.join(problems)}. Expected exactly its weights: copy the folder "
            "again, or fix its config.json"
        )


def _list_loading_problems(loading_report: Mapping[str, Any]) -> list[str]:
    """Lists and counts the weights in transformers' loading report, one line per fault."""
    other_shapes = [
        f"{name} ({list(actual)} instead of {list(expected)})"
        for name, actual, expected in loading_report["mismatched_keys"]
    ]
    names_by_fault = {
        "missing (they would be random):": loading_report["missing_keys"],
        "unexpected (they would be ignored):": loading_report["unexpected_keys"],
        "of another shape:": other_shapes,
        "unreadable:": loading_report["error_msgs"],
    }
    return [
        f"{len(names)} {fault} {_list_some(names)}"
        for fault, names in names_by_fault.items()
        if names
    ]


def check_encoder_weights(
    model: PreTrainedModel, loading_report: Mapping[str, Any], source: str, setting: str
) -> list[str]:
    """Refuses an encoder whose files lack weights of it, or have others; new heads are allowed.

    Logs how many weights of another head the files have, which are not used.

    Args:
        model: The encoder, or a model of transformers with a head on it.
        loading_report: transformers' report of missing and unexpected weights.
        source: Folder or name of the model.
        setting: Key and value that name the model, for messages: `model_name=gpt2`.

    Returns:
        Names of weights of the head and of a pooler, which are random, sorted.

    Raises:
        DataError: If weights of the encoder are missing, unexpected or of another shape.
    """
    mismatched_names = {name for name, *_ in loading_report["mismatched_keys"]}
    names_by_fault = {
        "missing (they would be random)": set(loading_report["missing_keys"]),
        "unexpected (they would be ignored)": set(loading_report["unexpected_keys"]),
        "of another shape": mismatched_names,
    }
    problems = []
    for fault, names in names_by_fault.items():
        encoder_names = [name for name in names if _is_of_encoder(model, name)]
        if encoder_names:
            problems.append(f"{len(encoder_names)} {fault}: {_list_some(encoder_names)}")
    if problems:
        raise DataError(
            f"{setting}: the weights in {source} are not those of the encoder of its config.json "
            f"({'; '.join(problems)}); copy the folder again, or fix its config.json"
        )

    unused = loading_report["unexpected_keys"]
    if unused:
        logger.info(
            "%s: %d weights of another head are not used: %s",
            setting,
            len(unused),
            _list_some(unused),
        )
    return sorted({*loading_report["missing_keys"], *mismatched_names})


def _is_of_encoder(model: PreTrainedModel, name: str) -> bool:
    """Whether a weight, by its name in the model or in its files, belongs to the encoder.

    Poolers count as heads. Names in files of the encoder alone lack its prefix.
    """
    encoder = model.base_model
    if name in dict(encoder.named_buffers()):  # which older versions of transformers have saved
        return False
    part = name.removeprefix(f"{model.base_model_prefix}.").partition(".")[0]
    parts = {child for child, _ in encoder.named_children()}
    parts |= {parameter for parameter, _ in encoder.named_parameters(recurse=False)}
    return part in parts - {"pooler"}


def refuse_other_vocabulary(source: str, setting: str) -> None:
    """Refuses a model whose embeddings do not have `vocab_size` rows.

    Args:
        source: A folder, or a name on the Hub whose files have been downloaded.
        setting: Key and value that name the model, for messages: `model_name=gpt2`.

    Raises:
        DataError: If an embedding or the output layer has other rows; a line for each of them.
    """
    folder = _find_folder(source)
    try:
        config = (folder / "config.json").read_text(encoding="utf-8")
        rows = parse_json(config, object_pairs_hook=dict)["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return

    faults = [
        f"{embedding.file}: {embedding.name} has {embedding.rows:,} rows"
        for embedding in _read_embeddings(folder)
        if embedding.rows != rows
    ]
    if faults:
        raise DataError(
            f"{setting}: {source} has weights of another vocabulary than vocab_size of its "
            f"config.json; expected {rows:,} rows, one for each token. Copy the folder again; or, "
            "if its weights are right, set vocab_size to their rows:\n  " + "\n  ".join(faults)
        )


def _find_folder(source: str) -> Path:
    """Returns the folder of a model; for a name on the Hub, its folder in the cache."""
    if Path(source).is_dir():
        return Path(source)
    try:
        cached = try_to_load_from_cache(source, "config.json")
    except ValueError:  # not a valid name on the Hub
        cached = None
    return Path(cached).parent if isinstance(cached, str) else Path(source)


class _Embedding(NamedTuple):
    """An embedding, or the output layer, in a safetensors file."""

    file: Path
    name: str
    rows: int


def _read_embeddings(folder: Path) -> Iterator[_Embedding]:
    """Yields the embeddings in the safetensors files of a model; reads only their shapes."""
    for file in sorted(folder.glob("model*.safetensors")):
        with suppress(OSError, SafetensorError), safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (it is not a mapping)
                if name.endswith((*TOKEN_EMBEDDINGS, *OUTPUT_EMBEDDINGS)):
                    yield _Embedding(file, name, weights.get_slice(name).get_shape()[0])


def load_exported(
    model_class: Any, folder: Path, name: str, tasks: str, *, optional: str | None = None
) -> PreTrainedModel:
    """Loads a trained model in evaluation mode, from a folder that a run has exported.

    Args:
        model_class: The class of the model, with `from_pretrained`.
        name: Name of the model in messages.
        tasks: Names of the tasks that export such models, for messages.
        optional: Weights whose names contain this may be missing; None: no weight may.

    Raises:
        DataError: If it is damaged, or weights are missing, unexpected or of another shape.
    """
    import torch

    check_model_folder(str(folder), f"{folder}")
    try:
        with load_whole_weights():
            model, loading_report = read_model_and_report(model_class, folder, dtype=torch.float32)
    except _LOADING_ERRORS as error:
        raise DataError(f"{folder}: the {name} cannot be loaded: {error}") from error

    missing_keys = [
        key
        for key in loading_report["missing_keys"]
        if optional is None or optional not in f".{key}"
    ]
    problems = _list_loading_problems({**loading_report, "missing_keys": missing_keys})
    if problems:
        raise DataError(
            f"{folder}: its weights are not those of the {name} of its config.json: "
            f"{'; '.join(problems)}. Expected the model/ of a run or checkpoint of {tasks}"
        )
    exported: PreTrainedModel = model.eval()
    return exported


def find_model_source(config: PretrainedConfig) -> tuple[str, str]:
    """Returns the key that names the model of a run, and its value."""
    if config.model_config_file is not None:
        return "model_config_file", config.model_config_file
    return "model_name", config.model_name


def read_model_shape(config: PretrainedConfig, model_class: Any) -> Any:
    """Reads the transformers config of the model of a run.

    Args:
        model_class: The class that will load the model, for messages.

    Raises:
        ConfigurationError: If it cannot be loaded.
    """
    key, source = find_model_source(config)
    with explain_load_errors(key, source, model_class):
        return read_model_config(source)


@contextmanager
def explain_load_errors(key: str, source: str, model_class: Any) -> Iterator[None]:
    """Converts errors in loading a model to a message that names the key.

    Args:
        key: The configuration key that names the model.
        source: The value of the key.
        model_class: The class that loads the model.

    Raises:
        ConfigurationError: If the model cannot be loaded within the context.
    """
    try:
        yield
    except _LOADING_ERRORS as error:
        raise ConfigurationError(
            f"{key}: {source} cannot be loaded: {error}. Expected a folder, or a name on the Hub, "
            f"of a model that {model_class.__name__} knows"
        ) from error


def find_token_limit(shape: Any, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Returns the maximum number of tokens per text for a model and its tokenizer; None: no limit.

    Args:
        shape: The transformers config of the model.
    """
    limit = int(tokenizer.model_max_length)  # 10^30 if it has none
    positions = count_positions(shape)
    if positions is not None:
        if shape.model_type in ("roberta", "xlm-roberta", "camembert"):
            positions -= shape.pad_token_id + 1  # their positions start after pad_token_id
        limit = min(limit, positions)
    return None if limit > 1_000_000 else limit


@contextmanager
def load_whole_weights() -> Iterator[None]:
    """Builds the models of a context with whole weights on every rank, even in a run under ZeRO-3.

    Under ZeRO-3 transformers partitions every model that it builds, and only an engine can run a
    partitioned model.
    """
    from transformers.integrations import deepspeed as integration

    previous = integration._hf_deepspeed_config_weak_ref
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        integration._hf_deepspeed_config_weak_ref = previous
