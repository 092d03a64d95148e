r"""Access tokens that can be recognized by their form, which depends on the provider.

A new form is an entry of `TOKEN_FORMS`: its provider, its marks (each token contains at least one),
its pattern, and the source of the form in a comment. Two rules keep the search linear in the length
of the text, which `re` does not guarantee, and one keeps the text around a token intact:

- A pattern either requires nothing after its last repetition, or begins with `_START_OF_RUN`, so
  that a run of characters is read from its first character only.
- The last repetition is possessive or has an upper limit.
- A pattern never matches a quote, or a backslash except in `\n`: the redacted text may be a line of
  JSON, which must stay valid.

Sources: "gitleaks" is https://github.com/gitleaks/gitleaks, config/gitleaks.toml; "detect-secrets"
is https://github.com/Yelp/detect-secrets, detect_secrets/plugins. The lengths here are minimums,
shorter than in the sources, because providers have lengthened tokens before.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# A token may follow an escape whose last character is a letter, as in `%3Dghp_…` and `\nghp_…`.
_AFTER_ESCAPE = r"(?<=%[0-9A-Fa-f]{2})|(?<=\\[bfnrt])"
_START = rf"(?:(?<![A-Za-z0-9])|{_AFTER_ESCAPE})"
_START_OF_RUN = rf"(?:(?<![\w~+/.=-])|(?<=[=/])|{_AFTER_ESCAPE})"


class TokenForm(NamedTuple):
    """The pattern of the access tokens that one provider issues.

    Attributes:
        provider: The name of the provider, and of the type of token if it issues several.
        marks: Strings of which each token contains at least one; searching for them takes less time
            than searching for the pattern.
    """

    provider: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]


def _make_form(provider: str, marks: str, pattern: str) -> TokenForm:
    """Creates a form; spaces separate its marks."""
    return TokenForm(provider, tuple(marks.split()), re.compile(pattern, re.ASCII))


TOKEN_FORMS = (
    # docs.github.com, "About authentication to GitHub"; gitleaks github-pat and its neighbors
    _make_form("GitHub", "ghp_ gho_ ghu_ ghs_ ghr_", rf"{_START}gh[pousr]_[A-Za-z0-9]{{30,}}+"),
    # gitleaks github-fine-grained-pat: 82 characters
    _make_form("GitHub, fine-grained", "github_pat_", rf"{_START}github_pat_\w{{22,}}+"),
    # gitleaks gitlab-pat and its neighbors, gitlab-pat-routable
    _make_form(
        "GitLab",
        "glpat- gldt- glrt- glptt- glft- glffct- glimt- glagent- gloas- glsoat- glcbt-",
        rf"{_START}gl(?:pat|dt|rt|ptt|ft|ffct|imt|agent|oas|soat|cbt)-[\w-]{{20,}}+"
        r"(?:\.[\w-]{2,}+){0,2}",
    ),
    # gitleaks gitlab-rrt
    _make_form("GitLab, runner registration", "GR1348941", rf"{_START}GR1348941[\w-]{{20,}}+"),
    # gitleaks huggingface-access-token and huggingface-organization-api-token: 34 letters
    _make_form("Hugging Face", "hf_ api_org_", rf"{_START}(?:hf|api_org)_[A-Za-z0-9]{{20,}}+"),
    # gitleaks openai-api-key and anthropic-api-key: sk-proj-…, sk-ant-api03-…, sk-…T3BlbkFJ…
    _make_form("OpenAI, Anthropic", "sk-", rf"{_START}sk-[\w-]{{20,}}+"),
    # docs.aws.amazon.com, "IAM identifiers", unique identifiers; gitleaks aws-access-token
    _make_form(
        "AWS, key id",
        "A3T AKIA ASIA ABIA ACCA",
        rf"{_START}(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}(?![A-Za-z0-9])",
    ),
    # gitleaks gcp-api-key: 35 characters after the prefix
    _make_form("Google, API key", "AIza", rf"{_START}AIza[\w-]{{30,}}+"),
    # as in the answers of the OAuth endpoint of Google ("access_token": "ya29.…")
    _make_form("Google, access token", "ya29.", rf"{_START}ya29\.[\w.-]{{20,}}+"),
    # Sonar text rule S6691: GOCSPX- and 28 characters
    _make_form("Google, client secret", "GOCSPX-", rf"{_START}GOCSPX-[\w-]{{20,}}+"),
    # as in the application default credentials that gcloud writes; Google states no form
    _make_form("Google, refresh token", "1//0", rf"{_START_OF_RUN}1//0[\w-]{{30,}}+"),
    # detect-secrets azure_storage_key: 64 bytes in base64. Subresource hashes look the same.
    _make_form(
        "Azure, storage key",
        "==",
        rf"{_START_OF_RUN}(?<!sha512-)[A-Za-z0-9+/]{{86}}==(?![A-Za-z0-9+/=])",
    ),
    # learn.microsoft.com, "Create a service SAS" and "Authorize with Shared Key": HMAC-SHA256 in
    # base64, in a query that may itself be percent-encoded, or in the header Authorization
    _make_form(
        "Azure, signature",
        "sig= sig%3D sig%3d SharedKey",
        rf"{_START}(?:sig(?:=|%3[Dd])|SharedKey(?:Lite)? [a-z0-9-]{{1,24}}:)"
        r"(?:[A-Za-z0-9+/]|%(?:25)?2[BbFf]){40,}+(?:=|%(?:25)?3[Dd]){0,2}",
    ),
    # gitleaks azure-ad-client-secret
    _make_form("Azure, client secret", "Q~", rf"{_START_OF_RUN}[\w~.]{{3}}[0-9]Q~[\w~.-]{{31,}}+"),
    # api.slack.com, "Token types"; gitleaks slack-bot-token and its neighbors
    _make_form("Slack", "xox", rf"{_START}(?:xoxe\.)?xox[abeoprs]-[A-Za-z0-9-]{{10,}}+"),
    # gitleaks slack-app-token
    _make_form("Slack, app", "xapp-", rf"{_START}xapp-[0-9]-[A-Za-z0-9-]{{10,}}+"),
    # gitleaks slack-webhook-url
    _make_form(
        "Slack, webhook",
        "/services/ /workflows/ /triggers/",
        r"(?i:hooks\.slack(?:-gov)?\.com)/(?:services|workflows|triggers)/[\w+/-]{10,}+",
    ),
    # discord.com/developers, "Webhook resource"; detect-secrets discord is of bots
    _make_form(
        "Discord, webhook",
        "/webhooks/",
        r"(?i:discord(?:app)?\.com)/api/(?:v[0-9]{1,2}/)?webhooks/[0-9]{5,20}/[\w-]{10,}+",
    ),
    # gitleaks microsoft-teams-webhook
    _make_form(
        "Microsoft Teams, webhook",
        "/webhookb2/",
        r"(?i:\.webhook\.office\.com)/webhookb2/[\w@/-]{20,}+",
    ),
    # gitleaks stripe-access-token
    _make_form(
        "Stripe",
        "_test_ _live_ _prod_",
        rf"{_START}(?:sk|rk)_(?:test|live|prod)_[A-Za-z0-9]{{10,}}+",
    ),
    # docs.stripe.com, "Webhooks": the signing secret
    _make_form("Stripe, webhook", "whsec_", rf"{_START}whsec_[A-Za-z0-9+/=]{{20,}}+"),
    # gitleaks twilio-api-key
    _make_form("Twilio", "SK", rf"{_START}SK[0-9a-f]{{32}}(?![A-Za-z0-9])"),
    # gitleaks sendgrid-api-token
    _make_form("SendGrid", "SG.", rf"{_START}SG\.[\w-]{{16,32}}\.[\w-]{{30,}}+"),
    # gitleaks npm-access-token
    _make_form("npm", "npm_", rf"{_START}npm_[A-Za-z0-9]{{30,}}+"),
    # gitleaks pypi-upload-token: a macaroon, which begins with these letters for every index
    _make_form("PyPI", "pypi-AgE", rf"{_START}pypi-AgE[\w-]{{20,}}+"),
    # docs.gitguardian.com, "Docker credentials"
    _make_form("Docker Hub", "dckr_", rf"{_START}dckr_(?:pat|oat)_[\w-]{{20,}}+"),
    # gitleaks databricks-api-token
    _make_form(
        "Databricks", "dapi", rf"{_START}dapi[0-9a-f]{{32}}(?:-[0-9]{{1,2}})?(?![A-Za-z0-9])"
    ),
    # github.com/wandb/wandb, issues 11614 and 11728: 86 characters; older keys have no form
    _make_form("Weights & Biases", "wandb_v", rf"{_START}wandb_v[0-9]_[\w-]{{20,}}+"),
    # github.com/wandb/server, issue 75: keys of a local server
    _make_form(
        "Weights & Biases, local", "local-", rf"{_START}local-[0-9a-f]{{40}}(?![A-Za-z0-9])"
    ),
    # developers.cloudflare.com, "Token formats"; older tokens have no form
    _make_form("Cloudflare", "cfk_ cfut_ cfat_", rf"{_START}cf(?:k|ut|at)_[A-Za-z0-9]{{40,}}+"),
    # gitleaks cloudflare-origin-ca-key
    _make_form(
        "Cloudflare, origin CA", "v1.0-", rf"{_START}v1\.0-[0-9a-f]{{24}}-[0-9a-f]{{100,}}+"
    ),
    # gitleaks digitalocean-pat, digitalocean-access-token and digitalocean-refresh-token
    _make_form(
        "DigitalOcean",
        "dop_v1_ doo_v1_ dor_v1_",
        rf"{_START}do[opr]_v1_[0-9a-f]{{64}}(?![A-Za-z0-9])",
    ),
    # gitleaks telegram-bot-api-token; in the paths of the interface it follows `/bot`
    _make_form(
        "Telegram, bot",
        ":AA",
        rf"(?:(?<![A-Za-z0-9])|(?<=/bot)|{_AFTER_ESCAPE})[0-9]{{8,10}}:AA[\w-]{{32,}}+",
    ),
    # developer.hashicorp.com/vault, "Tokens"; gitleaks vault-service-token, vault-batch-token
    _make_form("HashiCorp Vault", "hvs. hvb. hvr.", rf"{_START}hv[sbr]\.[\w-]{{24,}}+"),
    # github.com/betterleaks/betterleaks, groq-api-key: 52 characters; gitleaks perplexity-api-key
    _make_form("Groq, Perplexity", "gsk_ pplx-", rf"{_START}(?:gsk_|pplx-)[A-Za-z0-9]{{40,}}+"),
    # github.com/neptune-ai/neptune-client: base64 of JSON that begins with `{"api_`
    _make_form("Neptune", "eyJhcGlf", rf"{_START_OF_RUN}eyJhcGlf[\w+/=-]{{20,}}+"),
    # RFC 7519 and 7516: base64url of a JSON object, and two to four further parts
    _make_form("JSON Web Token", "eyJ", rf"{_START_OF_RUN}eyJ[\w-]{{8,}}+(?:\.[\w-]*+){{2,4}}+"),
    # RFC 7468 and RFC 4880: up to the end line, or as far as the text may belong to the key
    _make_form(
        "private key",
        "-----BEGIN",
        r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r'(?:(?!-----)(?:[^"\\]|\\[nr])){0,20000}+'
        r"(?:-----END[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
    ),
)
"""The forms to find in any text."""


def find_tokens(text: str) -> list[str]:
    """Lists the tokens of any form in a text."""
    tokens: list[str] = []
    for form in _list_possible_forms(text):
        tokens += form.pattern.findall(text)
    return tokens


def replace_tokens(text: str, replacement: str) -> str:
    """Replaces the tokens of any form in a text."""
    for form in _list_possible_forms(text):
        text = form.pattern.sub(replacement, text)
    return text


def _list_possible_forms(text: str) -> list[TokenForm]:
    """Lists the forms that have a mark in a text."""
    return [form for form in TOKEN_FORMS if any(mark in text for mark in form.marks)]
