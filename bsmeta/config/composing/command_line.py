"""Parses a command line before Hydra sees it.

Hydra's parser exits with a bare usage line at the first unknown option. Here, each unknown option
becomes a problem with a fix, and is reported along with all other problems.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_store import ConfigStore

from bsmeta.config.composing.groups import list_group_options
from bsmeta.config.composing.hydra_options import make_option_parser
from bsmeta.config.composing.misfits import COMMAND_LINE, suggest_key
from bsmeta.config.composing.overrides import extract_key
from bsmeta.config.composing.schema_choice import is_for_program
from bsmeta.config.composing.schema_types import format_schema_name
from bsmeta.config.launch import ENVIRONMENT
from bsmeta.core.errors import Problem, find_similar, format_value, raise_problems, suggest_nearest
from bsmeta.core.files import CONFIG_FOLDER, refuse_special_file
from bsmeta.core.keys import describe_undecodable, iterate_leaves
from bsmeta.core.parsing import has_surrogates

# Options of `accelerate launch` that are passed after the script by mistake.
_ACCELERATE_OPTIONS = {
    "config_file", "num_processes", "num_machines", "machine_rank", "main_process_ip",
    "main_process_port", "deepspeed_config_file", "use_deepspeed", "multi_gpu", "cpu", "gpu_ids",
    "zero_stage", "same_network",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line without the options that Hydra would refuse.

    Attributes:
        options: Hydra's own options, as they were passed.
        overrides: The arguments `key=value`, as they were passed.
        folder: The folder of the main configuration (`--config-path`).
        own_folder: The resolved folder of the user (`--config-dir`); None if it is not passed.
        config_name: The name of the main configuration.
        is_multirun: Whether each override may list values for several runs.
        needs_hydra_runner: Whether Hydra must run the program: for several runs, to print
            information (`--cfg`, `--info`), or because settings of Hydra itself are overridden.
        problems: A problem for each option that was removed because Hydra does not know it.
    """

    options: list[str]
    overrides: list[str]
    folder: Path
    own_folder: Path | None
    config_name: str
    is_multirun: bool
    needs_hydra_runner: bool
    problems: list[Problem]


def read_command_line(
    arguments: Sequence[str], schema: type, config_name: str, schemas: Sequence[type | str] = ()
) -> CommandLine:
    """Reads the arguments of an entry point.

    Args:
        schema: The schema of the configuration that the arguments name.
        config_name: The main configuration if the arguments name none.
        schemas: The other schemas that the program takes, for suggestions.

    Raises:
        ConfigurationError: If an argument or the working folder is not in UTF-8, if an option of
            Hydra lacks its value, or if there is no configuration of the requested name.
    """
    raise_problems(list(_find_undecodable_names(arguments)))
    options, problems = _split_unknown_options(arguments, schema)
    parsed = make_option_parser().parse_intermixed_args(options)
    for override in parsed.overrides:
        options.remove(override)

    folder = _resolve_folder(parsed.config_path)
    own_folder = _resolve_folder(parsed.config_dir)
    name = str(parsed.config_name or config_name)
    schema_names = {format_schema_name(offered) for offered in (schema, *schemas)}
    missing_file = _find_missing_file(folder or CONFIG_FOLDER, own_folder, name, schema_names)
    if missing_file is not None:
        raise_problems([*problems, missing_file])

    # The last of repeated options wins. Hydra would resolve a relative --config-path against the
    # folder of this module.
    if folder:
        options += ["--config-path", str(folder)]
    if own_folder:
        options += ["--config-dir", str(own_folder)]

    prints_information = parsed.cfg is not None or parsed.info is not None
    sets_hydra = any(extract_key(text).startswith("hydra") for text in parsed.overrides)
    return CommandLine(
        options=options,
        overrides=parsed.overrides,
        folder=folder or CONFIG_FOLDER,
        own_folder=own_folder,
        config_name=name,
        is_multirun=parsed.multirun,
        needs_hydra_runner=parsed.multirun or prints_information or sets_hydra,
        problems=problems,
    )


def format_pasteable_command(command: Sequence[str], **environment: str) -> str:
    """Formats a command, and environment variables to set for it, as a line for a POSIX shell."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*variables, shlex.join(command)])


def _find_undecodable_names(arguments: Sequence[str]) -> Iterator[Problem]:
    """Yields a problem for the working folder and each argument, if they are not in UTF-8.

    Hydra would report such an argument as a mistake in its grammar, and the tokenizers library
    would crash in such a folder.
    """
    if has_surrogates(str(Path.cwd())):
        yield describe_undecodable("the working folder", Path.cwd(), ENVIRONMENT)
    for argument in filter(has_surrogates, arguments):
        key, _, value = argument.rpartition("=")
        yield describe_undecodable(key or "an argument", value, COMMAND_LINE)


def _resolve_folder(folder: str | None) -> Path | None:
    """Returns the absolute path of a folder, with a leading `~` expanded; None stays None."""
    return None if folder is None else Path(folder).expanduser().resolve()


def _find_missing_file(
    folder: Path, own_folder: Path | None, name: str, schema_names: Collection[str]
) -> Problem | None:
    """Returns the problem of a missing folder or main configuration; None if both exist.

    Args:
        folder: See `CommandLine`.
        own_folder: See `CommandLine`.
        name: The name of the main configuration.
        schema_names: The schemas of the program, as defaults lists name them.

    Raises:
        DataError: If the main configuration is a pipe, a socket or a device.
    """
    for option, path in (("--config-path", folder), ("--config-dir", own_folder)):
        if path is not None and not path.is_dir():
            return _describe_missing_folder(option, path)

    stem = name.removesuffix(".yaml")
    folders = [path for path in (own_folder, folder) if path is not None]
    files = [path / f"{stem}.yaml" for path in folders]
    for file in files:
        refuse_special_file(file)
    if any(file.is_file() for file in files) or f"{stem}.yaml" in ConfigStore.instance().list(""):
        return None
    return _describe_missing_configuration(name, folders, schema_names)


def _describe_missing_configuration(
    name: str, folders: Sequence[Path], schema_names: Collection[str]
) -> Problem:
    """Returns the problem of a main configuration that no folder has; lists the existing ones."""
    stem = name.removesuffix(".yaml")
    all_names: list[str] = []
    descriptions: list[str] = []
    for folder in folders:
        files = sorted(file for file in folder.glob("*.yaml") if file.is_file())
        names = [file.stem for file in files if is_for_program(file, folders, schema_names)]
        descriptions.append(f"{', '.join(names) or 'none'} in {folder}")
        all_names += names

    expected = f"a configuration{suggest_nearest(stem, all_names)}: {'; '.join(descriptions)}"
    file = Path(name).expanduser()
    if file.is_file() or file.with_suffix(".yaml").is_file():
        fix = f"--config-dir {file.parent} --config-name {file.stem}"
    elif all_names:
        fix = f"--config-name {find_similar(stem, all_names) or 'NAME'}"
    else:
        fix = "--config-dir FOLDER"
    return Problem("--config-name", COMMAND_LINE, format_value(name), expected, fix)


def _describe_missing_folder(option: str, path: Path) -> Problem:
    """Returns the problem of a config folder that does not exist or is a file.

    Args:
        option: The option that names the folder.
    """
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    similar = suggest_nearest(path.name, [entry.name for entry in siblings if entry.is_dir()])
    if path.exists():
        found = f"{path}, which is a file"
        fix = f"{option} {path.parent} --config-name {path.stem}"
    else:
        found = f"{path}, which is not there"
        fix = "correct the path"
    return Problem(option, COMMAND_LINE, found, f"a folder of configurations{similar}", fix)


def _split_unknown_options(
    arguments: Sequence[str], schema: type
) -> tuple[list[str], list[Problem]]:
    """Returns the arguments that Hydra accepts, and a problem for each option that it refuses."""
    _, unknown = make_option_parser().parse_known_intermixed_args(list(arguments))
    accepted = list(arguments)
    problems: list[Problem] = []
    for option in unknown:
        if not option.startswith("-"):
            continue

        position = accepted.index(option)
        del accepted[position]
        name, equals, value = option.partition("=")
        following = accepted[position : position + 1]
        if not equals and following and not re.search("^-|=", following[0]):
            value = accepted.pop(position)  # the option and its value are separate arguments
        problems.append(_describe_unknown_option(name, value, schema))
    return accepted, problems


def _describe_unknown_option(option: str, value: str, schema: type) -> Problem:
    """Returns the problem of an option that Hydra refuses, with the key that was probably meant."""
    name = option.lstrip("-").replace("-", "_")
    expected = "key=value, or an option of Hydra"

    if name == "local_rank":
        expected = "no such option: deepspeed's own launcher passes it, and names no DeepSpeed JSON"
        fix = "accelerate launch --config_file experiments/accelerate/zero2.yaml …"
    elif name in _ACCELERATE_OPTIONS:
        expected += f"; {option} is one of accelerate launch"
        fix = f"accelerate launch {option} {value or '…'} SCRIPT …, before the script"
    elif name in ("config", "c"):
        path = Path(value or "NAME")
        fix = f"--config-name {path.name.removesuffix('.yaml')}"
        if value and path.name != value:
            fix = f"--config-dir {path.parent} {fix}"
    elif name == "resume":
        fix = f"resume_from_checkpoint_dir={value or 'latest'}"
    else:
        keys_and_groups = {*(key for key, _, _ in iterate_leaves(schema())), *list_group_options()}
        suggestion = name if name in keys_and_groups else suggest_key(name, schema)
        is_settable = suggestion in keys_and_groups  # a section is not
        fix = f"write {suggestion}={value or '…'}" if is_settable else "drop it; see --help"

    return Problem(option, COMMAND_LINE, value or "an unknown option", expected, fix)
