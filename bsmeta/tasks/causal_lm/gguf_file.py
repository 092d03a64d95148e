"""Writes an exported model as `model.gguf`, the file of llama.cpp, with llama.cpp's own library.

The library names the tensors (`get_tensor_name_map`). The other steps of llama.cpp's
`convert_hf_to_gguf.py` are repeated here for the architectures in `ARCHITECTURES`: GPT-2's linear
layers are transposed, and in Llama the rows of queries and keys are put into the order of ggml's
rotary positions. The file also holds the tokenizer with its chat template. Weights are float32;
`llama-quantize` makes smaller files of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.model_files import read_model_config, read_tokenizer
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import report_progress
from bsmeta.data.text.lossless import list_pre_tokenizers
from bsmeta.models.shapes import find_text_shape

if TYPE_CHECKING:  # an optional library
    from gguf import GGUFWriter

GGUF_FILE = "model.gguf"

LLAMA_3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class GGUFArchitecture:
    """An architecture that can be written.

    Attributes:
        name: Its name in a GGUF file.
        required: Values of the transformers config that llama.cpp supports, by key.
        add_shape: Adds the shape of a model to a file.
        convert: Converts a tensor, given its name, to the layout of ggml.
    """

    name: str
    required: dict[str, tuple[Any, ...]]
    add_shape: Callable[[GGUFWriter, PretrainedConfig], None]
    convert: Callable[[str, np.ndarray, PretrainedConfig], np.ndarray]


def _add_gpt2_shape(writer: GGUFWriter, shape: PretrainedConfig) -> None:
    """Adds the shape of a GPT-2 model."""
    writer.add_block_count(shape.n_layer)
    writer.add_context_length(shape.n_positions)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_inner or 4 * shape.n_embd)
    writer.add_head_count(shape.n_head)
    writer.add_layer_norm_eps(shape.layer_norm_epsilon)


def _convert_gpt2(name: str, tensor: np.ndarray, shape: PretrainedConfig) -> np.ndarray:
    """Transposes the weights of linear layers."""
    is_linear = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    return np.ascontiguousarray(tensor.T) if is_linear else tensor


def _add_llama_shape(writer: GGUFWriter, shape: PretrainedConfig) -> None:
    """Adds the shape of a Llama model."""
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_rope_freq_base(_read_rope(shape)["rope_theta"])
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)


def _read_rope(shape: PretrainedConfig) -> dict[str, Any]:
    """Returns the settings of the rotary positions; {} without any, as in GPT-2."""
    return getattr(shape, "rope_parameters", None) or {}


def _convert_llama(name: str, tensor: np.ndarray, shape: PretrainedConfig) -> np.ndarray:
    """Interleaves the two halves of each head's rows in the weights of queries and keys."""
    if name.endswith(".q_proj.weight"):
        heads = shape.num_attention_heads
    elif name.endswith(".k_proj.weight"):
        heads = shape.num_key_value_heads
    else:
        return tensor

    rows, columns = tensor.shape
    halves = tensor.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


ARCHITECTURES = {
    "gpt2": GGUFArchitecture(
        "gpt2",
        {
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
        },
        _add_gpt2_shape,
        _convert_gpt2,
    ),
    "llama": GGUFArchitecture(
        "llama",
        {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
        _add_llama_shape,
        _convert_llama,
    ),
}
"""The architectures that can be written, by `model_type`."""


def check_gguf(model_config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a model or a tokenizer with which llama.cpp would compute something else.

    Raises:
        ConfigurationError: If an architecture, a value of its config or a tokenizer is not
            supported.
    """
    shape = find_text_shape(model_config)
    architecture = ARCHITECTURES.get(shape.model_type)
    if architecture is None:
        raise ConfigurationError(
            f"gguf=true: the model is a {shape.model_type}; expected {' or '.join(ARCHITECTURES)}. "
            "Use gguf=false, and convert_hf_to_gguf.py of llama.cpp on the exported model"
        )

    for name, values in architecture.required.items():
        if getattr(shape, name) not in values:
            raise ConfigurationError(
                f"gguf=true: {name} of the model is {getattr(shape, name)}; llama.cpp computes "
                f"{' or '.join(map(str, values))}; use gguf=false"
            )
    rope_type = _read_rope(shape).get("rope_type", "default")
    if rope_type != "default":
        raise ConfigurationError(
            f"gguf=true: the rotary positions of the model are scaled (rope_type={rope_type}); "
            "expected default. Use gguf=false, and convert_hf_to_gguf.py of llama.cpp"
        )
    find_pre_tokenizer(tokenizer)


def find_pre_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns llama.cpp's name for the pre-tokenizer, which splits a text into words.

    Raises:
        ConfigurationError: If the tokenizer is not byte-level BPE, or its pre-tokenizer is unknown.
    """
    parts = parse_json(tokenizer.backend_tokenizer.to_str())
    model = parts["model"]
    if model["type"] == "BPE" and parts["normalizer"] is None:
        match list_pre_tokenizers(parts["pre_tokenizer"]):
            case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
                if not model.get("ignore_merges"):
                    return "gpt-2"
            case [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"},
                {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False},
            ] if pattern == LLAMA_3_PATTERN and model.get("ignore_merges"):
                return "llama-bpe"
    raise ConfigurationError(
        f"gguf=true: the tokenizer {tokenizer.name_or_path} splits a text in a way that is not "
        "known here; expected the byte-level BPE of GPT-2 or Llama 3. Use gguf=false, and "
        "convert_hf_to_gguf.py of llama.cpp on the exported model"
    )


def write_gguf(folder: Path, *, has_bos: bool) -> None:
    """Writes `model.gguf` into the folder of an exported model.

    Args:
        has_bos: Whether documents begin with the tokenizer's BOS token.

    Raises:
        ConfigurationError: See `check_gguf`.
    """
    import gguf

    model_config = read_model_config(folder)
    tokenizer = read_tokenizer(folder)
    check_gguf(model_config, tokenizer)
    shape = find_text_shape(model_config)
    architecture = ARCHITECTURES[shape.model_type]

    writer = gguf.GGUFWriter(folder / GGUF_FILE, architecture.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    architecture.add_shape(writer, shape)
    writer.add_vocab_size(shape.vocab_size)
    _add_tokenizer(writer, tokenizer, shape.vocab_size)
    special_tokens = gguf.SpecialVocab(folder, load_merges=True, n_vocab=shape.vocab_size)
    special_tokens.add_special_token |= {
        "bos": has_bos and tokenizer.bos_token_id is not None,
        "eos": False,
    }
    special_tokens.add_to_gguf(writer, quiet=True)

    _write_tensors(writer, folder, architecture, shape)
    writer.close()


def _write_tensors(
    writer: GGUFWriter, folder: Path, architecture: GGUFArchitecture, shape: PretrainedConfig
) -> None:
    """Writes the header of the file and the weights of the model in `folder`.

    All names and shapes come first, then the data of each tensor, so only one is in memory.

    Raises:
        ConfigurationError: If the architecture has no tensor of a name.
    """
    import gguf

    names = gguf.get_tensor_name_map(_find_architecture(architecture.name), shape.num_hidden_layers)
    for name, tensor in _iterate_tensors(folder):
        converted = architecture.convert(name, tensor, shape)
        ggml_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if ggml_name is None:
            raise ConfigurationError(f"gguf=true: {name} has no name in {architecture.name}")
        writer.add_tensor_info(ggml_name, converted.shape, converted.dtype, converted.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in _iterate_tensors(folder):
        writer.write_tensor_data(architecture.convert(name, tensor, shape))


def _find_architecture(name: str) -> Any:
    """Returns the library's number of an architecture."""
    from gguf import MODEL_ARCH_NAMES

    return next(number for number, other in MODEL_ARCH_NAMES.items() if other == name)


def _iterate_tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and the weights of a model, in float32."""
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in sorted(weights.keys()):
                yield name, weights.get_tensor(name).float().numpy()
                report_progress()


def _add_tokenizer(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Adds the tokens of a byte-level BPE tokenizer, and names for unused embeddings."""
    import gguf

    names = {number: name for name, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens: list[str] = []
    types: list[int] = []
    for number in range(size):
        tokens.append(names.get(number, f"[PAD{number}]"))
        if number not in names:
            types.append(gguf.TokenType.UNUSED)
        elif number not in added:
            types.append(gguf.TokenType.NORMAL)
        elif added[number].special:
            types.append(gguf.TokenType.CONTROL)
        else:
            types.append(gguf.TokenType.USER_DEFINED)

    writer.add_tokenizer_model("gpt2")  # llama.cpp's name of byte-level BPE
    writer.add_tokenizer_pre(find_pre_tokenizer(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
