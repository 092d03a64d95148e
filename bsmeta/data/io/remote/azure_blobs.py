"""Lists blobs in containers of Azure Blob Storage (`az://`), and reads ranges of them over HTTP.

It uses the REST API (https://learn.microsoft.com/rest/api/storageservices). Every response must
have the listed ETag, so that an overwritten blob is detected.

Unlike adlfs, which accepts `az://CONTAINER@ACCOUNT.…/PATH`, the address does not name the account:
the credentials belong to one account, and must not be sent to another one that a configuration
names. Also, everything before an `@` is redacted in messages and in saved configurations, like a
password.
"""

from __future__ import annotations

import base64
from urllib.parse import quote, unquote, urlencode
from xml.etree import ElementTree

from bsmeta.data.io.file_ref import FileRef, RemoteSettings
from bsmeta.data.io.remote.azure_account import read_account
from bsmeta.data.io.remote.objects import (
    Bucket,
    Headers,
    encode_dot_segments,
    extract_literal_prefix,
    parse_listing,
    read_xml_error_code,
)
from bsmeta.data.io.remote.store import Pattern, TransientError, format_server

WRONG_CREDENTIALS = ("AuthenticationFailed", "InvalidAuthenticationInfo")


class AzureBlobs(Bucket):
    """The blobs of a storage account, or of an emulator (AZURE_STORAGE_ENDPOINT).

    Raises:
        ConfigurationError: If the environment names no account, or is malformed.
    """

    scheme = "az"
    syntax = "az://CONTAINER/PATH"
    server_variables = "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ENDPOINT"

    def __init__(self) -> None:
        super().__init__()
        self._account = read_account()

    @property
    def server(self) -> str:
        return format_server(self._account.endpoint)

    def parse_url(self, url: str, revision: str | None) -> Pattern:
        pattern = super().parse_url(url, revision)
        if "@" in pattern.container:
            raise ValueError("set the account in AZURE_STORAGE_ACCOUNT_NAME, not in the address")
        return pattern

    def list_page(
        self,
        pattern: Pattern,
        page_token: str,
        subject: str,
        settings: RemoteSettings,
    ) -> tuple[list[FileRef], str]:
        parameters = {"restype": "container", "comp": "list"}
        prefix = extract_literal_prefix(pattern)
        if prefix:
            parameters["prefix"] = prefix
        if not pattern.is_deep:
            parameters["delimiter"] = "/"
        if page_token:
            parameters["marker"] = page_token
        # The service and the signature agree on %20 for a space, but not on a plus sign.
        query = urlencode(parameters, quote_via=quote)
        url = f"{self._format_container_url(pattern.container)}?{query}"

        body = self._get_body(url, pattern, subject, {})
        listing = parse_listing(body, "EnumerationResults")
        refs = []
        for blob in listing.iterfind("{*}Blobs/{*}Blob"):
            # Accounts with a hierarchical namespace also list folders.
            if blob.findtext("{*}Properties/{*}ResourceType") != "directory":
                refs.append(self._read_blob(blob, pattern.container, settings))
        return refs, listing.findtext("{*}NextMarker", "")

    def _read_blob(
        self, blob: ElementTree.Element, container: str, settings: RemoteSettings
    ) -> FileRef:
        """Reads the entry of a blob in a listing.

        Raises:
            TransientError: If the entry is incomplete.
        """
        name = blob.findtext("{*}Name", "")
        name_element = blob.find("{*}Name")
        if name_element is not None and name_element.get("Encoded") == "true":
            name = unquote(name)

        etag = blob.findtext("{*}Properties/{*}Etag", "").strip('"')
        md5 = blob.findtext("{*}Properties/{*}Content-MD5", "")
        size = blob.findtext("{*}Properties/{*}Content-Length", "")
        try:
            return FileRef(
                size=int(size),
                etag=base64.b64decode(md5).hex() or etag,
                settings=settings,
                scheme=self.scheme,
                container=container,
                path=name,
                version=etag,
            )
        except ValueError as error:
            raise TransientError(f"the answer is not a listing: {error}") from None

    def _format_container_url(self, container: str) -> str:
        return f"{self._account.endpoint}/{quote(container, safe='$')}"

    def _authorize(self, method: str, url: str, headers: Headers) -> tuple[str, Headers]:
        return self._account.authorize(method, url, headers)

    def _make_content_request(self, ref: FileRef) -> tuple[str, Headers]:
        path = encode_dot_segments(f"/{quote(ref.path, safe='/')}")
        url = f"{self._format_container_url(ref.container)}{path}"
        return url, {"If-Match": f'"{ref.version}"', "Accept-Encoding": "identity"}

    def _get_listed_etag(self, ref: FileRef) -> str:
        return ref.version

    def _read_error_code(self, body: bytes) -> str:
        return read_xml_error_code(body)

    def _explain_missing_bucket(self, container: str) -> str:
        if self._account.credentials_variable:
            return (
                f"there is no such container: {container}; correct its name, or the account "
                "(AZURE_STORAGE_ACCOUNT_NAME)"
            )
        return (
            f"there is no such container, or it is not public: {container}; correct its name, or "
            "set AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_KEY"
        )

    def _advise_on_access(self, code: str) -> str:
        variable = self._account.credentials_variable
        if not variable:
            return (
                "it is not public, and there are no credentials; set AZURE_STORAGE_SAS_TOKEN, "
                "AZURE_STORAGE_KEY or AZURE_STORAGE_CONNECTION_STRING"
            )
        if code in WRONG_CREDENTIALS:
            return (
                f"the credentials in {variable} are not of this account or have expired, or the "
                "clock of this machine is wrong; renew them, and resume"
            )
        if code == "KeyBasedAuthenticationNotPermitted":
            return "the account does not permit keys; set AZURE_STORAGE_SAS_TOKEN, made --as-user"
        return (
            f"the credentials in {variable} are wrong or do not permit to list the container and "
            "to read its blobs (a SAS token needs sp=rl), or the account refuses the network of "
            "this machine"
        )
