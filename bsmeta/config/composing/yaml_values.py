"""Parses the text of a configuration file into plain values, as OmegaConf does.

PyYAML's parser is written in Python and slow, so a process parses each text only once.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from bsmeta.core.parsing import YAMLLoader, parse_yaml_file

_MAX_CACHED_TEXTS = 256
"""Maximum number of texts whose values are cached; a configuration has about ten files."""

_OmegaConfLoader: Any = get_yaml_loader()


class _ConfigLoader(YAMLLoader, _OmegaConfLoader):
    """OmegaConf's loader, which refuses repeated keys, with the limits of `YAMLLoader`."""


_ConfigLoader.yaml_implicit_resolvers = dict(_OmegaConfLoader.yaml_implicit_resolvers)


def _construct_date(loader: _ConfigLoader, node: yaml.ScalarNode) -> str:
    """Returns a date as text, as OmegaConf does; refuses an impossible date."""
    loader.construct_yaml_timestamp(node)
    return str(node.value)


_DATE = "tag:yaml.org,2002:timestamp"
[_DATE_PATTERN] = {
    pattern
    for resolvers in YAMLLoader.yaml_implicit_resolvers.values()
    for tag, pattern in resolvers
    if tag == _DATE
}
_ConfigLoader.add_implicit_resolver(_DATE, _DATE_PATTERN, [*"0123456789"])
_ConfigLoader.add_constructor(_DATE, _construct_date)


def parse_values(text: str, file: Path) -> Any:
    """Parses the text of a YAML or JSON file; each call returns a new copy of the values.

    Args:
        file: The file of the text, for messages.

    Raises:
        OSError: If the text holds neither keys and values nor a list.
        yaml.YAMLError: If it is malformed.
    """
    return copy.deepcopy(_parse_values(text, file))


@lru_cache(maxsize=_MAX_CACHED_TEXTS)
def _parse_values(text: str, file: Path) -> Any:
    """Parses a text; see `parse_values`."""
    content = parse_yaml_file(text, file, _ConfigLoader)
    if not isinstance(content, dict | list | str | None):
        raise OSError(f"Invalid loaded object type: {type(content).__name__}")
    return OmegaConf.to_container(
        OmegaConf.create({} if content is None else content), resolve=False
    )
