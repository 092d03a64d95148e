"""The recipes of the papers: composed on top of the shipped configurations, rendered literally."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.metadata import Phase
from bsmeta.metadata.checks import find_metadata_problems
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.rendering import Renderer
from tests.data.helpers import page, run, small_config, small_tokenizer, write_shard

RECIPES = sorted(
    path.stem
    for path in (Path(__file__).resolve().parents[2] / "hydra_configs" / "recipes").glob("*.yaml")
)
LINE = (
    b'{"text": "Some text.", "metadata_url": [{"key": "url", "type": "global", '
    b'"value": "https://docs.example.org/a%20b"}], "metadata_quality": [{"key": "quality", '
    b'"type": "global", "value": "0.73"}]}'
)
# What the model reads, and what is added to the tokenizer.
READ = {
    "meco": ("URL: docs.example.org\n\nSome text.", []),
    "urls_help": (
        "<|context_begin|>https://docs.example.org/a b<|context_end|>Some text.",
        ["<|context_begin|>", "<|context_end|>"],
    ),
    "beyond_urls_quality": ("Quality: 7 ||| Some text.", []),
    "beyond_urls_append": ("Some text. ||| url: https://docs.example.org/a b", []),
    "beyond_urls_meta_tokens": (None, None),
}


def test_each_recipe_has_an_expected_rendering() -> None:
    assert sorted(READ) == RECIPES


@pytest.mark.parametrize("base", ["demo", "v2"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_composes_and_renders_the_expected_text(name: str, base: str) -> None:
    metadata = compose_command_line(
        CausalLMConfig, base, [f"+recipes={name}"]
    ).data_config.metadata_config
    assert find_metadata_problems(metadata) == []
    renderer = Renderer(metadata)
    document = DocumentDecoder(metadata).decode(LINE)
    rendered = renderer.render(document, metadata.metadata_list)
    read, special = READ[name]
    if read is None:
        special = renderer.list_special_tokens()[-5:]
        read = "".join(special) + " ||| Some text."
        assert len(set(special)) == 5
    assert rendered.prefix + rendered.lead + rendered.body + rendered.suffix == read
    wrappers = {"<HTML>", "</HTML>", "<ENTITY_CHAIN>", " </ENTITY_CHAIN> "}  # of v2 itself
    assert [token for token in renderer.list_special_tokens() if token not in wrappers] == special


def test_meco_cools_down_in_the_same_run() -> None:
    config = compose_command_line(CausalLMConfig, "v2", ["+recipes=meco"])
    assert config.data_config.metadata_config.schedule == [
        Phase(share=0.9),
        Phase(share=0.1, metadata_probability=0.0),
    ]


def test_meco_has_the_settings_of_its_paper() -> None:
    """Appendix A: optimizer and schedule. In its code, every sequence begins with the URL."""
    config = compose_command_line(CausalLMConfig, "v2", ["+recipes=meco", "max_train_steps=2000"])
    metadata = config.data_config.metadata_config
    assert (config.learning_rate, config.weight_decay) == (3e-3, 0.033)
    assert (config.adam_beta1, config.adam_beta2) == (0.9, 0.95)
    assert (config.lr_scheduler_type, config.min_learning_rate_ratio) == ("cosine", 0.1)
    assert config.num_warmup_steps == 100
    assert (metadata.prefix_on, metadata.long_documents) == ("every_piece", "truncate")
    assert metadata.bos_token
    assert metadata.loss_on_first_text
    assert not config.data_config.cross_document_attention


def test_meco_trains_on_no_text_without_its_url_before_the_cooldown(tmp_path: Path) -> None:
    """Documents several sequences long, packed: each chunk of each sequence begins with a URL."""
    write_shard(tmp_path / "a.jsonl.gz", [page(number, 150) for number in range(40)])
    metadata = compose_command_line(
        CausalLMConfig, "demo", ["+recipes=meco"]
    ).data_config.metadata_config
    settings = {**vars(metadata), "schedule": [], "max_seq_len": 64}
    data = small_config(tmp_path, num_streams=1, window_documents=40, **settings)
    url = small_tokenizer().encode("URL: example.org\n\n")
    chunks = 0
    for step in run(data, 5).steps:
        for ids, positions, mask in zip(
            step["input_ids"], step["position_ids"], step["loss_mask"], strict=True
        ):
            for start in torch.nonzero(positions == 0).flatten().tolist():
                if mask[start:].any():
                    assert ids[start : start + len(url)].tolist() == url
                    chunks += 1
    assert chunks == 40


def test_truncation_drops_the_rest_of_each_document(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.jsonl.gz", [page(number, 150) for number in range(8)])
    settings = {"num_streams": 1, "per_device_train_batch_size": 1, "metadata_probability": 0.0}
    whole, cut = (
        run(small_config(tmp_path, **settings, packing="pad", long_documents=kind), 8, batch=1)
        for kind in ("split", "truncate")
    )
    assert sorted({name for names in cut.documents for name in names}) == [
        f"a.jsonl.gz:{number}" for number in range(8)
    ]
    assert len({name for names in whole.documents for name in names}) < 8
