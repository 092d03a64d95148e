"""Reads the files of a configuration for Hydra, and records which of them sets which keys.

Hydra offers no public API for its config file reader and its search path, so a new version of it
may break them: `tests/config/test_sources.py` checks for the version that they were written for.

`${from_file:PATH}` is the content of another file as (part of) a value:

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
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.core.errors import ConfigurationError, nearest, show
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.parsing import parse_yaml_file

PARTS = "parts"
"""The folder of `hydra_configs/` that is not a group: its files are for `${from_file:…}`."""

MISSING = "???"  # OmegaConf's mark of a value that is still to be given
NO_VALUE = "??? (no value)"

# With up to two levels of braces inside, as of `${oc.env:NAME,${oc.env:OTHER,default}}`.
_FROM_FILE = re.compile(r"\$\{from_file:((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_OPENS = "${from_file:"
_YAML = (".yaml", ".yml", ".json")


@dataclass
class Reading:
    """How Hydra reads its files in this process, and which it has read since `clear`."""

    # Those of the schema. A folder of such a name is not a group: `metadata=…` is a key of
    # generate.py, and a group of train.py.
    keys: frozenset[str] = frozenset()
    own_folder: Path | None = None  # searched before all others
    main_folder: Path = CONFIG_FOLDER
    left_out: set[str] = field(default_factory=set)  # entries of defaults lists, GROUP/OPTION
    # For each file: its package, such as `data_config` or "", and its keys and values (none of a
    # part, whose content is that of the file that names it).
    contents: dict[Path, tuple[str, dict[Any, Any]]] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)  # as composed, with every ${…}
    overridden: tuple[str, ...] = ()  # the keys that the command line sets

    @property
    def folders(self) -> list[Path]:
        """The config folders, in the order in which they are searched."""
        return [folder for folder in (self.own_folder, self.main_folder) if folder is not None]

    def clear(self) -> None:
        """Clears the record of files read."""
        self.contents.clear()
        self.written = {}

    def is_group(self, name: str) -> bool:
        """Whether a name is that of a group: a folder whose files are choices."""
        is_taken = name in self.keys or name == PARTS
        return not is_taken and any((folder / name).is_dir() for folder in self.folders)


reading = Reading()


def group_options() -> dict[str, list[str]]:
    """The groups of `hydra_configs/` (`model=…`, `+recipes=…`) and what each offers."""
    folders = sorted(
        path for path in CONFIG_FOLDER.iterdir() if path.is_dir() and path.name != PARTS
    )
    return {path.name: sorted(file.stem for file in path.glob("*.yaml")) for path in folders}


def install(keys: Iterable[str], own_folder: Path | None = None) -> None:
    """Makes Hydra read its files through this module (idempotent).

    Args:
        keys: Those of the schema.
        own_folder: The config folder of the user; its files override others of the same name.
    """
    plugins = Plugins.instance()  # registers Hydra's own sources, which would replace ours later
    reading.keys = frozenset(keys)
    reading.own_folder = own_folder
    reading.left_out.clear()
    reading.clear()
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = ExpandingSource
    plugins.register(OwnFolderFirst)


def shown_path(file: Path) -> str:
    """The path relative to the working folder if it is inside, else unchanged."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


class OwnFolderFirst(SearchPathPlugin):
    """Puts the user's folder before `hydra_configs/`; Hydra's own --config-dir comes after it."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if reading.own_folder is not None:
            search_path.prepend("own", f"file://{reading.own_folder}", anchor="main")


class ExpandingSource(FileConfigSource):
    """Hydra's config file reader, with every `${from_file:…}` replaced by the file's content."""

    def is_group(self, config_path: str) -> bool:
        is_taken = config_path in reading.keys or config_path == PARTS
        return not is_taken and super().is_group(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path) / self._normalize_file_name(config_path)
        try:
            if file.is_file():
                # First, because Hydra takes everything.
                parse_yaml_file(file.read_text(encoding="utf-8"), file)
            result = super().load_config(config_path)
        except (OSError, UnicodeDecodeError) as error:  # OSError: also for a file that is a number
            raise ConfigurationError(f"{file}: cannot be read: {error}") from error
        values = OmegaConf.to_container(result.config, resolve=False)
        if not isinstance(values, dict):
            raise ConfigurationError(f"{file}: found a list, expected keys and values")
        reading.contents[file] = ("", {})  # before those that it names
        entries = values.pop("defaults", None)
        names = [*_names_of_defaults(entries, file)]
        if config_path in names:
            raise ConfigurationError(
                f"{file}: its defaults list names {config_path}, which is this file itself (the "
                "files of --config-dir win over those of their name); give it another name, and "
                "pass that as --config-name"
            )
        package = result.header.get("package") or config_path.rpartition("/")[0].replace("/", ".")
        values = expand(values, Path(self.path), shown_path(file))
        keys = {name: value for name, value in values.items() if name != "hydra"}
        reading.contents[file] = ("" if package == "_global_" else package, keys)
        if entries is not None:
            kept = zip(entries, names, strict=True)
            values["defaults"] = [entry for entry, name in kept if name not in reading.left_out]
        result.config = OmegaConf.create(values)
        return result


def _names_of_defaults(entries: Any, file: Path) -> Iterator[str]:
    """Yields the entries of a defaults list as `GROUP/OPTION`, `model/gpt2` for {model: gpt2}.

    Raises:
        ConfigurationError: If it is none, for which Hydra would have a traceback.
    """
    expected = "expected a list: [causal_lm_config, {model: llama_tiny}, _self_], for example"
    if entries is not None and not isinstance(entries, list):
        raise ConfigurationError(f"{file}: defaults: found {show(entries)}, {expected}")
    for entry in entries or ():
        if isinstance(entry, dict) and len(entry) == 1:
            group, option = next(iter(entry.items()))
            yield f"{re.sub(r'^(override|optional) +|@.*', '', str(group))}/{option}"
        elif isinstance(entry, str):
            yield entry
        else:
            raise ConfigurationError(f"{file}: defaults: found the entry {show(entry)}, {expected}")


def expand(values: Any, folder: Path, where: str, chain: tuple[Path, ...] = ()) -> Any:
    """Replaces every `${from_file:…}` in nested dicts and lists by the content of its file.

    A `???` is replaced, too, so that it stays until another file or the command line sets the key:
    OmegaConf would take what was there before, such as the default of the schema.

    Args:
        values: The values as parsed from YAML.
        folder: The config folder that paths are relative to.
        where: The location of `values`, for error messages.
        chain: The files that are being read, outermost first.

    Raises:
        ConfigurationError: If a file is missing, includes itself, or does not fit its place.
    """
    if isinstance(values, dict):
        return {k: expand(v, folder, f"{where}: {k}", chain) for k, v in values.items()}
    if isinstance(values, list):
        return [expand(value, folder, where, chain) for value in values]
    if values == MISSING:
        return NO_VALUE
    if not isinstance(values, str):
        return values
    if whole := _FROM_FILE.fullmatch(values):
        return _content(whole[1], folder, where, chain)

    def text(found: re.Match[str]) -> str:
        content = _content(found[1], folder, where, chain)
        return content if isinstance(content, str) else _refuse_within(found, where, content)

    return _replaced(values, where, text)


def expand_override(override: str, folder: Path) -> str:
    """Like `expand`, for `key=value` of a command line; writes the content in Hydra's grammar."""

    def literal(found: re.Match[str]) -> str:
        content = _content(found[1], folder, override)
        is_value = re.search(r"[=\[,:]\s*$", override[: found.start()])
        if not isinstance(content, str) and not is_value:
            _refuse_within(found, "the command line", content)
        return _literal(content)

    return _replaced(override, "the command line", literal)


def _replaced(text: str, where: str, content: Callable[[re.Match[str]], str]) -> str:
    if _OPENS in _FROM_FILE.sub("", text):
        raise ConfigurationError(f"{where}: {text} is not closed; expected a }}")
    return _FROM_FILE.sub(content, text)


def _refuse_within(found: re.Match[str], where: str, content: Any) -> NoReturn:
    raise ConfigurationError(
        f"{where}: {found[0]} stands within a text, but the file holds {type(content).__name__}; "
        "let it be the whole value, or name a text file"
    )


def _content(path: str, folder: Path, where: str, chain: tuple[Path, ...] = ()) -> Any:
    file = _find(path, folder, where)
    if file in chain:
        cycle = " -> ".join(map(str, (*chain[chain.index(file) :], file)))
        raise ConfigurationError(f"{where}: circular from_file reference: {cycle}")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{where}: {file} cannot be read: {error}") from error
    values: Any = text.removesuffix("\n")
    if file.suffix in _YAML:
        try:
            parse_yaml_file(text, file)  # first, because OmegaConf takes everything
            values = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
        except OSError as error:  # a single number or the like
            raise ConfigurationError(
                f"{where}: {file} holds neither keys and values nor a list: {error}"
            ) from error
    reading.contents.setdefault(file, ("", {}))
    return expand(values, folder, str(file), (*chain, file))


def _find(path: str, folder: Path, where: str) -> Path:
    where = f"{where}: {_OPENS}{path}}}"
    try:
        name = Path(str(OmegaConf.create({"path": path}).path)).expanduser()
    except OmegaConfBaseException as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"{where}: {reason}; the path is needed before anything is composed and may hold "
            "${oc.env:NAME,default} only"
        ) from error
    folders = dict.fromkeys((folder, CONFIG_FOLDER))
    files = [file for at in folders if (file := (at / name).resolve()).is_file()]
    if files:
        return files[0]
    beside = (folder / name).parent
    known = sorted(entry.name for entry in beside.iterdir()) if beside.is_dir() else []
    raise ConfigurationError(
        f"{where}: there is no such file{nearest(name.name, known)}; expected it in "
        f"{' or '.join(map(str, folders))}"
    )


def _literal(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {_literal(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_literal, value)) + "]"
    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
