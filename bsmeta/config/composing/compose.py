"""Composes files and overrides into a configuration; only this module lets Hydra compose.

Hydra only merges: an override may set any key, and `fill_section` finds the values that do not fit
the schema. Hydra itself refuses only mistakes in its grammar, in groups and in defaults lists. It
stops at the first of these, and then each override is tried alone, to find them all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.composing.composition import Composition
from bsmeta.config.composing.filling import fill_section
from bsmeta.config.composing.from_file import UNSET_MARK
from bsmeta.config.composing.hydra_errors import describe_problem_of_files
from bsmeta.config.composing.hydra_files import ConfigReader, shorten_path
from bsmeta.config.composing.interpolation import finish_configuration
from bsmeta.config.composing.misfits import COMMAND_LINE, Misfit
from bsmeta.config.composing.overrides import Override, find_value, read_overrides
from bsmeta.config.composing.schema_types import format_schema_name
from bsmeta.config.composing.structures import open_structure
from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, raise_problems
from bsmeta.core.files import ROOT
from bsmeta.core.keys import list_key_names, read_type_hints

Config = TypeVar("Config")

REFUSALS = (HydraException, OmegaConfBaseException)
"""The errors with which Hydra refuses a configuration."""

# Names of schedules in the published system; its other schedules become a cosine.
_PUBLISHED_SCHEDULES = {"LINEAR_WITH_WARMUP": "linear", "CONSTANT_WITH_WARMUP": "constant"}


def _resolve_precision(value: Any) -> str:
    """Returns `mixed_precision` for a boolean (true: bf16), or for the name of a type."""
    text = str(value)
    return {"true": "bf16", "false": "no"}.get(text.lower(), text)


_RESOLVERS: dict[str, Callable[..., Any]] = {
    "repo": lambda path: str(ROOT / path),
    "share": lambda share, whole: round(share * whole),
    "precision": _resolve_precision,
    "schedule": lambda name: _PUBLISHED_SCHEDULES.get(name, "cosine"),
}
"""The resolvers of configurations: `${repo:…}`, `${share:…}` and so on."""


@dataclass
class Composed:
    """A configuration that was composed of files and overrides.

    Attributes:
        values: The values in the types of the schema, with its defaults for values that do not fit.
        written_values: All values as they were written, with every `${…}`.
        files: The files that were read, in this order.
        overridden: The keys that the command line sets.
        problems: The mistakes in the files, then those in the overrides.
    """

    values: DictConfig
    written_values: dict[str, Any]
    files: tuple[Path, ...]
    overridden: tuple[str, ...]
    problems: list[Problem]

    def make_composition(self, problems: Sequence[Problem]) -> Composition:
        """Returns the configuration as it was written, together with its problems."""
        return Composition(
            values=self.written_values,
            files=self.files,
            overridden=self.overridden,
            problems=tuple(problems),
        )


def compose_command_line(
    schema: type[Config],
    config_name: str,
    overrides: Sequence[str] = (),
    own_folder: Path | None = None,
) -> Config:
    """Composes a configuration as a command line would.

    Args:
        config_name: The main configuration, as `--config-name` names it.
        overrides: The arguments `key=value`.
        own_folder: The folder of the user, as `--config-dir` names it.

    Raises:
        ConfigurationError: Listing the mistakes.
    """
    config, _ = compose_with_sources(schema, config_name, overrides, own_folder)
    return config


def compose_with_sources(
    schema: type[Config],
    config_name: str,
    overrides: Sequence[str] = (),
    own_folder: Path | None = None,
) -> tuple[Config, Composition]:
    """Composes as `compose_command_line` does; also returns the values as they were written."""
    reader = ConfigReader(own_folder=own_folder)
    register_schema(schema, reader)
    composed = compose_files(config_name, read_overrides(overrides, schema, reader), schema, reader)
    config, problems = finish_configuration(composed.values, schema)
    raise_problems([*composed.problems, *problems])
    return config, composed.make_composition([])


def register_schema(schema: type, reader: ConfigReader) -> None:
    """Registers the schema, the resolvers and the reader with Hydra (idempotent)."""
    _store_schema(schema)
    for name, resolver in _RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)
    reader.keys = frozenset(list_key_names(schema))
    reader.install()


@lru_cache(maxsize=1)  # only for the last schema: another one replaces the names of the parents
def _store_schema(schema: type) -> None:
    """Registers a schema with Hydra under its own name and the names of its parents.

    YAML files that were written for a parent therefore fit the schema as well. The defaults are
    stored as plain values, which Hydra merges much faster; `fill_section` restores the types.
    """
    classes = [cls for cls in schema.__mro__ if dataclasses.is_dataclass(cls)]
    name, *parents = [format_schema_name(cls) for cls in classes]
    store = ConfigStore.instance()
    store.store(name=name, node=dataclasses.asdict(schema()))

    # By reference, because Hydra copies the whole store for each composition.
    for parent in parents:
        store.store(name=parent, node={"defaults": [name, "_self_"]})


def compose_files(
    config_name: str,
    overrides: Sequence[Override],
    schema: type,
    reader: ConfigReader,
    earlier_problems: Sequence[Problem] = (),
) -> Composed:
    """Composes a configuration without the entries and overrides that have mistakes.

    Args:
        config_name: The main configuration.
        earlier_problems: Mistakes of the same command line that were found before.

    Raises:
        ConfigurationError: Listing the mistakes, if nothing can be composed.
    """
    return _Composer(config_name, overrides, schema, reader, earlier_problems).compose()


class _Composer:
    """Composes one configuration; see `compose_files`.

    Attributes:
        written_values: The values that Hydra composed last, with every `${…}`.
    """

    def __init__(
        self,
        config_name: str,
        overrides: Sequence[Override],
        schema: type,
        reader: ConfigReader,
        earlier_problems: Sequence[Problem],
    ) -> None:
        self.written_values: dict[str, Any] = {}
        self._config_name = config_name
        self._overrides = overrides
        self._schema = schema
        self._reader = reader
        self._earlier_problems = earlier_problems
        self._problems_of_files: list[Problem] = []

    def compose(self) -> Composed:
        """Composes the configuration.

        Raises:
            ConfigurationError: See `compose_files`.
        """
        if self._compose_written_values(self._select_valid_overrides()) is not None:
            self._drop_refused()
        self._check_schema()
        values = self._fill_schema()
        return Composed(
            values=values,
            written_values=self.written_values,
            files=tuple(self._reader.files),
            overridden=tuple(override.name for override in self._overrides),
            problems=self._list_problems(),
        )

    def _select_valid_overrides(self) -> list[Override]:
        """Returns the overrides in which no mistake has been found so far."""
        return [override for override in self._overrides if not override.problems]

    def _list_problems(self) -> list[Problem]:
        """Lists the mistakes that have been found so far."""
        problems = [*self._earlier_problems, *self._problems_of_files]
        for override in self._overrides:
            problems += override.problems
        return problems

    def _compose_written_values(self, overrides: Sequence[Override]) -> Exception | None:
        """Composes `written_values` from the files and some overrides.

        Returns:
            Hydra's error; None if it composes them.
        """
        GlobalHydra.instance().clear()
        self._reader.clear()
        self.written_values = {}
        try:
            with hydra.initialize_config_dir(str(self._reader.main_folder), version_base="1.3"):
                texts = [override.format_forced() for override in overrides]
                composed = hydra.compose(self._config_name, texts, return_hydra_config=True)
        except RecursionError as error:
            files = ", ".join(shorten_path(file) for file in self._reader.files)
            raise ConfigurationError(
                f"the defaults lists of {files} name each other; remove one of these entries"
            ) from error
        except REFUSALS as error:
            return error

        HydraConfig.instance().set_config(composed)  # for ${hydra:…}
        self.written_values = extract_plain_values(composed)
        return None

    def _drop_refused(self) -> None:
        """Composes without the entries of defaults lists and the overrides that Hydra refuses.

        A problem is recorded for each.

        Raises:
            ConfigurationError: If the rest cannot be composed either.
        """
        while refusal := self._compose_written_values([]):
            self._problems_of_files.append(
                describe_problem_of_files(refusal, self._reader, self._schema)
            )
            entry = getattr(refusal, "missing_cfg_file", None)
            if entry is None or entry in self._reader.ignored_entries:
                raise_problems(self._list_problems())
            self._reader.ignored_entries.add(str(entry))

        for override in self._select_valid_overrides():
            if refusal := self._compose_written_values([override]):
                override.problems = [override.explain_refusal(refusal)]

        if refusal := self._compose_written_values(self._select_valid_overrides()):
            # Each override is valid alone, but some of them not together.
            problem = describe_problem_of_files(refusal, self._reader, self._schema)
            raise_problems(self._list_problems() or [problem])

    def _check_schema(self) -> None:
        """Adds a problem if the files do not begin with the schema."""
        deleted = {override.name for override in self._overrides if override.deletes}
        missing = set(read_type_hints(self._schema)) - deleted - set(self.written_values)
        if missing and not self._problems_of_files:
            name = format_schema_name(self._schema)
            expected = f"the schema of {self._schema.__name__} as its first entry"
            fix = f"defaults: [{name}, …, _self_], as in hydra_configs/demo.yaml"
            problem = Problem("defaults", HYDRA, "no schema", expected, fix)
            self._problems_of_files.append(problem)

    def _fill_schema(self) -> DictConfig:
        """Sets the fields of the schema; adds a problem for each value that does not fit."""
        values = open_structure(self._schema)
        overrides = self._select_valid_overrides()
        for misfit in fill_section(values, self.written_values):
            self._add_misfit(misfit, overrides)

        valid_overrides = self._select_valid_overrides()
        if valid_overrides != overrides and self._compose_written_values(valid_overrides) is None:
            # Without an override, the value that it replaced takes effect, so the schema is filled
            # again. The misfits were found in the first pass.
            values = open_structure(self._schema)
            for _ in fill_section(values, self.written_values):
                pass
        return values

    def _add_misfit(self, misfit: Misfit, overrides: Sequence[Override]) -> None:
        """Adds the problem of a misfit to its source: the last override or file that sets it."""
        for override in reversed(overrides):
            if override.sets(misfit.path):
                written_value = override.value if override.name == misfit.key else None
                problem = misfit.describe_problem(COMMAND_LINE, self._schema, written_value)
                override.problems.append(problem)
                return
        self._problems_of_files.append(self._describe_problem_of_file(misfit))

    def _describe_problem_of_file(self, misfit: Misfit) -> Problem:
        """Returns the problem of a misfit that a file sets."""
        for package, file in reversed(self._list_files_in_merge_order()):
            content = self._reader.files[file].content
            if find_value(package, content, misfit.path) is UNSET_MARK:
                continue
            if misfit.expected is None and misfit.path == (package.partition(".")[0],):
                expected = (
                    "# @package _global_ in its first line: it sets keys of the whole configuration"
                )
                fix = "write that line, and the keys as in a main configuration"
                return Problem(package, shorten_path(file), "no such line", expected, fix)
            return misfit.describe_problem(shorten_path(file), self._schema)

        return misfit.describe_problem(HYDRA, self._schema)

    def _list_files_in_merge_order(self) -> list[tuple[str, Path]]:
        """Lists the sections and files that set them, in the order in which Hydra merges them."""
        texts = [override.format_forced() for override in self._select_valid_overrides()]
        with hydra.initialize_config_dir(str(self._reader.main_folder), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            defaults = loader.compute_defaults_list(self._config_name, texts, RunMode.RUN).defaults

        files = []
        for default in defaults:
            file = self._reader.files_by_name.get(default.config_path)
            if file is not None:
                files.append((default.package or "", file))
        return files


def extract_plain_values(composed: DictConfig) -> dict[str, Any]:
    """Returns the composed values without Hydra's settings, and with every `${…}` as written."""
    values = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items() if name != "hydra"}
