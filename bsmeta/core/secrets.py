"""Keeps secrets out of everything that is printed or written as text.

`redact` is the gate of all text: messages, logs, standard error, status files, reports, trackers.
`redact_values` is that of configurations, whose keys say what a value is. Both replace by
`[redacted]`

- values that this process knows to be secret, also where they are escaped or percent-encoded: those
  of environment variables with a telling name, passwords in URLs there, and what `hide` was given;
- tokens in a form that their provider has made recognizable (`token_forms`);
- the user part of every URL, and the query of every web address, which may grant access;
- values of assignments under a telling name, as in `password=…` (`secret_names`).

`shown_url` is the form of a URL in messages that the package writes itself. What must be opened
again, such as the address in a manifest, is never rewritten. Nor is the text of documents: shards
and predictions do not pass through this module.
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
from bsmeta.core.token_forms import replace_tokens, tokens_in

HIDDEN = "[redacted]"

_SHORTEST_LINE = 16  # characters of a line of a secret that has several
_SHORTEST = 8  # shorter secrets, and those of letters only up to the next length, …
_SHORTEST_LETTERS = 16  # … are hidden as whole words only: a hash or a word may contain them

# Neither quotes nor backslashes are replaced, so that a line of JSON remains one.
_AUTHORITY = r":(?:\\?/){2}"
_USER = re.compile(rf'({_AUTHORITY})[^/\s?#"<>\\]*@')
_ADDRESS = re.compile(rf"""{_AUTHORITY}([^\s"'<>\\]++)""")
_WEB = r"(?i:https?|ftps?|wss?)"
# Matches addresses without a query, too, so that none of them is read again from within.
_QUERY = re.compile(rf"""({_WEB}{_AUTHORITY}(?:[^\s?"'<>\\]|\\/)*+)(\?[^\s"'<>\\]++)?""")
_WEB_SCHEME = re.compile(_WEB)
# A word may follow an escape, as in `%26token%3D…` and `\u0026token=…`.
_AFTER_ESCAPE = r"(?<=%[0-9A-Fa-f]{2})|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})"
_NAMED = re.compile(
    rf"(?:(?<![\w.-])|{_AFTER_ESCAPE})"
    r"([A-Za-z_][A-Za-z0-9_.-]{1,80}+)"
    r"""(["']?(?:\s?[=:]\s?|%3[Dd])["']?)"""
    r"""((?:(?i:bearer|basic|token)\s)?)([^\s"'\\,;&<>(){}\[\]?=]{6,}+={0,2})"""
)

_given: set[str] = set()  # what `hide` was called with


def redact(text: str) -> str:
    """Replaces the secrets in a text by `[redacted]`."""
    text = replace_tokens(redact_known(text), HIDDEN)
    if ":/" in text or ":\\/" in text:
        text = _USER.sub(rf"\1{HIDDEN}@", text)
        text = _QUERY.sub(_hide_query, text)
    return _NAMED.sub(_hide_in_assignment, text)


def redact_known(text: str) -> str:
    """Replaces only the values that this process knows to be secret.

    For output that may hold documents, in which the form alone is no reason to change anything.
    """
    for secret in _known_secrets():
        if secret in text:
            text = _pattern_of(secret).sub(HIDDEN, text)
    return text


def redact_values(value: Any, name: str = "") -> Any:
    """Replaces the secrets in nested dicts and lists by `[redacted]`.

    Args:
        name: The key of the value.
    """
    if isinstance(value, dict):
        return {key: redact_values(part, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_values(part, name) for part in value]
    if isinstance(value, str):
        is_whole = HIDDEN not in value  # what a saved configuration holds stays the same
        return HIDDEN if is_whole and is_secret(name, value) else redact(value)
    return value


def shown_url(url: str) -> str:
    """A URL as messages show it: without user, password, query and fragment.

    Addresses that are no web addresses keep what follows a `?`: in `s3://bucket/part-?.jsonl` it is
    a pattern.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return redact(url)
    authority, slash, path = rest.partition("/")
    if _WEB_SCHEME.fullmatch(scheme):
        authority = re.split("[?#]", authority, maxsplit=1)[0]
        path = re.split("[?#]", path, maxsplit=1)[0]
    return redact(f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}")


def hide(*values: str | None) -> None:
    """Declares values as secrets of this process, for example a token read from a file."""
    _given.update(value for value in values if value and may_be_secret(value))


def hide_values(value: Any, name: str = "") -> None:
    """Declares the secrets in nested dicts and lists, which a user has configured.

    They are known by the name of their key, by their form, or as a part of a URL.
    """
    if isinstance(value, dict):
        for key, part in value.items():
            hide_values(part, str(key))
    elif isinstance(value, (list, tuple)):
        for part in value:
            hide_values(part, name)
    elif isinstance(value, str):
        pairs = [(name, value), *((key, part) for key, _, _, part in _NAMED.findall(value))]
        hide(*(part for key, part in pairs if is_secret(key, part)))
        hide(*tokens_in(value), *_secrets_in_urls(value))


def hide_arguments(arguments: Iterable[str]) -> None:
    """Declares the secrets in the `key=value` arguments of a command line."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        hide_values(value.strip("\"'"), name.lstrip("+~-"))


def _known_secrets() -> tuple[str, ...]:
    """The secrets that this process knows, in all forms of `_forms`, longest first."""
    return _known(tuple(os.environ.items()), frozenset(_given))


@lru_cache(maxsize=2)
def _known(environment: tuple[tuple[str, str], ...], given: frozenset[str]) -> tuple[str, ...]:
    secrets = {*given}
    for name, value in environment:
        if is_secret_variable(name, value):
            secrets.add(value)
        secrets.update(_secrets_in_urls(value))
    forms = {form for secret in secrets for form in _forms(secret)}
    return tuple(sorted(forms, key=len, reverse=True))


@lru_cache(maxsize=1024)
def _pattern_of(secret: str) -> re.Pattern[str]:
    pattern = re.escape(secret)
    if len(secret) < (_SHORTEST_LETTERS if secret.isalpha() else _SHORTEST):
        pattern = rf"(?:(?<![A-Za-z0-9])|{_AFTER_ESCAPE}){pattern}(?![A-Za-z0-9])"
    return re.compile(pattern)


def _forms(secret: str) -> set[str]:
    """The forms in which a secret may be written: as it is, in JSON, Python, HTML and URLs."""
    lines = [line.strip() for line in secret.splitlines()]
    plain_forms = {
        secret,
        unquote(secret),
        *(line for line in lines if len(line) >= _SHORTEST_LINE),
    }
    forms: set[str] = set()
    for plain in filter(may_be_secret, plain_forms):
        encoded = {quote(plain, safe=""), quote(plain), quote_plus(plain)}
        forms |= {plain, repr(plain)[1:-1], html.escape(plain), *encoded}
        forms |= {json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]}
        forms |= {re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), form) for form in encoded}
    return forms


def _secrets_in_urls(text: str) -> set[str]:
    """The passwords of URLs (without one, users that are tokens), and the secrets in queries."""
    secrets = set()
    for address in _ADDRESS.findall(text):
        authority = re.split("[/?#]", address, maxsplit=1)[0]
        user, has_password, password = authority.rpartition("@")[0].partition(":")
        if has_password or looks_mixed(user):
            secrets.add(password or user)
        query = parse_qsl(address.partition("?")[2].partition("#")[0])
        secrets |= {value for name, value in query if is_secret(name, value)}
    return {*filter(may_be_secret, secrets)}


def _hide_query(match: re.Match[str]) -> str:
    address, query = match.groups()
    return f"{address}?{HIDDEN}" if query else address


def _hide_in_assignment(match: re.Match[str]) -> str:
    name, separator, kind, value = match.groups()
    return f"{name}{separator}{kind}{HIDDEN}" if is_secret(name, value) else match[0]
