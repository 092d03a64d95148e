"""Builds the table of entities of a disambiguator, adds entities to it, and describes it.

python bsmeta/entities.py table=entities profiles=profiles.jsonl.gz
python bsmeta/entities.py table=entities entity_dir=data/entity_db
python bsmeta/entities.py table=entities entity_dir=data/entity_data emb_dir=data/emb_data
python bsmeta/entities.py table=entities add=new.jsonl [checkpoint=runs/disambiguation]
python bsmeta/entities.py table=entities
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bsmeta.config.compose import run_entry_point
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.keys import key

_SOURCES = ("profiles", "entity_dir", "add")


@dataclass(kw_only=True)
class EntitiesConfig:
    """The table of the entities that mentions may mean: built, added to, or described."""

    table: str | None = key(None, "folder of the table", is_path=True)
    profiles: str | None = key(
        None, "build the table from profiles: .jsonl(.gz, .zst), an entity each line", is_path=True
    )
    entity_dir: str | None = key(
        None,
        "build the table from the entity files of Bootleg: the folder that has entity_mappings/ "
        "(in the second generation also type_mappings/ and kg_mappings/)",
        is_path=True,
    )
    emb_dir: str | None = key(
        None,
        "the first generation's folder of types and relations",
        is_path=True,
    )
    types: list[str] | None = key(
        None,
        "files of emb_dir with types: FILE, or FILE:VOCABULARY if that is not type_vocab.json; or "
        "the systems of type_mappings/; null: qid2types.json, or all systems; []: none",
    )
    relations: list[str] | None = key(
        None,
        "files of emb_dir or kg_mappings/ with relations: FILE, or FILE:VOCABULARY if that is not "
        "relation_vocab.json; null: qid2relations.json and kg_conn.txt, or qid2relations; []: none",
    )
    max_candidates: int | None = key(
        None,
        "candidates that an alias keeps: those with the highest scores; null: 30, or what "
        "entity_mappings/config.json says",
        at_least=1,
    )
    add: str | None = key(
        None, "profiles of entities to add to the table, which keeps its numbers", is_path=True
    )
    checkpoint: str | None = key(
        None,
        "a run folder or a checkpoint, whose model encodes the added entities at once; null: each "
        "when it is first a candidate",
        is_path=True,
    )


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
    from bsmeta.tasks.disambiguation.profiles import (
        MAX_CANDIDATES,
        add_entities,
        build_entities,
    )

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
