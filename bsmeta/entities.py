"""Builds the table of entities of a disambiguator, adds entities to it, and describes it.

python bsmeta/entities.py table=entities profiles=profiles.jsonl.gz
python bsmeta/entities.py table=entities entity_dir=data/entity_db
python bsmeta/entities.py table=entities entity_dir=data/entity_data emb_dir=data/emb_data
python bsmeta/entities.py table=entities add=new.jsonl [checkpoint=runs/disambiguation]
python bsmeta/entities.py table=entities
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bsmeta.config.entity_table import EntitiesConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.core.errors import ConfigurationError

_SOURCES = ("profiles", "entity_dir", "add")


def main(config: EntitiesConfig) -> None:
    """Builds the table or adds to it, as the key that is set asks, and prints a summary."""
    if config.table is None:
        raise ConfigurationError("table is not set; expected a folder", ["table"])
    chosen = [name for name in _SOURCES if getattr(config, name) is not None]
    if len(chosen) > 1:
        raise ConfigurationError(
            f"{' and '.join(chosen)} are set; expected one of {', '.join(_SOURCES)}", chosen
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
    if config.checkpoint is not None and config.add is None:
        raise ConfigurationError("checkpoint is set without add; set both", ["checkpoint"])
    print(f"{config.table}: {_summary(config, Path(config.table))}")


def _summary(config: EntitiesConfig, folder: Path) -> str:
    """Builds or changes the table, if a key says so, and describes it."""
    # Imported here because datasets and Arrow take a while, and the keys are checked first.
    from bsmeta.tasks.disambiguation.entities import EntityTable
    from bsmeta.tasks.disambiguation.entity_files import Sources, build_from_files
    from bsmeta.tasks.disambiguation.profiles import MAX_CANDIDATES, add_entities, build_entities

    if config.profiles is not None:
        most = config.max_candidates or MAX_CANDIDATES
        return build_entities(Path(config.profiles), folder, max_candidates=most).summary()
    if config.entity_dir is not None:
        emb_dir = None if config.emb_dir is None else Path(config.emb_dir)
        sources = Sources(Path(config.entity_dir), emb_dir, config.types, config.relations)
        return build_from_files(sources, folder, config.max_candidates).summary()
    table = EntityTable.open(folder)
    if config.add is None:
        return table.summary()
    encode = None if config.checkpoint is None else _encoder(config.checkpoint, folder)
    more = add_entities(Path(config.add), folder)
    if encode is not None:
        encode(len(table), len(more))
    return f"{len(more) - len(table):,} added: {more.summary()}"


def _encoder(checkpoint: str, table: Path) -> Callable[[int, int], None]:
    """Encodes a range of entities with a trained model, which keeps the result on disk."""
    import numpy as np

    from bsmeta.tasks.checkpoints import locate, open_task, task_of
    from bsmeta.tasks.disambiguation.task import EntityDisambiguator

    location = locate(checkpoint)
    if location.has_run_config and task_of(location) != "disambiguation":
        raise ConfigurationError(
            f"checkpoint={checkpoint} is a model of task={task_of(location)}; expected a run of "
            "task=disambiguation",
            ["checkpoint"],
        )
    task, folder = open_task(checkpoint, {"data_config": {"entity_table": str(table)}})
    assert isinstance(task, EntityDisambiguator)

    def encode(start: int, end: int) -> None:
        task.predictor(task.load(folder).eval()).embeddings.get(np.arange(start, end))

    return encode


if __name__ == "__main__":
    run_entry_point(main, EntitiesConfig, "entities")
