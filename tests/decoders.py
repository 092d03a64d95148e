"""Every place in the package that decodes JSON, YAML or the like, found by reading the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.patterns import Module

GATE = "core/parsing.py"

# Modules that decode; each of their attributes is a decoder unless it is listed here.
_DECODING = {"json", "yaml", "msgspec", "orjson", "ujson", "simplejson", "tomllib", "ast"}
_DECODING |= {"ruamel", "rapidjson", "hjson", "json5", "toml", "tomli", "omegaconf", "OmegaConf"}
_DECODERS = {
    "load", "loads", "load_all", "safe_load", "safe_load_all", "full_load", "full_load_all",
    "unsafe_load", "unsafe_load_all", "decode", "decode_lines", "Decoder", "JSONDecoder",
    "SafeLoader", "FullLoader", "UnsafeLoader", "Loader", "CSafeLoader", "CLoader", "literal_eval",
}  # fmt: skip
_READERS = {"read_json", "from_json_file", "parse_raw", "from_file"}  # of other libraries


def find_decoders(module: Module) -> Iterator[str]:
    """Yields the uses of decoders in a module as FILE:FUNCTION NAME, except those of the gate."""
    for node in module.nodes:
        name = _decoder(node)
        if name is not None:
            yield f"{module.file}:{_function_name(module, node)} {name}"


def _decoder(node: ast.AST) -> str | None:
    if isinstance(node, ast.ImportFrom):
        parts = (node.module or "").split(".")
        names = {alias.name for alias in node.names}
        is_decoding = parts[0] in _DECODING and parts[0] != "omegaconf"
        hidden = names & _DECODERS if is_decoding else set()
        return f"from {node.module} import {', '.join(sorted(hidden))}" if hidden else None

    if isinstance(node, ast.Import):
        hidden = {alias.name for alias in node.names if alias.asname is not None} & _DECODING
        return f"import {', '.join(sorted(hidden))} as" if hidden else None

    if isinstance(node, ast.Attribute):
        owner = ast.unparse(node.value).split(".")
        if not all(map(str.isidentifier, owner)):
            return None
        is_reader = node.attr in _READERS and owner[0] in {"pandas", "pd", "datasets", "pyarrow"}
        if is_reader or (node.attr in _DECODERS and owner[0] in _DECODING):
            return ast.unparse(node)
    return None


def _function_name(module: Module, node: ast.AST) -> str:
    function = module.function_of(node)
    return "" if function is None else function.name
