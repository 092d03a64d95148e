"""Loads models, tokenizers and their shapes by transformers, without running code of their folders.

The files of a model may ask for code: `auto_map` names Python files beside them or in another
repository, `attn_implementation` may name compiled kernels of the Hub, and `megatron_core` of an
adapter any Python module. With `trust_remote_code=True`, transformers runs Python files of a model;
without a value, it asks on standard input, where whatever is piped into a program answers. Here
such entries are refused by name before anything is loaded. Files may change between the two reads,
so every call also passes `trust_remote_code=False`, and the question itself raises an error:
transformers 5.23 loads a `tokenizer_class` that is no tokenizer (`AutoModelForCausalLM`) without
passing the value on.

The files also name other files: the index of a model in several parts those parts, an adapter its
base model. Such a name must not lead out of the folder (`bsmeta.core.files.path_inside`); the base
may also be a name on the Hub.

All of the package calls `from_pretrained` and `from_config` through this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import UnsafeNameError, path_inside
from bsmeta.core.parsing import ExtremeContentError, parse_json

if TYPE_CHECKING:  # slow to import; a run that is refused should fail fast
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

LARGEST_TEXT = 512 * 2**20
"""Bytes of the largest file of JSON or text that is read; published tokenizers have up to 40 MB."""

_TEXTS = (".json", ".txt", ".jinja", ".model")
_CONFIG, _ADAPTER, _INDEX = "config.json", "adapter_config.json", ".index.json"
_ON_HUB = (
    _CONFIG, "tokenizer_config.json", "generation_config.json", _ADAPTER,
    f"model.safetensors{_INDEX}", f"pytorch_model.bin{_INDEX}",
)  # fmt: skip
_MEGATRON = "megatron.core"
_SHOWN = 200  # characters of an entry in a message


def read_shape(source: str | Path, **changes: Any) -> PretrainedConfig:
    """Reads the shape of a model: its transformers config.

    Args:
        source: A folder, a JSON file, or a name on the Hub.
        changes: Values of the config to change.

    Raises:
        UserError: If it asks for code, or is damaged.
        OSError, ValueError: If transformers cannot load it.
    """
    from transformers import AutoConfig

    refuse_unsafe(source)
    with _named(source):
        shape: PretrainedConfig = AutoConfig.from_pretrained(
            source, trust_remote_code=False, **changes
        )
    return shape


def read_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """Reads the tokenizer of a folder or of a name on the Hub.

    Raises:
        UserError: If it asks for code, or is damaged.
        OSError, ValueError: If transformers cannot load it.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    refuse_unsafe(source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, MemoryError):
        raise
    except BaseException as error:  # a damaged file leads to any type, also one of Rust's panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _damaged(source, error) from error
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise DataError(
            f"{source}: tokenizer_class of its tokenizer_config.json names no tokenizer, but a "
            f"{type(tokenizer).__name__}; expected a tokenizer that transformers has"
        )
    return tokenizer


def read_model(kind: Any, source: str | Path, **how: Any) -> PreTrainedModel:
    """Reads a model with its weights.

    Args:
        kind: The class, with `from_pretrained`.
        source: A folder, or a name on the Hub.
        how: Further arguments of `from_pretrained`.

    Raises:
        UserError: If it asks for code, or is damaged.
        OSError, ValueError, KeyError, RuntimeError, SafetensorError: If transformers cannot load
            it.
    """
    refuse_unsafe(source)
    with _named(source):
        model: PreTrainedModel = kind.from_pretrained(source, trust_remote_code=False, **how)
    return model


def read_model_and_report(
    kind: Any, source: str | Path, **how: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Like `read_model`, with the report of transformers: weights that are missing, for example."""
    refuse_unsafe(source)
    with _named(source):
        model, report = kind.from_pretrained(
            source, trust_remote_code=False, output_loading_info=True, **how
        )
    return model, report


def new_model(kind: Any, shape: PretrainedConfig, **how: Any) -> PreTrainedModel:
    """Makes a model of a shape, with random weights.

    Args:
        kind: The class of transformers, with `from_config`.
        how: Further arguments of `from_config`.

    Raises:
        UserError: If the shape asks for code, or has values that transformers cannot compute with.
        OSError, ValueError, KeyError, RuntimeError: If transformers cannot make it.
    """
    source = shape.name_or_path or "the shape of the model"
    _refuse_entries(source, shape.to_dict(), "")
    _ask_nothing()
    with _named(source):
        model: PreTrainedModel = kind.from_config(shape, trust_remote_code=False, **how)
    return model


def refuse_unsafe(source: str | Path) -> None:
    """Refuses a model whose files ask for code, name files elsewhere, or are too large.

    Whoever loads it next is safe.

    Args:
        source: A folder, a JSON file, or a name on the Hub. What does not exist or cannot be parsed
            is left to be reported when it is loaded.

    Raises:
        ConfigurationError: Naming the file and the entry.
        UnsafeNameError: If an index names a part that is not in the folder.
    """
    _ask_nothing()
    base = _check_files(source)
    if base is not None:
        _check_files(base)  # which transformers loads with the weights of the adapter


def _check_files(source: str | Path) -> str | None:
    """Checks the files of a model, and returns the base model if it is only an adapter of one."""
    path, in_a_copy, base = Path(source), "", None
    is_whole = (path / _CONFIG).is_file()
    if path.is_dir():
        texts = [file for file in sorted(path.iterdir()) if file.suffix in _TEXTS]
        files = [
            file
            for file in texts
            if file.name.endswith(_INDEX) or ("config" in file.name and file.suffix == ".json")
        ]
    elif path.is_file():
        texts = files = [path]
    else:
        texts = files = _files_on_hub(str(source))
        in_a_copy = f" in a copy (hf download {source} --local-dir FOLDER), and name that"
    _refuse_large_files(texts)
    for file in files:
        try:
            content = parse_json(file.read_text(encoding="utf-8"))
        except ExtremeContentError as error:  # which transformers might read nevertheless
            raise ConfigurationError(
                f"{file}: {error}; expected a file that transformers wrote"
            ) from None
        except (OSError, ValueError):
            continue
        _refuse_entries(str(file), content, in_a_copy)
        if isinstance(content, dict) and file.name.endswith(_INDEX):
            _check_parts(file, content)
        elif isinstance(content, dict) and file.name == _ADAPTER and not is_whole:
            base = _base_of(file, content)
    return base


def _check_parts(index: Path, content: dict[str, Any]) -> None:
    """Refuses an index with a part of the weights that is not in its folder."""
    parts = content.get("weight_map")
    if not isinstance(parts, dict):  # which is reported when it is loaded
        return
    for name in sorted({part for part in parts.values() if isinstance(part, str)}):
        path_inside(index.parent, name, str(index), follow_links=True)


def _base_of(adapter: Path, content: dict[str, Any]) -> str | None:
    """The base model of an adapter: a name on the Hub, or a folder below the working folder.

    Raises:
        ConfigurationError: If it is another path, of the machine that the adapter was trained on,
            or of a model of this one that is none of the adapter's business.
    """
    base = content.get("base_model_name_or_path")
    if not isinstance(base, str):
        return None
    try:
        path_inside(adapter.parent, base, str(adapter), follow_links=True)
    except UnsafeNameError as error:
        raise ConfigurationError(
            f"{adapter}: base_model_name_or_path={base!r} cannot be used: {error.reason}; expected "
            "a name on the Hub. Merge the adapter into its base model (merge_and_unload of peft), "
            "and name the merged model"
        ) from error
    return base


def _refuse_large_files(files: Iterable[Path]) -> None:
    for file in files:
        if file.is_file() and file.stat().st_size > LARGEST_TEXT:
            raise ConfigurationError(
                f"{file}: has {file.stat().st_size:,} bytes; expected at most {LARGEST_TEXT:,} in "
                "a file of JSON or text beside a model"
            )


def _files_on_hub(name: str) -> list[Path]:
    """The files of a repository that may ask for code; none if it cannot be accessed."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    files: list[Path] = []
    for file in _ON_HUB:
        commit = files[0].parent.name if files else None  # without another request
        try:
            files.append(Path(hf_hub_download(name, file, revision=commit)))
        except LocalEntryNotFoundError:  # no connection, which loading it reports
            break
        except EntryNotFoundError:
            continue
        except (OSError, ValueError):  # no such repository, which loading it reports, too
            break
    return files


def _refuse_entries(where: str, content: Any, in_a_copy: str) -> None:
    """Refuses the entries of a file that ask for code, at any depth."""
    for name, value in _entries(content):
        if name == "auto_map" and value:
            raise ConfigurationError(
                f"{where}: auto_map asks to run Python code that comes with the model: "
                f"{_shown(value)}. bsmeta never runs such code. Expected classes that transformers "
                "itself has: if model_type and tokenizer_class name some, delete auto_map"
                f"{in_a_copy}; otherwise convert the model, or choose another"
            )
        if name.endswith("attn_implementation") and "/" in str(value):
            raise ConfigurationError(
                f"{where}: {name} asks for a kernel of the Hub, compiled code: {_shown(value)}. "
                f"bsmeta never loads such code; delete {name}{in_a_copy}"
            )
        if name == "megatron_core" and value not in (None, _MEGATRON):  # of peft's LoraConfig
            raise ConfigurationError(
                f"{where}: megatron_core asks to import the Python module {_shown(value)}; "
                f"expected {_MEGATRON}, or nothing: delete megatron_core{in_a_copy}"
            )


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names and values of nested mappings and lists."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from ((str(name), entry) for name, entry in value.items())
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _ask_nothing() -> None:
    """Makes transformers raise an error in place of its question whether to trust code."""
    from transformers import dynamic_module_utils

    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0


@contextmanager
def _named(source: str | Path) -> Iterator[None]:
    """Names the source of what cannot be loaded, where damaged files lead to an unusual error."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, MemoryError):
        raise
    except Exception as error:
        raise _damaged(source, error) from error


def _damaged(source: str | Path, error: BaseException) -> DataError:
    return DataError(f"{source}: one of its files is damaged ({type(error).__name__}: {error})")
