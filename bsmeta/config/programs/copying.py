"""Schemas of `bsmeta.data.prepare` and `bsmeta.data.stage`, which extend the schema of a run."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.keys import key


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(CausalLMConfig):
    """Settings to prepare the training sequences of a run with these keys."""

    out: str | None = key(None, is_path=True, heading="What to prepare")
    """folder to write, for data_config.prepared of the run"""
    epochs: int = key(1, at_least=1)
    """number of passes of each stream over its shards to prepare"""
    world_size: int = key(1, at_least=1)
    """number of processes of the run, on which the steps of a metadata schedule depend"""


@dataclass(frozen=True, kw_only=True)
class StageConfig(CausalLMConfig):
    """Settings to copy the files of a run with these keys to a disk."""

    out: str | None = key(None, is_path=True, heading="What to copy")
    """folder to write, on a disk of this machine or a shared one"""
    parallel_files: int = key(4, at_least=1)
    """number of files to copy at the same time"""
