"""The account of Azure and its credentials, from the environment; and the signature of requests."""

from __future__ import annotations

import base64

import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.secrets import redact
from bsmeta.data.io.remote.azure_account import Account, compute_signature, read_account
from tests.data.azure_server import KEY, SAS, SIGNATURE, VARIABLES

KEY_BYTES = bytes(range(64))
HOST = "https://corpora.blob.core.windows.net"
STRING = "AZURE_STORAGE_CONNECTION_STRING"

# The published key of Azurite, the emulator, which has accepted the signatures below.
AZURITE = Account(
    "http://127.0.0.1:10123/devstoreaccount1",
    "devstoreaccount1",
    key=base64.b64decode(
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    ),
)


@pytest.fixture(autouse=True)
def clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def read_from(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> Account:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return read_account()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"AZURE_STORAGE_ACCOUNT_NAME": "corpora"}, Account(HOST, "corpora")),
        ({"AZURE_STORAGE_ACCOUNT": "corpora", "AZURE_STORAGE_KEY": " "}, Account(HOST, "corpora")),
        (
            {"AZURE_STORAGE_ACCOUNT": "corpora", "AZURE_STORAGE_ACCOUNT_KEY": KEY},
            Account(HOST, "corpora", "AZURE_STORAGE_ACCOUNT_KEY", KEY_BYTES),
        ),
        (
            {"AZURE_STORAGE_ACCOUNT": "corpora", "AZURE_STORAGE_SAS_TOKEN": f"?{SAS}"},
            Account(HOST, "corpora", "AZURE_STORAGE_SAS_TOKEN", sas=SAS),
        ),
        (
            {"AZURE_STORAGE_ENDPOINT": "http://host:1/me/", "AZURE_STORAGE_SAS_TOKEN": SAS},
            Account("http://host:1/me", "", "AZURE_STORAGE_SAS_TOKEN", sas=SAS),
        ),
        (
            {STRING: f"AccountName=corpora;AccountKey={KEY};", "AZURE_STORAGE_ACCOUNT": "other"},
            Account(HOST, "corpora", STRING, KEY_BYTES),
        ),
        (
            {STRING: f"BlobEndpoint={HOST}/;SharedAccessSignature={SAS}", "AZURE_STORAGE_KEY": KEY},
            Account(HOST, "", STRING, sas=SAS),
        ),
        (
            {
                STRING: "DefaultEndpointsProtocol=http;EndpointSuffix=core.chinacloudapi.cn;"
                f"AccountName=corpora;AccountKey={KEY}"
            },
            Account("http://corpora.blob.core.chinacloudapi.cn", "corpora", STRING, KEY_BYTES),
        ),
    ],
)
def test_the_account_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: Account
) -> None:
    assert read_from(monkeypatch, environment) == expected


def test_the_key_is_used_before_the_sas_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command line of Azure does."""
    variables = {"AZURE_STORAGE_KEY": KEY, "AZURE_STORAGE_SAS_TOKEN": SAS}
    account = read_from(monkeypatch, {**variables, "AZURE_STORAGE_ACCOUNT": "corpora"})
    url, headers = account.authorize("GET", f"{HOST}/web/a", {})
    assert account.credentials_variable == "AZURE_STORAGE_KEY"
    assert url == f"{HOST}/web/a"
    assert headers["Authorization"].startswith("SharedKey corpora:")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "found no AZURE_STORAGE_ACCOUNT_NAME, expected the name of the storage account; set"),
        (
            {"AZURE_STORAGE_ACCOUNT": "corpora.blob.core.windows.net"},
            "AZURE_STORAGE_ACCOUNT: found corpora.blob.core.windows.net, expected the name of a ",
        ),
        (
            {"AZURE_STORAGE_ENDPOINT": "https://host/?sig=abcDEF123456"},
            "the endpoint in AZURE_STORAGE_ENDPOINT: found https://host/, expected http(s)://HOST",
        ),
        (
            {"AZURE_STORAGE_ENDPOINT": "host:10000"},
            "the endpoint in AZURE_STORAGE_ENDPOINT: found host:10000, expected http(s)://HOST",
        ),
        (
            {STRING: "BlobEndpoint=https://[;SharedAccessSignature=x"},
            f"the endpoint in {STRING}: found https://[, expected http(s)://HOST",
        ),
        (
            {"AZURE_STORAGE_ENDPOINT": HOST, "AZURE_STORAGE_KEY": KEY},
            "AZURE_STORAGE_KEY: found an account key without the name of its account; set AZURE_",
        ),
        (
            {"AZURE_STORAGE_ACCOUNT": "corpora", "AZURE_STORAGE_KEY": KEY[:-3] + "…"},
            "AZURE_STORAGE_KEY: found an account key that is not in base64, expected 88 characters",
        ),
        (
            {STRING: "UseDevelopmentStorage=true"},
            f"{STRING}: found neither AccountName nor BlobEndpoint, expected AccountName=NAME;",
        ),
    ],
)
def test_malformed_variables_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        read_from(monkeypatch, environment)
    assert str(error.value).startswith(f"az://… cannot be read: {message}")
    assert KEY[:-3] not in str(error.value)


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        (
            "/private?restype=container&comp=list&maxresults=3&prefix=web%2F",
            {"x-ms-date": "Fri, 27 Nov 2026 21:24:04 GMT"},
            "pWDmG2jX8M3F76I2vAwYUGaODi+JHhEvd1hwlzY7VKI=",
        ),
        (
            "/private/web/a%20b%2B%C3%BC%2541.jsonl",
            {
                "x-ms-date": "Fri, 27 Nov 2026 21:24:04 GMT",
                "If-Match": '"0x1E047FA858A8360"',
                "Range": "bytes=0-999",
                "Accept-Encoding": "identity",
            },
            "DxngTTuQfwRlBypN/cGwUE1HpIYArNyNYQTjH7OaRZA=",
        ),
    ],
)
def test_signatures_equal_signatures_that_azurite_accepts(
    path: str, headers: dict[str, str], expected: str
) -> None:
    headers = {**headers, "x-ms-version": "2021-12-02"}
    url = f"{AZURITE.endpoint}{path}"
    assert compute_signature(AZURITE, "GET", url, headers) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {STRING: f"AccountName=corpora;AccountKey={KEY}"},
        {STRING: f"AccountName=corpora;SharedAccessSignature={SAS}"},
        {"AZURE_STORAGE_ACCOUNT": "corpora", "AZURE_STORAGE_SAS_TOKEN": SAS},
    ],
)
def test_secrets_inside_a_variable_are_redacted_alone_too(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    account = read_from(monkeypatch, environment)
    assert "redacted" not in redact(repr(account))
    secret = SIGNATURE if account.sas else KEY
    assert redact(f"before {secret} after") == "before [redacted] after"
    assert secret not in repr(account)
