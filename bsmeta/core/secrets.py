"""Keeps secrets out of all printed and written text.

`redact` is for text: messages, logs, standard error, status files, reports, trackers.
`redact_values` is for configurations, whose keys show which values are secrets. Both replace the
following by `[redacted]`:

- values that this process knows to be secret, even if they are escaped or percent-encoded:
  environment variables with a secret's name, passwords in URLs there, and the arguments of
  `declare_secrets`;
- tokens whose form their provider has made recognizable (`token_forms`);
- the user part of every URL, and the query of every web address, which may grant access;
- values that are assigned to a secret's name, as in `password=…` (`secret_names`).

`format_url` formats a URL for messages that the package writes itself. Addresses that must be
opened again, as in a manifest, are never redacted; neither is the text of documents in shards and
predictions.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from bsmeta.core.secret_names import is_secret, is_secret_variable, looks_mixed, may_be_secret
from bsmeta.core.token_forms import find_tokens, replace_tokens

REDACTED = "[redacted]"

# Minimum number of characters of a line of a secret to be redacted wherever it occurs alone.
_MIN_LINE_CHARS = 16

# Shorter secrets are redacted as whole words only, because a hash or a word may contain them.
_MIN_PART_CHARS = 8
_MIN_LETTERS_ONLY_PART_CHARS = 16  # for secrets without digits and punctuation

# Neither quotes nor backslashes are replaced, so that a line of JSON remains one.
_AUTHORITY = r":(?:\\?/){2}"
# A secret key of AWS may have slashes: s3://ID:SE/CRET@bucket. `80/` in //host:80/a@b is a port.
_SLASHED_USER = r"""[^/\s?#:@\[\]"'<>\\]+:(?!\d*/)(?:(?!://)[^\s?#@"'<>\\,])*@"""
_USER = re.compile(rf"""({_AUTHORITY})(?:[^/\s?#"<>\\]*@|{_SLASHED_USER})""")
_USER_OF_ADDRESS = re.compile(rf"\A(?:[^/?#]*@|{_SLASHED_USER})")
_ADDRESS = re.compile(rf"""{_AUTHORITY}([^\s"'<>\\]++)""")
_WEB = r"(?i:https?|ftps?|wss?)"
# Also matches addresses without a query, in which the search would otherwise start again.
_QUERY = re.compile(rf"""({_WEB}{_AUTHORITY}(?:[^\s?"'<>\\]|\\/)*+)(\?[^\s"'<>\\]++)?""")
_WEB_SCHEME = re.compile(_WEB)
# A word may follow an escape, as in `%26token%3D…` and `\u0026token=…`.
_AFTER_ESCAPE = r"(?<=%[0-9A-Fa-f]{2})|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})"
_ASSIGNMENT = re.compile(
    rf"(?:(?<![\w.-])|{_AFTER_ESCAPE})"
    r"(?P<name>[A-Za-z_][A-Za-z0-9_.-]{1,80}+)"
    r"""(?P<separator>["']?(?:\s?[=:]\s?|%3[Dd])["']?)"""
    r"(?P<scheme>(?:(?i:bearer|basic|token)\s)?)"
    r"""(?P<value>[^\s"'\\,;&<>(){}\[\]?=]{6,}+={0,2})"""
)

_declared_secrets: set[str] = set()  # by `declare_secrets`


def redact(text: str) -> str:
    """Replaces the secrets in a text by `[redacted]`."""
    text = replace_tokens(redact_known(text), REDACTED)
    if ":/" in text or ":\\/" in text:
        text = _USER.sub(rf"\1{REDACTED}@", text)
        text = _QUERY.sub(_redact_query, text)
    return _ASSIGNMENT.sub(_redact_assignment, text)


def redact_known(text: str) -> str:
    """Replaces only the values that this process knows to be secret.

    This is for output that may contain documents, whose text may look like a secret.
    """
    for secret in _list_written_secrets():
        if secret in text:
            text = _compile_pattern(secret).sub(REDACTED, text)
    return text


def redact_values(value: Any, name: str = "") -> Any:
    """Returns a copy of nested dicts and lists in which secrets are replaced by `[redacted]`.

    Args:
        name: The key of the value.
    """
    if isinstance(value, dict):
        return {key: redact_values(part, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_values(part, name) for part in value]
    if not isinstance(value, str):
        return value

    # A value that was redacted before, as in a saved configuration, must not change again.
    if is_secret(name, value) and REDACTED not in value:
        return REDACTED
    return redact(value)


def format_url(url: str) -> str:
    """Formats a URL for a message, without user, password, query and fragment.

    Only web addresses have a query: in `s3://bucket/part-?.jsonl`, the `?` belongs to a pattern.
    """
    scheme, separator, location = url.partition("://")
    if not separator:
        return redact(url)

    location = _USER_OF_ADDRESS.sub("", location)
    authority, slash, path = location.partition("/")
    if _WEB_SCHEME.fullmatch(scheme):
        authority = re.split("[?#]", authority, maxsplit=1)[0]
        path = re.split("[?#]", path, maxsplit=1)[0]
    return redact(f"{scheme}://{authority}{slash}{path}")


def declare_secrets(*values: str | None) -> None:
    """Declares values as secrets of this process, such as a token that was read from a file.

    Values that cannot be secrets (None, short texts, numbers, paths) are ignored.
    """
    _declared_secrets.update(value for value in values if value and may_be_secret(value))


def declare_secrets_in(value: Any, name: str = "") -> None:
    """Declares the secrets in the nested dicts and lists of a user's configuration.

    A secret is recognized by the name of its key, by its form, or as a part of a URL.

    Args:
        name: The key of the value.
    """
    if isinstance(value, dict):
        for key, part in value.items():
            declare_secrets_in(part, str(key))
    elif isinstance(value, (list, tuple)):
        for part in value:
            declare_secrets_in(part, name)
    elif isinstance(value, str):
        if is_secret(name, value):
            declare_secrets(value)
        for match in _ASSIGNMENT.finditer(value):
            if is_secret(match["name"], match["value"]):
                declare_secrets(match["value"])
        declare_secrets(*find_tokens(value), *_find_secrets_in_urls(value))


def declare_secrets_in_arguments(arguments: Iterable[str]) -> None:
    """Declares the secrets in the `key=value` arguments of a command line."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        declare_secrets_in(value.strip("\"'"), name.lstrip("+~-"))


def _list_written_secrets() -> tuple[str, ...]:
    """Returns the secrets that this process knows, in all their written forms, longest first."""
    return _collect_known_secrets(tuple(os.environ.items()), frozenset(_declared_secrets))


@lru_cache(maxsize=2)
def _collect_known_secrets(
    environment: tuple[tuple[str, str], ...], declared: frozenset[str]
) -> tuple[str, ...]:
    """Returns all written forms of known secrets, longest first.

    Args:
        environment: Names and values of the environment variables.
        declared: The declared secrets.
    """
    secrets = set(declared)
    for name, value in environment:
        if is_secret_variable(name, value):
            secrets.add(value)
        secrets.update(_find_secrets_in_urls(value))

    forms: set[str] = set()
    for secret in secrets:
        forms |= _list_written_forms(secret)
    return tuple(sorted(forms, key=len, reverse=True))


@lru_cache(maxsize=1024)
def _compile_pattern(secret: str) -> re.Pattern[str]:
    """Returns the pattern of a secret; a short secret is matched only as a whole word."""
    pattern = re.escape(secret)
    min_chars = _MIN_LETTERS_ONLY_PART_CHARS if secret.isalpha() else _MIN_PART_CHARS
    if len(secret) < min_chars:
        pattern = rf"(?:(?<![A-Za-z0-9])|{_AFTER_ESCAPE}){pattern}(?![A-Za-z0-9])"
    return re.compile(pattern)


def _list_written_forms(secret: str) -> set[str]:
    """Returns the forms in which a secret may be written: plain, in JSON, Python, HTML and URLs."""
    lines = [line.strip() for line in secret.splitlines()]
    long_lines = [line for line in lines if len(line) >= _MIN_LINE_CHARS]

    forms: set[str] = set()
    for plain in {secret, unquote(secret), *long_lines}:
        if not may_be_secret(plain):
            continue
        forms |= {plain, repr(plain)[1:-1], html.escape(plain)}
        forms |= {json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]}

        # Programs write percent-encodings in capitals or in lower case.
        encoded = {quote(plain, safe=""), quote(plain), quote_plus(plain)}
        forms |= encoded
        forms |= {re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), form) for form in encoded}
    return forms


def _find_secrets_in_urls(text: str) -> set[str]:
    """Returns the secrets in the URLs of a text.

    These are passwords, users that look like tokens in URLs without a password, and secrets in
    queries.
    """
    secrets: set[str] = set()
    for address in _ADDRESS.findall(text):
        match = _USER_OF_ADDRESS.match(address)
        user, colon, password = match[0][:-1].partition(":") if match else ("", "", "")
        if colon or looks_mixed(user):
            secrets.add(password or user)

        query = parse_qsl(address.partition("?")[2].partition("#")[0])
        secrets |= {value for name, value in query if is_secret(name, value)}
    return {secret for secret in secrets if may_be_secret(secret)}


def _redact_query(match: re.Match[str]) -> str:
    """Returns a match of `_QUERY` with its query redacted."""
    address, query = match.groups()
    return f"{address}?{REDACTED}" if query else address


def _redact_assignment(match: re.Match[str]) -> str:
    """Returns a match of `_ASSIGNMENT` with a secret value redacted; a scheme (`bearer`) stays."""
    if not is_secret(match["name"], match["value"]):
        return match[0]
    return f"{match['name']}{match['separator']}{match['scheme']}{REDACTED}"
