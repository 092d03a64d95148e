"""Which names and values are taken for secrets, in both directions: a false alarm does harm, too.

A secret that is missed is printed; a value that is none, and is hidden, is missing in the saved
configuration of a run, which then cannot be resumed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.core.files import ROOT
from bsmeta.core.keys import list_key_names
from bsmeta.core.secret_names import is_secret, is_secret_variable, looks_random
from bsmeta.core.secrets import redact_values
from tests.canary import LETTERS, digits, letters
from tests.config.test_schema import SCHEMAS, fill_defaults

RANDOM = letters(1, 32)

VARIABLES = [
    "HF_TOKEN", "WANDB_API_KEY", "DB_PASS", "PGPASSWORD", "MYSQL_PWD", "SSHPASS", "SMTP_PASSWORD",
    "POSTGRES_PASSWORD_PROD", "AZURE_STORAGE_KEY", "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_CONNECTION_STRING", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID",
    "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "GH_PAT", "CI_JOB_TOKEN", "SLACK_WEBHOOK_URL",
    "DISCORD_WEBHOOK", "STRIPE_KEY", "TWILIO_AUTH", "NPM_AUTH", "NPM_AUTH_TOKEN",
    "GOOGLE_CREDENTIALS", "SIGNING_KEY", "SECRET1", "TOKEN_V2", "KAGGLE_KEY", "REDIS_AUTH",
    "SESSION_COOKIE", "RESTIC_PASSPHRASE", "OPENAI_APIKEY", "BASIC_AUTH", "CLOUDFLARE_API_TOKEN",
    "sentryAuthToken", "authtoken", "SSH_PRIVATE_KEY",
]  # fmt: skip

ORDINARY_VARIABLES = {
    "TOKENIZERS_PARALLELISM": "falsefalse",
    "HF_TOKEN_PATH": "/home/me/token1234",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/credentials-1.json",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials9",
    "SSH_AUTH_SOCK": "/tmp/ssh-XXabc123/agent.42",
    "GIT_ASKPASS": "/usr/lib/git-core/ask2pass",
    "PASSWORD_STORE_DIR": "/home/me/.store1",
    "PWD": "/home/me/project2",
    "OLDPWD": "/home/me/project1",
    "AUTHOR": "Ada Lovelace 1815",
    "GIT_AUTHOR_EMAIL": "ada1815@example.org",
    "XAUTHORITY": "/home/me/.Xauthority1",
    "MAX_TOKENS": "123456789",
    "NUM_TOKENS": "12345678901234567890",
    "KEYBOARD": "de-latin1-nodeadkeys",
    "KEYMAP": "us-international-2",
    "COMPASS": "north-by-northwest1",
    "SORT_KEY": "perplexity_bucket_v12",
    "AUTH": "interactive",
    "SMTP_AUTH": "required",
    "API_KEY": "disabled",
    "CACHE_KEY": "models/llama-3.2-1b-instruct",
    "TOKEN_TYPE": "Bearer-Token-1",
    "OAUTH_TOKEN_URL": "https://login.example.org/oauth2",
    "SECRET_VERSION": "2024-01-01-rev7",
    "CREDENTIALS_PROVIDER_PATH": "a/b/c1",
    "MONKEY": "capuchin-42-monkey",
    "PASSAGE": "chapter-11-verse-4",
    "DB_PASS": "short",
    "FORWARD_PASS": "layer-2-of-12",
    "PASS": "second-of-3",
    "ADMIN_PASSWORD": "changeme",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_named_like_secrets_are_secret(name: str) -> None:
    assert is_secret_variable(name, RANDOM)
    assert is_secret(name, RANDOM)


@pytest.mark.parametrize(("name", "value"), ORDINARY_VARIABLES.items())
def test_ordinary_variables_are_not_secret(name: str, value: str) -> None:
    assert not is_secret_variable(name, value)
    assert not is_secret(name, value)


def test_at_least_sixty_variable_names_are_tried() -> None:
    assert len(VARIABLES) + len(ORDINARY_VARIABLES) >= 60


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("password", "hunter2", True),
        ("password", "Tr0ub4dor&3", True),
        ("db.password", "correct-horse-battery-staple", True),
        ("password", "data.password", False),  # the column of a type
        ("password", "short", False),
        ("passwd", "{password}", False),
        ("api_key", "abcdefgh12345678", True),
        ("apiKey", "abcdefgh12345678", True),
        ("access_token", "abc", False),
        ("secret", "meta.secret", False),
        ("token", "<|endoftext|>", False),
        ("pad_token", "[PAD]", False),
        ("bos_token", "<s_token_1>", False),
        ("token", "gpt2", False),
        ("token", "c4-en-html_cc-main-2019-18_pq00-000", False),
        ("token", "https://host.invalid/abcd1234efgh5678", False),
        ("webhook_url", "https://host.invalid/abcd1234efgh5678", True),
        ("token", "abcd1234", True),
        ("secret", "aBcDeFgHiJkLmNoPqRsT", True),
        ("token", "owner/tokenizer", False),
        ("token", "a b c d e f 1", False),
        ("token", RANDOM, True),
        ("token", "/home/me/.token1", False),
        ("token", "${oc.env:HF_TOKEN}", False),
        ("secret_access_key", letters(2, 40, LETTERS + "+/"), True),
        ("key", "title", False),
        ("key", "metadata_html_2", False),
        ("key", "example.org/page-12345678", False),
        ("key", "550e8400-e29b-41d4-a716-446655440000", False),
        ("key", RANDOM, True),
        ("auth", "basic", False),
        ("auth", RANDOM, True),
        ("X-Amz-Signature", digits(3, 64), True),
        ("X-Amz-Date", "20240101T000000Z", False),
        ("sig", letters(4, 42) + "%3D", True),
        ("num_tokens", RANDOM, False),
        ("author", RANDOM, False),
        ("tokenizer_name", RANDOM, False),
        ("passes", RANDOM, False),
        ("private_key", "-----BEGIN PRIVATE KEY-----\nabc\n", True),
    ],
)
def test_a_key_is_secret_by_its_name_and_value(name: str, value: str, expected: bool) -> None:
    assert is_secret(name, value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (RANDOM, True),
        (digits(5, 40), True),
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", False),  # no digit in a run that is long
        ("abcdefghijklmnopqrstuvwx", False),
        ("organisation1234/tokenizer5678", False),
        ("c4-en-html_cc-main-2019-18_pq00-000", False),
        ("gpt2-medium-v1.5-1024x768-fp16", False),
    ],
)
def test_long_random_strings_look_random(value: str, expected: bool) -> None:
    assert looks_random(value) == expected


@pytest.fixture
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes all variables, since this machine's may be secrets."""
    for name in os.environ:
        monkeypatch.delenv(name)


def convert_tuples(config: Any) -> Any:
    """Returns a configuration with lists for tuples, as it is read back."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


@pytest.mark.usefixtures("empty_environment")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_no_default_of_a_schema_is_hidden(schema: type) -> None:
    config = fill_defaults(schema)
    assert redact_values(convert_tuples(config)) == convert_tuples(config)


SHIPPED = [
    path
    for folder in ("hydra_configs", "deepspeed_configs", "experiments/accelerate")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".yaml", ".json")
]


@pytest.mark.usefixtures("empty_environment")
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_nothing_in_a_shipped_configuration_is_hidden(path: Path) -> None:
    values = yaml.safe_load(path.read_text())
    assert redact_values(values) == values


NAMES = sorted({name for schema in SCHEMAS for name in list_key_names(schema)})
ORDINARY_VALUES = [
    "hf://datasets/owner/name@main/data/train-0000?-of-00128.parquet", "gpt2", "bf16", "webhook",
    "s3://bucket/web/part-?.jsonl.gz", "gs://bucket/a/**", "owner12/model-7b", "data.password",
    "/data/shards/c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz", "meta-llama/Llama-3.2-1B",
    "../runs/demo/checkpoint-200step", "<|endoftext|>", "<metadata_start_token_1>", "[MASK]",
    "URL: {value}", " ||| ", "metadata.title", "adamw_torch_fused", "c4_timestamp", "latest",
    "deepspeed_configs/zero2.json", "hydra_configs/parts/html_v2.yaml", "cc-main-2019-18",
    "2024-01-01T00:00:00Z", "sm90-2x4-H100", "v1.5-rc2", "1e-4", "127.0.0.1:29500", "true",
]  # fmt: skip


@pytest.mark.usefixtures("empty_environment")
@pytest.mark.parametrize("value", ORDINARY_VALUES)
def test_no_ordinary_value_of_a_key_is_hidden(value: str) -> None:
    values = {name: {name.rpartition(".")[2]: value} for name in NAMES}
    assert redact_values(values) == values


@given(
    st.sampled_from(NAMES),
    st.text("abcdefghijklmnopqrstuvwxyz_./-", max_size=30)
    | st.integers().map(str)
    | st.floats().map(str),
)
def test_names_and_numbers_are_not_hidden(name: str, value: str) -> None:
    assert not is_secret(name.rpartition(".")[2], value)
