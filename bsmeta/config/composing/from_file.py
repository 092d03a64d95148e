"""Expands `${from_file:PATH}`: the content of another file as a value, or as part of one.

    data_config:
      metadata_config:
        html_parser_config: ${from_file:parts/html_v2.yaml}

PATH is relative to the config folder that contains the file (`hydra_configs/`, or the folder of
`--config-dir`), else to `hydra_configs/`. It may contain `${oc.env:NAME,default}`. YAML and JSON
files are parsed; any other file yields its text without the final newline.

The content replaces `${from_file:…}` before anything is composed: it may itself contain `${…}`,
including `${from_file:…}`, and each of its keys can be overridden as if it were written there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.composing.yaml_values import parse_values
from bsmeta.core.errors import ConfigurationError, suggest_nearest
from bsmeta.core.files import CONFIG_FOLDER

UNSET_MARK = "???"
"""OmegaConf's mark of a value that another file or the command line must set."""

NO_VALUE = "??? (no value)"
"""Replaces `UNSET_MARK` while files are composed; see `Expansion.expand`."""

# The path may have two levels of braces, as in `${oc.env:NAME,${oc.env:OTHER,default}}`.
_FROM_FILE = re.compile(r"\$\{from_file:((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_OPENING = "${from_file:"
_PARSED_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Expansion:
    """Expands the references `${from_file:…}` in the values of a file, or in an override.

    Attributes:
        folder: The config folder to which paths are relative.
        note_file: Called with each file that is read.
        chain: The files whose references are being expanded, outermost first.
    """

    folder: Path
    note_file: Callable[[Path], object]
    chain: tuple[Path, ...] = ()

    def expand(self, values: Any, where: str) -> Any:
        """Replaces every `${from_file:…}` in nested dicts and lists by the content of its file.

        A `???` is replaced by `NO_VALUE`, which stays until another file or the command line sets
        the key. OmegaConf would keep the earlier value, such as the default of the schema.

        Args:
            values: The values as parsed from YAML.
            where: The location of `values`, for error messages.

        Raises:
            ConfigurationError: If a file is missing or includes itself, or if a file that is no
                text is part of a text.
        """
        if isinstance(values, dict):
            return {key: self.expand(value, f"{where}: {key}") for key, value in values.items()}
        if isinstance(values, list):
            return [self.expand(value, where) for value in values]
        if values == UNSET_MARK:
            return NO_VALUE
        if not isinstance(values, str):
            return values

        whole_reference = _FROM_FILE.fullmatch(values)
        if whole_reference is not None:
            return self._read_file(whole_reference[1], where)

        def read_text(reference: re.Match[str]) -> str:
            content = self._read_file(reference[1], where)
            if not isinstance(content, str):
                _refuse_in_text(reference, where, content)
            return content

        return _replace_references(values, where, read_text)

    def expand_override(self, override: str) -> str:
        """Expands the references in `key=value` of a command line; quotes the content for Hydra.

        Raises:
            ConfigurationError: See `expand`.
        """

        def read_literal(reference: re.Match[str]) -> str:
            content = self._read_file(reference[1], override)
            is_whole_value = re.search(r"[=\[,:]\s*$", override[: reference.start()])
            if not isinstance(content, str) and not is_whole_value:
                _refuse_in_text(reference, "the command line", content)
            return _format_literal(content)

        return _replace_references(override, "the command line", read_literal)

    def _read_file(self, path: str, where: str) -> Any:
        """Reads and expands the content of the file that a reference names."""
        file = self._find_file(path, where)
        if file in self.chain:
            cycle = [*self.chain[self.chain.index(file) :], file]
            files = " -> ".join(map(str, cycle))
            raise ConfigurationError(f"{where}: circular from_file reference: {files}")

        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{where}: {file} cannot be read: {error}") from error

        content: Any = text.removesuffix("\n")
        if file.suffix in _PARSED_SUFFIXES:
            try:
                content = parse_values(text, file)
            except OSError as error:  # the file holds a single number, for example
                raise ConfigurationError(
                    f"{where}: {file} holds neither keys and values nor a list: {error}"
                ) from error

        self.note_file(file)
        return replace(self, chain=(*self.chain, file)).expand(content, str(file))

    def _find_file(self, path: str, where: str) -> Path:
        """Returns the file of a reference, whose path may contain `${oc.env:…}`."""
        where = f"{where}: {_OPENING}{path}}}"
        try:
            name = Path(str(OmegaConf.create({"path": path}).path)).expanduser()
        except OmegaConfBaseException as error:
            reason = str(error).partition("\n")[0]
            raise ConfigurationError(
                f"{where}: {reason}; the path is needed before anything is composed and may hold "
                "${oc.env:NAME,default} only"
            ) from error

        folders = list(dict.fromkeys((self.folder, CONFIG_FOLDER)))
        for folder in folders:
            file = (folder / name).resolve()
            if file.is_file():
                return file

        expected_folder = (self.folder / name).parent
        names: list[str] = []
        if expected_folder.is_dir():
            names = sorted(entry.name for entry in expected_folder.iterdir())
        raise ConfigurationError(
            f"{where}: there is no such file{suggest_nearest(name.name, names)}; expected it in "
            f"{' or '.join(map(str, folders))}"
        )


def _replace_references(text: str, where: str, read_content: Callable[[re.Match[str]], str]) -> str:
    """Replaces the references in a text; refuses one that is not closed."""
    if _OPENING in _FROM_FILE.sub("", text):
        raise ConfigurationError(f"{where}: {text} is not closed; expected a }}")
    return _FROM_FILE.sub(read_content, text)


def _refuse_in_text(reference: re.Match[str], where: str, content: Any) -> NoReturn:
    """Raises the error for a reference in a text to a file that is not a text."""
    raise ConfigurationError(
        f"{where}: {reference[0]} is part of a longer text, but its file contains a "
        f"{type(content).__name__}; make the reference the whole value, or name a text file"
    )


def _format_literal(value: Any) -> str:
    """Formats a value in the grammar of Hydra's overrides."""
    if isinstance(value, dict):
        entries = [f"{key}: {_format_literal(entry)}" for key, entry in value.items()]
        return "{" + ",".join(entries) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_format_literal, value)) + "]"
    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
