"""CONTRIBUTING.md names packages, files, functions and rules of imports as they are."""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_imports import ALLOWED
from tests.warm import REPOSITORY

PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGE = REPOSITORY / "bsmeta"
CODE = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", PAGE)
FOLDERS = ("bsmeta", "docs", "examples", "experiments", "hydra_configs", "tests")


def section(title: str) -> str:
    """Returns the text below a heading, up to the next heading."""
    _, _, rest = PAGE.partition(f"\n## {title}\n")
    text, _, _ = rest.partition("\n## ")
    assert text.strip(), f"there is no section {title}"
    return text


def list_packages_of_tree() -> list[str]:
    """Returns the packages of bsmeta in the tree, by the indentation of their lines."""
    packages: list[str] = []
    part = ""
    for indent, name in re.findall(r"^(  |    )(\w+)/(?= |$)", section("Tree"), re.M):
        if len(indent) == 2:
            part = name
            packages.append(part)
        else:
            packages.append(f"{part}/{name}")
    return packages


def test_the_tree_has_every_package() -> None:
    expected = [path.parent for path in PACKAGE.glob("*/__init__.py")]
    expected += [path.parent for path in PACKAGE.glob("*/*/__init__.py") if is_part(path.parts[-3])]
    names = sorted(path.relative_to(PACKAGE).as_posix() for path in expected)
    assert sorted(list_packages_of_tree()) == names


def is_part(name: str) -> bool:
    """Whether the packages in a folder of bsmeta have separate lines."""
    return name in {"annotate", "config", "data", "tasks", "training"}


def test_the_files_of_the_tree_exist() -> None:
    for line in section("Tree").splitlines():
        for name in re.findall(r"\b\w+\.py\b", line):
            assert any(PACKAGE.rglob(name)) or name in {"test_b.py", "b.py", "test_mirror.py"}, name


def test_the_table_of_imports_equals_the_rule_of_the_tests() -> None:
    rules = {"core": {"core"}, "config": {"config", "core"}}
    for parts, allowed in re.findall(
        r"^\| (`.*?) \| (.*) \|$", section("Who may import whom"), re.M
    ):
        for part in re.findall(r"`(\w+)`", parts):
            rules[part] = {part, "config", "core", *re.findall(r"`([\w.]+)`", allowed)}
    assert rules == ALLOWED


def test_every_path_exists() -> None:
    paths = [code for code in CODE if re.fullmatch(rf"({'|'.join(FOLDERS)})/[a-z0-9_./]+", code)]
    assert len(paths) > 50
    assert [path for path in dict.fromkeys(paths) if not (REPOSITORY / path).exists()] == []


def test_every_name_of_code_occurs_in_the_code() -> None:
    names = {code.partition("(")[0] for code in CODE}
    names = {name for name in names if re.fullmatch(r"_?[A-Za-z]\w*", name)}
    names = {name for name in names if "_" in name or name != name.lower()} - {"NAME", "FILE"}
    assert len(names) > 60
    sources = [*PACKAGE.rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in sources if path != Path(__file__)]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    assert sorted(names - words) == []


def test_every_recipe_is_linked_at_the_top() -> None:
    _, _, recipes = PAGE.partition("\n# Recipes\n")
    titles = re.findall(r"^## (.*)$", recipes, re.M)
    links = PAGE.partition("\n## ")[0].partition("Recipes: ")[2]
    anchors = [title.lower().replace(" ", "-") for title in titles]
    assert re.findall(r"\(#([\w-]+)\)", links) == anchors
