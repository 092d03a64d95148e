"""Keeps secrets out of files: everything that a run writes as text goes through `redact`.

A secret is the value of an environment variable that is named like one (`HF_TOKEN`,
`WANDB_API_KEY`, …), a string in a format that only keys have, or a value of the configuration under
a name such as `api_key`.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

HIDDEN = "[redacted]"

_WORDS = {"token", "secret", "password", "passwd", "apikey", "credential", "credentials"}
_PAIRS = ("api_key", "access_key", "secret_key", "private_key", "auth_token")
_NOT_SECRET = ("path", "file", "dir", "url", "name")
_SHORTEST = 8
# Hugging Face, OpenAI and Anthropic, AWS, GitHub; credentials in a URL.
_KNOWN = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bAKIA[A-Z0-9]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{30,}|(?<=://)[^/\s:@]+:[^/\s:@]+(?=@)"
)
# Under a secret's name: long, without spaces, with letters and digits (no `<special token>`).
_LIKE_A_KEY = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[A-Za-z0-9_.+/=-]{16,}")


def redact(text: str) -> str:
    """Replaces the secrets in a text by `[redacted]`."""
    for secret in environment_secrets():
        for form in (secret, json.dumps(secret)[1:-1]):
            text = text.replace(form, HIDDEN)
    return _KNOWN.sub(HIDDEN, text)


def redact_values(value: Any, name: str = "") -> Any:
    """Replaces the secrets in nested dicts and lists by `[redacted]`."""
    if isinstance(value, dict):
        return {key: redact_values(part, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_values(part, name) for part in value]
    if isinstance(value, str):
        if names_a_secret(name) and _LIKE_A_KEY.fullmatch(value):
            return HIDDEN
        return redact(value)
    return value


def environment_secrets() -> list[str]:
    """The secrets that the environment holds, longest first."""
    found = {
        value
        for name, value in os.environ.items()
        if names_a_secret(name) and len(value) >= _SHORTEST
    }
    return sorted(found, key=len, reverse=True)


def names_a_secret(name: str) -> bool:
    """Whether a variable or key is named like one that holds a secret."""
    words = name.lower().split("_")
    if words[-1] in _NOT_SECRET:
        return False
    return bool(_WORDS & set(words)) or any(pair in name.lower() for pair in _PAIRS)
