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
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from bsmeta.config import interpolation
from bsmeta.config.describe import PARTS
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.resources import CONFIG_FOLDER


@dataclass
class Reading:
    """How Hydra reads its files in this process, and which it has read since `clear`."""

    # The outermost keys of the schema. A folder of such a name is not a group: `metadata=…` is a
    # key of generate.py, and a group of train.py.
    no_groups: frozenset[str] = frozenset()
    own_folder: Path | None = None  # searched before all others
    left_out: set[str] = field(default_factory=set)  # dotted keys that are dropped from files
    left_out_defaults: set[str] = field(default_factory=set)  # GROUP/OPTION
    files: list[Path] = field(default_factory=list)
    # For each config file: its package, such as `data_config` or "", and its keys and values.
    contents: dict[Path, tuple[str, dict[Any, Any]]] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)  # as composed, with every ${…}

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
    reading.no_groups = frozenset({*keys, PARTS})
    reading.own_folder = own_folder
    reading.left_out.clear()
    reading.left_out_defaults.clear()
    reading.clear()
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = ExpandingSource
    plugins.register(OwnFolderFirst)


def composed_files() -> list[str]:
    """The files that the configuration was composed from, in the order in which they were read."""
    return [shown_path(file) for file in reading.files]


def note_written(composed: DictConfig) -> None:
    """Keeps a composed configuration as it is written, before its `${…}` are replaced."""
    written = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(written, dict)
    reading.written = {str(name): value for name, value in written.items()}


def unread_keys(name: str) -> list[str]:
    """The keys below a key of the configuration that no `${…}` of it names."""
    return interpolation.unread(reading.written, name) if name in reading.written else []


def overridden_keys() -> list[str]:
    """The keys that the command line of a run sets; [] if Hydra has refused it."""
    if not HydraConfig.initialized():
        return []
    parsed = OverridesParser.create().parse_overrides([*HydraConfig.get().overrides.task])
    return [override.key_or_group for override in parsed]


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
        return config_path not in reading.no_groups and super().is_group(config_path)

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
        if any(_default_name(entry) == config_path for entry in values.get("defaults") or ()):
            raise ConfigurationError(
                f"{file}: its defaults list names {config_path}, which is this file itself (the "
                "files of --config-dir win over those of their name); give it another name, and "
                "pass that as --config-name"
            )
        package = _package(result.header.get("package"), config_path)
        kept = _without(values, package)
        expanded = interpolation.expand(kept, Path(self.path), shown_path(file), reading.files)
        content = {name: expanded[name] for name in expanded if name not in ("defaults", "hydra")}
        reading.contents[file] = (package, content)
        if expanded != values:
            result.config = OmegaConf.create(expanded)
        return result


def _package(header: str | None, config_path: str) -> str:
    """The dotted key under which a file's keys are placed, or ""."""
    if header is None:
        return config_path.rpartition("/")[0].replace("/", ".")
    return "" if header == "_global_" else header


def nested(package: str, content: dict[Any, Any]) -> dict[Any, Any]:
    """Nests the content of a file under the keys of its package."""
    for name in reversed(package.split(".") if package else []):
        content = {name: content}
    return content


def _without(values: dict[Any, Any], package: str) -> dict[Any, Any]:
    """The content of a file without the keys and defaults that are left out."""
    if package in reading.left_out:
        return {"defaults": values["defaults"]} if "defaults" in values else {}
    kept = _dropped(values, f"{package}." if package else "")
    defaults = kept.get("defaults")
    if isinstance(defaults, list):
        kept["defaults"] = [
            entry for entry in defaults if _default_name(entry) not in reading.left_out_defaults
        ]
    return kept


def _dropped(values: dict[Any, Any], prefix: str) -> dict[Any, Any]:
    return {
        name: _dropped(value, f"{prefix}{name}.") if isinstance(value, dict) else value
        for name, value in values.items()
        if f"{prefix}{name}" not in reading.left_out
    }


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


def store_name(schema: type) -> str:
    """The name of a schema in defaults lists: `causal_lm_config` for `CausalLMConfig`."""
    border = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(border, "_", schema.__name__).lower()


def choose(
    arguments: Sequence[str], schemas: Sequence[type[Config]], config_name: str
) -> type[Config]:
    """The schema of a command line; the first if it is unclear, which is refused later."""
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
