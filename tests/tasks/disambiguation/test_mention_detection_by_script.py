"""The trained detector on generated text without spaces, where a dictionary also matches in words.

The text has names, other words, and words that begin with a name and are none (ไทยรัฐ, a newspaper,
begins with ไทย, the country). A dictionary of the names detects both.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from bsmeta.tasks.disambiguation.config import DisambiguationConfig, DisambiguationDataConfig
from bsmeta.tasks.disambiguation.detection_evaluation import measure_detection, read_marked_texts
from bsmeta.tasks.disambiguation.detection_metrics import SpanCounts
from bsmeta.tasks.disambiguation.task import EntityDisambiguator
from bsmeta.training.ranks.processes import ALONE
from tests.tasks.disambiguation.helpers import SPECIAL, train_in_process, write_lines
from tests.tasks.disambiguation.test_dictionary import table_of
from tests.tasks.disambiguation.test_dictionary_by_script import LANGUAGES

LONGER_WORDS = {
    "Chinese": ["北京烤鸭", "上海菜", "李小龙腾虎跃"],
    "Japanese": ["東京都民", "さくらんぼ", "がんばる", "ソニーズ"],
    "Thai": ["ไทยรัฐ", "น้ำตกหมู", "กรุงเทพธุรกิจ", "เชียงใหม่นิวส์"],
}


def generate_lines(name: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Generates lines of 6 to 14 words, a third of them names, all of which are marked."""
    draw = random.Random(seed)
    names = LANGUAGES[name].aliases.split(",")
    other_words = LANGUAGES[name].others.split(",")
    lines = []
    for number in range(count):
        text = ""
        aliases, spans = [], []
        groups = [names, LONGER_WORDS[name], other_words]
        for group in [names, *draw.choices(groups, k=draw.randrange(5, 14))]:
            word = draw.choice(group)
            if group is names:
                aliases.append(word)
                spans.append([len(text), len(text) + len(word)])
            text += word
        lines.append({
            "sent_idx_unq": 1000 * seed + number, "sentence": text, "aliases": aliases,
            "qids": [f"Q{names.index(alias)}" for alias in aliases], "char_spans": spans,
            "gold": [True] * len(aliases), "document": f"document {number // 4}",
        })  # fmt: skip
    return lines


def write_letter_encoder(folder: Path, lines: list[dict[str, Any]]) -> Path:
    """Writes a BERT with random weights whose tokens are letters, as in multilingual models."""
    letters = sorted({letter for line in lines for letter in line["sentence"]})
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=160, pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(vocabulary), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=160,
    )  # fmt: skip
    BertModel(shape).save_pretrained(folder)
    return folder


def train_and_measure(name: str, folder: Path, steps: int) -> dict[str, SpanCounts]:
    """Trains on 400 generated lines, and counts the mentions detected in 100 others."""
    train, dev = generate_lines(name, 400, seed=1), generate_lines(name, 100, seed=2)
    table_of(folder, *LANGUAGES[name].aliases.split(","))
    data = DisambiguationDataConfig(
        train_file=str(write_lines(folder / "train.jsonl", train)),
        entity_table=str(folder / "table"),
        max_entity_length=32,
        window_length=32,
        batch_size=16,
        mask_rarest=0.0,
        mask_most_frequent=0.0,
    )
    config = DisambiguationConfig(
        model_name=str(write_letter_encoder(folder / "encoder", [*train, *dev])),
        data_config=data,
        mention_detection="detector",
        temperature=0.1,
        mixed_precision="no",
        num_train_epochs=1,
    )
    task = EntityDisambiguator(config)
    model = train_in_process(task, steps=steps, learning_rate=3e-3)
    held_out = read_marked_texts(write_lines(folder / "dev.jsonl", dev))
    return measure_detection(task.data, model, held_out, ALONE)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONGER_WORDS)
def test_the_detector_learns_where_names_end(name: str, tmp_path: Path) -> None:
    counts = train_and_measure(name, tmp_path, steps=500)
    dictionary, detector, both = counts.values()
    assert dictionary.recall.value == 1.0
    assert 0.4 < dictionary.precision.value < 0.7  # a name or a longer word that begins with it
    assert detector.precision.value > 0.9
    assert detector.f1.value > dictionary.f1.value + 0.1
    # The dictionary adds the names inside longer words again.
    assert both.precision.value < detector.precision.value
