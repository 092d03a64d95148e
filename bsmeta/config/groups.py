"""The groups of `hydra_configs/`: folders whose files are choices, such as `model=gpt2`."""

from __future__ import annotations

from bsmeta.core.files import CONFIG_FOLDER

PARTS = "parts"
"""The folder of `hydra_configs/` that is not a group: its files are for `${from_file:…}`."""


def list_group_options() -> dict[str, list[str]]:
    """Lists the groups (`model=…`, `+recipes=…`), each with its choices."""
    groups: dict[str, list[str]] = {}
    for folder in sorted(CONFIG_FOLDER.iterdir()):
        if folder.is_dir() and folder.name != PARTS:
            groups[folder.name] = sorted(file.stem for file in folder.glob("*.yaml"))
    return groups
