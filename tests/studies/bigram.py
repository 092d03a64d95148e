"""Pages and a bigram model whose answers to the tasks of held-out pages are known.

A token is a word with the blank before it. Each page has words of its own, so the last word that a
question shows decides the next word, the title and the host.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

UNKNOWN = "<unk>"
PAGES, WORDS, HOSTS = 24, 40, 6


@dataclass(frozen=True)
class KnownPage:
    """A page of words that occur on no other page."""

    words: list[str]
    host: str
    title: str

    @property
    def line(self) -> dict[str, object]:
        """Returns the page as a line of a shard."""
        title = {"key": "title", "type": "global", "value": self.title}
        return {
            "text": " ".join(self.words),
            "url": f"https://{self.host}/{self.words[0]}",
            "metadata_title": [title],
        }


def make_pages() -> list[KnownPage]:
    """Returns pages of words of six letters, 280 characters each."""
    generator = random.Random(0)
    words: set[str] = set()
    while len(words) < PAGES * WORDS:
        words.add("".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=6)))
    ordered = sorted(words)
    generator.shuffle(ordered)
    return [
        KnownPage(
            ordered[number * WORDS : (number + 1) * WORDS],
            f"host{number % HOSTS}.example",
            f"Page{number} About{number}",
        )
        for number in range(PAGES)
    ]


def write_pages(pages: list[KnownPage], path: Path) -> None:
    """Writes a shard."""
    path.write_text("".join(json.dumps(page.line) + "\n" for page in pages))


def followers(pages: list[KnownPage]) -> dict[str, str]:
    """Returns the follower of each token, in the pages and in answers about them."""
    following: dict[str, str] = {}
    for page in pages:
        for word, after in zip(page.words, page.words[1:], strict=False):
            following[f" {word}"] = f" {after}"
        name, about = page.title.split()
        for word in page.words:
            following[f" {word}\nTitle:"] = f" {name}"
            following[f" {word}\nSite:"] = f" {page.host}"
        following[f" {name}"] = f" {about}"
    return following


def write_model(folder: Path, following: Mapping[str, str], probability: float | None) -> None:
    """Writes a tokenizer and a model that gives each token's follower a probability.

    The layer's attention and feed-forward outputs are 0, so the logits are those of the last token:
    the follower has one logit, all other tokens another.

    Args:
        probability: Probability of the follower; None: the logits are random.
    """
    tokens = sorted({*following, *following.values()})
    vocabulary = {token: number for number, token in enumerate([UNKNOWN, *tokens])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, eos_token=UNKNOWN, pad_token=UNKNOWN
    )
    fast.save_pretrained(folder)

    size = len(vocabulary)
    config = LlamaConfig(
        vocab_size=size, hidden_size=size, intermediate_size=2, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=2,
        max_position_embeddings=2048, tie_word_embeddings=False, rms_norm_eps=1e-12,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.model.norm.weight.fill_(size**-0.5)  # the norm of a one-hot vector is size**-0.5
        if probability is None:
            logits = torch.from_numpy(np.random.default_rng(0).normal(size=(size, size)))
        else:
            logits = torch.full((size, size), np.log((1 - probability) / (size - 1)))
            for token, after in following.items():
                logits[vocabulary[after], vocabulary[token]] = np.log(probability)
        model.lm_head.weight.copy_(logits)
    model.save_pretrained(folder)
