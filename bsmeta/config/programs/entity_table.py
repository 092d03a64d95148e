"""Schema of `entities.py`."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.core.keys import key


@dataclass(frozen=True, kw_only=True)
class EntitiesConfig:
    """Settings to build, edit or describe a table of entities to which mentions may refer."""

    table: str | None = key(None, is_path=True)
    """folder of the table"""
    profiles: str | None = key(None, is_path=True)
    """profiles to build the table from: .jsonl(.gz, .zst), one entity a line"""
    entity_dir: str | None = key(None, is_path=True)
    """entity files of Bootleg to build the table from: the folder with entity_mappings/ (in the
    second generation also type_mappings/ and kg_mappings/)"""
    emb_dir: str | None = key(None, is_path=True)
    """the first generation's folder of types and relations"""
    types: list[str] | None = key(None)
    """files of emb_dir with types: FILE, or FILE:VOCABULARY if that is not type_vocab.json; or the
    systems of type_mappings/; null: qid2types.json, or all systems; []: none"""
    relations: list[str] | None = key(None)
    """files of emb_dir or kg_mappings/ with relations: FILE, or FILE:VOCABULARY if that is not
    relation_vocab.json; null: qid2relations.json and kg_conn.txt, or qid2relations; []: none"""
    max_candidates: int | None = key(None, at_least=1)
    """number of candidates of an alias to keep, by their scores; null: as in
    entity_mappings/config.json, else 30"""
    add: str | None = key(None, is_path=True)
    """profiles of entities to add to the table, whose entities keep their numbers"""
    update: str | None = key(None, is_path=True)
    """new content of entities: entity_id and the fields of a profile that change, a line each;
    mentions, types and relations are replaced as a whole"""
    remove: str | None = key(None, is_path=True)
    """entities to remove, with all relations to them: entity_id, a line each"""
    rescore: str | None = key(None, is_path=True)
    """new scores of entities as candidates: entity_id and mentions ([[alias, score], …], of some of
    its aliases) or score (of all its aliases), a line each"""
    checkpoint: str | None = key(None, is_path=True)
    """a run folder or a checkpoint, whose model encodes the added or updated entities now; null:
    each entity is encoded when it first becomes a candidate"""
