"""Lists the groups of `hydra_configs/`: folders whose files are choices, such as `model=gpt2`."""

from __future__ import annotations

from bsmeta.core.files import CONFIG_FOLDER

PARTS_FOLDER = "parts"
"""The folder of `hydra_configs/` that is not a group: `${from_file:…}` includes its files."""


def list_group_options() -> dict[str, list[str]]:
    """Returns the choices of each group, sorted, by group."""
    groups: dict[str, list[str]] = {}
    for folder in sorted(CONFIG_FOLDER.iterdir()):
        if folder.is_dir() and folder.name != PARTS_FOLDER:
            groups[folder.name] = sorted(file.stem for file in folder.glob("*.yaml"))
    return groups
