"""Schema of `entities.py`: the table of entities, and the files that it is built from."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.config.keys import key


@dataclass(kw_only=True)
class EntitiesConfig:
    """The table of the entities that mentions may mean: built, added to, or described."""

    table: str | None = key(None, "folder of the table", is_path=True)
    profiles: str | None = key(
        None, "build the table from profiles: .jsonl(.gz, .zst), an entity each line", is_path=True
    )
    entity_dir: str | None = key(
        None,
        "build the table from files of the first generation: the folder that has entity_mappings/",
        is_path=True,
    )
    emb_dir: str | None = key(
        None,
        "their types and relations: the folder of qid2types.json, type_vocab.json, "
        "qid2relations.json, kg_conn.txt",
        is_path=True,
    )
    max_candidates: int | None = key(
        None,
        "candidates that an alias keeps: those with the highest scores; null: 30, or what the "
        "first generation's config.json says",
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
