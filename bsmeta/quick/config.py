"""Defines the keys of `bsmeta quick`: pages, columns, held-out pages, and sizes of the models.

A size that is null is chosen from the data and the device (`sizes`), and shown before training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.schema import MAX_SEED
from bsmeta.core.keys import key

AUTO = "auto"
SITE = "site"
DOCUMENT = "document"


@dataclass(frozen=True, kw_only=True)
class QuickConfig:
    """Trains a small model with and without metadata on a file of pages, and compares the two."""

    pages: Any = key(None, is_path=True, takes_addresses=True, heading="Pages")
    """the pages: files, folders or globs of JSON Lines (.gz, .zst), Parquet or CSV (in a folder,
    CSV only by a glob); the key may be left out: bsmeta quick pages.jsonl"""
    columns: dict[str, str] = key({})
    """columns to use instead of those that are found, as dotted paths: {text: body, url: link}"""
    metadata_list: list[str] | None = key(None)
    """types to use of those that are found; null: all"""
    max_documents: int = key(20_000, at_least=1)
    """number of pages to use, from the first of each file"""
    near_copies: bool | None = key(None)
    """leave out pages that nearly copy an earlier page, too; false: only pages with the same text;
    null: if the extra annotate is installed"""

    split_by: str = key(AUTO, choices=(AUTO, SITE, DOCUMENT), heading="Held-out pages")
    """unit that is held out; auto: sites (hosts) if there are enough of them, else documents"""
    held_out_share: float = key(0.2, above=0, at_most=0.5)
    """share of the pages that is held out"""
    max_held_out: int = key(200, at_least=2)
    """largest number of held-out pages, because each is read six times; sites are held out whole,
    and may exceed it"""
    seed: int = key(42, at_least=0, at_most=MAX_SEED)
    """seed of the choice of held-out pages, of the weights and of the order of the text"""

    minutes: float = key(3.0, above=0, heading="Training")
    """time for training both models, in minutes, for which the sizes are chosen"""
    tokenizer: str | None = key(None, is_path=True)
    """folder of a tokenizer; null: trained on the training pages, or the sample's for a small
    file"""
    vocabulary_size: int | None = key(None, at_least=300)
    """number of tokens of a tokenizer that is trained"""
    hidden_size: int | None = key(None, at_least=32)
    """width of the model, a multiple of 32"""
    num_layers: int | None = key(None, at_least=1)
    """number of layers"""
    max_seq_len: int | None = key(None, at_least=32)
    """window: tokens of text in a sequence"""
    batch_size: int | None = key(None, at_least=1)
    """sequences in a step"""
    max_train_steps: int | None = key(None, at_least=1)
    """steps of each model"""
    learning_rate: float | None = key(None, above=0)
    """peak of the learning rate"""
    overrides: dict[str, Any] = key({})
    """further keys of both runs to change: +overrides.weight_decay=0"""

    out_dir: str = key("runs/quick", is_path=True, heading="Output")
    """folder of the pages, both runs and the report; the same command continues what a kill has
    interrupted"""
    overwrite_out_dir: bool = key(False)
    """replace an earlier result of other pages or settings in out_dir"""
    check_only: bool = key(False)
    """show the columns, the held-out pages and the sizes, and stop before training"""
