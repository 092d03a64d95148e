"""Composes a command line and its files into a configuration; the only place that runs Hydra.

`run_entry_point` composes `hydra_configs/NAME.yaml` and the overrides onto the schema, converts the
result once, calls the entry point, and turns every outcome into the documented exit code: 0 done,
75 stopped by a signal (with a checkpoint saved, if training had begun), 2 an error that the user
can fix, 1 anything else.

Hydra only merges: an override may set any key, and what does not fit the schema is found by `fill`.
Hydra itself refuses only what is not in its grammar, groups and defaults lists; it stops at the
first of these, so each override is then tried alone.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser import types as hydra_types
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.command_line import (
    CommandLine,
    choose,
    describe,
    key_of,
    quote_home,
    quote_mapping,
    read,
    repeated,
    wrapped,
)
from bsmeta.config.schema import RunConfig
from bsmeta.config.sources import expand_override, group_options, install, reading, shown_path
from bsmeta.config.values import (
    COMMAND_LINE,
    HELP,
    Misfit,
    Names,
    fill,
    finished,
    of_misfit,
    store_name,
    unknown_key,
)
from bsmeta.core.errors import (
    HYDRA,
    MISSING,
    ConfigurationError,
    Problem,
    closest,
    nearest,
    refuse,
    show,
)
from bsmeta.core.files import CONFIG_FOLDER, ROOT
from bsmeta.core.keys import bound_problems, key_names, leaves, type_hints
from bsmeta.core.process import exit_code, leave
from bsmeta.core.rank import rank
from bsmeta.core.secrets import HIDDEN, hide_values, redact
from bsmeta.core.terminal import screened_output
from bsmeta.core.versions import version_lines

Config = TypeVar("Config")
logger = logging.getLogger(__name__)

Refusal = (HydraException, OmegaConfBaseException)
# Advice on "+key=value" cannot work, because the schema is closed; the rest is of no use to a user.
_NOISE = (
    "To append", "Config search path", "provider=", "See https", "Error merging", "object_type",
    "reference_type", "full_key", "In '", "Check that it's in",
)  # fmt: skip

# Names of the published system, in which steps become a cosine.
_SCHEDULES = {"LINEAR_WITH_WARMUP": "linear", "CONSTANT_WITH_WARMUP": "constant"}
_RESOLVERS: dict[str, Callable[..., Any]] = {
    "repo": lambda path: str(ROOT / path),
    "share": lambda share, whole: round(share * whole),
    # `mixed_precision` where a configuration says whether (true, false) or names the type.
    "precision": lambda value: {"true": "bf16", "false": "no"}.get(str(value).lower(), str(value)),
    "schedule": lambda name: _SCHEDULES.get(name, "cosine"),
}


@screened_output()
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
    if "--version" in sys.argv[1:]:
        sys.exit(exit_code(lambda: print(version_lines())))
    offered = [schemas] if isinstance(schemas, type) else schemas
    schema = choose(sys.argv[1:], offered, config_name)
    if {"--help", "-h"} & set(sys.argv[1:]):
        whole = "all" in sys.argv[1:]
        page = describe(schema, os.path.basename(sys.argv[0]), config_name, whole=whole)
        sys.exit(exit_code(lambda: print(wrapped(page))))
    _log_to_console()

    def call(composed: DictConfig, found: Sequence[Problem]) -> int:
        config, more = finished(composed, schema)
        hide_values([reading.written, OmegaConf.to_container(composed)])
        problems = [*found, *more, *_unsaved_secrets(config), *bound_problems(config)]
        if problems:
            if takes_mistakes:
                main(config, problems)
            refuse(problems)
        return main(config) or 0

    leave(exit_code(lambda: _run(schema, config_name, call, offered)))


def _unsaved_secrets(config: Any) -> Iterator[Problem]:
    """Yields the values in which a secret was redacted when a run saved its configuration.

    Only runs save theirs: elsewhere, such as in a prompt, the mark is a text like any other.
    """
    for name, section, field in leaves(config) if isinstance(config, RunConfig) else ():
        value = getattr(section, field.name)
        if HIDDEN in str(value):
            expected = "the value with its secret, which no run saves with its configuration"
            yield Problem(name, HYDRA, show(value), expected, f"pass {name}=VALUE again")


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


def _run(
    schema: type, config_name: str, call: Callable[..., int], offered: Sequence[type | str]
) -> int:
    """Composes the command line of this process, and runs it; returns the exit code."""
    register(schema)  # its name may itself be the --config-name
    line = read(sys.argv[1:], schema, config_name, offered)
    for remark in repeated(line.overrides) if rank() == 0 else ():
        logger.warning(remark)
    reading.own_folder, reading.main_folder = line.own_folder, line.folder
    overrides = _read_overrides(line.overrides, schema)
    reading.overridden = tuple(override.name for override in overrides)
    sys.argv[1:] = map(redact, sys.argv[1:])  # trackers and model cards copy it
    if not line.runs_by_hydra:
        return call(*_compose(line.config_name, overrides, schema, line.problems))
    found = line.problems
    columns = [column for override in overrides if (column := override.alternatives())]
    for number in range(max(map(len, columns), default=1)):  # each value at least once
        texts = [column[min(number, len(column) - 1)] for column in columns]
        single = [Override(text, schema) for text in texts]
        found = _compose(line.config_name, single, schema, found)[1]
    refuse(found)
    return _run_by_hydra(line, overrides, schema, call)


def _run_by_hydra(
    line: CommandLine, overrides: Sequence[Override], schema: type, call: Callable[..., int]
) -> int:
    """Lets Hydra print the configuration, or run each combination of a `--multirun`."""
    codes, given = [0], sys.argv[1:]
    # Hydra adds no folders or files of its own.
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]
    quiet += [] if line.is_multirun else ["hydra.run.dir=."]
    quiet = [text for text in quiet if key_of(text) not in reading.overridden]
    sys.argv[1:] = [*line.options, *(override.forced(quiet=True) for override in overrides), *quiet]

    def task(composed: DictConfig) -> None:
        sys.argv[1:] = given
        about_all = Path(HydraConfig.get().sweep.dir) / "multirun.yaml"
        if HydraConfig.get().mode == RunMode.MULTIRUN and about_all.exists():
            about_all.write_text(redact(about_all.read_text()))
        typed = OmegaConf.structured(schema)
        found = [of_misfit(misfit, HYDRA, schema) for misfit in fill(typed, _plain(composed))]
        # An exception would leave this function through Hydra, which prints a report of its own.
        codes.append(exit_code(lambda: call(typed, found)))

    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra exits with 1 before we can report the error
    folder = str(CONFIG_FOLDER)
    run = hydra.main(version_base="1.3", config_path=folder, config_name=line.config_name)(task)
    try:
        run()
    except Refusal as error:
        raise ConfigurationError(explain(error)) from error
    return max(codes)


def register(schema: type, own_folder: Path | None = None) -> None:
    """Registers the schema, the resolvers and the user's config folder with Hydra (idempotent)."""
    _store(schema)
    for name, resolver in _RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)
    install(key_names(schema), own_folder)


@lru_cache(maxsize=1)  # schemas share the names of their parents: the last one stored counts
def _store(schema: type) -> None:
    """Stores the schema under its name and, so that YAML files of its parents fit it, theirs.

    Hydra merges its default values without their types, which is much faster; `fill` adds them.
    """
    own, *parents = map(store_name, filter(dataclasses.is_dataclass, schema.__mro__))
    ConfigStore.instance().store(name=own, node=dataclasses.asdict(schema()))
    for parent in parents:  # Hydra copies the whole store for each composition
        ConfigStore.instance().store(name=parent, node={"defaults": [own, "_self_"]})


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
    reading.main_folder = CONFIG_FOLDER
    composed, found = _compose(config_name, _read_overrides(overrides, schema), schema)
    config, more = finished(composed, schema)
    refuse([*found, *more])
    return config


def _compose(
    config_name: str, overrides: Sequence[Override], schema: type, earlier: Sequence[Problem] = ()
) -> tuple[DictConfig, list[Problem]]:
    """Composes all that can be composed.

    Args:
        earlier: Mistakes that have been found before.

    Returns:
        The configuration without what is wrong, and all mistakes: those of the files before those
        of the overrides.

    Raises:
        ConfigurationError: Listing the mistakes, if nothing can be composed.
    """
    of_files: list[Problem] = []

    def fine() -> list[Override]:
        return [override for override in overrides if not override.problems]

    def problems() -> list[Problem]:
        return [*earlier, *of_files, *(problem for one in overrides for problem in one.problems)]

    if _refusal(config_name, fine()):
        while refusal := _refusal(config_name, []):
            of_files.append(_of_file(refusal, schema))
            entry = getattr(refusal, "missing_cfg_file", None)
            if entry is None or entry in reading.left_out:
                refuse(problems())
            reading.left_out.add(str(entry))
        for override in fine():
            if refusal := _refusal(config_name, [override]):
                override.problems = [override.refused(refusal)]
        if refusal := _refusal(config_name, fine()):
            refuse(problems() or [_of_file(refusal, schema)])
    deleted = {override.name for override in overrides if override.deletes}
    if not of_files and {*type_hints(schema)} - deleted - {*reading.written}:
        expected = f"the schema of {schema.__name__} as its first entry"
        fix = f"defaults: [{store_name(schema)}, …, _self_], as in hydra_configs/demo.yaml"
        of_files.append(Problem("defaults", HYDRA, "no schema", expected, fix))
    composed, candidates = OmegaConf.structured(schema), fine()
    for misfit in fill(composed, reading.written):
        culprit = next((one for one in reversed(candidates) if one.sets(misfit.path)), None)
        if culprit is None:
            of_files.append(_of_content(misfit, schema))
        else:
            given = culprit.value if culprit.name == misfit.key else None
            culprit.problems.append(of_misfit(misfit, COMMAND_LINE, schema, given))
    if fine() != candidates and _refusal(config_name, fine()) is None:
        composed = OmegaConf.structured(schema)  # what they have overridden counts again
        list(fill(composed, reading.written))
    return composed, problems()


def _refusal(config_name: str, overrides: Sequence[Override]) -> Exception | None:
    """Composes `reading.written` from the files and overrides; returns Hydra's error, if any."""
    GlobalHydra.instance().clear()
    reading.clear()
    try:
        with hydra.initialize_config_dir(str(reading.main_folder), version_base="1.3"):
            texts = [override.forced() for override in overrides]
            whole = hydra.compose(config_name, texts, return_hydra_config=True)
    except RecursionError as error:
        files = ", ".join(map(shown_path, reading.contents))
        raise ConfigurationError(f"the defaults lists of {files} name each other") from error
    except Refusal as error:
        return error
    HydraConfig.instance().set_config(whole)  # for ${hydra:…}
    _plain(whole)
    return None


def _plain(composed: DictConfig) -> dict[str, Any]:
    """What Hydra has composed, without its own settings; every `${…}` as it is written."""
    values = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(values, dict)
    reading.written = {str(name): value for name, value in values.items() if name != "hydra"}
    return reading.written


def _read_overrides(texts: Sequence[str], schema: type) -> list[Override]:
    """Reads overrides, with the content of every file that they name as `${from_file:…}`."""
    folder = reading.folders[0]
    quoted = [quote_mapping(quote_home(text)) for text in texts]
    return [Override(expand_override(text, folder), schema) for text in quoted]


class Override:
    """`key=value` of a command line.

    Attributes:
        text: As it was given.
        name: The key or group, without what precedes it.
        value: What it is set to, as text.
        deletes: Whether it deletes the key or group.
        sets_key: Whether it sets a key: not a group, nor a setting of Hydra.
        problems: What is wrong with it.
    """

    def __init__(self, text: str, schema: type) -> None:
        self.text, self.name, self.value = text, key_of(text), text.partition("=")[2]
        group = self.name.partition("@")[0]
        self.deletes = text.startswith("~")
        self.sets_key = not (self.deletes or group.startswith("hydra") or reading.is_group(group))
        self._schema = schema
        self._options = group_options().get(group, [])
        self._parsed: hydra_types.Override | None = None
        self.problems = [*self._read()]

    def forced(self, *, quiet: bool = False) -> str:
        """The text with which Hydra sets any key, because unknown keys are found later: with `++`.

        Args:
            quiet: Leave that out for the keys of the schema: the text may become a folder's name.
        """
        bare = self.text.lstrip("+")
        is_known = self.name in reading.keys and not self.value.startswith("{")
        if not self.sets_key:
            return self.text
        return bare if quiet and is_known else f"++{bare}"

    def alternatives(self) -> list[str]:
        """An override for each value of one that has several; none for a pattern of choices."""
        if self._parsed is None or not self._parsed.is_sweep_override():
            return [self.text]
        if isinstance(self._parsed.value(), hydra_types.Glob):
            return []
        values = self._parsed.sweep_string_iterator()
        return [f"{self.text.partition('=')[0]}={value}" for value in values]

    def sets(self, path: Names) -> bool:
        """Whether it sets a key, a section that it is in, or something in it."""
        assert self._parsed is not None
        return self.sets_key and _found_at(self.name, self._parsed.value(), path) is not MISSING

    def _problem(self, found: str, expected: str, fix: str) -> Problem:
        key = self.name or show(self.text)
        return Problem(key, COMMAND_LINE, found or "nothing", expected, fix)

    def _read(self) -> Iterator[Problem]:
        """Reads the value; yields what Hydra would refuse, whatever the configuration is."""
        name, value, has_value = self.name, self.value, "=" in self.text
        if not name or not (has_value or self.deletes):
            fix = f"{name}=VALUE, or --config-name {name}, if that is meant" if name else "drop it"
            yield self._problem("no key" if has_value else "no value", "key=value", fix)
            return
        try:
            self._parsed = OverridesParser.create().parse_override(self.text)
        except HydraException as error:
            reason = str(error).partition("\n")[0]
            expected = f"key=value in Hydra's grammar ({reason})"
            fix = f"put the value within two kinds of quotes: \"{name}='{value}'\"; {HELP}"
            yield self._problem(value, expected, fix)
            return
        if self._parsed.is_sweep_override():
            fix = f"{name}=[{value}], or --multirun to run with each of them"
            yield self._problem(value, "one value, or a list in brackets", fix)
        elif self._options and not self.deletes and name not in reading.keys:
            yield from self._of_group(self._parsed.value())

    def _of_group(self, content: Any) -> Iterator[Problem]:
        """Yields a group that is set to anything but names, for which Hydra has a traceback."""
        names = content if isinstance(content, list) else [content]
        if all(isinstance(option, str) for option in names):
            return
        expected = f"one of {', '.join(self._options)}: {self.name} is a group"
        fix = f"{'+' * self.text.startswith('+')}{self.name}={self._options[0]}"
        keys = [key for key in key_names(self._schema) if key.endswith(f".{self.name}")]
        if keys and isinstance(content, list):
            expected += f", and {keys[0]} a key that takes a list"
            fix = f"{keys[0]}={self.value}"
        yield self._problem(self.value, expected, fix)

    def refused(self, error: Exception) -> Problem:
        """The problem of an override that Hydra cannot compose onto the files."""
        name, value, options = self.name, self.value, self._options
        if self.deletes:
            if not options and name not in key_names(self._schema):
                return unknown_key(name, self._schema)
            expected = "a choice that the configuration has made"
            return Problem(self.text, COMMAND_LINE, "nothing to delete", expected, "drop it")
        message = explain(error)
        is_unlisted = "No match in the defaults list" in message
        if is_unlisted and value in options:
            expected = "a + before it: no configuration has it from the outset"
            return self._problem(show(value), expected, f"+{name}={value}")
        if isinstance(error, MissingConfigException):
            options = [*(error.options or options)]
        elif not is_unlisted:
            options = []
        if not options:
            return self._problem(value, message, f"correct it; {HELP}")
        expected = f"one of {', '.join(options)}{nearest(value, options)}"
        plus = "+" if self.text.startswith("+") or is_unlisted else ""
        return self._problem(show(value), expected, f"{plus}{name}={closest(value, options)}")


def _of_file(error: Exception, schema: type) -> Problem:
    """A mistake in a defaults list, or in a combination of overrides."""
    text = _text(error)
    file, files = "the configuration", [*reading.contents]
    if place := re.search(r"In '(.+?)'", text):  # such as `job` or `model/gpt2`
        named = [at for at in files if f"{at.with_suffix('')}".endswith(f"/{place[1]}")]
        file = shown_path(named[0]) if named else f"{place[1]}.yaml"
    if unmade := re.search(r"You must specify '(.+?)'", text):
        options = group_options().get(unmade[1], ["NAME"])
        expected = f"a choice, which the files leave open (???): {', '.join(options)}"
        return Problem(unmade[1], HYDRA, "none", expected, f"{unmade[1]}={options[0]}")
    if not isinstance(error, MissingConfigException) or not error.missing_cfg_file:
        expected = "something that Hydra can compose"
        return Problem("defaults", file, explain(error), expected, f"correct it; {HELP}")
    group, _, option = error.missing_cfg_file.rpartition("/")
    options = [name.removesuffix(".yaml") for name in error.options or ()]
    if not group:
        beside = [path.stem for path in files[-1].parent.glob("*.yaml")] if place else []
        near = nearest(option, [*beside, store_name(schema)])
        expected = f"a file of a config folder, or a schema{near}"
        return Problem("defaults", file, show(option), expected, "correct it, or delete it")
    if not options:
        groups = [*group_options()]
        expected = f"one of the groups {', '.join(groups)}{nearest(group, groups)}"
        fix = f"- {closest(group, groups)}: {option}"
        return Problem("defaults", file, show(f"{group}: {option}"), expected, fix)
    expected = f"one of {', '.join(options)}{nearest(option, options)}"
    return Problem(group, file, show(option), expected, f"- {group}: {closest(option, options)}")


def _of_content(misfit: Misfit, schema: type) -> Problem:
    """The problem of a value that one of the files that Hydra has read sets."""
    places = {
        file: value
        for file, (package, content) in reading.contents.items()
        if (value := _found_at(package, content, misfit.path)) is not MISSING
    }
    sure = [file for file, value in places.items() if value == misfit.value]
    file = next(iter([*sure, *places]), None)
    if file is None:
        return of_misfit(misfit, HYDRA, schema)
    package = reading.contents[file][0]
    if misfit.expected is None and misfit.path == (package.partition(".")[0],):
        expected = "# @package _global_ in its first line: it sets keys of the whole configuration"
        fix = "write that line, and the keys as in a main configuration"
        return Problem(package, shown_path(file), "no such line", expected, fix)
    return of_misfit(misfit, shown_path(file), schema)


def _found_at(name: str, content: Any, path: Names) -> Any:
    """What content below a dotted name has at a path: the value there or before it, or MISSING."""
    for section in reversed(name.split(".") if name else []):
        content = {section: content}
    for part in path:
        if isinstance(content, Mapping):
            inside = {str(key): value for key, value in content.items()}
            content = inside.get(str(part), MISSING)
        elif isinstance(content, list) and isinstance(part, int) and part < len(content):
            content = content[part]
    return content


def explain(error: BaseException) -> str:
    """Hydra's message and its cause in one line, without advice that cannot work here."""
    lines = dict.fromkeys(line.strip() for line in _text(error).splitlines() if line.strip())
    return "; ".join(line for line in lines if not line.startswith(_NOISE))


def _text(error: BaseException) -> str:
    """The messages of an error and of its cause."""
    return f"{error}\n{error.__cause__ or ''}"
