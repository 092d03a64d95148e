"""Which names hold secrets, and which values under such a name look like one.

Names are those of environment variables, configuration keys, query parameters and assignments in
text. A clear name (`PGPASSWORD`, `api_key`) hides almost any value. Of a vague one (`key`, `auth`)
the value must look random, because most of them are none: the key of a record, an option.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from itertools import pairwise

_WORD = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]++|[A-Z]")

_PASSWORDS = frozenset({"password", "passwords", "passwd", "passphrase", "passcode"})
_CLEAR = _PASSWORDS | {
    "apikey", "authorization", "bearer", "credential", "credentials", "creds", "jwt", "secret",
    "secrets", "token", "webhook", "webhooks",
}  # fmt: skip
_CLEAR_ENDS = ("apikey", "passphrase", "passwd", "password", "secret", "token", "webhook")
_CLEAR_PAIRS = frozenset(
    (first, "key")
    for first in (
        "access", "account", "api", "app", "application", "auth", "client", "deploy", "encryption",
        "license", "master", "private", "secret", "service", "shared", "signing", "ssh", "storage",
    )
) | {("amz", "signature"), ("goog", "signature"), ("connection", "string")}  # fmt: skip
_VAGUE = frozenset(
    {"auth", "cookie", "key", "otp", "pass", "pat", "policy", "pwd", "sas", "sig", "signature"}
)
# Words that end in `pass` and name no password, as `sshpass` does; and those before a `pass` over
# something, which is none either.
_NO_PASSWORD = frozenset(
    {"bypass", "compass", "overpass", "pass", "surpass", "trespass", "underpass"}
)
_OVER_SOMETHING = frozenset(
    {"all", "backward", "each", "first", "forward", "last", "one", "second", "single", "two"}
)

# The last word of a name that says something about a secret: where it is, how long, of which type.
_ABOUT = frozenset(
    {
        "algorithm", "column", "count", "dir", "directory", "endpoint", "expires", "file", "folder",
        "format", "host", "length", "limit", "name", "parallelism", "path", "port", "position",
        "size", "sock", "timeout", "ttl", "type", "uri", "url", "version",
    }
)  # fmt: skip

# Values that switch something, under names such as `HF_TOKEN` and `SMTP_AUTH`, and stand-ins.
_NO_SECRETS = frozenset(
    {
        "anonymous", "automatic", "changeme", "default", "disabled", "enabled", "example",
        "interactive", "keychain", "keyring", "optional", "password", "required", "undefined",
    }
)  # fmt: skip

SHORTEST = 6  # characters of a secret
_SHORTEST_WORD = 8  # of letters only
_LONGEST = 20_000  # an RSA key of 16,384 bits in PEM has 12,500 characters
_MIXED_RUN = 8  # letters and digits without anything between
_RANDOM_RUN = 16
_CHANGES = 3  # in it, of the kind of character: letters, capital letters, digits
_RUNS = re.compile(r"[A-Za-z0-9]++")
_KINDS = re.compile(r"[a-z]++|[A-Z]++|[0-9]++")
_PATH = re.compile(r"(?:~|\.{1,2})?/[^=+]*|[A-Za-z]:\\.*", re.DOTALL)
_ENCLOSED = ("<>", "[]", "{}")  # special tokens, what is redacted, templates
# `data.password`, `owner/name`, `first_2`: names, for a computer or a person.
_IDENTIFIER = re.compile(r"[A-Za-z]++(?:[._/:-](?:[A-Za-z]++[0-9]{0,3}|[0-9]{1,4}))*+")


class Naming(Enum):
    """What a name says about its value."""

    ORDINARY = 0
    VAGUE = 1
    CLEAR = 2
    PASSWORD = 3


@lru_cache(maxsize=4096)
def naming(name: str) -> Naming:
    """What the name of a variable, key or parameter says about its value."""
    words = tuple(word.lower() for word in _WORD.findall(name[:200]))
    if not words:
        return Naming.ORDINARY
    is_webhook = any(word.startswith("webhook") for word in words)
    if words[-1] in _ABOUT and not (is_webhook and words[-1] in ("url", "uri", "endpoint")):
        return Naming.ORDINARY
    last = words[-1]
    if last.endswith("pass") and last not in _NO_PASSWORD:
        return Naming.PASSWORD
    # alone they are a word, and the working folder
    if last in ("pass", "pwd") and len(words) > 1 and words[-2] not in _OVER_SOMETHING:
        return Naming.PASSWORD
    if any(word in _PASSWORDS or word.endswith("password") for word in words):
        return Naming.PASSWORD
    if any(word in _CLEAR or word.endswith(_CLEAR_ENDS) for word in words):
        return Naming.CLEAR
    if not _CLEAR_PAIRS.isdisjoint(pairwise(words)):
        return Naming.CLEAR
    return Naming.VAGUE if _VAGUE & {*words} else Naming.ORDINARY


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a key, a query parameter or an assignment is a secret."""
    kind = naming(name)
    if kind is Naming.ORDINARY or not may_be_secret(value) or _is_template(value):
        return False
    if kind is Naming.VAGUE:
        return looks_random(value)
    if "-----BEGIN" in value:
        return True
    if len(value.split()) > 1:
        return False
    if "://" in value:  # what grants access in a URL is hidden there
        return "hook" in name.lower()
    if kind is Naming.PASSWORD:
        is_name = _IDENTIFIER.fullmatch(value) is not None
        return not is_name or "-" in value or len(value) >= 2 * _RANDOM_RUN
    return looks_mixed(value)


def is_secret_variable(name: str, value: str) -> bool:
    """Whether the value of an environment variable is a secret.

    What programs are given in the environment under a clear name is one, whatever it looks like.
    """
    kind = naming(name)
    if kind is Naming.ORDINARY or not may_be_secret(value):
        return False
    return kind is not Naming.VAGUE or looks_random(value)


def looks_random(value: str) -> bool:
    """Whether a value looks like a key: a long run in which letters, capitals and digits change."""
    for run in _RUNS.findall(value):
        kinds = _KINDS.findall(run)
        if len(run) >= _RANDOM_RUN and len(kinds) > _CHANGES and any(map(str.isdigit, kinds)):
            return True
    return False


def looks_mixed(value: str) -> bool:
    """Whether a value has a run of letters and digits, as a key has and a name rarely."""
    for run in _RUNS.findall(value):
        has_both = not run.isalpha() and not run.isdigit()
        if has_both and len(run) >= _MIXED_RUN:
            return True
        if len(run) > _RANDOM_RUN and len(_KINDS.findall(run)) > _CHANGES:
            return True
    return False


def may_be_secret(value: str) -> bool:
    """Whether a value is long enough, and neither a stand-in, a number nor a path."""
    if not SHORTEST <= len(value) <= _LONGEST or value.lower() in _NO_SECRETS:
        return False
    if len(value) < _SHORTEST_WORD and value.isalpha():
        return False
    return not _is_number(value) and not _is_path(value)


def _is_path(value: str) -> bool:
    """Whether it is a path, and not a key in base64 that begins with a slash."""
    if _PATH.fullmatch(value) is None:
        return False
    return value.count("/") > 1 or "." in value or not looks_random(value)


def _is_template(value: str) -> bool:
    """Whether it is a special token, such as `<pad>`, or text with places to fill."""
    is_enclosed = f"{value[0]}{value[-1]}" in _ENCLOSED
    return is_enclosed or value.startswith("${") or ("{" in value and "}" in value)


def _is_number(value: str) -> bool:
    """Whether it is a number: every log has many, and a line of JSON needs them as they are."""
    try:
        float(value)
    except ValueError:
        return False
    return True
