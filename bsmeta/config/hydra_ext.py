"""Extensions that use Hydra's internals: its config file reader, search path and parser.

Hydra offers no public API for them, so a new version of it may break them:
`tests/config/test_hydra_ext.py` checks for the version that they were written for. The defaults
list that the reader finds names the schema of a configuration.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from bsmeta.config import interpolation
from bsmeta.config.checks import load
from bsmeta.config.describe import PARTS
from bsmeta.core.errors import ConfigurationError, show
from bsmeta.core.files import CONFIG_FOLDER

MISSING = "???"  # OmegaConf's mark of a value that is still to be given
NO_VALUE = "??? (no value)"


@dataclass
class Reading:
    """How Hydra reads its files in this process, and which it has read since `clear`."""

    # Those of the schema. A folder of such a name is not a group: `metadata=…` is a key of
    # generate.py, and a group of train.py.
    keys: frozenset[str] = frozenset()
    own_folder: Path | None = None  # searched before all others
    main_folder: Path = CONFIG_FOLDER
    left_out: set[str] = field(default_factory=set)  # entries of defaults lists, GROUP/OPTION
    files: list[Path] = field(default_factory=list)
    # For each config file: its package, such as `data_config` or "", and its keys and values.
    contents: dict[Path, tuple[str, dict[Any, Any]]] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)  # as composed, with every ${…}
    overridden: tuple[str, ...] = ()  # the keys that the command line sets

    def clear(self) -> None:
        """Clears the record of files read."""
        self.files.clear()
        self.contents.clear()
        self.written = {}


reading = Reading()


def install(keys: Iterable[str], own_folder: Path | None = None) -> None:
    """Makes Hydra read its files through this module (idempotent).

    Args:
        own_folder: The config folder of the user; its files override others of the same name.
    """
    plugins = Plugins.instance()  # registers Hydra's own sources, which would replace ours later
    reading.keys = frozenset(keys)
    reading.own_folder = own_folder
    reading.left_out.clear()
    reading.clear()
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = ExpandingSource
    plugins.register(OwnFolderFirst)


def composed_files() -> list[str]:
    """The files that the configuration was composed from, in the order in which they were read."""
    return [shown_path(file) for file in reading.files]


def unread_keys(name: str) -> list[str]:
    """The keys below a key of the configuration that no `${…}` of it names."""
    return interpolation.unread(reading.written, name) if name in reading.written else []


def key_of(override: str) -> str:
    """The key or group of an override, `+learning_rate=1` or `~model`."""
    return override.partition("=")[0].lstrip("+~")


def sets_key(override: str) -> bool:
    """Whether an override sets a key: not a group, nor a setting of Hydra; and deletes nothing."""
    name = key_of(override).partition("@")[0]
    folders = [reading.main_folder, reading.own_folder or reading.main_folder]
    is_group = _may_be_group(name) and any((at / name).is_dir() for at in folders)
    return not override.startswith("~") and not name.startswith("hydra") and not is_group


def _may_be_group(name: str) -> bool:
    return name not in reading.keys and name != PARTS


def settable(overrides: Sequence[str]) -> list[str]:
    """Overrides with which Hydra sets any key: with `++`, unless the schema has the key.

    Entries of mappings are free, and unknown keys are found later.
    """

    def forced(override: str) -> str:
        bare, value = override.lstrip("+"), override.partition("=")[2]
        is_known = key_of(override) in reading.keys and not value.startswith("{")
        return bare if is_known else f"++{bare}"

    return [forced(override) if sets_key(override) else override for override in overrides]


def nested(name: str, content: Any) -> Any:
    """Content below the sections of a dotted name, or itself without one."""
    for section in reversed(name.split(".") if name else []):
        content = {section: content}
    return content


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
        return _may_be_group(config_path) and super().is_group(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path) / self._normalize_file_name(config_path)
        try:
            result = super().load_config(config_path)
        except (OSError, UnicodeDecodeError) as error:  # OSError: also for a file that is a number
            raise ConfigurationError(f"{file}: cannot be read: {error}") from error
        values = OmegaConf.to_container(result.config, resolve=False)
        if not isinstance(values, dict):
            raise ConfigurationError(f"{file}: found a list, expected keys and values")
        if file not in reading.files:
            reading.files.append(file)
        entries = values.pop("defaults", None)
        _check_defaults(entries, file)
        if config_path in map(_default_name, entries or ()):
            raise ConfigurationError(
                f"{file}: its defaults list names {config_path}, which is this file itself (the "
                "files of --config-dir win over those of their name); give it another name, and "
                "pass that as --config-name"
            )
        package = _package(result.header.get("package"), config_path)
        expanded = interpolation.expand(values, Path(self.path), shown_path(file), reading.files)
        content = {name: _marked(expanded[name]) for name in expanded if name != "hydra"}
        reading.contents[file] = (package, content)
        whole = {**expanded, **content}
        if entries is not None:
            whole["defaults"] = [
                entry for entry in entries if _default_name(entry) not in reading.left_out
            ]
        result.config = OmegaConf.create(whole)
        return result


def _package(header: str | None, config_path: str) -> str:
    """The dotted key under which a file's keys are placed, or ""."""
    if header is None:
        return config_path.rpartition("/")[0].replace("/", ".")
    return "" if header == "_global_" else header


def _marked(value: Any) -> Any:
    """Values in which a `???` stays until another file or the command line replaces it.

    OmegaConf would take what was there before, such as the default of the schema.
    """
    if isinstance(value, dict):
        return {name: _marked(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [*map(_marked, value)]
    return NO_VALUE if value == MISSING else value


def _check_defaults(entries: Any, file: Path) -> None:
    """Refuses a defaults list for which Hydra would have a traceback."""
    expected = "expected a list: [causal_lm_config, {model: llama_tiny}, _self_], for example"
    if entries is not None and not isinstance(entries, list):
        raise ConfigurationError(f"{file}: defaults: found {show(entries)}, {expected}")
    for entry in entries or ():
        if not isinstance(entry, str) and not (isinstance(entry, dict) and len(entry) == 1):
            raise ConfigurationError(f"{file}: defaults: found the entry {show(entry)}, {expected}")


def _default_name(entry: Any) -> str:
    """An entry of a defaults list, `GROUP/OPTION` or `{GROUP: OPTION}`, as `GROUP/OPTION`."""
    if isinstance(entry, dict):
        group, option = next(iter(entry.items()))
        entry = f"{re.sub(r'^(override|optional) +|@.*', '', str(group))}/{option}"
    return str(entry)


class ArgumentParser(argparse.ArgumentParser):
    """A parser that raises its errors instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"the command line: {message}; see --help")


def argument_parser() -> ArgumentParser:
    """The parser of Hydra's own options."""
    return ArgumentParser(parents=[get_args_parser()], add_help=False, allow_abbrev=False)


Config = TypeVar("Config")


def store_name(schema: type | str) -> str:
    """The name of a schema in defaults lists: `causal_lm_config` for `CausalLMConfig`."""
    name = schema.rpartition(":")[2] if isinstance(schema, str) else schema.__name__
    border = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(border, "_", name).lower()


def choose(
    arguments: Sequence[str], schemas: Sequence[type[Config] | str], config_name: str
) -> type[Config]:
    """The schema of a command line; the first if it is unclear, which is refused later.

    Args:
        schemas: Those that are possible; one as `module:attribute` is imported if it is chosen.
    """
    chosen = _choose(arguments, schemas, config_name)
    return load(chosen) if isinstance(chosen, str) else chosen


def _choose(
    arguments: Sequence[str], schemas: Sequence[type[Config] | str], config_name: str
) -> type[Config] | str:
    try:
        parsed, _ = argument_parser().parse_known_intermixed_args(list(arguments))
    except ConfigurationError:
        return schemas[0]
    folders = [parsed.config_dir, parsed.config_path or CONFIG_FOLDER]
    known = {store_name(schema): schema for schema in schemas}
    name = _first_of(
        str(parsed.config_name or config_name),
        [Path(folder).expanduser() for folder in folders if folder],
        set(known),
        set(),
    )
    return known.get(name, schemas[0])


def _first_of(name: str, folders: Sequence[Path], known: set[str], seen: set[str]) -> str:
    """The first schema that the defaults list of a file names, directly or through its files."""
    stem = name.removesuffix(".yaml").lstrip("/")
    if stem in known:
        return stem
    file = next((path for at in folders if (path := at / f"{stem}.yaml").is_file()), None)
    if file is None or stem in seen:
        return ""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return ""
    entries = content.get("defaults") if isinstance(content, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str) and entry != "_self_":
            found = _first_of(entry, folders, known, seen | {stem})
            if found:
                return found
    return ""
