"""Each form of token is recognized in any context; look-alikes are not."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from bsmeta.core.token_forms import TOKEN_FORMS, find_tokens, replace_tokens
from tests.canary import digits, letters

KEY = "\n".join(letters(line, 64) for line in range(4))
TOKENS = {
    "GitHub": ["ghp_" + letters(1, 36), "ghs_" + letters(2, 36), "gho_" + letters(3, 36)],
    "GitHub, fine-grained": ["github_pat_" + letters(4, 22) + "_" + letters(5, 59)],
    "GitLab": ["glpat-" + letters(6, 20), "glpat-" + letters(7, 27) + ".01.0z1abcdef"],
    "GitLab, runner registration": ["GR1348941" + letters(8, 20)],
    "Hugging Face": ["hf_" + letters(9, 34), "api_org_" + letters(10, 34)],
    "OpenAI, Anthropic": [
        "sk-" + letters(11, 48), "sk-proj-" + letters(12, 60), "sk-ant-api03-" + letters(13, 93)
    ],
    "AWS, key id": ["AKIA" + letters(14, 16).upper(), "ASIA" + letters(15, 16).upper()],
    "Google, API key": ["AIza" + letters(16, 35)],
    "Google, access token": ["ya29." + letters(17, 60)],
    "Google, client secret": ["GOCSPX-" + letters(18, 28)],
    "Google, refresh token": ["1//0" + letters(19, 60)],
    "Azure, storage key": [letters(20, 86) + "=="],
    "Azure, signature": [
        "sig=" + letters(61, 43) + "%3D", "sig=" + letters(62, 20) + "%2F" + letters(63, 22) + "=",
        "sig%3D" + letters(64, 43) + "%253D", "SharedKey corpora1:" + letters(65, 43) + "=",
    ],
    "Azure, client secret": ["abc8Q~" + letters(21, 34)],
    "Slack": ["xoxb-123456789012-1234567890-" + letters(22, 24), "xoxe.xoxp-1-" + letters(23, 99)],
    "Slack, app": ["xapp-1-A0" + letters(24, 9) + "-123456789012-" + digits(25, 64)],
    "Slack, webhook": [f"hooks.slack.com/services/T0{letters(26, 9)}/B0AAAAAAA/{letters(27, 24)}"],
    "Discord, webhook": [f"discord.com/api/webhooks/123456789012345678/{letters(28, 68)}"],
    "Microsoft Teams, webhook": [
        f".webhook.office.com/webhookb2/{digits(29, 36)}@{digits(30, 36)}/IncomingWebhook/a/b"
    ],
    "Stripe": ["sk_" + "live_" + letters(31, 24), "rk_" + "test_" + letters(32, 24)],
    "Stripe, webhook": ["whsec_" + letters(33, 32)],
    "Twilio": ["SK" + digits(34, 32)],
    "SendGrid": ["SG." + letters(35, 22) + "." + letters(36, 43)],
    "npm": ["npm_" + letters(37, 36)],
    "PyPI": ["pypi-AgEIcHlwaS5vcmc" + letters(38, 120)],
    "Docker Hub": ["dckr_pat_" + letters(39, 27)],
    "Databricks": ["dapi" + digits(40, 32), "dapi" + digits(41, 32) + "-2"],
    "Weights & Biases": ["wandb_v1_" + letters(42, 77)],
    "Weights & Biases, local": ["local-" + digits(43, 40)],
    "Cloudflare": ["cfut_" + letters(44, 46), "cfk_" + letters(45, 46)],
    "Cloudflare, origin CA": ["v1.0-" + digits(46, 24) + "-" + digits(47, 146)],
    "DigitalOcean": ["dop_v1_" + digits(48, 64)],
    "Telegram, bot": ["1234567890:AA" + letters(49, 33)],
    "HashiCorp Vault": ["hvs." + letters(50, 90)],
    "Groq, Perplexity": ["gsk_" + letters(51, 52), "pplx-" + letters(52, 48)],
    "Neptune": ["eyJhcGlfYWRkcmVzcyI6" + letters(53, 120) + "=="],
    "JSON Web Token": [
        f"eyJ{letters(54, 20)}.eyJ{letters(55, 40)}.{letters(56, 43)}",
        f"eyJ{letters(57, 20)}..{letters(58, 16)}.{letters(59, 40)}.{letters(60, 22)}",
    ],
    "private key": [
        f"-----BEGIN RSA PRIVATE KEY-----\n{KEY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{KEY}\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
}  # fmt: skip
ALL = [token for tokens in TOKENS.values() for token in tokens]


def test_every_form_has_a_token_and_every_token_a_form() -> None:
    assert [form.provider for form in TOKEN_FORMS] == [*TOKENS]
    for form in TOKEN_FORMS:
        assert all(form.pattern.fullmatch(token) for token in TOKENS[form.provider]), form.provider


AROUND = (
    "{}", "the token {} is wrong", "key={}&more", "'{}'", "<{}>", "({}),", "https://host/{}",
    "a\t{}\n", "first.\\n{}\\nlast", "x%3D{}%26y",
)  # fmt: skip


@pytest.mark.parametrize("token", ALL, ids=lambda token: token[:12])
def test_a_token_is_found_in_any_context(token: str) -> None:
    for around in AROUND:
        text = around.format(token)
        assert find_tokens(text) == [token], around
        assert replace_tokens(text, "*") == around.format("*")


@pytest.mark.parametrize("token", ALL, ids=lambda token: token[:12])
def test_a_token_is_replaced_in_json_and_urls(token: str) -> None:
    line = json.dumps({"message": f'"{token}"\n', "next": 1})
    hidden = replace_tokens(line, "*")
    assert json.loads(hidden) == {"message": '"*"\n', "next": 1}
    if quote(token) == token:
        assert replace_tokens(f"a=b%20{token}%20c", "*") == "a=b%20*%20c"


def test_a_key_without_its_end_is_hidden_up_to_the_next_quote() -> None:
    line = json.dumps({"key": f"-----BEGIN PRIVATE KEY-----\n{KEY}", "next": "stays"})
    assert json.loads(replace_tokens(line, "*")) == {"key": "*", "next": "stays"}


@pytest.mark.parametrize(
    "text",
    [
        "self_hf_model_with_a_name_that_is_long", "sk-learn", "risk-averse-models-of-language",
        "d670460b4b4aece5915caf5c68d12f560a9fe3e4", "sha512-" + "A" * 86 + "==", "A" * 90 + "==",
        "eyJ.eyJ", "eyJhbGciOiJIUzI1NiJ9", "AKIA", "SKIPPED", "local-attention", "v1.0-alpha",
        "organisation/hf_model", "glpat", "npm_config_registry", "-----BEGIN CERTIFICATE-----",
        "xoxo", "api_organization", "meta-llama/Llama-3.2-1B", "gpt2", "12:00:00", "ya29.",
        "data/train-00000-of-00128.jsonl.gz", "https://hooks.slack.com/", "1//2",
        "<|endoftext|>", "550e8400-e29b-41d4-a716-446655440000",
    ],
)  # fmt: skip
def test_ordinary_text_contains_no_token(text: str) -> None:
    assert find_tokens(text) == []
