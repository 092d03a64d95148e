"""Parses a command line before Hydra sees it: its options, the schema that it is for, and `--help`.

Hydra's parser exits with a bare usage line at the first unknown option. Here each one becomes a
problem with its fix, reported along with all others. `--help` and docs/configuration.md show the
schema as text: every key with its type, default, meaning and DeepSpeed counterpart.
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString

from bsmeta.config.sources import group_options
from bsmeta.config.values import COMMAND_LINE, entries_of, store_name, suggestion, type_name
from bsmeta.core.errors import ConfigurationError, Problem, much_like, nearest, refuse, show
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.keys import About, about, leaves, meanings, type_hints
from bsmeta.core.parsing import YAMLLoader, has_surrogates, parse_yaml

Config = TypeVar("Config")

# Options of `accelerate launch` that are passed after the script by mistake.
_ACCELERATE = {
    "config_file", "num_processes", "num_machines", "machine_rank", "main_process_ip",
    "main_process_port", "deepspeed_config_file", "use_deepspeed", "multi_gpu", "cpu", "gpu_ids",
    "zero_stage", "same_network",
}  # fmt: skip

# Hydra's grammar accepts ~ only at the beginning of an override (where it deletes a key), and in
# quoted text, which comes first (up to the end, if it is not closed, so that it is read once).
_HOME = re.compile(
    r"""
    "(?:\\.|[^"\\])*+ "? | '(?:\\.|[^'\\])*+ '?
    | (?<=[=\[,]) (?P<path> ~[^\s,\[\]{}'"]* )
    """,
    re.VERBOSE,
)

_QUOTED_KEY = re.compile(r"""[{,]\s*(?:"[^"]*"|'[^']*')\s*:""")

_NARROWEST = 40  # columns of a page of help
# The keys of `--help`: those that most runs set.
MAIN = (
    "data_config.train_file",
    "data_config.validation_file",
    "data_config.metadata_config.metadata_list",
    "data_config.metadata_config.metadata_probability",
    "data_config.metadata_config.max_seq_len",
    "data_config.per_device_train_batch_size",
    "data_config.num_workers",
    "model_name",
    "model_config_file",
    "learning_rate",
    "num_warmup_steps",
    "max_train_steps",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "mixed_precision",
    "seed",
    "out_dir",
    "resume_from_checkpoint_dir",
    "eval_steps",
    "save_steps",
)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line without the options that Hydra would refuse.

    Attributes:
        options: Hydra's options, as they were passed.
        overrides: `key=value`, as they were passed.
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
    problems: list[Problem]


def read(
    arguments: Sequence[str], schema: type, config_name: str, schemas: Sequence[type | str] = ()
) -> CommandLine:
    """Reads the arguments of an entry point.

    Args:
        schema: The schema of the configuration that they name.
        schemas: Those that the program takes; by default only that one.

    Raises:
        ConfigurationError: If an argument is not in UTF-8, if an option of Hydra lacks its value,
            or if there is no configuration of the requested name.
    """
    refuse([*_undecodable(arguments)])
    options, problems = _without_unknown_options(arguments, schema)
    parsed = argument_parser().parse_intermixed_args(options)
    for override in parsed.overrides:
        options.remove(override)
    folder, own_folder = _resolved(parsed.config_path), _resolved(parsed.config_dir)
    name = str(parsed.config_name or config_name)
    offered = {store_name(one) for one in (schema, *schemas)}
    missing = [*_missing(folder or CONFIG_FOLDER, own_folder, name, offered)]
    if missing:
        refuse([*problems, *missing])
    # The last of repeated options wins. Hydra would resolve a relative --config-path against the
    # folder of this module.
    options += ["--config-path", str(folder)] if folder else []
    options += ["--config-dir", str(own_folder)] if own_folder else []
    prints = parsed.cfg is not None or parsed.info is not None
    settings = [text for text in parsed.overrides if key_of(text).startswith("hydra")]
    return CommandLine(
        options=options,
        overrides=parsed.overrides,
        folder=folder or CONFIG_FOLDER,
        own_folder=own_folder,
        config_name=name,
        is_multirun=parsed.multirun,
        runs_by_hydra=parsed.multirun or prints or bool(settings),
        problems=problems,
    )


def _undecodable(arguments: Sequence[str]) -> Iterator[Problem]:
    """Yields the arguments that are not in UTF-8, as names of old file systems may be."""
    for argument in filter(has_surrogates, arguments):
        key, _, value = argument.rpartition("=")
        fix = "rename the file or folder (convmv does so for whole folders)"
        found = f"{value}, which is not in UTF-8"
        yield Problem(key or "an argument", COMMAND_LINE, found, "a name in UTF-8", fix)


def key_of(override: str) -> str:
    """The key or group of an override, `+learning_rate=1` or `~model`."""
    return override.partition("=")[0].lstrip("+~")


def repeated(overrides: Sequence[str]) -> Iterator[str]:
    """Yields a line for each key that is given again with another value, which then counts."""
    values: dict[str, str] = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        name = name.lstrip("+")
        if equals and values.get(name, value) != value:
            yield f"{name} is given twice on the command line: {value} counts, not {values[name]}"
        values[name] = value


def quote_home(override: str) -> str:
    """Quotes every value of an override that begins with ~, as Hydra's grammar requires."""
    return _HOME.sub(lambda found: f"'{found['path']}'" if found["path"] else found[0], override)


def quote_mapping(override: str) -> str:
    """Quotes a mapping some of whose keys are quoted, which Hydra's grammar does not have.

    `values.fill` reads the text as the mapping.
    """
    name, equals, value = override.partition("=")
    if not (value.startswith("{") and _QUOTED_KEY.search(value)):
        return override
    try:
        mapping = parse_yaml(value, _FlowLoader)
        if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
            return override
        text = json.dumps(mapping, ensure_ascii=False)
    except (yaml.YAMLError, TypeError, ValueError):
        return override
    return f"{name}{equals}{QuotedString(text, Quote.single).with_quotes()}"


class _FlowLoader(YAMLLoader):
    """YAML in which, as in Hydra's grammar, only true and false are booleans."""


_BOOLEAN = "tag:yaml.org,2002:bool"
_FlowLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in YAMLLoader.yaml_implicit_resolvers.items()
}
_FlowLoader.add_implicit_resolver(_BOOLEAN, re.compile(r"(?i)true|false"), [*"tTfF"])


def pasteable(command: Sequence[str], **environment: str) -> str:
    """A command with the variables that it is started with, as a line for a POSIX shell."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*variables, shlex.join(command)])


class ArgumentParser(argparse.ArgumentParser):
    """A parser that raises its errors instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"the command line: {message}; see --help")


def argument_parser() -> ArgumentParser:
    """The parser of Hydra's own options."""
    return ArgumentParser(parents=[get_args_parser()], add_help=False, allow_abbrev=False)


def _resolved(folder: str | None) -> Path | None:
    return None if folder is None else Path(folder).expanduser().resolve()


def _missing(
    folder: Path, own_folder: Path | None, name: str, schemas: Collection[str]
) -> Iterator[Problem]:
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
    known = {
        path: sorted(
            file.stem for file in path.glob("*.yaml") if _is_for_program(file, folders, schemas)
        )
        for path in folders
    }
    there = "; ".join(f"{', '.join(names) or 'none'} in {path}" for path, names in known.items())
    path = Path(name).expanduser()
    names = [name for stems in known.values() for name in stems]
    fix = f"--config-name {much_like(stem, names) or 'NAME'}" if names else "--config-dir FOLDER"
    if path.is_file() or path.with_suffix(".yaml").is_file():
        fix = f"--config-dir {path.parent} --config-name {path.stem}"
    expected = f"a configuration{nearest(stem, names)}: {there}"
    yield Problem("--config-name", COMMAND_LINE, show(name), expected, fix)


def _is_for_program(
    file: Path, folders: Sequence[Path], schemas: Collection[str], above: Sequence[Path] = ()
) -> bool:
    """Whether a configuration is of one of these schemas, or of none.

    Its defaults list names files beside it, directly or not, and the schema.

    Args:
        above: The files whose defaults lists lead to this one.
    """
    if file in above:  # in a circle
        return False
    for name in (entry for entry in _defaults(file) if isinstance(entry, str)):
        if name in ("_self_", *schemas):
            continue
        beside = next((path for path in folders if (path / f"{name}.yaml").is_file()), None)
        if beside is None:
            return False
        if not _is_for_program(beside / f"{name}.yaml", folders, schemas, [*above, file]):
            return False
    return True


def _without_unknown_options(
    arguments: Sequence[str], schema: type
) -> tuple[list[str], list[Problem]]:
    """The arguments that Hydra accepts, and a problem for each option that it does not know."""
    _, unknown = argument_parser().parse_known_intermixed_args(list(arguments))
    rest, problems = list(arguments), []
    for option in unknown:
        if option.startswith("-"):
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
        valued = {*(key for key, _, _ in leaves(schema())), *group_options()}  # no sections
        known = name if name in valued else suggestion(name, schema)
        fix = f"write {known}={value or '…'}" if known in valued else "drop it; see --help"
    return Problem(option, COMMAND_LINE, value or "an unknown option", expected, fix)


def choose(
    arguments: Sequence[str], schemas: Sequence[type[Config] | str], config_name: str
) -> type[Config]:
    """The schema that the defaults lists of a command line's configuration name first.

    Args:
        schemas: Those that are possible; one as `module:attribute` is imported if it is chosen. The
            first is chosen if it is unclear, which is refused later.
    """
    known = {store_name(schema): schema for schema in schemas}
    named = (known[name] for name in _configurations(arguments, config_name) if name in known)
    chosen = next(named, schemas[0])
    schema: type[Config] = pkgutil.resolve_name(chosen) if isinstance(chosen, str) else chosen
    return schema


def _configurations(arguments: Sequence[str], config_name: str) -> Iterator[str]:
    """Yields the main configuration, and those that its defaults list names, directly or not."""
    try:
        parsed, _ = argument_parser().parse_known_intermixed_args(list(arguments))
    except ConfigurationError:
        return
    folders = [parsed.config_dir, parsed.config_path or CONFIG_FOLDER]
    names, seen = [str(parsed.config_name or config_name)], set()
    while names:
        name = names.pop(0).removesuffix(".yaml").lstrip("/")
        yield name
        files = [Path(folder).expanduser() / f"{name}.yaml" for folder in folders if folder]
        file = next(filter(Path.is_file, files), None)
        if file is not None and name not in seen:
            seen.add(name)
            names[:0] = [entry for entry in _defaults(file) if isinstance(entry, str)]


def _defaults(file: Path) -> list[Any]:
    """The defaults list of a file; [] if it has none, or cannot be read."""
    try:
        content = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    entries = content.get("defaults") if isinstance(content, dict) else None
    return entries if isinstance(entries, list) else []


@dataclass(frozen=True)
class Key:
    """One key of the schema: its dotted name, its type and default as text, and all about it."""

    name: str
    type: str
    default: str
    meaning: str
    about: About
    entries: Any  # the dataclass of the entries of a list


def keys(schema: type) -> Iterator[Key]:
    """Yields the leaves of the schema, in declaration order."""
    for name, section, field in leaves(schema()):
        owner: Any = type(section)
        kind = type_hints(owner)[field.name]
        default = _text(getattr(section, field.name))
        known = about(field)
        meaning = known.meaning or meanings(owner).get(field.name, "")
        yield Key(name, type_name(kind), default, meaning, known, entries_of(kind))


def sections(schema: type) -> list[tuple[str, list[Key]]]:
    """The keys under headings: the outermost ones by topic, then each section under its name.

    The entries of a list of dataclasses (`schedule`) form a section, too, placed after the list's.
    """
    parts: dict[str, list[Key]] = {}
    heading = "Keys"
    for name in keys(schema):
        section = name.name.rpartition(".")[0]
        heading = name.about.heading or heading
        parts.setdefault(f"`{section}`" if section else heading, []).append(name)
        if name.entries is not None:
            parts[f"Entries of `{name.name}`"] = list(keys(name.entries))
    return sorted(parts.items(), key=lambda part: part[0].startswith(("`", "Entries")))


def wrapped(page: str) -> str:
    """A page folded to the width of the terminal; unchanged where there is none."""
    if not (sys.stdout.isatty() or "COLUMNS" in os.environ):
        return page
    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    lines = [
        textwrap.fill(
            line, width, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4),
            break_long_words=False, break_on_hyphens=False,
        )
        if len(line) > width
        else line
        for line in page.split("\n")
    ]  # fmt: skip
    return "\n".join(lines)


def describe(schema: type, program: str, config_name: str, *, whole: bool = True) -> str:
    """The text of `--help`; docs/configuration.md holds the same (bsmeta.reference).

    Args:
        whole: Whether to show every key (`--help all`) or only those that most runs set.
    """
    lines = [
        f"usage: {program} [--config-name NAME] [key=value ...]",
        "",
        f"NAME is a file of hydra_configs/ (default: {config_name}). Hydra's own options work too",
        "(--multirun, --cfg job, --info). A key with a DeepSpeed twin owns it: the DeepSpeed JSON",
        'says "auto" or the same value. A value may hold ${oc.env:VARIABLE,default},',
        "${from_file:PATH} and ${other.key}.",
        "",
    ]
    is_training = "RunConfig" in {base.__name__ for base in schema.__mro__}
    if is_training:
        lines.append("groups, which set several keys at once (recipes with a +):")
        lines += [f"    {name}={' | '.join(found)}" for name, found in group_options().items()]
        lines.append("")
    if is_training and not whole:
        named = {key.name: key for key in keys(schema)}
        inherited = {
            name for base in schema.__mro__[1:] for name in vars(base).get("__annotations__", {})
        }
        own = [key for name, key in named.items() if name.partition(".")[0] not in inherited]
        if not {key.name for key in own} & {*MAIN}:
            lines += _listed(f"Keys of {program}", own)
        main = [named[name] for name in MAIN if name in named]
        lines += _listed("The keys that most runs set", main)
        rest = ", ".join(f"{heading} ({len(found)})" for heading, found in sections(schema))
        lines.append(f"--help all shows all {len(named)} keys: {rest.replace('`', '')}.")
        return "\n".join(lines)
    for heading, found in sections(schema):
        lines += _listed(heading.replace("`", ""), found)
    return "\n".join(lines)


def _listed(heading: str, found: list[Key]) -> list[str]:
    """Lists keys below their heading, each with its meaning on a second line."""
    lines = [heading, "-" * len(heading)]
    for line in found:
        twin = f"  [DeepSpeed: {line.about.deepspeed}]" if line.about.deepspeed else ""
        values = f"  ({line.about.values})" if line.about.values else ""
        lines.append(f"{line.name}: {line.type} = {line.default}{values}")
        lines.append(f"    {line.meaning}{twin}")
    return [*lines, ""]


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
