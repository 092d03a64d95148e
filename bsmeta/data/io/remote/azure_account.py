"""Reads the account of Azure Blob Storage from the environment, and authorizes requests with it.

Credentials are searched in the order of Azure's command line: a connection string, the account key,
a shared access signature (SAS). A connection string names its own account, so no other variable is
read with it. Without credentials, requests are anonymous, which a public container permits.

Tokens of Microsoft Entra ID (`az login`, managed identities) are not supported; a user who has one
can make a SAS from it, with `az storage container generate-sas --as-user --auth-mode login`.
"""

from __future__ import annotations

import base64
import hmac
import os
import re
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qs, urlsplit

import httpx2

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.secrets import declare_secrets, format_url

API_VERSION = "2021-12-02"  # from 2021-02-12 on, listings encode names that XML cannot contain

_CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"
_ENDPOINT_VARIABLE = "AZURE_STORAGE_ENDPOINT"
_NAME_VARIABLES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_KEY_VARIABLES = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
_SAS_VARIABLE = "AZURE_STORAGE_SAS_TOKEN"
_ACCOUNT_NAME = re.compile("[a-z0-9-]+")

# The signature covers these headers in this order.
_SIGNED_HEADERS = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)


@dataclass(frozen=True, slots=True)
class Account:
    """An account, and the credentials for it.

    Attributes:
        endpoint: URL of the account's blob service, without a slash at the end.
        name: Name of the account; may be empty unless there is a key.
        credentials_variable: Environment variable that contains the credentials; "" if there are
            none.
        key: The decoded account key; b"" if there is none.
        sas: The SAS token, without a question mark; "" if there is none.
    """

    endpoint: str
    name: str
    credentials_variable: str = ""
    key: bytes = field(default=b"", repr=False)
    sas: str = field(default="", repr=False)

    def authorize(
        self, method: str, url: str, headers: dict[str, str]
    ) -> tuple[str, dict[str, str]]:
        """Returns the URL and the headers of a request with the credentials added.

        Args:
            headers: All other headers of the request, because the account key signs them.
        """
        headers = {**headers, "x-ms-date": formatdate(usegmt=True), "x-ms-version": API_VERSION}
        if self.key:
            signature = compute_signature(self, method, url, headers)
            headers["Authorization"] = f"SharedKey {self.name}:{signature}"
        elif self.sas:
            separator = "&" if "?" in url else "?"
            url = f"{url}{separator}{self.sas}"
        return url, headers


def read_account() -> Account:
    """Reads the account from the environment.

    Raises:
        ConfigurationError: If no account is named, or a variable is malformed.
    """
    connection_string = os.environ.get(_CONNECTION_STRING)
    if connection_string:
        account = _parse_connection_string(connection_string)
    else:
        account = _read_variables()

    if account.sas:
        declare_secrets(account.sas, *parse_qs(account.sas).get("sig", []))
    if account.key:
        declare_secrets(base64.b64encode(account.key).decode())
    return account


def compute_signature(account: Account, method: str, url: str, headers: dict[str, str]) -> str:
    """Computes the signature of a request with the account key (Shared Key).

    Source: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key, for
    version 2015-02-21 and later.
    """
    sent_url = httpx2.URL(url)
    sent_headers = httpx2.Headers(headers)

    lines = [method, *(sent_headers.get(name, "") for name in _SIGNED_HEADERS)]
    for name, value in sorted(sent_headers.items()):
        if name.startswith("x-ms-"):
            lines.append(f"{name}:{value}")

    sent_path = sent_url.raw_path.decode().partition("?")[0]
    lines.append(f"/{account.name}{sent_path}")
    lines += [f"{name}:{value}" for name, value in sorted(sent_url.params.multi_items())]

    digest = hmac.digest(account.key, "\n".join(lines).encode(), "sha256")
    return base64.b64encode(digest).decode()


def _parse_connection_string(text: str) -> Account:
    """Parses `AccountName=…;AccountKey=…`, with an endpoint or a SAS token in any order."""
    fields = {}
    for assignment in text.strip().split(";"):
        field_name, _, value = assignment.partition("=")
        fields[field_name.strip().lower()] = value.strip()

    name = fields.get("accountname", "")
    endpoint = fields.get("blobendpoint")
    if not endpoint and not name:
        raise ConfigurationError(
            f"az://… cannot be read: {_CONNECTION_STRING}: found neither AccountName nor "
            "BlobEndpoint, expected AccountName=NAME;AccountKey=KEY;…; copy it again, or unset it"
        )
    if not endpoint:
        scheme = fields.get("defaultendpointsprotocol") or "https"
        suffix = fields.get("endpointsuffix") or "core.windows.net"
        endpoint = f"{scheme}://{name}.blob.{suffix}"

    key = fields.get("accountkey", "")
    sas = fields.get("sharedaccesssignature", "")
    credentials_variable = _CONNECTION_STRING if key or sas else ""
    return _make_account(_CONNECTION_STRING, endpoint, name, key, sas, credentials_variable)


def _read_variables() -> Account:
    """Reads the account from the variables for its name, endpoint, key and SAS token."""
    name_variable, name = _read_variable(*_NAME_VARIABLES)
    key_variable, key = _read_variable(*_KEY_VARIABLES)
    sas_variable, sas = _read_variable(_SAS_VARIABLE)

    endpoint = os.environ.get(_ENDPOINT_VARIABLE)
    if not endpoint and not name:
        raise ConfigurationError(
            f"az://… cannot be read: found no {_NAME_VARIABLES[0]}, expected the name of the "
            f"storage account; set it (or {_CONNECTION_STRING})"
        )
    if not endpoint and not _ACCOUNT_NAME.fullmatch(name):
        raise ConfigurationError(
            f"az://… cannot be read: {name_variable}: found {format_url(name)}, expected the name "
            "of a storage account: lower-case letters and digits, without the host; correct it"
        )

    endpoint = endpoint or f"https://{name}.blob.core.windows.net"
    credentials_variable = key_variable or sas_variable
    return _make_account(_ENDPOINT_VARIABLE, endpoint, name, key, sas, credentials_variable)


def _read_variable(*variables: str) -> tuple[str, str]:
    """Returns the name and the stripped value of the first variable that is set; else ("", "")."""
    for variable in variables:
        value = os.environ.get(variable, "").strip()
        if value:
            return variable, value
    return "", ""


def _make_account(
    source_variable: str,
    endpoint: str,
    name: str,
    key: str,
    sas: str,
    credentials_variable: str,
) -> Account:
    """Checks the values of an account, and returns it.

    Args:
        source_variable: Environment variable that contains the endpoint, for messages.
        key: The account key in base64.
        credentials_variable: Environment variable that contains the credentials.

    Raises:
        ConfigurationError: If a value is malformed, or a key has no account.
    """
    if not _is_endpoint(endpoint):
        raise ConfigurationError(
            f"az://… cannot be read: the endpoint in {source_variable}: found "
            f"{format_url(endpoint)}, expected http(s)://HOST or, for an emulator, "
            "http://HOST:PORT/ACCOUNT, without user and query; correct it"
        )
    if key and not name:
        raise ConfigurationError(
            f"az://… cannot be read: {credentials_variable}: found an account key without the name "
            f"of its account; set {_NAME_VARIABLES[0]}, or add AccountName=NAME to a connection "
            "string"
        )

    try:
        decoded_key = base64.b64decode(key, validate=True)
    except ValueError:
        raise ConfigurationError(
            f"az://… cannot be read: {credentials_variable}: found an account key that is not in "
            "base64, expected 88 characters that end in ==; copy it again (az storage account keys "
            "list)"
        ) from None
    return Account(endpoint.rstrip("/"), name, credentials_variable, decoded_key, sas.lstrip("?"))


def _is_endpoint(endpoint: str) -> bool:
    """Returns whether a text is an http(s) URL of a host, without user, query and fragment."""
    try:
        url = urlsplit(endpoint)
        has_host = bool(url.hostname) and "@" not in url.netloc
    except ValueError:
        return False
    return url.scheme in ("http", "https") and has_host and not url.query and not url.fragment
