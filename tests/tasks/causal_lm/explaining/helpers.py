"""The demo's configuration, and shards made for one test."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.tasks.causal_lm.explaining.selection import Selection
from bsmeta.tasks.causal_lm.explaining.windows import ExplainedDocument, ExplainedWindow
from bsmeta.tasks.causal_lm.shown_tokens import TokenTexts
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.data.helpers import small_config, small_tokenizer, write_shard

SHARD = "c4-en-html_cc-main-2019-18_pq00-00{}.jsonl.gz"


METADATA_LIST = "data_config.metadata_config.metadata_list"
TYPES = ("title", "url", "datasource", "website_description", "timestamp", "entity")


def demo(*overrides: str) -> ExplainConfig:
    """Returns the demo's configuration with the given types and the always available backend."""
    fixed = ["data_config.tokenizer_backend=hf", f"{METADATA_LIST}=[{','.join(TYPES)}]"]
    return compose_command_line(ExplainConfig, "demo", [*fixed, *overrides])


@cache
def demo_tokenizer() -> PreTrainedTokenizerBase:
    return CausalLanguageModel(demo()).tokenizer


def demo_windows(*overrides: str) -> list[ExplainedWindow]:
    return list(Selection(demo(*overrides), demo_tokenizer()))


def demo_documents(*overrides: str) -> list[ExplainedDocument]:
    return [document for window in demo_windows(*overrides) for document in window.documents]


def own_config(folder: Path, documents: Sequence[dict[str, Any]], **changes: Any) -> ExplainConfig:
    """Returns a configuration for a shard `a.jsonl.gz`; `changes` as in `small_config`.

    Keys of `ExplainConfig` itself may be among the changes.
    """
    write_shard(folder / "a.jsonl.gz", list(documents))
    own = {key: changes.pop(key) for key in [*changes] if key in ExplainConfig.__dataclass_fields__}
    fixed = {"tokenizer_backend": "hf", "metadata_probability": 1.0, "num_streams": 1}
    changes = {**fixed, **changes}
    return ExplainConfig(data_config=small_config(folder, **changes), **own)


def own_windows(config: ExplainConfig) -> list[ExplainedWindow]:
    return list(Selection(config, small_tokenizer()))


def small_texts() -> TokenTexts:
    return TokenTexts(small_tokenizer())
