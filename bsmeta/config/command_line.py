"""Parses the command line before Hydra sees it, and finds the options that Hydra does not know.

Hydra's parser exits with a bare usage line at the first unknown option. Here each one becomes a
problem with its fix, reported along with all others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException

from bsmeta.config.describe import group_options, keys, suggestion
from bsmeta.config.hydra_ext import argument_parser, key_of
from bsmeta.core.errors import Problem, closest, nearest, refuse, show
from bsmeta.core.files import CONFIG_FOLDER

COMMAND_LINE = "the command line"
# Options of `accelerate launch` that are passed after the script by mistake.
_ACCELERATE = {
    "config_file", "num_processes", "num_machines", "machine_rank", "main_process_ip",
    "main_process_port", "deepspeed_config_file", "use_deepspeed", "multi_gpu", "cpu", "gpu_ids",
    "zero_stage", "same_network",
}  # fmt: skip
# Hydra's grammar accepts ~ only at the beginning of an override (where it deletes a key), and in
# quoted text, which comes first.
_HOME = re.compile(
    r"""
    "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'
    | (?<=[=\[,]) (?P<path> ~[^\s,\[\]{}'"]* )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line without the options that Hydra would refuse.

    Attributes:
        options: Hydra's options, as they were passed.
        overrides: `key=value`, with values that begin with `~` in quotes.
        folder: The folder of the main configuration.
        own_folder: `--config-dir`, resolved.
        is_multirun: Whether overrides hold lists of values for several runs.
        runs_by_hydra: Whether Hydra's runner is asked for: several runs, printed information
            (`--cfg`, `--info`), or settings of Hydra itself.
        problems: The options that were removed because Hydra does not know them.
    """

    options: list[str]
    overrides: list[str]
    folder: Path
    own_folder: Path | None
    config_name: str
    is_multirun: bool
    runs_by_hydra: bool
    problems: list[Problem] = field(default_factory=list)


def read(arguments: Sequence[str], schema: type, config_name: str) -> CommandLine:
    """Reads the arguments of an entry point.

    Raises:
        ConfigurationError: If an option of Hydra lacks its value, or if there is no configuration
            of the requested name.
    """
    rest, problems = _without_unknown_options(arguments, schema)
    parsed = argument_parser().parse_intermixed_args(rest)
    options = list(rest)
    for override in parsed.overrides:
        options.remove(override)
    folder, own_folder = _resolved(parsed.config_path), _resolved(parsed.config_dir)
    name = str(parsed.config_name or config_name)
    missing = [*_missing(folder or CONFIG_FOLDER, own_folder, name)]
    if missing:
        refuse([*problems, *missing])
    # The last of repeated options wins. Hydra would resolve a relative --config-path against the
    # folder of this module.
    options += ["--config-path", str(folder)] if folder else []
    options += ["--config-dir", str(own_folder)] if own_folder else []
    return CommandLine(
        options=options,
        overrides=[quote_home(override) for override in parsed.overrides],
        folder=folder or CONFIG_FOLDER,
        own_folder=own_folder,
        config_name=name,
        is_multirun=parsed.multirun,
        runs_by_hydra=parsed.multirun
        or parsed.cfg is not None
        or parsed.info is not None
        or any(key_of(override).startswith("hydra") for override in parsed.overrides),
        problems=problems,
    )


def repeated(overrides: Sequence[str]) -> Iterator[str]:
    """Yields a line for each key that is given again with another value, which then counts."""
    values: dict[str, str] = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        name = name.lstrip("+")
        if equals and values.get(name, value) != value:
            yield f"{name} is given twice on the command line: {value} counts, not {values[name]}"
        values[name] = value


def alternatives(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Yields overrides of single runs, in which each value of a `--multirun` is at least once."""
    columns = [_values_of(override) for override in overrides]
    for number in range(max(map(len, columns), default=1)):
        yield [column[min(number, len(column) - 1)] for column in columns if column]


def _values_of(override: str) -> list[str]:
    """An override for each value of one that has several; none for a pattern of choices."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:  # reported where it is composed
        return [override]
    if not parsed.is_sweep_override():
        return [override]
    if isinstance(parsed.value(), Glob):
        return []
    return [f"{override.partition('=')[0]}={value}" for value in parsed.sweep_string_iterator()]


def pasteable(command: Sequence[str], **environment: str) -> str:
    """A command with the variables that it is started with, as a line for a POSIX shell."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*variables, shlex.join(command)])


def quote_home(override: str) -> str:
    """Quotes every value of an override that begins with ~, as Hydra's grammar requires."""
    return _HOME.sub(lambda found: f"'{found['path']}'" if found["path"] else found[0], override)


def _resolved(folder: str | None) -> Path | None:
    return None if folder is None else Path(folder).expanduser().resolve()


def _missing(folder: Path, own_folder: Path | None, name: str) -> Iterator[Problem]:
    """Yields a missing folder or main configuration, along with the existing ones."""
    for option, path in (("--config-path", folder), ("--config-dir", own_folder)):
        if path is not None and not path.is_dir():
            found = f"{path}, which is {'a file' if path.exists() else 'not there'}"
            beside = path.parent.iterdir() if path.parent.is_dir() else ()
            near = nearest(path.name, [entry.name for entry in beside if entry.is_dir()])
            fix = f"{option} {path.parent} --config-name {path.stem}" if path.exists() else ""
            expected = f"a folder of configurations{near}"
            yield Problem(option, COMMAND_LINE, found, expected, fix or "correct the path")
            return
    stem = name.removesuffix(".yaml")
    folders = [path for path in (own_folder, folder) if path is not None]
    is_file = any((path / f"{stem}.yaml").is_file() for path in folders)
    if is_file or f"{stem}.yaml" in ConfigStore.instance().list(""):
        return
    known = {path: sorted(file.stem for file in path.glob("*.yaml")) for path in folders}
    there = "; ".join(f"{', '.join(names) or 'none'} in {path}" for path, names in known.items())
    path = Path(name).expanduser()
    names = [name for stems in known.values() for name in stems]
    fix = f"--config-name {closest(stem, names)}" if names else "--config-dir FOLDER"
    if path.is_file() or path.with_suffix(".yaml").is_file():
        fix = f"--config-dir {path.parent} --config-name {path.stem}"
    expected = f"a configuration{nearest(stem, names)}: {there}"
    yield Problem("--config-name", COMMAND_LINE, show(name), expected, fix)


def _without_unknown_options(
    arguments: Sequence[str], schema: type
) -> tuple[list[str], list[Problem]]:
    """The arguments that Hydra accepts, and a problem for each option that it does not know."""
    _, unknown = argument_parser().parse_known_intermixed_args(list(arguments))
    unknown = [argument for argument in unknown if argument.startswith("-")]
    rest, problems = list(arguments), []
    for option in unknown:
        at = rest.index(option)
        del rest[at]
        name, equals, value = option.partition("=")
        if not equals and at < len(rest) and not re.search("^-|=", rest[at]):
            value = rest.pop(at)
        problems.append(_unknown_option(name, value, schema))
    return rest, problems


def _unknown_option(option: str, value: str, schema: type) -> Problem:
    name = option.lstrip("-").replace("-", "_")
    expected = "key=value, or an option of Hydra"
    if name == "local_rank":
        expected = "no such option: deepspeed's own launcher passes it, and names no DeepSpeed JSON"
        fix = "accelerate launch --config_file experiments/accelerate/zero2.yaml …"
    elif name in _ACCELERATE:
        expected += f"; {option} is one of accelerate launch"
        fix = f"accelerate launch {option} {value or '…'} SCRIPT …, before the script"
    elif name in ("config", "c"):
        path = Path(value or "NAME")
        has_folder = path.name != value and value
        fix = f"--config-dir {path.parent} " if has_folder else ""
        fix += f"--config-name {path.name.removesuffix('.yaml')}"
    elif name == "resume":
        fix = f"resume_from_checkpoint_dir={value or 'latest'}"
    else:
        valued = {*(key.name for key in keys(schema)), *group_options()}  # a section has no value
        known = name if name in valued else suggestion(name, schema)
        fix = f"write {known}={value or '…'}" if known in valued else "drop it; see --help"
    return Problem(option, COMMAND_LINE, value or "an unknown option", expected, fix)
