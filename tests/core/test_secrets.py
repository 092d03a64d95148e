"""What is hidden in text and in configurations, in every form, and what must stay as it is."""

from __future__ import annotations

import json
import os
import re
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.secrets import (
    declare_secrets,
    declare_secrets_in,
    declare_secrets_in_arguments,
    format_url,
    redact,
    redact_known,
    redact_values,
)
from tests.canary import letters

KEY = f"-----BEGIN PRIVATE KEY-----\n{letters(1, 64)}\n{letters(2, 40)}\n-----END PRIVATE KEY-----"
ENVIRONMENT = {
    "HF_TOKEN": "hf-not-a-real-one",
    "WANDB_API_KEY": 'quoted"0123456789',
    "TOKENIZERS_PARALLELISM": "falsefalse",
    "HF_TOKEN_PATH": "/home/someone/token",
    "MY_PASSWORD": "short",
    "PGPASSWORD": "pg word/9&<ü\\",
    "ROOT_PASSWORD": "swordfish",
    "MAIL_PASS": "pass42",
    "DEPLOY_KEY": KEY,
    "HTTPS_PROXY": "http://me:pr0xy%2Fword@proxy.invalid:3128",
    "PLAIN": "https://0123abcd4567@host.invalid/?sig=abcDEF123456abcDEF123456",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("401 for hf-not-a-real-one", "401 for [redacted]"),
        ('{"message": "quoted\\"0123456789"}', '{"message": "[redacted]"}'),
        ("key hf_abcdefghijklmnopqrstuvwx", "key [redacted]"),
        ("falsefalse /home/someone/token short", "falsefalse /home/someone/token short"),
        ("a swordfish; swordfishes", "a [redacted]; swordfishes"),
        ("pass42 and 0xpass42ff, %3Dpass42", "[redacted] and 0xpass42ff, %3D[redacted]"),
        ("by proxy: pr0xy%2Fword, pr0xy/word", "by proxy: [redacted], [redacted]"),
        ("with 0123abcd4567", "with [redacted]"),
        ("abcDEF123456abcDEF123456", "[redacted]"),
        (f"{letters(1, 64)} {letters(2, 40)}", "[redacted] [redacted]"),
    ],
)
def test_secret_values_of_variables_are_redacted_in_text(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "PGPASSWORD", "DEPLOY_KEY"])
def test_quoted_and_escaped_forms_of_a_secret_are_redacted(name: str) -> None:
    secret = ENVIRONMENT[name]
    for form in (
        secret, repr(secret), json.dumps(secret), json.dumps(secret, ensure_ascii=False),
        quote(secret), quote(secret, safe=""), quote_plus(secret),
        re.sub("%..", lambda code: code[0].lower(), quote(secret)),
    ):  # fmt: skip
        hidden = redact_known(f"before {form} after").replace('"', "").replace("'", "")
        assert hidden == "before [redacted] after"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://someone:password@host/path", "https://[redacted]@host/path"),
        ("https://a-token@host/path", "https://[redacted]@host/path"),
        ("s3://key:secret@bucket/part-?.gz", "s3://[redacted]@bucket/part-?.gz"),
        ("s3://key:se/cr/et@bucket/a@b", "s3://[redacted]@bucket/a@b"),
        ("s3://bucket/a:b@c,hdfs://[::1]:80/a@b", "s3://bucket/a:b@c,hdfs://[::1]:80/a@b"),
        ("postgresql://a:b@db/runs?x=1", "postgresql://[redacted]@db/runs?x=1"),
        ("https://host:80/a@b", "https://host:80/a@b"),
        ("hf://datasets/o/n@main/part-?", "hf://datasets/o/n@main/part-?"),
        ("see https://host/docs? Yes", "see https://host/docs? Yes"),
        ("GET 'https://host/x?X-Amz-Signature=0&y=1' 403", "GET 'https://host/x?[redacted]' 403"),
        ("HTTPS://HOST/x?y=1,https://a:b@c", "HTTPS://HOST/x?[redacted]"),
        ("https://a/b,https://c:d@e/f,g", "https://a/b,https://[redacted]@e/f,g"),
        ('{"url": "https://host/x?sig=1\\"}', '{"url": "https://host/x?[redacted]\\"}'),
        ("first\\nhttps://host/x?sig=1\\nlast", "first\\nhttps://host/x?[redacted]\\nlast"),
        ("https:\\/\\/a:b@host\\/x?sig=1", "https:\\/\\/[redacted]@host\\/x?[redacted]"),
        ("//host/x@y?z", "//host/x@y?z"),
    ],
)
def test_credentials_in_urls_are_redacted_in_text(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected


SAS_SIGNATURE = letters(3, 21) + "%2F" + letters(4, 21) + "%3D"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=Tr0ub4dor next", "password=[redacted] next"),
        ("{'client_secret': 'abcd1234'}", "{'client_secret': '[redacted]'}"),
        ('{"api_key": "abcdefgh12345678", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        ("Authorization: Bearer abc123def456", "Authorization: Bearer [redacted]"),
        ("GET /x?token=abcd1234&part=2 HTTP/1.1", "GET /x?token=[redacted]&part=2 HTTP/1.1"),
        ("AccountName=me;AccountKey=abcd1234==;Ep=x", "AccountName=me;AccountKey=[redacted];Ep=x"),
        (f"sv=2021-12-02&sig={SAS_SIGNATURE}&sp=r", "sv=2021-12-02&[redacted]&sp=r"),
        (f"az://web/x.jsonl?sp=r&sig={SAS_SIGNATURE}", "az://web/x.jsonl?sp=r&[redacted]"),
        (
            f"SharedAccessSignature=sp=r&sig={SAS_SIGNATURE}",
            "SharedAccessSignature=sp=r&[redacted]",
        ),
        (f"x%3Fsp%3Dr%26{quote(f'sig={SAS_SIGNATURE}')}%26y", "x%3Fsp%3Dr%26[redacted]%26y"),
        (f"('Authorization', 'SharedKey me:{SAS_SIGNATURE}')", "('Authorization', '[redacted]')"),
        ("a%26access_token%3Dabcd1234%26b", "a%26access_token%3D[redacted]"),
        ("a\\u0026access_token=abcd1234\\u0026b", "a\\u0026access_token=[redacted]\\u0026b"),
        ("pad_token=<|endoftext|> token: gpt2", "pad_token=<|endoftext|> token: gpt2"),
        ('{"tokens": 123456789, "token": 12345678901234567890}',) * 2,
        ('{"Token": [-1000, ""], "secret": 0.123456789}',) * 2,
        ("key: perplexity_bucket_v12, keyboard=abcd1234",) * 2,
    ],
)
def test_secrets_in_assignments_are_redacted(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:word@host:80/a/b?x=1#y", "https://host:80/a/b"),
        ("http://token@host?x=1", "http://host"),
        ("https://host/a@b", "https://host/a@b"),
        ("https://host", "https://host"),
        ("https://host#x", "https://host"),
        ("file:///data/a%20b.bin", "file:///data/a%20b.bin"),
        ("s3://me:word@bucket/part-?.gz", "s3://bucket/part-?.gz"),
        ("s3://me:w/or/d@bucket/part-?.gz", "s3://bucket/part-?.gz"),
        ("hf://datasets/o/n@main/**", "hf://datasets/o/n@main/**"),
        ("http://[", "http://["),
        ("/data/x?y", "/data/x?y"),
        ("https://hooks.slack.com/services/T0A/B0A/abcdefghijklmnop", "https://[redacted]"),
    ],
)
def test_urls_in_messages_lose_credentials_and_queries(url: str, expected: str) -> None:
    assert format_url(url) == expected
    assert format_url(expected) == expected


def test_values_are_redacted_by_the_name_of_their_key() -> None:
    values = {
        "api_key": "abcdefgh12345678",
        "inner": [{"access_token": "abcdefgh12345678"}],
        "password": "Tr0ub4dor",
        "local_metadata_special_token_start": "<metadata_start_token_1>",
        "tokenizer_name": "organisation1234/tokenizer5678",
        "pad_token": "<|endoftext|>",
        "columns": {"password": "data.password", "key": "data.key"},
        "steps": 3,
        "passes": None,
    }
    assert redact_values(values) == {
        **values,
        "api_key": "[redacted]",
        "inner": [{"access_token": "[redacted]"}],
        "password": "[redacted]",
    }


def test_a_printed_configuration_hides_secrets() -> None:
    text = format_yaml(CausalLMConfig(model_name="hf-not-a-real-one"))
    assert "hf-not-a-real-one" not in text
    assert "model_name: '[redacted]'" in text


def test_declared_secrets_are_redacted() -> None:
    declare_secrets("d3clared-one", None, "", "12345678")
    declare_secrets_in({"a": [{"password": "d3clared-two"}], "b": "https://me:d3clared-3@host"})
    declare_secrets_in_arguments(
        ["+x.password='d3clared-4'", "y={api_key: d3clared-5}", "key=value", "z"]
    )
    text = "d3clared-one d3clared-two d3clared-3 d3clared-4 d3clared-5 12345678 value"
    assert redact_known(text) == "[redacted] " * 5 + "12345678 value"


FRAGMENTS = (
    "https://a:b@c/d?e=f", "password=", "token", "key: ", "-----BEGIN PRIVATE KEY-----", "\\", '"',
    *ENVIRONMENT.values(),
)  # fmt: skip
TEXTS = st.text() | st.lists(st.text(max_size=3) | st.sampled_from(FRAGMENTS)).map("".join)
NAMES = st.text() | st.sampled_from(["Token", "password", "key", "sig"])


@pytest.mark.long
@given(
    st.recursive(
        TEXTS | st.integers() | st.floats(allow_nan=False) | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    )
)
def test_a_redacted_line_of_json_is_still_json(value: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, secret in ENVIRONMENT.items():
            patch.setenv(name, secret)
        for ensure_ascii in (True, False):
            line = redact(json.dumps({"value": value}, ensure_ascii=ensure_ascii))
            assert json.loads(line).keys() == {"value"}


@given(st.lists(st.text("abcdefghijklmnopqrstuvwxyzäöü", max_size=12), max_size=40))
def test_ordinary_words_are_not_redacted(words: list[str]) -> None:
    text = " ".join(word for word in words if word != "swordfish")
    assert redact(text) == text
