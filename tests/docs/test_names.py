"""The pages name files, keys and headings that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.docs.pages import PAGES
from tests.warm import REPOSITORY

REFERENCE = "docs/configuration.md"
"""The page that is written from the schemas."""

ROOMS = "bsmeta|deepspeed_configs|docs|examples|experiments|hydra_configs|tests"
PLACEHOLDERS = {
    "bsmeta/resources/", "tests/a/test_b.py", "bsmeta/a/b.py", "experiments/studies/results/mine",
}  # fmt: skip
"""Paths in a wheel, of a rule, and of an example."""

OTHER_NAMES = {
    "columns.author", "title",  # of mappings with names of columns and of metadata
    "key", "fast",  # of `key=value` in general, and of a library
    "last_call_timeout",  # of torchrun's --rdzv-conf
    "ifGenerationMatch",  # of the API of Cloud Storage
    "weights_only", "find_unused_parameters", "add_generation_prompt", "encoding", "exist_ok",
    "by_element", "takes_shards", "has_epochs", "finishes", "is_path", "choices",
    "deepspeed", "finite",
}  # fmt: skip
"""Names before `=` that are neither keys nor options of scripts; the last lines: of Python."""


def read(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def make_anchor(heading: str) -> str:
    """Returns the anchor of a heading, as GitHub and the site make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


@cache
def list_anchors(page: str) -> set[str]:
    """Returns the anchors of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.M | re.S)
    return {make_anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def list_key_names() -> set[str]:
    """Returns the last parts of all keys, the groups, and the options that scripts document."""
    names = {path.name for path in (REPOSITORY / "hydra_configs").iterdir() if path.is_dir()}
    names |= {
        key.rpartition(".")[2] for key in re.findall(r"^\| `([\w.]+)` \|", read(REFERENCE), re.M)
    }
    for script in REPOSITORY.glob("experiments/*/*.py"):
        text = script.read_text(encoding="utf-8")
        docstring, *_ = text.split("\n\nfrom __future__")
        names |= set(re.findall(r"\b([a-z]\w*)=", docstring))
        names |= set(re.findall(r"^    ([a-z]\w*): (?:int|float) = ", text, re.M))
    return names


def list_used_names(page: str) -> set[str]:
    """Returns the names that the commands and the code of a page set, as `name=value`."""
    text = read(page)
    code = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    code += re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    return set(re.findall(r"(?<![\w.$`/-])[+~']*([a-z][\w.]*)=(?=[^=\s])", "\n".join(code)))


def exists(path: str) -> bool:
    """Whether a path, or a pattern, leads to a file or folder; `…/x*.gz` may end early."""
    return any(REPOSITORY.glob(path.rstrip("/") + "*"))


def test_paths_exist() -> None:
    pattern = re.compile(rf"(?<![\w./-])((?:{ROOMS})/[\w./*-]*[\w/*])")
    missing = {
        path
        for page in PAGES
        for path in pattern.findall(read(page))
        if "NAME" not in path and path not in PLACEHOLDERS and not exists(path)
    }
    assert missing == set()


def test_keys_exist() -> None:
    known_names = list_key_names() | OTHER_NAMES
    unknown = {
        f"{page}: {name}"
        for page in PAGES
        if page != REFERENCE
        for name in list_used_names(page)
        if name not in known_names and name.rpartition(".")[2] not in known_names
    }
    assert unknown == set()


def test_links_lead_to_headings() -> None:
    link = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
    broken = {
        f"{page}: {path}#{anchor}"
        for page in PAGES
        for path, anchor in link.findall(read(page))
        if anchor not in list_anchors((Path(page).parent / path if path else Path(page)).as_posix())
    }
    assert broken == set()
