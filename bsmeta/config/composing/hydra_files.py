"""Reads the files of a configuration for Hydra, and records the keys that each of them sets.

Hydra has no public API for its file reader and its search path, so a new version may break this
module; `tests/config/composing/test_hydra_files.py` checks that Hydra has the version of this
module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hydra._internal.core_plugins import structured_config_source
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import (
    ImportlibResourcesConfigSource,
)
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from bsmeta.config.composing.from_file import Expansion
from bsmeta.config.composing.groups import PARTS_FOLDER
from bsmeta.config.composing.yaml_values import parse_values
from bsmeta.core.errors import ConfigurationError, format_value
from bsmeta.core.files import CONFIG_FOLDER, refuse_special_file

_HEADER_CHARS = 512
"""Number of characters at the beginning of a file in which Hydra searches for `# @package`."""


@dataclass(frozen=True)
class FileRecord:
    """A file that has been read.

    Attributes:
        package: The section that the content belongs to, such as `data_config`; "" for the whole
            configuration.
        content: The keys and values; empty for a file that another one includes, whose content has
            them.
    """

    package: str = ""
    content: Mapping[Any, Any] = field(default_factory=dict)


@dataclass
class ConfigReader:
    """The settings with which Hydra reads files, and the files that it has read.

    Attributes:
        keys: The keys of the schema. A folder with the name of a key is not a group: `metadata` is
            a key of generate.py, but a group of train.py.
        own_folder: The config folder of the user, which is searched first.
        main_folder: The config folder that is searched after it.
        ignored_entries: Entries of defaults lists to ignore, as `GROUP/OPTION`.
        files: The record of each file that has been read, in this order.
        files_by_name: The files that have been read, by their name in defaults lists.
    """

    keys: frozenset[str] = frozenset()
    own_folder: Path | None = None
    main_folder: Path = CONFIG_FOLDER
    ignored_entries: set[str] = field(default_factory=set)
    files: dict[Path, FileRecord] = field(default_factory=dict)
    files_by_name: dict[str, Path] = field(default_factory=dict)

    @property
    def folders(self) -> list[Path]:
        """The config folders, in the order in which they are searched."""
        folders = (self.own_folder, self.main_folder)
        return [folder for folder in folders if folder is not None]

    def install(self) -> None:
        """Makes Hydra read its files through this object, in place of an earlier one."""
        # The first call registers Hydra's own sources, which would otherwise replace ours later.
        plugins = Plugins.instance()
        for source in (RecordingSource, PackageSource, StructuredConfigSource):
            SourcesRegistry.instance().types[source.scheme()] = source
        plugins.register(OwnFolderFirst)
        RecordingSource.reader = self

    def clear(self) -> None:
        """Clears the record of files that have been read."""
        self.files.clear()
        self.files_by_name.clear()

    def is_group(self, name: str) -> bool:
        """Whether a name is that of a group: a folder whose files are choices."""
        if name in self.keys or name == PARTS_FOLDER:
            return False
        return any((folder / name).is_dir() for folder in self.folders)

    def note_part(self, file: Path) -> None:
        """Records a file that another one includes, by `${from_file:…}`."""
        self.files.setdefault(file, FileRecord())


def shorten_path(file: Path) -> str:
    """Returns a path relative to the working folder; unchanged if it is outside of that folder."""
    working_folder = Path.cwd()
    if file.is_relative_to(working_folder):
        return str(file.relative_to(working_folder))
    return str(file)


class OwnFolderFirst(SearchPathPlugin):
    """Searches the user's folder before `hydra_configs/`; Hydra would search --config-dir last."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Adds the user's folder at the beginning of the search path."""
        own_folder = RecordingSource.reader.own_folder
        if own_folder is not None:
            search_path.prepend("own", f"file://{own_folder}", anchor="main")


class RecordingSource(FileConfigSource):
    """Hydra's file reader, extended to expand `${from_file:…}` and to record every file.

    Attributes:
        reader: The settings and the record, which `ConfigReader.install` sets.
    """

    reader: ClassVar[ConfigReader] = ConfigReader()

    def is_group(self, config_path: str) -> bool:
        """Whether a path is that of a group; see `ConfigReader.keys`."""
        if config_path in self.reader.keys or config_path == PARTS_FOLDER:
            return False
        return super().is_group(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        """Reads, expands and records a file.

        Raises:
            ConfigurationError: If the file cannot be read, has no keys, or its defaults list is
                invalid.
        """
        file = Path(self.path) / self._normalize_file_name(config_path)
        text, values = self._parse(file)
        if not isinstance(values, dict):
            raise ConfigurationError(f"{file}: found a list, expected keys and values")
        self.reader.files[file] = FileRecord()  # keeps its place before the files that it includes
        self.reader.files_by_name[config_path] = file

        entries = values.pop("defaults", None)
        names = list(_list_defaults(entries, file))
        if config_path in names:
            raise ConfigurationError(
                f"{file}: its defaults list names {config_path}, which is this file itself (the "
                "files of --config-dir win over those of their name); give it another name, and "
                "pass that as --config-name"
            )

        expansion = Expansion(Path(self.path), self.reader.note_part)
        values = expansion.expand(values, shorten_path(file))
        header = self._get_header_dict(text[:_HEADER_CHARS])
        self.reader.files[file] = FileRecord(
            _find_package(header, config_path),
            {name: value for name, value in values.items() if name != "hydra"},
        )

        if entries is not None:
            values["defaults"] = [
                entry
                for entry, name in zip(entries, names, strict=True)
                if name not in self.reader.ignored_entries
            ]
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(values), header)

    def _parse(self, file: Path) -> tuple[str, Any]:
        """Reads and parses a file; returns its text and its values."""
        refuse_special_file(file)
        try:
            text = file.read_text(encoding="utf-8")
            return text, parse_values(text, file)
        except (OSError, UnicodeDecodeError) as error:  # OSError: also for a file that is a number
            raise ConfigurationError(f"{file}: cannot be read: {error}") from error


class PackageSource(ImportlibResourcesConfigSource):
    """Hydra's reader of files in packages, such as its own files; it parses each text only once."""

    def _read_config(self, res: Any) -> ConfigResult:
        text = res.read_text(encoding="utf-8")
        header = self._get_header_dict(text[:_HEADER_CHARS])
        values = OmegaConf.create(parse_values(text, Path(str(res))))
        return ConfigResult(self.provider, self.full_path(), values, header)


class StructuredConfigSource(structured_config_source.StructuredConfigSource):
    """Hydra's reader of its store of schemas, which is not copied for each composition.

    A copy is not needed, because the store copies each value that is loaded. Hydra recognizes this
    source by the name of its class.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> StructuredConfigSource:
        """Returns this object itself."""
        return self


def _find_package(header: Mapping[str, str | None], config_path: str) -> str:
    """Returns the section that the content of a file belongs to; "" for the whole."""
    group = config_path.rpartition("/")[0]
    package = header.get("package") or group.replace("/", ".")
    return "" if package == "_global_" else package


def _list_defaults(entries: Any, file: Path) -> Iterator[str]:
    """Yields the names of the entries of a defaults list: `model/gpt2` for {model: gpt2}.

    Raises:
        ConfigurationError: If it is not a defaults list, which would crash Hydra.
    """
    expected = "expected a list: [causal_lm_config, {model: llama_tiny}, _self_], for example"
    if entries is not None and not isinstance(entries, list):
        raise ConfigurationError(f"{file}: defaults: found {format_value(entries)}, {expected}")

    for entry in entries or ():
        if isinstance(entry, dict) and len(entry) == 1:
            [(choice, option)] = entry.items()
            group = re.sub(r"^(override|optional) +|@.*", "", str(choice))
            yield f"{group}/{option}"
        elif isinstance(entry, str):
            yield entry
        else:
            raise ConfigurationError(
                f"{file}: defaults: found the entry {format_value(entry)}, {expected}"
            )
