"""Secrets to plant in whatever a program is given, and the search for them in all that it leaves.

Each is planted once, so that its name identifies its origin. None is a real one; they are put
together here, because a whole one in a file would alarm whoever scans the repository.
"""

from __future__ import annotations

import hashlib
import html
import json
from pathlib import Path
from urllib.parse import quote, quote_plus

LETTERS = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ123456789"


def letters(seed: int, length: int, alphabet: str = LETTERS) -> str:
    """Returns characters that look random, determined by the seed."""
    drawn = hashlib.shake_256(str(seed).encode()).digest(length)
    return "".join(alphabet[byte % len(alphabet)] for byte in drawn)


def digits(seed: int, length: int) -> str:
    """Returns hexadecimal digits."""
    return letters(seed, length, "0123456789abcdef")


_KEY_LINES = "\n".join(letters(line, 64) for line in range(40, 44))
_JWT_PARTS = ("J" + letters(1, 20), "J" + letters(2, 40), letters(3, 43))

ENVIRONMENT = {
    "HF_TOKEN": "hf_" + letters(10, 34),
    "WANDB_API_KEY": digits(11, 40),
    "OPENAI_API_KEY": "sk-proj-" + letters(12, 48),
    "ANTHROPIC_API_KEY": "sk-ant-api03-" + letters(13, 60),
    "GITHUB_TOKEN": "github_pat_" + letters(14, 22) + "_" + letters(15, 59),
    "GH_ENTERPRISE_TOKEN": "ghp_" + letters(16, 36),
    "GITLAB_PAT": "glpat-" + letters(17, 20),
    "NPM_AUTH": "npm_" + letters(18, 36),
    "TWINE_PASSWORD": "pypi-AgEIcHlwaS5vcmc" + letters(19, 60),
    "DB_PASS": "correct-Horse9",
    "PGPASSWORD": 'pg "pass\\word"/9&<',
    "MYSQL_PWD": "tr0ub4dor",
    "AZURE_STORAGE_KEY": letters(20, 86, LETTERS + "+/") + "==",
    "AZURE_STORAGE_SAS_TOKEN": "sv=2022-11-02&sp=rl&sig=" + letters(21, 42) + "%3D",
    "AWS_ACCESS_KEY_ID": "ASIA" + letters(22, 16).upper(),
    "AWS_SECRET_ACCESS_KEY": letters(23, 40, LETTERS + "+/"),
    "AWS_SESSION_TOKEN": "IQoJb3JpZ2luX2Vj" + letters(24, 120, LETTERS + "+/"),
    "SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/T0" + letters(25, 8).upper()
    + "/B0" + letters(26, 8).upper() + "/" + letters(27, 24),
    "SLACK_BOT_TOKEN": "xoxb-" + "123456789012-" * 2 + letters(28, 24),
    "DISCORD_WEBHOOK_URL": "https://discord.com/api/webhooks/123456789012345678/" + letters(29, 68),
    "STRIPE_KEY": "sk_" + "live_" + letters(30, 24),
    "TWILIO_AUTH": "SK" + digits(31, 32),
    "SENDGRID_API_KEY": "SG." + letters(32, 22) + "." + letters(33, 43),
    "DATABRICKS_TOKEN": "dapi" + digits(34, 32),
    "CLOUDFLARE_API_TOKEN": letters(35, 40),
    "DIGITALOCEAN_ACCESS_TOKEN": "dop_v1_" + digits(36, 64),
    "DOCKERHUB_CREDENTIALS": "dckr_pat_" + letters(37, 27),
    "SESSION_JWT": ".".join(f"ey{part}" for part in _JWT_PARTS[:2]) + "." + _JWT_PARTS[2],
    "DEPLOY_PRIVATE_KEY": f"-----BEGIN RSA PRIVATE KEY-----\n{_KEY_LINES}\n"
    "-----END RSA PRIVATE KEY-----\n",
    "HTTPS_PROXY": "http://proxy:pr0xy-w0rd@proxy.invalid:3128",
    "DATABASE_URL": "postgresql://user:d4tabase-word@db.invalid/runs",
    "GIT_REMOTE": "https://" + letters(38, 24) + "@git.invalid/owner/name.git",
}  # fmt: skip
"""Environment variables, whose values hold the secrets of `IN_ENVIRONMENT`."""

IN_ENVIRONMENT = ENVIRONMENT | {
    "HTTPS_PROXY": "pr0xy-w0rd",
    "DATABASE_URL": "d4tabase-word",
    "GIT_REMOTE": letters(38, 24),
    "AZURE_STORAGE_SAS_TOKEN": letters(21, 42),
    "DEPLOY_PRIVATE_KEY": letters(41, 64),
}

CONFIGURED = {
    "a token by its form": "glrt-" + letters(50, 24),
    "a value under a name": "Sw0rdfish-77",
    "the user of a web address": letters(51, 22),
    "the query of a web address": letters(52, 30),
    "the user of a bucket": letters(53, 30),
    "a key of the DeepSpeed JSON": letters(54, 40),
    "a key of the launch file": "launch-W0rd-55",
}
"""In keys, on command lines and in files of a configuration."""

ADDRESSES = {
    "the password of a manifest": letters(60, 20),
    "the signature of a manifest": digits(61, 64),
    "the token of a manifest": "tok-" + letters(62, 12),
    "the user of a mirror": letters(63, 22),
    "the query of a redirect": letters(64, 30),
}
"""In manifests and what their servers answer."""

FILES = {
    "the token file of the Hub": "hub-file-" + letters(70, 20),
    "the credentials file of AWS": letters(71, 40),
    "the password of .netrc": "n3trc-pass-word",
}
"""In the home folder."""

PLANTED = {**IN_ENVIRONMENT, **CONFIGURED, **ADDRESSES, **FILES}


def find_secrets(folder: Path, *texts: str) -> dict[str, str]:
    """Finds planted secrets in texts, and in names and contents of all files below a folder.

    Also where they are escaped in JSON, Python, HTML or URLs.

    Returns:
        A place of each secret found, by its name.
    """
    contents = {f"output {number}": text.encode() for number, text in enumerate(texts)}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        contents[f"name of {name}"] = name.encode()
        if path.is_file():
            contents[name] = path.read_bytes()
    return {
        name: place
        for name, secret in PLANTED.items()
        for place, content in contents.items()
        if any(form.encode() in content for form in written_forms(secret))
    }


def written_forms(secret: str) -> set[str]:
    """Returns the forms in which a secret counts as found."""
    escaped = {json.dumps(secret)[1:-1], repr(secret)[1:-1], html.escape(secret)}
    encoded = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    return {secret, *escaped, *encoded, *(form.lower() for form in encoded if "%" in form)}
