"""Files that tools of others read: the hosted workflow, issue forms, citation, changelog, image."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
VERSION = re.findall(r'version="(.*?)"', (REPOSITORY / "setup.py").read_text())[0]
TARGETS = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M)
FORMS = sorted((REPOSITORY / ".github/ISSUE_TEMPLATE").glob("*.yml"))
# https://docs.github.com/en/communities/using-templates-to-encourage-useful-issues-and-pull-requests
FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def read(file: str | Path) -> Any:
    return yaml.safe_load((REPOSITORY / file).read_text())


def test_actions_are_pinned_by_commit() -> None:
    """A tag of a foreign repository may be moved to other code."""
    text = (REPOSITORY / ".github/workflows/ci.yml").read_text()
    actions = re.findall(r"uses: *(\S+)(.*)", text)
    assert actions
    for action, comment in actions:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_the_workflow_runs_existing_targets() -> None:
    workflow = read(".github/workflows/ci.yml")
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 reads `on` as a boolean
    commands = []
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
        commands += [step["run"] for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    assert (REPOSITORY / ".ci/run").stat().st_mode & 0o111
    targets = [
        target for line in commands if line.startswith("make ") for target in line.split()[1:]
    ]
    assert targets
    assert set(targets) <= set(TARGETS)


@pytest.mark.parametrize("form", [form for form in FORMS if form.stem != "config"], ids=str)
def test_an_issue_form_has_the_required_fields(form: Path) -> None:
    content = read(form)
    assert {"name", "description", "body"} <= set(content)
    fields = [field["id"] for field in content["body"] if field["type"] != "markdown"]
    assert len(fields) == len(set(fields)) > 0
    for field in content["body"]:
        assert field["type"] in FIELDS
        assert field["attributes"].get("label") or field["type"] == "markdown"


def test_the_citation_has_the_version_of_the_package() -> None:
    """It has the keys that CFF 1.2.0 requires."""
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert all({"name"} <= set(author) for author in citation["authors"])
    assert citation["version"] == VERSION
    assert citation["license"] == "Apache-2.0"


def test_the_changelog_keeps_its_form() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## \[(.*?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.M)
    assert releases[0] == ("Unreleased", "")
    assert all(date for name, date in releases[1:])
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= kinds


def test_the_image_is_built_from_existing_files() -> None:
    lines = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    assert all((REPOSITORY / source).exists() for sources in copied for source in sources)
    ignored = (REPOSITORY / ".dockerignore").read_text().split()
    packaged = {"bsmeta", "hydra_configs", "experiments", "examples", "setup.py", "README.md"}
    assert packaged.isdisjoint(ignored)
    modules = re.findall(r"from (bsmeta[.\w]+) import", "\n".join(lines))
    assert all((REPOSITORY / f"{name.replace('.', '/')}.py").exists() for name in modules)
