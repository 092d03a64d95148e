"""A small world: words with two senses each, sentences that tell them apart, and a tiny encoder."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from bsmeta.tasks.disambiguation.config import DisambiguationDataConfig
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.model import BiEncoder
from bsmeta.tasks.disambiguation.profiles import build_entities
from bsmeta.tasks.disambiguation.task import EntityDisambiguator

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ("bank", "bass", "crane", "seal", "spring", "match")
CONTEXTS = {"river": ("water", "fish", "boat"), "money": ("coin", "loan", "price")}
FILLERS = ("the", "a", "near", "with", "old", "new", "saw", "by")

LINCOLN = {
    "entity_id": "Q91",
    "mentions": [["lincoln", 8.0], ["abraham lincoln", 5]],
    "title": "Abraham Lincoln",
    "description": "16th president",
    "types": {"wiki": ["human", "politician"], "coarse": ["person"]},
    "relations": [{"relation": "spouse", "object": "Q94"}],
}
TODD = {"entity_id": "Q94", "mentions": [["mary lincoln", 2], ["lincoln", 1]], "title": "Mary Todd"}
CITY = {
    "entity_id": "Q28260",
    "mentions": [["lincoln", 9.5]],
    "title": "Lincoln (Nebraska)",
    "types": {"wiki": ["city"]},
}


def full_names(values: dict[str, Any]) -> dict[str, Any]:
    """The same values, those of the data section under their dotted keys."""
    data_keys = DisambiguationDataConfig.__dataclass_fields__
    return {f"data_config.{key}" if key in data_keys else key: values[key] for key in values}


def write_encoder(folder: Path, dropout: float = 0.1, layers: int = 1) -> Path:
    """A BERT with random weights and its tokenizer, as a folder for `model_name`."""
    words = [*SPECIAL, *WORDS, *FILLERS, *CONTEXTS, *(w for c in CONTEXTS.values() for w in c)]
    letters = "abcdefghijklmnopqrstuvwxyz"
    words += [*letters, *(f"##{letter}" for letter in letters), ",", ".", "(", ")"]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
    ).save_pretrained(folder)  # fmt: skip
    shape = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=layers, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(shape).save_pretrained(folder)
    return folder


def profiles() -> list[dict[str, Any]]:
    """Two entities for each word; `unseen` is a third meaning of `bank` that no sentence has."""
    found = []
    for number, word in enumerate(WORDS):
        for place, (theme, words) in enumerate(CONTEXTS.items()):
            found.append({
                "entity_id": f"{word}-{theme}",
                "mentions": [[word, 10.0 - place + number]],
                "title": f"{word} ({theme})",
                "description": " ".join(words),
                "types": {"theme": [theme]},
                "relations": [{"relation": "near", "object": f"{WORDS[number - 1]}-{theme}"}],
            })  # fmt: skip
    found.append({
        "entity_id": "unseen", "mentions": [["bank", 1.0]], "title": "bank", "description": "old",
        "types": {}, "relations": [],
    })  # fmt: skip
    return found


def lines(count: int, seed: int = 0, weak: int = 0) -> list[dict[str, Any]]:
    """Sentences with one to three mentions; every `weak`-th mention is a weak label (0: none)."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    mentions = 0
    for number in range(count):
        theme = draw.choice([*CONTEXTS])
        words, spans, aliases, gold = [], [], [], []
        for word in draw.sample(WORDS, 1 + number % 3):
            words += [draw.choice(FILLERS), draw.choice(CONTEXTS[theme])]
            start = len(" ".join(words)) + 1
            spans.append([start, start + len(word)])
            words.append(word)
            aliases.append(word)
            mentions += 1
            gold.append(not weak or mentions % weak != 0)
        found.append({
            "sent_idx_unq": 100 * seed + number, "sentence": " ".join(words), "aliases": aliases,
            "qids": [f"{alias}-{theme}" for alias in aliases], "char_spans": spans, "gold": gold,
            "document": f"document {number // 4}",
        })  # fmt: skip
    return found


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_world(folder: Path, train: int = 60, dev: int = 24) -> list[str]:
    """The data of a run in a folder, and the keys that name it."""
    from bsmeta.tasks.disambiguation.profiles import build_entities

    build_entities(write_lines(folder / "profiles.jsonl", profiles()), folder / "entities")
    write_lines(folder / "train.jsonl", lines(train, seed=1, weak=5))
    write_lines(folder / "dev.jsonl", lines(dev, seed=2, weak=7))
    return [
        f"data_config.train_file={folder}/train.jsonl", f"data_config.dev_file={folder}/dev.jsonl",
        f"data_config.entity_table={folder}/entities",
    ]  # fmt: skip


def write(path: Path, profiles: list[Any]) -> Path:
    lines = (line if isinstance(line, str) else json.dumps(line) for line in profiles)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def build(folder: Path, profiles: list[Any], **options: int) -> EntityTable:
    folder.mkdir(exist_ok=True)
    return build_entities(write(folder / "profiles.jsonl", profiles), folder / "table", **options)


def candidates_of(table: EntityTable, alias: str) -> list[tuple[str, float]]:
    entities, scores = table.candidates(table.aliases.find(alias))
    assert (entities.dtype, scores.dtype) == (np.int32, np.float32)
    return [*zip([table.ids[one] for one in entities], scores.tolist(), strict=True)]


def train_in_process(task: EntityDisambiguator, *, steps: int, learning_rate: float) -> BiEncoder:
    """Trains a task's model on its stream with Adam, and returns it in evaluation mode."""
    torch.manual_seed(0)
    model = task.build_model().train()
    task.steps_per_epoch(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for step in islice(task.train_stream(0, 1, None), steps):
        (batch,) = step.micro_batches
        loss = task.loss(model, batch.tensors)
        optimizer.zero_grad()
        (loss.sum / batch.weight).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()
