"""Composes files and overrides into a configuration; the only place that runs Hydra.

Hydra only merges: an override may set any key, and `fill_section` finds the values that do not fit
the schema. Hydra itself refuses only mistakes in its grammar, in groups and in defaults lists; it
stops at the first of these, so each override is then tried alone.
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

from bsmeta.config.composition import Composition
from bsmeta.config.filling import fill_section
from bsmeta.config.from_file import MISSING
from bsmeta.config.hydra_errors import describe_problem_of_files
from bsmeta.config.hydra_files import ConfigReader, shorten_path
from bsmeta.config.interpolation import finish_configuration
from bsmeta.config.misfits import COMMAND_LINE, Misfit
from bsmeta.config.overrides import Override, find_value, read_overrides
from bsmeta.config.schema_types import format_schema_name
from bsmeta.config.structures import open_structure
from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, raise_problems
from bsmeta.core.files import ROOT
from bsmeta.core.keys import list_key_names, read_type_hints

Config = TypeVar("Config")

REFUSALS = (HydraException, OmegaConfBaseException)
"""The errors with which Hydra refuses a configuration."""

# Names of the published system, in which steps become a cosine.
_SCHEDULES = {"LINEAR_WITH_WARMUP": "linear", "CONSTANT_WITH_WARMUP": "constant"}
_RESOLVERS: dict[str, Callable[..., Any]] = {
    "repo": lambda path: str(ROOT / path),
    "share": lambda share, whole: round(share * whole),
    # `mixed_precision` where a configuration says whether (true, false) or names the type.
    "precision": lambda value: {"true": "bf16", "false": "no"}.get(str(value).lower(), str(value)),
    "schedule": lambda name: _SCHEDULES.get(name, "cosine"),
}


@dataclass
class Composed:
    """The result of composing files and overrides.

    Attributes:
        values: The configuration without the values that do not fit.
        written: All values as they were composed, with every `${…}`.
        files: The files that were read, in this order.
        overridden: The keys that the command line sets.
        problems: All mistakes; those of the files come before those of the overrides.
    """

    values: DictConfig
    written: dict[str, Any]
    files: tuple[Path, ...]
    overridden: tuple[str, ...]
    problems: list[Problem]

    def make_composition(self, problems: Sequence[Problem]) -> Composition:
        """Returns the configuration as it was written, with all of its problems."""
        return Composition(
            values=self.written,
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
    """Composes the configuration of the command line `--config-name config_name overrides…`.

    Args:
        own_folder: `--config-dir`.

    Raises:
        ConfigurationError: Listing the mistakes.
    """
    return compose_with_sources(schema, config_name, overrides, own_folder)[0]


def compose_with_sources(
    schema: type[Config],
    config_name: str,
    overrides: Sequence[str] = (),
    own_folder: Path | None = None,
) -> tuple[Config, Composition]:
    """Like `compose_command_line`; also returns the configuration as it was written."""
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


@lru_cache(maxsize=1)  # schemas share the names of their parents: the last one stored counts
def _store_schema(schema: type) -> None:
    """Registers the schema with Hydra under its name and those of its parents.

    YAML files that were written for a parent thus fit the schema, too. The defaults are stored as
    plain values, which Hydra merges much faster; `fill_section` restores the types.
    """
    name, *parents = map(format_schema_name, filter(dataclasses.is_dataclass, schema.__mro__))
    ConfigStore.instance().store(name=name, node=dataclasses.asdict(schema()))
    for parent in parents:  # only by reference: Hydra copies the whole store for each composition
        ConfigStore.instance().store(name=parent, node={"defaults": [name, "_self_"]})


def compose_files(
    config_name: str,
    overrides: Sequence[Override],
    schema: type,
    reader: ConfigReader,
    earlier_problems: Sequence[Problem] = (),
) -> Composed:
    """Composes everything that can be composed.

    Args:
        earlier_problems: Mistakes that have been found before.

    Raises:
        ConfigurationError: Listing the mistakes, if nothing can be composed.
    """
    return _Composer(config_name, overrides, schema, reader, earlier_problems).compose()


class _Composer:
    """Composes one configuration, leaving out the entries and overrides with mistakes.

    Attributes:
        written: The values as Hydra has composed them last, with every `${…}`.
    """

    def __init__(
        self,
        config_name: str,
        overrides: Sequence[Override],
        schema: type,
        reader: ConfigReader,
        earlier_problems: Sequence[Problem],
    ) -> None:
        self.written: dict[str, Any] = {}
        self._config_name = config_name
        self._overrides = overrides
        self._schema = schema
        self._reader = reader
        self._earlier_problems = earlier_problems
        self._problems_of_files: list[Problem] = []

    def compose(self) -> Composed:
        if self._compose_written(self._select_valid_overrides()) is not None:
            self._drop_refused()
        self._check_schema()
        values = self._fill_schema()
        return Composed(
            values=values,
            written=self.written,
            files=tuple(self._reader.files),
            overridden=tuple(override.name for override in self._overrides),
            problems=self._find_problems(),
        )

    def _select_valid_overrides(self) -> list[Override]:
        return [override for override in self._overrides if not override.problems]

    def _find_problems(self) -> list[Problem]:
        problems = [*self._earlier_problems, *self._problems_of_files]
        for override in self._overrides:
            problems += override.problems
        return problems

    def _compose_written(self, overrides: Sequence[Override]) -> Exception | None:
        """Composes `written` from the files and some overrides; returns Hydra's error, if any."""
        GlobalHydra.instance().clear()
        self._reader.clear()
        self.written = {}
        try:
            with hydra.initialize_config_dir(str(self._reader.main_folder), version_base="1.3"):
                texts = [override.format_forced() for override in overrides]
                composed = hydra.compose(self._config_name, texts, return_hydra_config=True)
        except RecursionError as error:
            files = ", ".join(map(shorten_path, self._reader.files))
            raise ConfigurationError(f"the defaults lists of {files} name each other") from error
        except REFUSALS as error:
            return error

        HydraConfig.instance().set_config(composed)  # for ${hydra:…}
        self.written = extract_plain_values(composed)
        return None

    def _drop_refused(self) -> None:
        """Leaves out the entries of defaults lists, and the overrides, that Hydra refuses."""
        while refusal := self._compose_written([]):
            self._problems_of_files.append(
                describe_problem_of_files(refusal, self._reader, self._schema)
            )
            entry = getattr(refusal, "missing_cfg_file", None)
            if entry is None or entry in self._reader.left_out:
                raise_problems(self._find_problems())
            self._reader.left_out.add(str(entry))

        for override in self._select_valid_overrides():
            if refusal := self._compose_written([override]):
                override.problems = [override.explain_refusal(refusal)]

        if refusal := self._compose_written(self._select_valid_overrides()):
            raise_problems(
                self._find_problems()
                or [describe_problem_of_files(refusal, self._reader, self._schema)]
            )

    def _check_schema(self) -> None:
        """Notes files that do not begin with the schema."""
        deleted = {override.name for override in self._overrides if override.deletes}
        missing = {*read_type_hints(self._schema)} - deleted - {*self.written}
        if missing and not self._problems_of_files:
            name = format_schema_name(self._schema)
            expected = f"the schema of {self._schema.__name__} as its first entry"
            fix = f"defaults: [{name}, …, _self_], as in hydra_configs/demo.yaml"
            problem = Problem("defaults", HYDRA, "no schema", expected, fix)
            self._problems_of_files.append(problem)

    def _fill_schema(self) -> DictConfig:
        """Sets the fields of the schema, and notes the values that do not fit."""
        values = open_structure(self._schema)
        overrides = self._select_valid_overrides()
        for misfit in fill_section(values, self.written):
            self._note_misfit(misfit, overrides)

        valid_overrides = self._select_valid_overrides()
        if valid_overrides != overrides and self._compose_written(valid_overrides) is None:
            # Dropping an override restores the value that it replaced, so the schema is filled
            # again; all misfits have been noted in the first pass.
            values = open_structure(self._schema)
            for _ in fill_section(values, self.written):
                pass
        return values

    def _note_misfit(self, misfit: Misfit, overrides: Sequence[Override]) -> None:
        """Notes a misfit as a problem of its source: the last override or file that sets it."""
        for override in reversed(overrides):
            if override.sets(misfit.path):
                written = override.value if override.name == misfit.key else None
                problem = misfit.describe_problem(COMMAND_LINE, self._schema, written)
                override.problems.append(problem)
                return
        self._problems_of_files.append(self._describe_problem_of_file(misfit))

    def _describe_problem_of_file(self, misfit: Misfit) -> Problem:
        """Returns the problem of a value that a file sets."""
        for package, file in self._list_files_in_merge_order()[::-1]:
            content = self._reader.files[file].content
            if find_value(package, content, misfit.path) is MISSING:
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
        """Lists the files as Hydra merges them, each with the section that it sets."""
        texts = [override.format_forced() for override in self._select_valid_overrides()]
        with hydra.initialize_config_dir(str(self._reader.main_folder), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            defaults = loader.compute_defaults_list(self._config_name, texts, RunMode.RUN).defaults

        files = []
        for default in defaults:
            file = self._reader.paths.get(default.config_path)
            if file is not None:
                files.append((default.package or "", file))
        return files


def extract_plain_values(composed: DictConfig) -> dict[str, Any]:
    """Returns the composed values without Hydra's settings; every `${…}` as it is written."""
    values = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items() if name != "hydra"}
