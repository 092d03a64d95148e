"""The configuration that a function is given: by name, by file, or as an object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bsmeta.config.checks.run import value_problems
from bsmeta.config.compose import compose
from bsmeta.config.hydra_ext import choose
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import entry_of
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.problems import bound_problems, nearest, refuse
from bsmeta.core.resources import CONFIG_FOLDER
from bsmeta.tasks import TASKS

Configuration = str | Path | RunConfig


def configuration(config: Configuration, overrides: Sequence[str] = ()) -> RunConfig:
    """A training configuration of any task.

    Args:
        config: The name of a configuration (`bsmeta configs` lists them), the path of a YAML file,
            or a configuration.
        overrides: `key=value` as on the command line; not with a configuration.

    Raises:
        UserError: If there is no such configuration, or a value is not possible.
    """
    found = config if isinstance(config, RunConfig) else _composed(config, overrides)
    if found is config and overrides:
        raise ConfigurationError(
            f"overrides={[*overrides]}: expected a configuration by name, or by the path of a file"
        )
    refuse([*bound_problems(found)])
    return found


def check(config: RunConfig) -> None:
    """Refuses what training refuses, except what depends on its launch."""
    entry, problems = entry_of(config, TASKS)
    refuse([*problems, *value_problems(config), *entry.value_problems(config, ())])


def _composed(config: str | Path, overrides: Sequence[str]) -> RunConfig:
    if not isinstance(config, (str, Path)):
        raise ConfigurationError(
            f"config={config!r}: expected the name of a configuration, the path of a YAML file, or "
            "a configuration, such as bsmeta.open_run(folder).config"
        )
    if isinstance(overrides, str):
        raise ConfigurationError(f'overrides="{overrides}": expected a list: ["{overrides}"]')
    path, own_folder = Path(config).expanduser(), None
    if path.suffix == ".yaml" or len(path.parts) > 1:
        own_folder = path.parent.resolve()
        if path.is_dir():
            raise ConfigurationError(
                f"config={config}: a folder; bsmeta.open_run({str(path)!r}).config is the "
                "configuration of a run"
            )
        if not path.with_suffix(".yaml").is_file():
            raise ConfigurationError(f"config={config}: there is no such file (from {Path.cwd()})")
    known = sorted(file.stem for file in CONFIG_FOLDER.glob("*.yaml"))
    if own_folder is None and path.stem not in known:
        raise ConfigurationError(
            f"config={config}: expected the path of a YAML file, or one of {', '.join(known)}"
            f"{nearest(path.stem, known)}"
        )
    arguments = ["--config-name", path.stem]
    if own_folder is not None:
        arguments += ["--config-dir", str(own_folder)]
    schemas = [entry.config for entry in TASKS.values()]
    return compose(choose(arguments, schemas, ""), path.stem, overrides, own_folder)
