"""Reads the account of Azure Blob Storage from the environment, and authorizes requests with it.

Credentials are searched in the order of Azure's command line: a connection string, the account key,
a shared access signature (SAS). A connection string is used alone, because it names an account of
its own. Without any, requests are anonymous, which a public container permits.

Tokens of Microsoft Entra ID (`az login`, managed identities) are not used: whoever has one can make
a SAS from it, with `az storage container generate-sas --as-user --auth-mode login`.
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
_ENDPOINT = "AZURE_STORAGE_ENDPOINT"
_NAMES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_KEYS = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
_SAS_TOKEN = "AZURE_STORAGE_SAS_TOKEN"
_ACCOUNT_NAME = re.compile("[a-z0-9-]+")

# In the order in which they are signed.
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
        endpoint: URL of its blob service, without a slash at the end.
        name: Name of the account; may be empty unless there is a key.
        variable: Environment variable that holds the credentials; "": there are none.
        key: The account key; b"": none.
        sas: The SAS token, without a question mark; "": none.
    """

    endpoint: str
    name: str
    variable: str = ""
    key: bytes = field(default=b"", repr=False)
    sas: str = field(default="", repr=False)

    def authorize(
        self, method: str, url: str, headers: dict[str, str]
    ) -> tuple[str, dict[str, str]]:
        """Returns the URL and the headers of a request with the credentials in them.

        The account key signs headers such as Range, so they must be in `headers` already.
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

    Source: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key, for the
    version 2015-02-21 and later.
    """
    sent_url = httpx2.URL(url)
    sent_headers = httpx2.Headers(headers)

    lines = [method, *(sent_headers.get(name, "") for name in _SIGNED_HEADERS)]
    extension_headers = [item for item in sent_headers.items() if item[0].startswith("x-ms-")]
    lines += [f"{name}:{value}" for name, value in sorted(extension_headers)]

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
    variable = _CONNECTION_STRING
    return _make_account(variable, endpoint, name, key, sas, variable if key or sas else "")


def _read_variables() -> Account:
    """Reads the account from the variables for its name, endpoint, key and SAS token."""
    name_variable, name = _read_variable(*_NAMES)
    key_variable, key = _read_variable(*_KEYS)
    sas_variable, sas = _read_variable(_SAS_TOKEN)

    endpoint = os.environ.get(_ENDPOINT)
    if not endpoint and not name:
        raise ConfigurationError(
            f"az://… cannot be read: found no {_NAMES[0]}, expected the name of the storage "
            f"account; set it (or {_CONNECTION_STRING})"
        )
    if not endpoint and not _ACCOUNT_NAME.fullmatch(name):
        raise ConfigurationError(
            f"az://… cannot be read: {name_variable}: found {format_url(name)}, expected the name "
            "of a storage account: small letters and digits, without the host; correct it"
        )

    endpoint = endpoint or f"https://{name}.blob.core.windows.net"
    variable = key_variable or sas_variable
    return _make_account(_ENDPOINT, endpoint, name, key, sas, variable)


def _read_variable(*variables: str) -> tuple[str, str]:
    """Returns the first of several environment variables that is set, and its value."""
    for variable in variables:
        value = os.environ.get(variable, "").strip()
        if value:
            return variable, value
    return "", ""


def _make_account(
    setting: str, endpoint: str, name: str, key: str, sas: str, variable: str
) -> Account:
    """Returns an account whose values have been checked.

    Args:
        setting: Variable that holds the endpoint, for messages.
        variable: Variable that holds the credentials.
    """
    if not _is_endpoint(endpoint):
        raise ConfigurationError(
            f"az://… cannot be read: the endpoint in {setting}: found "
            f"{format_url(endpoint)}, expected http(s)://HOST or, for an emulator, "
            "http://HOST:PORT/ACCOUNT, without user and query; correct it"
        )
    if key and not name:
        raise ConfigurationError(
            f"az://… cannot be read: {variable}: found an account key without the name of its "
            f"account; set {_NAMES[0]}, or add AccountName=NAME to a connection string"
        )

    try:
        decoded_key = base64.b64decode(key, validate=True)
    except ValueError:
        raise ConfigurationError(
            f"az://… cannot be read: {variable}: found an account key that is not in base64, "
            "expected 88 characters that end in ==; copy it again (az storage account keys list)"
        ) from None
    return Account(endpoint.rstrip("/"), name, variable, decoded_key, sas.lstrip("?"))


def _is_endpoint(endpoint: str) -> bool:
    try:
        url = urlsplit(endpoint)
        has_host = bool(url.hostname) and "@" not in url.netloc
    except ValueError:
        return False
    return url.scheme in ("http", "https") and has_host and not url.query and not url.fragment
