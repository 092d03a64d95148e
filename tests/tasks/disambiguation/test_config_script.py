"""`train.py --config_script` trains with configurations of Bootleg, of both generations."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.disambiguation.config_script import apply_config_script
from bsmeta.tasks.disambiguation.entities import EntityTable
from tests.tasks.disambiguation.helpers import lines, profiles, write_lines
from tests.tasks.training import TRAIN, events

Launch = Callable[..., subprocess.CompletedProcess[str]]


def write_bootleg_world(folder: Path) -> None:
    """The small world in the layout of the first generation: data/, entity_data/, emb_data/."""
    data, mappings, emb = (
        folder / name for name in ("data", "entity_data/entity_mappings", "emb_data")
    )
    for path in (data, mappings, emb):
        path.mkdir(parents=True)
    write_lines(data / "train.jsonl", lines(40, seed=1, weak=5))
    write_lines(data / "dev.jsonl", lines(12, seed=2))

    candidates: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for profile in profiles():
        for alias, score in profile["mentions"]:
            candidates[alias].append((profile["entity_id"], score))
    for alias in candidates:
        candidates[alias].sort(key=lambda candidate: -candidate[1])
    titles = {profile["entity_id"]: profile["title"] for profile in profiles()}
    types = {profile["entity_id"]: profile["types"].get("theme", []) for profile in profiles()}
    (mappings / "alias2qids.json").write_text(json.dumps(candidates))
    (mappings / "qid2title.json").write_text(json.dumps(titles))
    (emb / "themes.json").write_text(json.dumps(types))
    (emb / "kg.txt").write_text("bank-river\tbass-river\nbank-river\tQ0\n")


FIRST = """{
    // as in the tutorial
    "run_config": {"eval_steps": 5, "distributed": true, "save_dir": "results", "max_epochs": 2,},
    "train_config": {"batch_size": 8, "lr": 0.003, "dropout": 0.1},
    "data_config": {
        "data_dir": "data", "entity_dir": "entity_data", "emb_dir": "emb_data",
        "train_dataset": {"file": "train.jsonl", "use_weak_label": false},
        "test_dataset": {"file": "dev.jsonl", "use_weak_label": true},
        "ent_embeddings": [
            {"key": "learned_type", "args": {"type_labels": "themes.json"}},
            {"key": "adj_index", "args": {"kg_adj": "kg.txt"}}
        ]
    }
}"""
SECOND = {
    "emmental": {"lr": 3e-3, "n_steps": 10, "counter_unit": "batch", "evaluation_freq": 5},
    "train_config": {"batch_size": 8},
    "data_config": {"data_dir": "data", "entity_dir": "entity_data", "max_ent_len": 32},
}


def keys(encoder: Path, *more: str) -> list[str]:
    return [f"model_name={encoder}", "data_config.max_entity_length=32", "trackers=[]", *more]


def apply(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    apply_config_script()
    return sys.argv[1:]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_bootleg_world(tmp_path)
    (tmp_path / "wiki.json").write_text(FIRST)
    (tmp_path / "wiki.yaml").write_text(yaml.safe_dump(SECOND))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_option_is_replaced_by_keys_and_the_table_is_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = apply(monkeypatch, "--config_script", "wiki.json", "learning_rate=0.01")
    assert arguments == [
        "--config-name", "disambiguation_config",
        "eval_steps=5", "out_dir='results'", "num_train_epochs=2", "data_config.batch_size=8",
        "data_config.entity_table='entity_data/table'", "data_config.train_file='data/train.jsonl'",
        "data_config.use_weak_labels=false", "data_config.test_file='data/dev.jsonl'",
        "data_config.batch_scope='total'", "data_config.dev_file='data/dev.jsonl'",
        "model_name='google-bert/bert-base-cased'", "learning_rate=0.01",
    ]  # fmt: skip
    output = capsys.readouterr().out
    assert output.startswith("wiki.json: each key with its replacement\nrun_config.eval_steps=5\n")
    assert "train_config.dropout=0.1\n    -> nothing: that of the encoder's own config" in output
    assert output.endswith(
        "entity_data/table: 13 entities, 6 aliases (6 of several entities, 3 at most), 2 types, "
        "2 relations\n"
    )
    table = EntityTable.open(folder / "entity_data/table")
    assert table.list_types(table.find_entity("bank-river")) == ["river"]

    # The table exists, so it is not built again.
    apply(monkeypatch, "--config_script=wiki.json")
    assert "13 entities" not in capsys.readouterr().out
    assert EntityTable.open(folder / "entity_data/table").fingerprint == table.fingerprint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config_script"], "--config_script: expected one file, as in"),
        (["--config_script=a.json", "--config_script=b.json"], "expected one file"),
        (["--config_script=a.json"], "a.json cannot be read: No such file or directory; expected"),
        (
            ["--config_script=wiki.json", "--config-name=disambiguation"],
            "--config_script and --config-name are given; expected one of them",
        ),
        (["--config_script=broken.json"], "broken.json is not valid JSON: "),
        (
            ["--config_script=nowhere.json"],
            "data_config.entity_dir=nowhere: there is no such folder; expected the entity files",
        ),
    ],
)
def test_scripts_that_cannot_be_used_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    (folder / "broken.json").write_text('{"run_config": {')
    (folder / "nowhere.json").write_text(FIRST.replace('"entity_data"', '"nowhere"'))
    with pytest.raises(ConfigurationError) as error:
        apply(monkeypatch, *arguments)
    assert message in str(error.value)


@pytest.mark.long
@pytest.mark.parametrize("script", ["wiki.json", "wiki.yaml"])
def test_a_script_trains_and_resumes(
    folder: Path, launch: Launch, encoder: Path, script: str
) -> None:
    paths = [
        f"data_config.{name}={folder}/data/{file}.jsonl"
        for name, file in (("train_file", "train"), ("dev_file", "dev"), ("test_file", "dev"))
    ]
    text = (folder / script).read_text()
    for name in ("entity_data", "emb_data"):
        text = text.replace(f"{name}", f"{folder}/{name}")
    (folder / script).write_text(text)
    more = keys(
        encoder, *paths, f"out_dir={folder}/run", "bootstrap_resamples=50",
        "data_config.window_length=32", "save_steps=5", "num_train_epochs=null",
    )  # fmt: skip
    option = f"--config_script={folder}/{script}"
    done = launch(TRAIN, option, *more, "max_train_steps=5", processes=2)
    assert "each key with its replacement" in done.stdout
    launch(
        TRAIN, option, *more, "max_train_steps=10", "resume_from_checkpoint_dir=latest", processes=2
    )
    steps = [event["step"] for event in events(folder / "run", "step")]
    assert sorted({*steps}) == list(range(1, 11))
    weak = [event["counts"].get("weak_labels", 0) for event in events(folder / "run", "step")]
    assert (max(weak) > 0) == (script == "wiki.yaml")
