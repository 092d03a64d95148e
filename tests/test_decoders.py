"""What comes from files is decoded by `bsmeta/core/parsing.py` alone, which refuses extremes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decoders import GATE, find_decoders
from tests.patterns import PACKAGE, Module, read_modules

ITSELF = "a value of this process, as it reads back from JSON"

# Decoders outside of the gate, and why what they read needs none.
EXCEPTIONS = {
    "config/saved.py: yaml.SafeLoader": "stricter than that of the gate, which calls it",
    "core/keys.py:_extract_docstrings ast.literal_eval": "docstrings in the source of this package",
    "data/prepare.py:_convert_like_json json.loads": ITSELF,
    "data/table/records.py:_check_key json.loads": ITSELF,
    "data/table/store.py:open_store json.loads": ITSELF,
    "report/page.py:write_report json.loads": ITSELF,
    "tasks/classification/systems.py:_has_key json.loads": ITSELF,
    "training/run_folder/logs.py:write json.loads": ITSELF,
    "training/run_folder/status.py:_overwrite_status json.loads": ITSELF,
}


def test_only_the_gate_uses_decoders() -> None:
    decoders = [
        name for module in read_modules() if module.file != GATE for name in find_decoders(module)
    ]
    assert sorted(decoders) == sorted(EXCEPTIONS)


def test_the_gate_uses_decoders() -> None:
    assert {name.partition(" ")[2] for name in find_decoders(Module(PACKAGE / GATE))} == {
        "json.loads",
        "msgspec.json.Decoder",
        "yaml.SafeLoader",
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import json\ndef read(file):\n    return json.load(file)\n", "read json.load"),
        ("import json\nread = json.loads\n", " json.loads"),
        ("from json import loads\n", " from json import loads"),
        ("import json as js\n", " import json as"),
        ("import msgspec\nD = msgspec.json.Decoder(int)\n", " msgspec.json.Decoder"),
        ("import msgspec\ndef f(b):\n    msgspec.yaml.decode(b)\n", "f msgspec.yaml.decode"),
        ("import yaml\nyaml.load(x, Loader=yaml.CSafeLoader)\n", " yaml.load"),
        ("import orjson\norjson.loads(b)\n", " orjson.loads"),
        ("import tomllib\ntomllib.load(b)\n", " tomllib.load"),
        ("import pandas as pd\npd.read_json(b)\n", " pd.read_json"),
    ],
)
def test_decoders_are_detected(
    source: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    monkeypatch.setattr("tests.patterns.PACKAGE", tmp_path)
    assert f"module.py:{expected}" in list(find_decoders(Module(path)))
