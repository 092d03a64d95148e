"""Every program, and every message with a URL, passes through redaction: found by reading all."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from bsmeta.cli import PROGRAMS
from bsmeta.core.files import ROOT

PACKAGE = ROOT / "bsmeta"

# Where an address is put together to be opened, not shown; redaction itself; a column of documents;
# addresses of runs, in which `BUCKET_URL` permits no credentials, and their form.
OPENED = {
    ("core/secrets.py", "address"),
    ("config/checks/loop.py", "RUN_ADDRESS"),
    ("data/io/remote/azure_account.py", "url"),
    ("data/io/remote/azure_blobs.py", "self._account.endpoint"),
    ("data/io/remote/azure_blobs.py", "self._format_container_url(pattern.container)"),
    ("data/io/remote/azure_blobs.py", "self._format_container_url(ref.container)"),
    ("data/io/file_sets.py", "(mirror or path.resolve().parent.as_uri()).rstrip('/')"),
    ("data/io/remote/hub.py", "constants.ENDPOINT"),
    ("data/io/remote/hub.py", "endpoint"),
    ("data/io/remote/objects.py", "self._access.endpoint"),
    ("data/io/remote/objects.py", "url"),
    ("metadata/decoding.py", "ADDRESS_KEY"),
    ("metadata/metadata_type.py", "url"),
    ("training/buckets/bucket.py", "self._root_url"),
    ("training/buckets/bucket.py", "self.url"),
    ("training/buckets/gcs.py", "endpoint"),
    ("training/buckets/gcs.py", "self._objects_url"),
    ("training/buckets/gcs.py", "self._parts_url"),
    ("training/buckets/gcs.py", "self.url"),
    ("training/buckets/s3.py", "self.url"),
    ("training/run_folder/local_copy.py", "RUN_ADDRESS"),
    ("training/run_folder/local_copy.py", "self.url"),
    ("training/run_folder/bucket_store.py", "self._bucket.url"),
    ("training/run_folder/bucket_store.py", "url"),
}
ADDRESS_WORDS = ("address", "endpoint", "mirror", "proxy", "url")
SHOWN = {"format_url", "format_server"}


def called(tree: ast.AST) -> set[str]:
    """Returns the names of the functions called in a tree."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {call.attr if isinstance(call, ast.Attribute) else ast.unparse(call) for call in calls}


def named_addresses(path: Path) -> Iterator[str]:
    """Returns the expressions in f-strings that are named like addresses and not redacted."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FormattedValue) and not called(node.value) & SHOWN:
            names = [ast.unparse(part).rpartition(".")[2] for part in ast.walk(node.value)
                     if isinstance(part, (ast.Name, ast.Attribute))]  # fmt: skip
            if any(word in name.lower() for name in names for word in ADDRESS_WORDS):
                yield ast.unparse(node.value)


def test_messages_show_addresses_through_one_function() -> None:
    bare = {
        (path.relative_to(PACKAGE).as_posix(), expression)
        for path in PACKAGE.rglob("*.py")
        for expression in named_addresses(path)
    }
    assert bare == OPENED


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_programs_redact_what_they_print(program: str) -> None:
    target, _ = PROGRAMS[program]
    path = ROOT / target
    if not target.endswith(".py"):
        spec = importlib.util.find_spec(target)
        path = Path(str(spec and spec.origin))
        if path.name == "__init__.py":
            path = path.with_name("__main__.py")
    blocks = [
        node for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
    ]  # fmt: skip
    assert called(blocks[-1]) & {"run_entry_point", "run_and_report"}
