"""`${from_file:PATH}`: the content of another file as (part of) a value of a configuration.

    data_config:
      metadata_config:
        html_parser_config: ${from_file:parts/html_v2.yaml}

PATH is relative to the config folder that contains the file (`hydra_configs/`, or the one of
`--config-dir`), else to `hydra_configs/`; it may contain `${oc.env:NAME,default}`. YAML and JSON
files are parsed; any other file yields its text without the final newline. The content replaces
`${from_file:…}` before anything is composed: it may itself contain `${…}`, also `${from_file:…}`,
and each of its keys can be overridden as if it had been written there.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.checks.problems import nearest
from bsmeta.config.describe import CONFIG_FOLDER
from bsmeta.config.errors import ConfigurationError

_OPENS = "${from_file:"
_YAML = (".yaml", ".yml", ".json")


def expand(
    values: Any,
    folder: Path,
    where: str,
    files: list[Path] | None = None,
    chain: tuple[Path, ...] = (),
) -> Any:
    """Replaces every `${from_file:…}` in nested dicts and lists by the content of its file.

    Args:
        values: The values as parsed from YAML.
        folder: The config folder that paths are relative to.
        where: The location of `values`, for error messages.
        files: Every file that is read is appended to this list.
        chain: The files that are being read, outermost first.

    Raises:
        ConfigurationError: If a file is missing, includes itself, or does not fit its place.
    """
    if isinstance(values, dict):
        return {k: expand(v, folder, f"{where}: {k}", files, chain) for k, v in values.items()}
    if isinstance(values, list):
        return [expand(value, folder, where, files, chain) for value in values]
    if not isinstance(values, str) or _OPENS not in values:
        return values
    parts = list(_parts(values, where))
    if len(parts) == 1:
        return _content(parts[0][1], folder, where, files, chain)

    def text(path: str) -> str:
        content = _content(path, folder, where, files, chain)
        if not isinstance(content, str):
            raise ConfigurationError(
                f"{where}: {_OPENS}{path}}} stands within a text, but the file holds "
                f"{type(content).__name__}; let it be the whole value, or name a text file"
            )
        return content

    return "".join(text(part) if is_path else part for is_path, part in parts)


def expand_overrides(overrides: Sequence[str], folder: Path) -> list[str]:
    """Like `expand`, for `key=value` of a command line; writes the content in Hydra's grammar."""

    def expanded(text: str) -> str:
        if _OPENS not in text:
            return text
        return "".join(
            _literal(_content(part, folder, text)) if is_path else part
            for is_path, part in _parts(text, "the command line")
        )

    return [expanded(override) for override in overrides]


def _parts(text: str, where: str) -> Iterator[tuple[bool, str]]:
    """Splits a text into (False, literal text) and (True, the path of a `${from_file:path}`)."""
    at = 0
    while (start := text.find(_OPENS, at)) >= 0:
        if start > at:
            yield False, text[at:start]
        depth, end = 1, start + len(_OPENS)
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:
            raise ConfigurationError(f"{where}: {text} is not closed; expected a }}")
        yield True, text[start + len(_OPENS) : end - 1]
        at = end
    if at < len(text):
        yield False, text[at:]


def _content(
    path: str,
    folder: Path,
    where: str,
    files: list[Path] | None = None,
    chain: tuple[Path, ...] = (),
) -> Any:
    file = _find(path, folder, where)
    if file in chain:
        cycle = " -> ".join(str(one) for one in (*chain[chain.index(file) :], file))
        raise ConfigurationError(f"{where}: from_file goes round in a circle: {cycle}")
    text = file.read_text(encoding="utf-8")
    if file.suffix not in _YAML:
        values: Any = text.removesuffix("\n")
    else:
        try:
            values = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
        except OSError as error:  # a single number or the like
            raise ConfigurationError(
                f"{where}: {file} holds neither keys and values nor a list: {error}"
            ) from error
    if files is not None and file not in files:
        files.append(file)
    return expand(values, folder, str(file), files, (*chain, file))


def _find(path: str, folder: Path, where: str) -> Path:
    try:
        name = str(OmegaConf.create({"path": path}).path)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{where}: {_OPENS}{path}}}: {reason}; the path is needed before anything is composed "
            "and may hold ${oc.env:NAME,default} only"
        ) from error
    folders = list(dict.fromkeys((folder, CONFIG_FOLDER)))
    for one in folders:
        file = (one / Path(name).expanduser()).resolve()
        if file.is_file():
            return file
    here = (folders[0] / name).parent
    known = sorted(one.name for one in here.iterdir()) if here.is_dir() else []
    raise ConfigurationError(
        f"{where}: {_OPENS}{path}}}: there is no such file"
        f"{nearest(Path(name).name, known)}; expected it in {' or '.join(map(str, folders))}"
    )


def _literal(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_literal, value)) + "]"
    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)
