"""Runs the `main` of a program with its composed configuration, and exits with the outcome.

The exit codes are 0 (done), 2 (an error that the user can fix), 75 (stopped by a signal, with a
checkpoint saved if training had begun) and 1 (any other error).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from bsmeta.config.composing.command_line import CommandLine, read_command_line
from bsmeta.config.composing.compose import (
    REFUSALS,
    Composed,
    compose_files,
    extract_plain_values,
    register_schema,
)
from bsmeta.config.composing.filling import fill_section
from bsmeta.config.composing.help_page import format_help, wrap_page
from bsmeta.config.composing.hydra_errors import explain_error
from bsmeta.config.composing.hydra_files import ConfigReader
from bsmeta.config.composing.hydra_options import accept_any_help_text
from bsmeta.config.composing.interpolation import finish_configuration
from bsmeta.config.composing.overrides import (
    Override,
    describe_repetitions,
    extract_key,
    read_overrides,
)
from bsmeta.config.composing.schema_choice import choose_schema, list_offered_schemas
from bsmeta.config.composing.structures import open_structure
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, format_value, raise_problems
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.keys import find_bound_problems, iterate_leaves
from bsmeta.core.process import exit_process, run_and_report
from bsmeta.core.rank import read_rank
from bsmeta.core.secrets import REDACTED, declare_secrets_in, redact
from bsmeta.core.terminal import screen_output
from bsmeta.core.versions import format_versions

Config = TypeVar("Config")
RunComposed = Callable[[Composed], int]
"""Checks a composed configuration, runs a program with it, and returns the exit code."""

logger = logging.getLogger(__name__)


@screen_output()
def run_entry_point(
    main: Callable[..., int | None],
    schemas: type[Config] | Sequence[type[Config] | str],
    config_name: str,
    *,
    takes_composition: bool = False,
    list_more: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Composes the configuration, calls `main` with it, and exits the process.

    Args:
        main: Runs the program with the configuration; returns the exit code (None: 0).
        schemas: The dataclass that the configuration must fit, or several, of which the
            configuration names one. One may be given as `module:attribute`, which is imported only
            if the configuration names it. YAML files name a schema in their defaults list in snake
            case (`CausalLMConfig`: `causal_lm_config`).
        config_name: The file of `hydra_configs/` that is used without `--config-name`.
        takes_composition: Whether to call `main(config, composition)`, even if composing has found
            problems: `main` then reports them along with its own, by raising an error.
        list_more: Lists the schemas of other distributions (see `list_offered_schemas`).
    """
    arguments = sys.argv[1:]
    built_in = [schemas] if isinstance(schemas, type) else schemas

    def run() -> int:
        if "--version" in arguments:
            print(format_versions())
            return 0

        offered_schemas = list_offered_schemas(arguments, built_in, config_name, list_more)
        schema = choose_schema(arguments, offered_schemas, config_name)
        if {"--help", "-h"} & set(arguments):
            program = os.path.basename(sys.argv[0])
            page = format_help(schema, program, config_name, all_keys="all" in arguments)
            print(wrap_page(page))
            return 0

        run_composed = _wrap_main(main, schema, takes_composition=takes_composition)
        _log_to_console()
        return _run_command_line(schema, config_name, run_composed, offered_schemas)

    exit_process(run_and_report(run))


def _wrap_main(
    main: Callable[..., int | None], schema: type, *, takes_composition: bool
) -> RunComposed:
    """Returns a function that checks a composed configuration, and calls `main` with it."""

    def run_composed(composed: Composed) -> int:
        config: Any
        config, problems = finish_configuration(composed.values, schema)
        declare_secrets_in([composed.written_values, OmegaConf.to_container(composed.values)])
        problems = [*composed.problems, *problems, *_find_redacted_values(config)]
        problems += find_bound_problems(config)
        if not takes_composition:
            raise_problems(problems)
            return main(config) or 0

        code = main(config, composed.make_composition(problems)) or 0
        raise_problems(problems)
        return code

    return run_composed


def _find_redacted_values(config: Any) -> Iterator[Problem]:
    """Yields a problem for each value in which a secret was redacted when a run saved it.

    Only the configurations of runs are saved; in others, such as in a prompt, `[redacted]` is
    ordinary text.
    """
    if not isinstance(config, RunConfig):
        return
    for name, section, field in iterate_leaves(config):
        value = getattr(section, field.name)
        if REDACTED in str(value):
            expected = "the value with its secret, which no run saves with its configuration"
            yield Problem(name, HYDRA, format_value(value), expected, f"pass {name}=VALUE again")


def _log_to_console() -> None:
    """Logs to standard error: warnings from all ranks, and messages from the first one only."""
    console = logging.StreamHandler()
    console.setLevel(logging.INFO if read_rank() == 0 else logging.WARNING)
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[console],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("bsmeta").setLevel(logging.DEBUG)  # for the logs in the run folder


def _run_command_line(
    schema: type, config_name: str, run_composed: RunComposed, offered_schemas: Sequence[type | str]
) -> int:
    """Composes the command line of this process, and runs it; returns the exit code.

    Args:
        schema: The schema of the command line's configuration.
        config_name: The main configuration if the command line names none.
        offered_schemas: The schemas that the program takes.
    """
    reader = ConfigReader()
    register_schema(schema, reader)  # its name may itself be the --config-name
    command_line = read_command_line(sys.argv[1:], schema, config_name, offered_schemas)
    if read_rank() == 0:
        for remark in describe_repetitions(command_line.overrides):
            logger.warning(remark)

    reader.own_folder = command_line.own_folder
    reader.main_folder = command_line.folder
    overrides = read_overrides(command_line.overrides, schema, reader)
    sys.argv[1:] = [redact(argument) for argument in sys.argv[1:]]  # for trackers and model cards
    if not command_line.needs_hydra_runner:
        composed = compose_files(
            command_line.config_name, overrides, schema, reader, command_line.problems
        )
        return run_composed(composed)

    raise_problems(_find_problems_of_alternatives(command_line, overrides, schema, reader))
    return _run_by_hydra(command_line, overrides, schema, reader, run_composed)


def _find_problems_of_alternatives(
    command_line: CommandLine, overrides: Sequence[Override], schema: type, reader: ConfigReader
) -> list[Problem]:
    """Lists the problems of the command line with each value of a `--multirun`.

    Each value is tried at least once, but not each combination: an override with fewer values than
    another keeps its last one.
    """
    all_alternatives = [override.list_alternatives() for override in overrides]
    all_alternatives = [alternatives for alternatives in all_alternatives if alternatives]
    num_runs = max((len(alternatives) for alternatives in all_alternatives), default=1)

    problems = command_line.problems
    for number in range(num_runs):
        texts = [
            alternatives[min(number, len(alternatives) - 1)] for alternatives in all_alternatives
        ]
        single_run = [Override(text, schema, reader) for text in texts]
        composed = compose_files(command_line.config_name, single_run, schema, reader, problems)
        problems = composed.problems
    return problems


def _run_by_hydra(
    command_line: CommandLine,
    overrides: Sequence[Override],
    schema: type,
    reader: ConfigReader,
    run_composed: RunComposed,
) -> int:
    """Lets Hydra print the configuration, or run each combination of a `--multirun`.

    Returns:
        The largest exit code of the runs.
    """
    overridden = tuple(override.name for override in overrides)
    arguments = sys.argv[1:]
    exit_codes = [0]

    # With these settings, Hydra adds no folders or files of its own.
    settings = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]
    if not command_line.is_multirun:
        settings.append("hydra.run.dir=.")
    settings = [text for text in settings if extract_key(text) not in overridden]
    texts = [override.format_forced(quiet=True) for override in overrides]
    sys.argv[1:] = [*command_line.options, *texts, *settings]

    def run_job(job_config: DictConfig) -> None:
        sys.argv[1:] = arguments
        _redact_multirun_record()

        written_values = extract_plain_values(job_config)
        values = open_structure(schema)
        problems = [
            misfit.describe_problem(HYDRA, schema)
            for misfit in fill_section(values, written_values)
        ]
        composed = Composed(values, written_values, tuple(reader.files), overridden, problems)
        # An exception would leave this function through Hydra, which prints a report of its own.
        exit_codes.append(run_and_report(lambda: run_composed(composed)))

    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra exits with 1 before we can report the error
    run_hydra = hydra.main(
        version_base="1.3", config_path=str(CONFIG_FOLDER), config_name=command_line.config_name
    )(run_job)
    try:
        with accept_any_help_text():
            run_hydra()
    except REFUSALS as error:
        raise ConfigurationError(explain_error(error)) from error
    return max(exit_codes)


def _redact_multirun_record() -> None:
    """Redacts the file in which Hydra records the overrides of a `--multirun`, if it has one."""
    record = Path(HydraConfig.get().sweep.dir) / "multirun.yaml"
    if HydraConfig.get().mode == RunMode.MULTIRUN and record.exists():
        record.write_text(redact(record.read_text()))
