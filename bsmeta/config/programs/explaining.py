"""Schema of `explain.py`, which extends the schema of the run whose documents are shown."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.keys import key


@dataclass(frozen=True, kw_only=True)
class ExplainConfig(CausalLMConfig):
    """Settings to show documents as a training run with these keys reads them."""

    document: str | None = key(None, heading="What to show")
    """first document to show, by its name in logs: <shard>:<number>; null: the very first"""
    limit: int = key(1, at_least=1)
    """number of documents to show"""
    epoch: int = key(0, at_least=0)
    """pass over the data (from 0) whose random choices are shown"""
    step: int = key(1, at_least=1)
    """with a schedule of the metadata: the step (from 1) whose phase is shown"""
    types: list[str] | None = key(None)
    """types to render wherever a document has them, instead of drawing; []: none"""
    json: bool = key(False)
    """print one JSON object a document and line, and nothing else, on standard output"""
    html: str | None = key(None, is_path=True, takes_pipes=True)
    """write a page to this file instead of showing it in the terminal"""
    tokens: bool = key(False)
    """in the terminal: mark the beginning of each token"""
    sequences: int = key(8, at_least=0)
    """in the terminal and the page: number of packed sequences of a window to show"""
