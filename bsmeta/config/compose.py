"""Composes the command line into a plain configuration object; the only place that runs Hydra.

`run_entry_point` composes `hydra_configs/NAME.yaml` and the overrides onto the schema, converts the
result once, calls the entry point, and turns every outcome into the documented exit code: 0 done,
75 stopped by a signal (with a checkpoint saved, if training had begun), 2 an error that the user
can fix, 1 anything else.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from bsmeta.config import command_line, hydra_ext, interpolation
from bsmeta.config.command_line import CommandLine, quote_home
from bsmeta.config.describe import describe
from bsmeta.config.hydra_ext import choose, key_of, reading, settable, store_name
from bsmeta.config.interpolation import resolve
from bsmeta.config.mistakes import (
    Refusal,
    compose_all,
    composer,
    explain,
    of_misfit,
    plain,
    typed,
)
from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, refuse, show
from bsmeta.core.files import CONFIG_FOLDER, ROOT, redact, redact_values
from bsmeta.core.keys import bound_problems, expand_home, key_names
from bsmeta.core.process import exit_code, leave, rank

Config = TypeVar("Config")
logger = logging.getLogger(__name__)


def run_entry_point(
    main: Callable[..., int | None],
    schemas: type[Config] | Sequence[type[Config] | str],
    config_name: str,
    *,
    takes_mistakes: bool = False,
) -> None:
    """Composes the configuration, calls `main` with it, and exits the process.

    Args:
        main: The entry point, called with the configuration; returns the exit code (None: 0).
        schemas: The dataclass that the configuration must fit, or several of which the
            configuration names one (also as `module:attribute`, which is imported if it is the
            one). YAML files name it in their defaults list by its name in snake case
            (`CausalLMConfig`: `causal_lm_config`).
        config_name: The file of `hydra_configs/` that is used without `--config-name`.
        takes_mistakes: If composing finds mistakes, call `main(config, mistakes)` with what can be
            composed, so that it reports its own problems along with them; it must then raise.
    """
    offered = [schemas] if isinstance(schemas, type) else schemas
    schema = choose(sys.argv[1:], offered, config_name)
    if {"--help", "-h"} & set(sys.argv[1:]):
        whole = "all" in sys.argv[1:]
        page = describe(schema, os.path.basename(sys.argv[0]), config_name, whole=whole)
        sys.exit(exit_code(lambda: print(page)))
    _log_to_console()

    def call(composed: DictConfig, found: Sequence[Problem]) -> int:
        config, more = _finished(composed, schema)
        problems = [*found, *more, *bound_problems(config)]
        if problems:
            if takes_mistakes:
                main(config, problems)
            refuse(problems)
        return main(config) or 0

    leave(exit_code(lambda: _run(schema, config_name, call)))


def _log_to_console() -> None:
    console = logging.StreamHandler()
    console.setLevel(logging.INFO if rank() == 0 else logging.WARNING)
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[console],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("bsmeta").setLevel(logging.DEBUG)  # for the logs in the run folder


def _run(schema: type, config_name: str, call: Callable[..., int]) -> int:
    """Composes the command line of this process, and runs it; returns the exit code."""
    register(schema)  # its name may itself be the --config-name
    line = command_line.read(sys.argv[1:], schema, config_name)
    for remark in command_line.repeated(line.overrides) if rank() == 0 else ():
        logger.warning(remark)
    register(schema, line.own_folder)
    overrides = interpolation.expand_overrides(line.overrides, line.own_folder or line.folder)
    reading.overridden = tuple(map(key_of, overrides))
    compose = composer(line.folder, line.config_name)
    sys.argv[1:] = map(redact, sys.argv[1:])  # trackers and model cards copy it
    if not line.runs_by_hydra:
        return call(*compose_all(compose, overrides, schema, line.problems))
    found = [*line.problems]
    for alternative in command_line.alternatives(overrides):
        found = compose_all(compose, alternative, schema, found)[1]
    refuse(found)
    return _run_by_hydra([*line.options, *_for_hydra(line, overrides)], config_name, schema, call)


def _run_by_hydra(
    arguments: Sequence[str], config_name: str, schema: type, call: Callable[..., int]
) -> int:
    """Lets Hydra print the configuration, or run each combination of a `--multirun`."""
    codes, given = [0], sys.argv[1:]
    sys.argv[1:] = arguments

    def task(composed: DictConfig) -> None:
        sys.argv[1:] = given
        _redact_multirun()
        # An exception would leave this function through Hydra, which prints a report of its own.
        codes.append(exit_code(lambda: call(typed(plain(composed), schema)[0], [])))

    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra exits with 1 before we can report the error
    program = hydra.main(
        version_base="1.3", config_path=str(CONFIG_FOLDER), config_name=config_name
    )(task)
    try:
        program()
    except Refusal as error:
        raise ConfigurationError(explain(error)) from error
    return max(codes)


def _for_hydra(line: CommandLine, overrides: Sequence[str]) -> list[str]:
    """The overrides for Hydra's runner; Hydra adds no folders or files of its own."""
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]
    if not line.is_multirun:
        quiet.append("hydra.run.dir=.")
    given = set(map(key_of, overrides))
    return [
        *settable(overrides),
        *(override for override in quiet if key_of(override) not in given),
    ]


def register(schema: type, own_folder: Path | None = None) -> None:
    """Registers the schema, the resolvers and the user's config folder with Hydra (idempotent).

    A schema that extends another is also registered under the parent's name, so that YAML files of
    the parent fit both. Hydra merges its default values without their types, which is much faster;
    `typed` adds them.
    """
    for section in filter(dataclasses.is_dataclass, schema.__mro__):
        ConfigStore.instance().store(name=store_name(section), node=dataclasses.asdict(schema()))
    OmegaConf.register_new_resolver("repo", _in_project, replace=True)
    OmegaConf.register_new_resolver("share", _share, replace=True)
    OmegaConf.register_new_resolver("precision", _precision, replace=True)
    OmegaConf.register_new_resolver("schedule", _schedule, replace=True)
    hydra_ext.install(key_names(schema), own_folder)


def compose(
    schema: type[Config],
    config_name: str,
    overrides: Sequence[str] = (),
    own_folder: Path | None = None,
) -> Config:
    """Composes the configuration of the command line `--config-name config_name overrides…`.

    Args:
        own_folder: `--config-dir`.
    """
    register(schema, own_folder)
    quoted = [*map(quote_home, overrides)]
    expanded = interpolation.expand_overrides(quoted, own_folder or CONFIG_FOLDER)
    composed, found = compose_all(composer(CONFIG_FOLDER, config_name), expanded, schema)
    config, more = _finished(composed, schema)
    refuse([*found, *more])
    return config


def to_plain(composed: DictConfig, schema: type[Config]) -> Config:
    """Resolves a configuration in the types of the schema, and converts it to an instance."""
    config, found = _finished(composed, schema)
    refuse(found)
    return config


def _finished(composed: DictConfig, schema: type[Config]) -> tuple[Config, list[Problem]]:
    """Like `to_plain`, but replaces bad values by the schema's defaults and returns problems."""
    reading.written = plain(composed)
    found = resolve(composed)
    config = OmegaConf.to_object(composed)
    assert isinstance(config, schema)
    for name, path in expand_home(config):
        user = path.partition("/")[0]
        expected = f"a path; there is no user {user[1:]} on this machine"
        found.append(Problem(name, HYDRA, show(path), expected, f"{name}=./{path}, or correct it"))
    return config, found


def load_resolved(path: Path, schema: type[Config]) -> Config:
    """Reads a `config.yaml` that a run has written."""
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such file; expected the config of a run")
    values = yaml.safe_load(path.read_text())
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: found {show(values)}, expected keys and values")
    values.pop("defaults", None)  # for Hydra, see `to_yaml`
    composed, wrong = typed(values, schema)
    refuse([of_misfit(misfit, str(path), schema) for misfit in wrong])
    return to_plain(composed, schema)


def to_yaml(config: Any) -> str:
    """The resolved configuration as YAML that `load_resolved` reads back; without secrets.

    Its defaults list names the schema, so that Hydra accepts the file as a configuration, too:
    `train.py --config-dir FOLDER --config-name config` starts the same run again.
    """
    values = {"defaults": [store_name(type(config)), "_self_"]}
    values |= redact_values(dataclasses.asdict(config))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _in_project(path: str) -> str:
    return str(ROOT / path)


def _precision(value: bool | str) -> str:
    """`mixed_precision` where a configuration says whether (true, false) or names the type."""
    names = {"true": "bf16", "false": "no"}
    return names.get(str(value).lower(), str(value))


def _schedule(name: str) -> str:
    """`lr_scheduler_type` for a name of the published system, whose steps become a cosine."""
    names = {"LINEAR_WITH_WARMUP": "linear", "CONSTANT_WITH_WARMUP": "constant"}
    return names.get(name, "cosine")


def _share(share: float, whole: float) -> int:
    return round(share * whole)


def _redact_multirun() -> None:
    """Redacts secrets in the file that Hydra writes about a `--multirun`."""
    about_all = Path(HydraConfig.get().sweep.dir) / "multirun.yaml"
    if HydraConfig.get().mode == RunMode.MULTIRUN and about_all.exists():
        about_all.write_text(redact(about_all.read_text()))
