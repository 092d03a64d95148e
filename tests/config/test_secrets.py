"""What is taken for a secret, and what must not be."""

from __future__ import annotations

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.values import to_yaml
from bsmeta.core.files import redact, redact_values


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf-not-a-real-one")
    monkeypatch.setenv("WANDB_API_KEY", 'quoted"0123456789')
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "falsefalse")
    monkeypatch.setenv("HF_TOKEN_PATH", "/home/someone/token")
    monkeypatch.setenv("MY_PASSWORD", "short")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("401 for hf-not-a-real-one", "401 for [redacted]"),
        ('{"message": "quoted\\"0123456789"}', '{"message": "[redacted]"}'),
        ("key hf_abcdefghijklmnopqrstuvwx", "key [redacted]"),
        ("https://someone:password@host/path", "https://[redacted]@host/path"),
        ("falsefalse /home/someone/token short", "falsefalse /home/someone/token short"),
        ("https://host:80/a@b", "https://host:80/a@b"),
    ],
)
def test_text(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_values_by_the_name_of_their_key() -> None:
    values = {
        "api_key": "abcdefgh12345678",
        "inner": [{"access_token": "abcdefgh12345678"}],
        "local_metadata_special_token_start": "<metadata_start_token_1>",
        "tokenizer_name": "organisation1234/tokenizer5678",
        "pad_token": "<|endoftext|>",
        "steps": 3,
    }
    assert redact_values(values) == {
        **values,
        "api_key": "[redacted]",
        "inner": [{"access_token": "[redacted]"}],
    }


def test_the_configuration_of_a_run() -> None:
    text = to_yaml(CausalLMConfig(model_name="hf-not-a-real-one"))
    assert "hf-not-a-real-one" not in text
    assert "model_name: '[redacted]'" in text
