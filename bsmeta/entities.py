"""Builds the entity table of a disambiguator, edits its entities, and prints a summary of it.

python bsmeta/entities.py table=entities profiles=profiles.jsonl.gz
python bsmeta/entities.py table=entities entity_dir=data/entity_db
python bsmeta/entities.py table=entities entity_dir=data/entity_data emb_dir=data/emb_data
python bsmeta/entities.py table=entities add=new.jsonl [checkpoint=runs/disambiguation]
python bsmeta/entities.py table=entities update=changes.jsonl [checkpoint=runs/disambiguation]
python bsmeta/entities.py table=entities remove=ids.jsonl
python bsmeta/entities.py table=entities rescore=scores.jsonl
python bsmeta/entities.py table=entities
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.entity_table import EntitiesConfig
from bsmeta.core.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np

_EDITS = ("add", "update", "remove", "rescore")
_SOURCES = ("profiles", "entity_dir", *_EDITS)


def main(config: EntitiesConfig) -> None:
    """Builds or edits the table, depending on the key that is set, and prints a summary.

    Raises:
        ConfigurationError: If keys are missing or exclude each other, or the checkpoint is not a
            disambiguator's.
        DataError: If a file is missing or damaged, or has invalid entities.
    """
    if config.table is None:
        raise ConfigurationError("table is not set; expected a folder", ["table"])
    _check_keys(config)
    print(f"{config.table}: {_build_or_edit(config, Path(config.table))}")


def _check_keys(config: EntitiesConfig) -> None:
    """Refuses keys that exclude each other, or have no effect without another key."""
    sources = [name for name in _SOURCES if getattr(config, name) is not None]
    if len(sources) > 1:
        raise ConfigurationError(
            f"{' and '.join(sources)} are set; expected one of {', '.join(_SOURCES)}", sources
        )

    for name in ("emb_dir", "types", "relations"):
        if getattr(config, name) is not None and config.entity_dir is None:
            raise ConfigurationError(f"{name} is set without entity_dir; set both", [name])

    if config.max_candidates is not None and config.profiles is None and config.entity_dir is None:
        raise ConfigurationError(
            "max_candidates is set without profiles or entity_dir; set one of them, or leave it "
            "out: a table keeps the number that it was built with",
            ["max_candidates"],
        )

    if config.checkpoint is not None and config.add is None and config.update is None:
        raise ConfigurationError(
            "checkpoint is set without add or update; set one of them, or leave it out",
            ["checkpoint"],
        )


def _build_or_edit(config: EntitiesConfig, folder: Path) -> str:
    """Builds the table, edits it, or only opens it; returns a summary of it."""
    # Imported here because datasets and Arrow load slowly, and the keys are checked first.
    from bsmeta.tasks.disambiguation.entities import EntityTable
    from bsmeta.tasks.disambiguation.entity_files import Sources, build_from_files
    from bsmeta.tasks.disambiguation.profiles import MAX_CANDIDATES, build_entities

    if config.profiles is not None:
        max_candidates = config.max_candidates or MAX_CANDIDATES
        table = build_entities(Path(config.profiles), folder, max_candidates=max_candidates)
        return table.summary()

    if config.entity_dir is not None:
        emb_dir = None if config.emb_dir is None else Path(config.emb_dir)
        sources = Sources(Path(config.entity_dir), emb_dir, config.types, config.relations)
        return build_from_files(sources, folder, config.max_candidates).summary()

    for name in _EDITS:
        path = getattr(config, name)
        if path is not None:
            return _edit(name, Path(path), folder, config.checkpoint)
    return EntityTable.open(folder).summary()


def _edit(name: str, path: Path, folder: Path, checkpoint: str | None) -> str:
    """Edits the table by the key with this name; returns a summary of the table."""
    from bsmeta.tasks.disambiguation import profiles
    from bsmeta.tasks.disambiguation.entities import EntityTable

    edits = {
        "add": profiles.add_entities,
        "update": profiles.update_entities,
        "remove": profiles.remove_entities,
        "rescore": profiles.rescore_entities,
    }
    # A bad table or checkpoint is refused before the table is changed.
    EntityTable.open(folder)
    encode = None if checkpoint is None else _open_encoder(checkpoint, folder)
    edited = edits[name](path, folder)
    if encode is not None:
        encode(edited.entities)
    return f"{edited.version.count:,} {edited.version.action}: {edited.table.summary()}"


def _open_encoder(checkpoint: str, table: Path) -> Callable[[np.ndarray], None]:
    """Returns a function that encodes entities of the table, by number, with a trained model.

    The embeddings are cached on disk, where predictions with this model read them.

    Raises:
        ConfigurationError: If the checkpoint is missing, or not a disambiguator's.
    """
    from bsmeta.tasks.checkpoints import list_tasks, locate_model, open_task, read_task
    from bsmeta.tasks.disambiguation.task import EntityDisambiguator

    location = locate_model(checkpoint)
    tasks = list_tasks("encode_entities")
    if location.has_run_config and read_task(location) not in tasks:
        raise ConfigurationError(
            f"checkpoint={checkpoint} is a model of task={read_task(location)}; expected a run of "
            f"task={' or '.join(tasks)}",
            ["checkpoint"],
        )
    task, folder = open_task(checkpoint, {"data_config": {"entity_table": str(table)}})
    assert isinstance(task, EntityDisambiguator)

    def encode(entities: np.ndarray) -> None:
        predictor = task.predictor(task.load(folder).eval())
        predictor.embeddings.get(entities)

    return encode


if __name__ == "__main__":
    run_entry_point(main, EntitiesConfig, "entities")
