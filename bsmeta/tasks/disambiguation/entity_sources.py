"""Which files of Bootleg's entity folders are read: those that are named, or its tutorials'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.problems import nearest
from bsmeta.tasks.disambiguation.mappings import locate

TYPES, TYPE_VOCABULARY = "qid2types.json", "type_vocab.json"
RELATIONS, RELATION_VOCABULARY = ("qid2relations.json", "kg_conn.txt"), "relation_vocab.json"
"""The names in the first generation's tutorial."""


@dataclass(frozen=True)
class Sources:
    """Where the files are, and which of them are used.

    Attributes:
        entity_dir: The folder with `entity_mappings/`.
        emb_dir: The first generation's folder of types and relations.
        types: Files of `emb_dir` (`FILE` or `FILE:VOCABULARY`), or type systems; None: all systems,
            or the file of the tutorial.
        relations: Files of `emb_dir` or `kg_mappings/`; None: those of the tutorial.
    """

    entity_dir: Path
    emb_dir: Path | None = None
    types: Sequence[str] | None = None
    relations: Sequence[str] | None = None

    def type_files(self) -> dict[str, tuple[Path, Path]]:
        """The file of each type system, and its vocabulary, which may not exist.

        Raises:
            ConfigurationError: If there is none, although types were asked for.
        """
        if self.emb_dir is not None:
            chosen = _chosen("types", self.types, self.emb_dir, [TYPES])
            pairs = (name.partition(":") for name in chosen)
            return {
                Path(file).stem: (self.emb_dir / file, self.emb_dir / (own or TYPE_VOCABULARY))
                for file, _, own in pairs
            }
        folder = self.entity_dir / "type_mappings"
        systems = sorted(path.name for path in folder.glob("*") if path.is_dir())
        found = {}
        for name in _chosen("types", self.types, folder, systems):
            own = folder / name
            path = locate(own, "qid2typenames") or own / "qid2typeids.json"
            found[name] = (path, own / TYPE_VOCABULARY)
        return found

    def relation_files(self) -> list[tuple[Path, Path]]:
        """The files of relations, each with its vocabulary, which may not exist.

        Raises:
            ConfigurationError: If there is none, although relations were asked for.
        """
        folder = self.emb_dir or self.entity_dir / "kg_mappings"
        defaults = [*RELATIONS]
        if self.emb_dir is None:
            known = locate(folder, "qid2relations") or folder / "kg_adj.txt"
            defaults = [known.name]
        pairs = (
            name.partition(":") for name in _chosen("relations", self.relations, folder, defaults)
        )
        return [(folder / file, folder / (own or RELATION_VOCABULARY)) for file, _, own in pairs]


def _chosen(
    key: str, names: Sequence[str] | None, folder: Path, defaults: Sequence[str]
) -> list[str]:
    """The named files of a folder; without names those of `defaults` that exist."""
    there = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
    if names is None:
        if not folder.is_dir():
            return []
        found = [name for name in defaults if name in there]
        if found:
            return found
        raise ConfigurationError(
            f"{key}: {folder} has no {' or '.join(defaults) or 'folder of a type system'}, but "
            f"{', '.join(there) or 'nothing'}; name what is to be read: {key}=[NAME], or nothing: "
            f"{key}=[]",
            [key],
        )
    for name in names:
        file, _, vocabulary = name.partition(":")
        for one in filter(None, (file, vocabulary)):
            if one not in there:
                raise ConfigurationError(
                    f"{key}=[{', '.join(names)}]: {folder} has no {one}{nearest(one, there)}; it "
                    f"has {', '.join(there) or 'nothing'}",
                    [key],
                )
    return [*names]
