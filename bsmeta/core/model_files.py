"""Loads models, tokenizers and model configs with transformers, without running any of their code.

The files of a model may request code: `auto_map` names Python files beside them or in another
repository, `attn_implementation` may name compiled kernels on the Hub, and `megatron_core` of an
adapter may name any Python module. With `trust_remote_code=True`, transformers runs these Python
files; without a value, it asks on standard input, where data piped into the program would answer.

This module refuses such entries before it loads anything. The files may change between the check
and the load, so every call also passes `trust_remote_code=False`, and the question itself raises an
error: transformers 5.23 does not pass the value on when it loads a `tokenizer_class` that is no
tokenizer (`AutoModelForCausalLM`).

The files also name other files: the index of a sharded model lists the shards, and an adapter names
its base model. Such a name must not lead out of the folder (`bsmeta.core.files.join_inside`); the
base model may also be a name on the Hub.

All other modules call `from_pretrained` and `from_config` through this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import UnsafeNameError, join_inside, refuse_special_file
from bsmeta.core.parsing import ExtremeContentError, parse_json

if TYPE_CHECKING:  # slow to import; a run that is refused should fail fast
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

MAX_TEXT_BYTES = 512 * 2**20
"""Maximum size in bytes of a JSON or text file; published tokenizers have up to 40 MB."""

_TEXT_SUFFIXES = (".json", ".txt", ".jinja", ".model")
_CONFIG_FILE = "config.json"
_ADAPTER_CONFIG_FILE = "adapter_config.json"
_INDEX_SUFFIX = ".index.json"
_FILES_CHECKED_ON_HUB = (
    _CONFIG_FILE,
    "tokenizer_config.json",
    "generation_config.json",
    _ADAPTER_CONFIG_FILE,
    f"model.safetensors{_INDEX_SUFFIX}",
    f"pytorch_model.bin{_INDEX_SUFFIX}",
)
_MEGATRON_MODULE = "megatron.core"
_MAX_SHOWN_CHARS = 200  # of an entry in a message


@dataclass(frozen=True)
class _CheckedFiles:
    """The files of a model that are checked before transformers reads them.

    Attributes:
        texts: All JSON and text files, whose size is limited.
        entries: The JSON files among them whose entries may request code or name other files.
        copy_advice: The end of a suggested fix for a model on the Hub, which says to edit a local
            copy; "" for a local model.
    """

    texts: list[Path]
    entries: list[Path]
    copy_advice: str = ""


def read_model_config(source: str | Path, **changes: Any) -> PretrainedConfig:
    """Reads the transformers config of a model.

    Args:
        source: A folder, a JSON file, or a name on the Hub.
        changes: Config values to override.

    Raises:
        UserError: If the config requests code or is damaged.
        OSError, ValueError: If transformers cannot load it.
    """
    from transformers import AutoConfig

    refuse_unsafe_model(source)
    with _name_damaged_files(source):
        model_config: PretrainedConfig = AutoConfig.from_pretrained(
            source, trust_remote_code=False, **changes
        )
    return model_config


def read_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """Reads a tokenizer.

    Args:
        source: A folder, or a name on the Hub.

    Raises:
        UserError: If the tokenizer requests code, is damaged, or draws tokens at random.
        OSError, ValueError: If transformers cannot load it.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    refuse_unsafe_model(source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, MemoryError):
        raise
    except BaseException as error:
        # A damaged file may raise any error, even a panic of Rust, which is not an `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _explain_damage(source, error) from error

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise DataError(
            f"{source}: tokenizer_class of its tokenizer_config.json names no tokenizer, but a "
            f"{type(tokenizer).__name__}; expected a tokenizer that transformers has"
        )
    _refuse_random_tokens(source, tokenizer)
    return tokenizer


def _refuse_random_tokens(source: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a tokenizer that draws the tokens of a text at random.

    BPE-dropout (Provilkov et al. 2020) is a setting of the file, and applies to every text, also in
    an evaluation.

    Raises:
        ConfigurationError: If the tokenizer has BPE-dropout.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    dropout = None if backend is None else getattr(backend.model, "dropout", None)
    if dropout:
        raise ConfigurationError(
            f"{source}: dropout={dropout:.3g} in the model of its tokenizer.json draws the tokens "
            "of a text at random, so every call would have other tokens; expected a tokenizer that "
            'always returns the same tokens: set "dropout" to null there'
        )


def read_model(model_class: Any, source: str | Path, **options: Any) -> PreTrainedModel:
    """Reads a model with its weights.

    Args:
        model_class: A class of transformers or peft, with `from_pretrained`.
        source: A folder, or a name on the Hub.
        options: Further arguments of `from_pretrained`.

    Raises:
        UserError: If the model requests code or is damaged.
        OSError, ValueError, KeyError, RuntimeError, SafetensorError: If transformers cannot load
            it.
    """
    refuse_unsafe_model(source)
    with _name_damaged_files(source):
        model: PreTrainedModel = model_class.from_pretrained(
            source, trust_remote_code=False, **options
        )
    return model


def read_model_and_report(
    model_class: Any, source: str | Path, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Reads a model as `read_model` does; also returns transformers' report of missing weights."""
    refuse_unsafe_model(source)
    with _name_damaged_files(source):
        model, report = model_class.from_pretrained(
            source, trust_remote_code=False, output_loading_info=True, **options
        )
    return model, report


def create_model(
    model_class: Any, model_config: PretrainedConfig, **options: Any
) -> PreTrainedModel:
    """Creates a randomly initialized model from its transformers config.

    Args:
        model_class: A class of transformers, with `from_config`.
        options: Further arguments of `from_config`.

    Raises:
        UserError: If the config requests code, or has values that transformers cannot use.
        OSError, ValueError, KeyError, RuntimeError: If transformers cannot create it.
    """
    source = model_config.name_or_path or "the shape of the model"
    _refuse_entries(source, model_config.to_dict(), "")
    _disable_trust_question()

    with _name_damaged_files(source):
        model: PreTrainedModel = model_class.from_config(
            model_config, trust_remote_code=False, **options
        )
    return model


def refuse_unsafe_model(source: str | Path) -> None:
    """Refuses a model whose files request code, name files elsewhere, or are too large.

    Any library may load the model afterwards.

    Args:
        source: A folder, a JSON file, or a name on the Hub. Missing and malformed files are not
            refused here, because loading them raises an error.

    Raises:
        ConfigurationError: If an entry requests code, or a file is too large.
        DataError: If a file is a pipe, a socket or a device.
        UnsafeNameError: If an index names a shard outside the folder.
    """
    _disable_trust_question()
    refuse_special_files(source)
    base_model = _check_files(source)
    if base_model is not None:
        _check_files(base_model)  # transformers loads it together with the weights of the adapter


def refuse_special_files(source: str | Path) -> None:
    """Refuses a model of which a file is a pipe, a socket or a device.

    Args:
        source: A folder, a JSON file, or a name on the Hub, which is not checked.

    Raises:
        DataError: Naming the file.
    """
    path = Path(source)
    refuse_special_file(path)
    if path.is_dir():
        for file in sorted(path.iterdir()):
            refuse_special_file(file)


def _check_files(source: str | Path) -> str | None:
    """Checks the files of a model; returns the base model if they are an adapter, else None."""
    files = _list_checked_files(source)
    has_model = (Path(source) / _CONFIG_FILE).is_file()
    base_model = None

    _refuse_large_files(files.texts)
    for file in files.entries:
        try:
            text = file.read_text(encoding="utf-8")
            content = parse_json(text, object_pairs_hook=dict)  # as transformers reads it
        except ExtremeContentError as error:  # transformers might read it nevertheless
            raise ConfigurationError(
                f"{file}: {error}; expected a file that transformers wrote"
            ) from None
        except (OSError, ValueError):
            continue

        _refuse_entries(str(file), content, files.copy_advice)
        if isinstance(content, dict) and file.name.endswith(_INDEX_SUFFIX):
            _check_shards(file, content)
        elif isinstance(content, dict) and file.name == _ADAPTER_CONFIG_FILE and not has_model:
            base_model = _read_base_model(file, content)
    return base_model


def _list_checked_files(source: str | Path) -> _CheckedFiles:
    """Lists the files to check of a model in a folder, in a single file, or on the Hub."""
    path = Path(source)
    if path.is_dir():
        texts = [file for file in sorted(path.iterdir()) if file.suffix in _TEXT_SUFFIXES]
        return _CheckedFiles(texts, entries=[file for file in texts if _has_entries(file)])

    if path.is_file():
        return _CheckedFiles([path], entries=[path])

    texts = _download_checked_files(str(source))
    copy_advice = f" in a copy (hf download {source} --local-dir FOLDER), and name that"
    return _CheckedFiles(texts, entries=texts, copy_advice=copy_advice)


def _has_entries(file: Path) -> bool:
    """Whether a file is an index of shards or a config, whose entries must be checked."""
    is_config = "config" in file.name and file.suffix == ".json"
    return is_config or file.name.endswith(_INDEX_SUFFIX)


def _check_shards(index: Path, content: dict[str, Any]) -> None:
    """Refuses an index that names a shard of the weights outside its folder."""
    shard_of_weight = content.get("weight_map")
    if not isinstance(shard_of_weight, dict):  # loading reports it
        return

    shards = {shard for shard in shard_of_weight.values() if isinstance(shard, str)}
    for shard in sorted(shards):
        join_inside(index.parent, shard, str(index), follow_links=True)


def _read_base_model(adapter: Path, content: dict[str, Any]) -> str | None:
    """Returns the base model of an adapter: a name on the Hub, or below the working folder.

    Returns:
        None if the adapter names none.

    Raises:
        ConfigurationError: If it is any other path. That would be a path on the machine that
            trained the adapter, or a model on this machine that the adapter has no right to name.
    """
    base_model = content.get("base_model_name_or_path")
    if not isinstance(base_model, str):
        return None
    try:
        join_inside(adapter.parent, base_model, str(adapter), follow_links=True)
    except UnsafeNameError as error:
        raise ConfigurationError(
            f"{adapter}: base_model_name_or_path={base_model!r} cannot be used: {error.reason}; "
            "expected a name on the Hub. Merge the adapter into its base model (merge_and_unload "
            "of peft), and name the merged model"
        ) from error
    return base_model


def _refuse_large_files(files: Iterable[Path]) -> None:
    """Refuses files of more than `MAX_TEXT_BYTES`."""
    for file in files:
        if file.is_file() and file.stat().st_size > MAX_TEXT_BYTES:
            raise ConfigurationError(
                f"{file}: has {file.stat().st_size:,} bytes; expected at most {MAX_TEXT_BYTES:,} "
                "in a file of JSON or text beside a model"
            )


def _download_checked_files(name: str) -> list[Path]:
    """Downloads the files of a Hub repository that may request code.

    Args:
        name: The name of the repository.

    Returns:
        The files in the cache; an empty list if the repository is not accessible.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    files: list[Path] = []
    for file in _FILES_CHECKED_ON_HUB:
        # All files come from the commit of the first one, for which the cache names its folder.
        commit = files[0].parent.name if files else None
        try:
            files.append(Path(hf_hub_download(name, file, revision=commit)))
        except LocalEntryNotFoundError:  # no connection; loading reports it
            break
        except EntryNotFoundError:
            continue
        except (OSError, ValueError):  # no such repository; loading reports it
            break
    return files


def _refuse_entries(source: str, content: Any, copy_advice: str) -> None:
    """Refuses the entries of a file that request code, at any depth.

    Args:
        source: The file, for messages.
        content: The parsed JSON of the file.
        copy_advice: See `_CheckedFiles`.
    """
    for name, value in _iterate_entries(content):
        if name == "auto_map" and value:
            raise ConfigurationError(
                f"{source}: auto_map asks to run Python code that comes with the model: "
                f"{_format_shortened(value)}. bsmeta never runs such code. Expected classes that "
                "transformers itself has: if model_type and tokenizer_class name some, delete "
                f"auto_map{copy_advice}; otherwise convert the model, or choose another"
            )

        if name.endswith("attn_implementation") and "/" in str(value):
            raise ConfigurationError(
                f"{source}: {name} asks for a kernel of the Hub, compiled code: "
                f"{_format_shortened(value)}. bsmeta never loads such code; delete "
                f"{name}{copy_advice}"
            )

        # Of peft's LoraConfig.
        if name == "megatron_core" and value not in (None, _MEGATRON_MODULE):
            raise ConfigurationError(
                f"{source}: megatron_core asks to import the Python module "
                f"{_format_shortened(value)}; expected {_MEGATRON_MODULE}, or nothing: delete "
                f"megatron_core{copy_advice}"
            )


def _iterate_entries(content: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names and values of all mappings in nested mappings and lists."""
    unvisited = [content]
    while unvisited:
        value = unvisited.pop()
        if isinstance(value, dict):
            yield from ((str(name), entry) for name, entry in value.items())
            unvisited += value.values()
        elif isinstance(value, list):
            unvisited += value


def _format_shortened(value: Any) -> str:
    """Formats a value as JSON for a message, cut to `_MAX_SHOWN_CHARS`."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"


def _disable_trust_question() -> None:
    """Makes transformers raise an error instead of asking whether to trust code."""
    from transformers import dynamic_module_utils

    # Without time to answer, the question is not asked.
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0


@contextmanager
def _name_damaged_files(source: str | Path) -> Iterator[None]:
    """Replaces errors that only damaged files cause by a `DataError` that names their source."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, MemoryError):
        raise
    except Exception as error:
        raise _explain_damage(source, error) from error


def _explain_damage(source: str | Path, error: BaseException) -> DataError:
    """Explains an error that a damaged file has caused."""
    return DataError(f"{source}: one of its files is damaged ({type(error).__name__}: {error})")
