"""All keys that name files or folders, and configurations with an address in one of them."""

from __future__ import annotations

from bsmeta.core.keys import get_declaration, iterate_leaves
from bsmeta.reference import PROGRAMS
from bsmeta.studies.config import StudyConfig

TAKE_ADDRESSES = {
    "checkpoint",
    "data_config.exclude",
    "data_config.train_file",
    "data_config.validation_file",
    "measure.validation_file",
    "out_dir",
    "pages",
    "train_file",
    "validation_file",
}


def list_path_keys() -> list[tuple[type, str]]:
    """Returns every key of every program that names files or folders."""
    schemas = [*dict.fromkeys([*(schema for _, schema, _ in PROGRAMS), StudyConfig])]
    return [
        (schema, name)
        for schema in schemas
        for name, _, described in iterate_leaves(schema())
        if get_declaration(described).is_path
    ]


PATH_KEYS = list_path_keys()
