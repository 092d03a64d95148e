"""Schema of `bsmeta.data.prepare`: every key of a training run, and which data to prepare."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.keys import key


@dataclass(kw_only=True)
class PrepareConfig(CausalLMConfig):
    """The training sequences of a run with these keys, made ahead."""

    out: str | None = key(
        None,
        "folder to write, for data_config.prepared of the run",
        is_path=True,
        heading="What to prepare",
    )
    epochs: int = key(1, "passes of each stream over its shards that are prepared", at_least=1)
    world_size: int = key(
        1,
        "processes of the run, from which follows where a schedule of the metadata switches",
        at_least=1,
    )
