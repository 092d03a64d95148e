"""What is wrong with a command line or a YAML file, when Hydra refuses to compose it.

Hydra stops at the first mistake. `mistakes` tries each override alone, so that one message can name
all of them, and gives what is left once they are taken away.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.checks.problems import Problem, closest, nearest, show
from bsmeta.config.describe import CONFIG_FOLDER, group_options, key_names, keys

COMMAND_LINE = "the command line"
HELP = "see --help for every key"
# "+key=value" cannot work: the schema is closed; the rest says nothing to a user.
_NOISE = ("To append", "Config search path", "provider=", "See https", "Error merging")
_CONTEXT = ("object_type", "reference_type")
Refusal = (HydraException, OmegaConfBaseException)


def options_first(arguments: Sequence[str]) -> list[str]:
    """The command line with its overrides at the end, where Hydra's parser takes more of them.

    It wants all overrides to stand together; in front of the options they would part from ours.
    """
    options = list(arguments)
    overrides = get_args_parser().parse_intermixed_args(options).overrides
    for one in overrides:
        options.remove(one)
    return [*options, *overrides]


def of_command_line(
    error: Exception, arguments: Sequence[str], schema: type, config_name: str
) -> tuple[list[Problem], DictConfig | None]:
    """`mistakes` of a whole command line, options included.

    Args:
        error: What Hydra said.
        arguments: The command line behind the program's name.
        schema: The dataclass that it must fit.
        config_name: The file that is used without `--config-name`.
    """
    parsed = get_args_parser().parse_intermixed_args(list(arguments))
    folder = Path(parsed.config_path or CONFIG_FOLDER).expanduser().resolve()
    further = parsed.config_dir and Path(parsed.config_dir).expanduser().resolve()
    compose = composer(folder, parsed.config_name or config_name, further)
    own = [one for one in parsed.overrides if not one.startswith("hydra")]
    if parsed.multirun:  # a list of values is an override of many runs: it does not stand alone
        return mistakes(error, [], compose, schema)[0], None
    return mistakes(error, own, compose, schema)


Composer = Callable[[Sequence[str]], DictConfig]


def composer(folder: Path, name: str, further: Path | None = None) -> Composer:
    """What composes overrides onto the file `name` of a folder; `further` is searched, too."""
    if further is not None and (further / f"{name.removesuffix('.yaml')}.yaml").is_file():
        folder, further = further, folder  # Hydra takes the first file from one folder only
    search = [] if further is None else [f"hydra.searchpath=[file://{further}]"]

    def composed(overrides: Sequence[str]) -> DictConfig:
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(str(folder), version_base="1.3"):
            return hydra.compose(name, [*search, *overrides])

    return composed


def mistakes(
    error: Exception, overrides: Sequence[str], compose: Composer, schema: type
) -> tuple[list[Problem], DictConfig | None]:
    """Every override that cannot be composed, and what the others give.

    Args:
        error: What Hydra said about all of them together.
        overrides: `key=value` as on the command line.
        compose: Composes some of them; raises what Hydra raises.
        schema: The dataclass that they must fit.

    Returns:
        The mistakes, at least one; and the configuration without them (None: there is none).
    """
    try:
        compose([])
    except Refusal as refusal:
        return [_of_file(refusal, schema)], None
    found, fine = [], []
    for override in overrides:
        try:
            compose([override])
        except Refusal as refusal:
            found.append(_of_override(override, refusal, schema))
        else:
            fine.append(override)
    try:
        return found or [_of_file(error, schema)], compose(fine)
    except Refusal:
        return found or [_of_file(error, schema)], None


def _of_override(override: str, error: Exception, schema: type) -> Problem:
    name, _, value = override.partition("=")
    name = name.lstrip("+~")
    message = explain(error)
    if re.search(r"[Kk]ey '[\w.]+' (is )?not in", message):
        inner = re.search(r"full_key: ([\w.]+)", message)
        return unknown_key(inner[1] if inner else name, schema)
    if isinstance(error, MissingConfigException):
        options = group_options().get(name.partition("@")[0], [])
        if options:
            expected = f"one of {', '.join(options)}{nearest(value, options)}"
            plus = "+" if override.startswith("+") else ""
            fix = f"{plus}{name}={closest(value, options)}"
            return Problem(name, COMMAND_LINE, show(value), expected, fix)
    types = {one.name: one.type for one in keys(schema)}
    expected = f"a value of type {types[name]} ({message})" if name in types else message
    if isinstance(error, OverrideParseException):
        expected = f"key=value in Hydra's grammar ({message})"
    return Problem(name, COMMAND_LINE, value or "nothing", expected, f"correct it; {HELP}")


def _of_file(error: Exception, schema: type) -> Problem:
    """A mistake in a YAML file, or one that overrides make together."""
    message = explain(error)
    place = re.search(r"In '(.+?)'", message)
    file = f"{place[1]}.yaml" if place else "the configuration"
    unknown = re.search(r"[Kk]ey '([\w.]+)' (?:is )?not in .*full_key: ([\w.]+)", message)
    if unknown:
        return unknown_key(unknown[2], schema, file)
    where = re.search(r"full_key: ([\w.\[\]]+)", message)
    key = where[1] if where else "(the whole)"
    return Problem(key, file, message, "something that Hydra can compose", f"correct it; {HELP}")


def unknown_key(name: str, schema: type, file: str = COMMAND_LINE) -> Problem:
    """A name that is no key, with the one that looks most like it."""
    known = suggestion(name, schema)
    groups = [*group_options()] if file == COMMAND_LINE else []
    expected = f"a key of {schema.__name__}"
    if groups:
        expected += f", or one of the groups {', '.join(groups)}"
    if known:
        expected += f" (did you mean {known}?)"
    fix = f"write {known}, or drop it" if known else f"drop it; {HELP}"
    return Problem(name, file, "an unknown key", expected, fix)


def suggestion(name: str, schema: type) -> str | None:
    """The key, or group, that looks most like a misspelt one."""
    leaf = name.rsplit(".", 1)[-1]
    full = {one.rsplit(".", 1)[-1]: one for one in reversed(key_names(schema))}
    full |= {group: group for group in group_options()}
    near = difflib.get_close_matches(leaf, full, n=1)
    if not near or full[near[0]] == name:
        return None
    return full[near[0]]


def explain(error: BaseException) -> str:
    """Hydra's message and its cause in one line, without advice that cannot work here."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if error.__cause__ is not None:
        lines += [line.strip() for line in str(error.__cause__).splitlines() if line.strip()]
    return "; ".join(
        line for line in dict.fromkeys(lines) if not line.startswith(_NOISE + _CONTEXT)
    )
