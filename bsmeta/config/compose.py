"""From the command line to a plain, frozen configuration object: the only place that runs Hydra.

`run_entry_point` composes `hydra_configs/NAME.yaml` and the overrides onto the schema, converts the
result once, calls the entry point, and turns every outcome into the documented exit code: 0 done,
75 stopped by a signal with a checkpoint saved, 2 an error that the user can mend, 1 anything else.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.describe import describe, key_names, keys
from bsmeta.config.errors import ConfigurationError, UserError
from bsmeta.config.secrets import redact, redact_values

REPOSITORY = Path(__file__).resolve().parents[2]
EXIT_USER_ERROR = 2
EXIT_FAILURE = 1
# SIGTERM asks a job to end; 75 (EX_TEMPFAIL of sysexits.h) tells a scheduler to requeue it.
EXIT_PREEMPTED = 75

Config = TypeVar("Config")


def run_entry_point(
    main: Callable[[Config], int | None], schema: type[Config], config_name: str
) -> None:
    """Composes the configuration, calls `main` with it, and exits the process.

    Args:
        main: The entry point; what it returns is the exit code (None: 0).
        schema: The dataclass that the configuration must fit. YAML files name it in their defaults
            list by its name in snake case (`TrainConfig`: `train_config`).
        config_name: The file of `hydra_configs/` that is used without `--config-name`.
    """
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(describe(schema, os.path.basename(sys.argv[0]), config_name))
        sys.exit(0)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("bsmeta").setLevel(logging.INFO if _rank() == 0 else logging.WARNING)
    register(schema)
    codes: list[int] = []

    def task(composed: DictConfig) -> None:
        try:
            codes.append(main(to_plain(composed, schema)) or 0)
        except BaseException as error:  # here, or Hydra prints its own report first
            codes.append(report(error, schema))

    sys.argv[1:] = [*open_mappings(sys.argv[1:], schema), *_quiet_hydra(sys.argv[1:])]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra exits with 1 before we can say what is wrong
    try:
        hydra.main(
            version_base="1.3",
            config_path=str(REPOSITORY / "hydra_configs"),
            config_name=config_name,
        )(task)()
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        _leave(report(error, schema))
    _leave(max(codes, default=0))


def _leave(code: int) -> NoReturn:
    """Ends the process; one of a launch ends without Python's own shutdown.

    Gloo's threads may still be letting go of tensors when the interpreter is taken down, and then
    abort the process (measured with torch 2.13: 3 of 10 runs that had done all their work; see
    pytorch pull request 179291). Everything is on disk by now.
    """
    if "WORLD_SIZE" in os.environ:  # started by a launcher, so that there is a process group
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def register(schema: type) -> None:
    """Makes the schema and the resolvers known to Hydra (repeatable).

    A schema that extends another one takes its name, too: YAML files of that one then fit both.
    """
    for one in filter(dataclasses.is_dataclass, schema.__mro__):
        ConfigStore.instance().store(name=_store_name(one), node=schema)
    OmegaConf.register_new_resolver("repo", _in_repository, replace=True)


def _store_name(schema: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", schema.__name__).lower()


def compose(schema: type[Config], config_name: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration that the command line `--config-name config_name overrides…` gives.

    Raises:
        ConfigurationError: If a key is unknown or a value does not fit its type.
    """
    register(schema)
    try:
        with hydra.initialize_config_dir(str(REPOSITORY / "hydra_configs"), version_base="1.3"):
            return to_plain(hydra.compose(config_name, open_mappings(overrides, schema)), schema)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigurationError(_explain(error, schema)) from error


def open_mappings(overrides: Sequence[str], schema: type) -> list[str]:
    """The overrides, with `++` before those of a mapping (`weights.url=2`, `weights={url: 2}`).

    The schema is closed, but the entries of a mapping are free; Hydra asks for the `++` that says
    so, which nobody knows by heart.
    """
    names = [re.escape(one.name) for one in keys(schema) if one.type.startswith("dict")]
    inside_mapping = re.compile(rf"({'|'.join(names) or '(?!)'})(\.[^=]+)?=")
    return [f"++{one}" if inside_mapping.match(one) else one for one in overrides]


def to_plain(composed: DictConfig, schema: type[Config]) -> Config:
    """The composed configuration as an instance of the schema, resolved and frozen."""
    plain = OmegaConf.to_object(composed)
    if not isinstance(plain, schema):
        raise ConfigurationError(
            f"the configuration does not begin with the schema: its defaults list must start with "
            f"the schema of {schema.__name__} (see hydra_configs/demo.yaml)"
        )
    unknown = list(_added(plain))
    if unknown:
        raise ConfigurationError("; ".join(_unknown(name, schema) for name in unknown))
    return plain


def _added(section: Any, prefix: str = "") -> Iterator[str]:
    """Names that `+name=value` has put into a section beside those of its schema."""
    known = {field.name for field in dataclasses.fields(section)}
    for name, value in vars(section).items():
        if name not in known:
            yield prefix + name
        elif dataclasses.is_dataclass(value):
            yield from _added(value, f"{prefix}{name}.")


def _unknown(name: str, schema: type) -> str:
    return f"{name} is not a key of {schema.__name__}" + _suggestion(name, schema)


def load_resolved(path: Path, schema: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Reads a `config.yaml` that a run has written, with `key=value` overrides on top.

    Raises:
        ConfigurationError: If the file is missing, or does not fit the schema.
    """
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such file; expected the config of a run")
    values = yaml.safe_load(path.read_text())
    if isinstance(values, dict):
        values.pop("defaults", None)  # for Hydra, see `to_yaml`
    try:
        merged = OmegaConf.merge(
            OmegaConf.structured(schema),
            OmegaConf.create(values),
            OmegaConf.from_dotlist(list(overrides)),
        )
        assert isinstance(merged, DictConfig)
        return to_plain(merged, schema)
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{path}: {_explain(error, schema)}") from error


def to_yaml(config: Any) -> str:
    """The resolved configuration as YAML that `load_resolved` reads back; without secrets.

    Its defaults list names the schema, so that Hydra takes the file as a configuration, too:
    `train.py --config-dir FOLDER --config-name config` starts the same run again.
    """
    values = {"defaults": [_store_name(type(config)), "_self_"]}
    values |= redact_values(dataclasses.asdict(config))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def report(error: BaseException, schema: type) -> int:
    """Prints what went wrong, on standard error, and returns the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_FAILURE
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        error = ConfigurationError(_explain(error, schema))
    if isinstance(error, yaml.YAMLError):  # also tags that would make Python objects
        error = ConfigurationError(f"a YAML file cannot be read: {error}")
    if isinstance(error, ConfigurationError):
        if _rank() == 0:  # every rank has found the same
            print(f"configuration error: {redact(str(error))}", file=sys.stderr, flush=True)
        return EXIT_USER_ERROR
    if isinstance(error, UserError):
        print(f"[rank {_rank()}] error: {redact(str(error))}", file=sys.stderr, flush=True)
        return EXIT_USER_ERROR
    print(redact("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)
    return EXIT_FAILURE


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _in_repository(path: str) -> str:
    return str(REPOSITORY / path)


def _quiet_hydra(arguments: list[str]) -> list[str]:
    """Overrides that keep Hydra from writing folders and files of its own beside the run's."""
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none"]
    if not {"-m", "--multirun"} & set(arguments):
        quiet += ["hydra.run.dir=.", "hydra.output_subdir=null"]
    return [one for one in quiet if not any(a.startswith(one.split("=")[0]) for a in arguments)]


def _explain(error: Exception, schema: type) -> str:
    """Hydra's message, its cause, and the nearest key where one was misspelt."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if error.__cause__ is not None:
        lines += [line.strip() for line in str(error.__cause__).splitlines() if line.strip()]
    # "+key=value" cannot work either: the schema is closed
    message = "; ".join(x for x in dict.fromkeys(lines) if not x.startswith("To append"))
    unknown = re.search(r"(?:Key|key) '([\w.]+)'", message)
    return message + _suggestion(unknown[1], schema) if unknown else message


def _suggestion(name: str, schema: type) -> str:
    """The nearest key, if there is one."""
    leaf = name.rsplit(".", 1)[-1]
    names = {name.rsplit(".", 1)[-1]: name for name in key_names(schema)}
    near = difflib.get_close_matches(leaf, names, n=1)
    return f"; did you mean {names[near[0]]}?" if near and near[0] != leaf else ""
