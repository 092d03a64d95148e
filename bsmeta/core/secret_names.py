"""Decides by the name and the form of a value whether it is a secret.

Names are those of environment variables, configuration keys, query parameters and assignments in
text. Under a clear name (`PGPASSWORD`, `api_key`), almost any value is a secret. Under a vague one
(`key`, `auth`), the value must also look random, because most such values are harmless: the key of
a record, an option.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from itertools import pairwise

_MAX_NAME_CHARS = 200  # of a name that are read

# The words of a name, in any of the usual notations.
_WORD = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]++|[A-Z]")

_PASSWORD_WORDS = frozenset({"password", "passwords", "passwd", "passphrase", "passcode"})
_CLEAR_WORDS = _PASSWORD_WORDS | {
    "apikey", "authorization", "bearer", "credential", "credentials", "creds", "jwt", "secret",
    "secrets", "token", "webhook", "webhooks",
}  # fmt: skip
_CLEAR_SUFFIXES = ("apikey", "passphrase", "passwd", "password", "secret", "token", "webhook")
_CLEAR_WORD_PAIRS = frozenset(
    (first, "key")
    for first in (
        "access", "account", "api", "app", "application", "auth", "client", "deploy", "encryption",
        "license", "master", "private", "secret", "service", "shared", "signing", "ssh", "storage",
    )
) | {("amz", "signature"), ("goog", "signature"), ("connection", "string")}  # fmt: skip
_VAGUE_WORDS = frozenset(
    {"auth", "cookie", "key", "otp", "pass", "pat", "policy", "pwd", "sas", "sig", "signature"}
)
# Words that end in `pass` but name no password, as `sshpass` does.
_ORDINARY_PASS_WORDS = frozenset(
    {"bypass", "compass", "overpass", "pass", "surpass", "trespass", "underpass"}
)
# Words before a `pass` that means a traversal, as in `first_pass`.
_TRAVERSAL_WORDS = frozenset(
    {"all", "backward", "each", "first", "forward", "last", "one", "second", "single", "two"}
)

# Last words of names that stand for a property of a secret, such as its path, length or type.
_PROPERTY_WORDS = frozenset(
    {
        "algorithm", "column", "count", "dir", "directory", "endpoint", "expires", "file", "folder",
        "format", "host", "length", "limit", "name", "parallelism", "path", "port", "position",
        "size", "sock", "timeout", "ttl", "type", "uri", "url", "version",
    }
)  # fmt: skip

# Placeholders, and values with which variables such as `HF_TOKEN` and `SMTP_AUTH` switch something.
_PLACEHOLDERS = frozenset(
    {
        "anonymous", "automatic", "changeme", "default", "disabled", "enabled", "example",
        "interactive", "keychain", "keyring", "optional", "password", "required", "undefined",
    }
)  # fmt: skip

MIN_SECRET_CHARS = 6
"""Minimum number of characters of a secret."""

_MIN_LETTERS_ONLY_CHARS = 8  # of a secret that has only letters
_MAX_SECRET_CHARS = 20_000  # an RSA key of 16,384 bits in PEM has 12,500 characters

# A run consists of letters and digits, and its subruns of one class of characters each.
_MIN_MIXED_RUN_CHARS = 8  # of a run with letters and digits that looks like a key
_MIN_RANDOM_RUN_CHARS = 16  # of a run that looks random
_MAX_ORDINARY_SUBRUNS = 3  # a run that looks random has more
_RUN = re.compile(r"[A-Za-z0-9]++")
_SUBRUN = re.compile(r"[a-z]++|[A-Z]++|[0-9]++")
_PATH = re.compile(r"(?:~|\.{1,2})?/[^=+]*|[A-Za-z]:\\.*", re.DOTALL)
_ENCLOSING_PAIRS = ("<>", "[]", "{}")  # of special tokens, redacted values and templates
# Names that people choose for things: `data.password`, `owner/name`, `first_2`.
_IDENTIFIER = re.compile(r"[A-Za-z]++(?:[._/:-](?:[A-Za-z]++[0-9]{0,3}|[0-9]{1,4}))*+")


class Naming(Enum):
    """How clearly a name says that its value is a secret."""

    ORDINARY = 0
    VAGUE = 1
    CLEAR = 2
    PASSWORD = 3


@lru_cache(maxsize=4096)
def classify_name(name: str) -> Naming:
    """Classifies the name of a variable, key or parameter; only its beginning is read."""
    words = tuple(word.lower() for word in _WORD.findall(name[:_MAX_NAME_CHARS]))
    if not words:
        return Naming.ORDINARY

    # `token_path` names no secret, but `webhook_url` does: the URL alone grants access.
    last_word = words[-1]
    is_address = last_word in ("url", "uri", "endpoint")
    is_webhook_address = is_address and any(word.startswith("webhook") for word in words)
    if last_word in _PROPERTY_WORDS and not is_webhook_address:
        return Naming.ORDINARY

    if last_word.endswith("pass") and last_word not in _ORDINARY_PASS_WORDS:
        return Naming.PASSWORD
    # Alone, `pass` is an ordinary word, and `pwd` the working folder.
    if last_word in ("pass", "pwd") and len(words) > 1 and words[-2] not in _TRAVERSAL_WORDS:
        return Naming.PASSWORD
    if any(word in _PASSWORD_WORDS or word.endswith("password") for word in words):
        return Naming.PASSWORD

    if any(word in _CLEAR_WORDS or word.endswith(_CLEAR_SUFFIXES) for word in words):
        return Naming.CLEAR
    if not _CLEAR_WORD_PAIRS.isdisjoint(pairwise(words)):
        return Naming.CLEAR
    return Naming.ORDINARY if _VAGUE_WORDS.isdisjoint(words) else Naming.VAGUE


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a key, a query parameter or an assignment is a secret."""
    naming = classify_name(name)
    if naming is Naming.ORDINARY or not may_be_secret(value) or _is_template(value):
        return False
    if naming is Naming.VAGUE:
        return looks_random(value)

    if "-----BEGIN" in value:
        return True
    if len(value.split()) > 1:
        return False
    if "://" in value:  # the secret parts of other URLs are redacted separately
        return "hook" in name.lower()

    if naming is Naming.PASSWORD:
        is_identifier = _IDENTIFIER.fullmatch(value) is not None
        return not is_identifier or "-" in value or len(value) >= 2 * _MIN_RANDOM_RUN_CHARS
    return looks_mixed(value)


def is_secret_variable(name: str, value: str) -> bool:
    """Whether the value of an environment variable is a secret.

    Under a clear name, any value may be one, because programs receive their secrets this way.
    """
    naming = classify_name(name)
    if naming is Naming.ORDINARY or not may_be_secret(value):
        return False
    return naming is not Naming.VAGUE or looks_random(value)


def looks_random(value: str) -> bool:
    """Whether a value looks like a key: a long run that mixes lowercase, capitals and digits."""
    for run in _RUN.findall(value):
        subruns = _SUBRUN.findall(run)
        has_digits = any(subrun.isdigit() for subrun in subruns)
        is_long = len(run) >= _MIN_RANDOM_RUN_CHARS
        if is_long and has_digits and len(subruns) > _MAX_ORDINARY_SUBRUNS:
            return True
    return False


def looks_mixed(value: str) -> bool:
    """Whether a value has a run of mixed characters, which keys often have and names rarely."""
    for run in _RUN.findall(value):
        has_letters_and_digits = not run.isalpha() and not run.isdigit()
        if has_letters_and_digits and len(run) >= _MIN_MIXED_RUN_CHARS:
            return True
        if len(run) > _MIN_RANDOM_RUN_CHARS and len(_SUBRUN.findall(run)) > _MAX_ORDINARY_SUBRUNS:
            return True
    return False


def may_be_secret(value: str) -> bool:
    """Whether a value is as long as a secret, and not a placeholder, number or path."""
    if not MIN_SECRET_CHARS <= len(value) <= _MAX_SECRET_CHARS:
        return False
    if value.lower() in _PLACEHOLDERS:
        return False
    if len(value) < _MIN_LETTERS_ONLY_CHARS and value.isalpha():
        return False
    return not _is_number(value) and not _is_path(value)


def _is_path(value: str) -> bool:
    """Whether a value is a path, and no base64 key that begins with a slash."""
    if _PATH.fullmatch(value) is None:
        return False
    return value.count("/") > 1 or "." in value or not looks_random(value)


def _is_template(value: str) -> bool:
    """Whether a value is a special token such as `<pad>`, or a template with placeholders."""
    is_enclosed = f"{value[0]}{value[-1]}" in _ENCLOSING_PAIRS
    return is_enclosed or value.startswith("${") or ("{" in value and "}" in value)


def _is_number(value: str) -> bool:
    """Whether a value is a number. Logs are full of them, and in JSON they must stay numbers."""
    try:
        float(value)
    except ValueError:
        return False
    return True
