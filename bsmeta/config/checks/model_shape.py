"""Checks the shape of new weights: misspelled keys and impossible sizes in `model_config_file`.

transformers keeps a key that a config class does not have as an attribute that nothing reads, so
the model would have the default in its place. Published configs have such keys, too (`n_ctx`,
`task_specific_params`), so only a key that is almost one of the class is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bsmeta.config.schema import PretrainedConfig
from bsmeta.core.errors import Problem, format_value
from bsmeta.core.files import CONFIG_FOLDER, ROOT
from bsmeta.core.parsing import parse_json

_SHIPPED_FOLDERS = (CONFIG_FOLDER, ROOT / "examples")
_TOKEN_ID = "_token_id"
_MIN_KEY_CHARS = 5  # of a misspelled key; shorter names of different things are too similar
_MIN_WORD_CHARS = 4  # of a word with a wrong letter: ffn_dim is not a misspelled fpn_dim

# Numbers of layers, heads and hidden units, by the names that `attribute_map` translates; and of a
# second stack, for which there are no such names.
_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size")
_DECODER_SIZES = ("decoder_layers", "decoder_attention_heads", "num_decoder_layers")


def read_local_shape(name: str) -> tuple[Path, dict[str, Any]] | None:
    """Reads the `config.json` of a model on this disk.

    Args:
        name: A folder, a JSON file, or a name on the Hub.

    Returns:
        The file and its content; None for a name on the Hub, and for a file that is not a JSON
        object, which is refused when it is loaded.
    """
    file = Path(name, "config.json") if os.path.isdir(name) else Path(name)
    if not file.is_file():
        return None
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return (file, content) if isinstance(content, dict) else None


def find_shape_problems(config: PretrainedConfig) -> Iterator[Problem]:
    """Yields problems with the keys and sizes of a `model_config_file` on this disk."""
    name = config.model_config_file
    shape = None if name is None else read_local_shape(name)
    if shape is None:
        return

    # A check would take much longer with transformers, and tests check the shipped shapes.
    file, content = shape
    is_shipped = any(file.resolve().is_relative_to(folder) for folder in _SHIPPED_FOLDERS)
    if not (config.check_only and is_shipped):
        yield from _find_content_problems(str(file), content, _find_config_class(content))


def _find_config_class(content: dict[str, Any]) -> Any:
    """Returns the class of transformers for a config; None if there is none, or no type."""
    from transformers import CONFIG_MAPPING

    model_type = content.get("model_type")
    is_type = isinstance(model_type, str) and model_type in CONFIG_MAPPING
    return CONFIG_MAPPING[model_type] if is_type else None


def _find_content_problems(
    file: str, content: dict[str, Any], config_class: Any, prefix: str = ""
) -> Iterator[Problem]:
    """Yields the problems of a config and of the configs nested in it.

    Args:
        config_class: Its class; None if it is not known.
        prefix: The path of a nested config, such as `text_config.`.
    """
    if config_class is None:
        return

    fields = _list_fields(config_class)
    for key, value in content.items():
        if _is_size(key, config_class) and type(value) is int and value < 1:
            fix = "write the number of the model"
            yield Problem(prefix + key, file, format_value(value), "1 or more", fix)

        field = _find_misspelled_field(key, content, config_class, fields)
        if field is not None:
            found = "an unknown key, which transformers ignores"
            expected = f"a key of {config_class.__name__} (did you mean {field}?)"
            yield Problem(
                prefix + key, file, found, expected, f"rename it to {field}, or delete it"
            )

        if isinstance(value, dict) and key in config_class.sub_configs:
            nested_class = _choose_nested_class(value, config_class.sub_configs[key])
            yield from _find_content_problems(file, value, nested_class, f"{prefix}{key}.")


def _choose_nested_class(content: dict[str, Any], declared_class: Any) -> Any:
    """Returns the class of a nested config: by its type, or else as its parent declares."""
    is_any_class = not hasattr(declared_class, "attribute_map")  # AutoConfig
    return _find_config_class(content) or (None if is_any_class else declared_class)


def _list_fields(config_class: Any) -> list[str]:
    """Lists the keys of a config class that are not those of all classes."""
    from transformers import PretrainedConfig as BaseConfig

    names = {*config_class.__dataclass_fields__, *config_class.attribute_map}
    names -= {*BaseConfig.__dataclass_fields__}
    return sorted(name for name in names if not name.startswith("_"))


def _is_size(key: str, config_class: Any) -> bool:
    """Whether a key of a config class is a number of layers, heads or hidden units."""
    names = {config_class.attribute_map.get(name, name) for name in _SIZES}
    return key in {*_SIZES, *names, *_DECODER_SIZES}


def _find_misspelled_field(
    key: str, content: dict[str, Any], config_class: Any, fields: list[str]
) -> str | None:
    """Returns the key of a class that another key misspells; None if it is any other.

    A key beside the one that it resembles is not a misspelling, nor is the id of another token.
    """
    is_short = len(key) < _MIN_KEY_CHARS
    if is_short or hasattr(config_class, key) or key in fields or key.endswith(_TOKEN_ID):
        return None
    similar = [field for field in fields if field not in content and _is_misspelling(key, field)]
    return similar[0] if similar else None


def _is_misspelling(name: str, field: str) -> bool:
    """Whether a name differs from a key by one letter, two swapped letters, case or hyphens."""
    name = name.lower().replace("-", "_")
    if name == field:
        return True
    if abs(len(name) - len(field)) == 1:
        longer, shorter = sorted((name, field), key=len, reverse=True)
        return any(longer[:index] + longer[index + 1 :] == shorter for index in range(len(longer)))
    if len(name) != len(field):
        return False

    different = [index for index in range(len(name)) if name[index] != field[index]]
    if len(different) == 1:
        start = field.rfind("_", 0, different[0]) + 1
        return len(field[start:].partition("_")[0]) >= _MIN_WORD_CHARS
    first, last = different[0], different[-1]
    return last == first + 1 and name[first : last + 1] == field[first : last + 1][::-1]
