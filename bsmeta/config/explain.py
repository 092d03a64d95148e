"""Schema of `explain.py`: every key of a training run, and the choice of what to show."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.keys import key


@dataclass(kw_only=True)
class ExplainConfig(CausalLMConfig):
    """Documents as a training run with these keys sees them."""

    document: str | None = key(
        None,
        "the document to show, as logs name it: <shard>:<number>; null: the very first",
        heading="What to show",
    )
    limit: int = key(1, "documents to show, from that one on", at_least=1)
    epoch: int = key(0, "the pass over the data whose random choices are shown", at_least=0)
    step: int = key(
        1, "with a schedule of the metadata: the update (from 1) whose phase is shown", at_least=1
    )
    types: list[str] | None = key(
        None, "give every document those of these types that it has, instead of drawing; []: none"
    )
    json: bool = key(
        False, "one JSON object a document and line on standard output, and nothing else there"
    )
    html: str | None = key(
        None, "write a page to this file instead of showing it in the terminal", is_path=True
    )
    tokens: bool = key(False, "in the terminal: show where each token begins")
    sequences: int = key(
        8, "in the terminal and the page: packed sequences of a window to show", at_least=0
    )
