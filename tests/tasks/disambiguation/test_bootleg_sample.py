"""Bootleg's own sample files, both generations: from its configuration to an evaluation."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from bsmeta.tasks.disambiguation.converter import main
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.entity_files import Sources, build_from_files
from tests.conftest import REPOSITORY, run_warm
from tests.shared import shared_data

SECOND = "second_generation"
FOLDERS = {
    "first": {"text_data": "sample_text_data", "entity_data": "sample_entity_data",
              "emb_data": "sample_emb_data"},
    "second": {f"{SECOND}/sample_text_data": "sample_text_data",
               f"{SECOND}/sample_entity_db": "sample_entity_data"},
}  # fmt: skip
"""Where the tutorials have the folders of the sample, below data/."""
CONFIGS = {
    "first": "configs/sample_config.json",
    "second": f"{SECOND}/configs/tutorial/sample_config.yaml",
}


def converted(sample: Path, name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the converter prints about a configuration, which it writes to `own.yaml`."""
    assert main([str(sample / name), "--out", str(folder / "own.yaml")]) == 0
    return capsys.readouterr().out


def test_the_tables_of_both_generations(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sample = shared_data("bootleg_sample")
    first = Sources(sample / "entity_data", sample / "emb_data")
    table = build_from_files(first, tmp_path / "first")
    assert table.summary() == (
        "2,358 entities, 264 aliases (157 of several entities, 30 at most), 387 types, "
        "18,391 relations"
    )
    assert "kg_conn.txt: 9991 of 10000 pairs name entities without a title" in caplog.text
    assert table.ids[1] == "Q1951"  # the first title
    nigeria = table.ids.find("Q1033")
    assert table.list_types(nigeria)[0] == "<wordnet_country_108544813>"
    assert table.list_relations(nigeria)[:2] == [("seal description", 0), ("central bank", 0)]

    pytest.importorskip("marisa_trie")
    db = sample / SECOND / "sample_entity_db"
    second = build_from_files(Sources(db, types=["wiki"]), tmp_path / "second")
    assert "merged with another alias: 1" in caplog.text
    assert second.summary() == (
        "1,523 entities, 13,449 aliases (484 of several entities, 29 at most), 190 types, "
        "8,601 relations"
    )
    gabon = second.ids.find("Q1000")
    assert second.list_types(gabon) == ["sovereign state", "country", "French colonial empire"]
    assert second.titles[gabon] == "Gabon"
    assert second.descriptions[gabon].startswith("Gabon ( ; ) , officially the Gabonese Republic")
    entities, scores = second.candidates(second.aliases.find("gabon"))
    names = [second.ids[entity] for entity in entities.tolist()]
    assert (names, scores.tolist()) == (["Q1000", "Q235416", "Q2804483"], [4103.0, 308.0, 10.0])


def test_the_files_that_the_configuration_of_wikipedia_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = shared_data("bootleg_sample")
    printed = converted(sample, "configs/wiki_config.json", tmp_path, capsys)
    assert (
        "built by bsmeta/entities.py table=data/wiki_entity_data/table "
        "entity_dir=data/wiki_entity_data emb_dir=data/emb_data "
        "types=[hyena_types_0905.json,wikidata_types_0905.json] "
        "relations=[kg_relation_types_0905.json,wiki_coo_adj_0905.txt,"
        "sent_cooccur_map_0905.json,kg_adj_0905.txt]"
    ) in printed.splitlines()[printed.splitlines().index(
        "data_config.entity_dir=data/wiki_entity_data"
    ) + 2]  # fmt: skip
    assert "unknown here" not in printed
    own = yaml.safe_load((tmp_path / "own.yaml").read_text())
    assert own["eval_slices"] == ["unif_NS_TS", "unif_NS_TL", "unif_NS_TO"]
    assert (own["train_layers"], own["encoder_layers"], own["num_train_epochs"]) == (0, 12, 10)
    assert own["model_name"] == "google-bert/bert-base-cased"

    # The sample has the same kinds of files under other names.
    emb = tmp_path / "emb_data"
    emb.mkdir()
    for name, old in (
        ("hyena_types_0905.json", "qid2types.json"), ("hyena_vocab.json", "type_vocab.json"),
        ("kg_relation_types_0905.json", "qid2relations.json"),
        ("relation_vocab.json", "relation_vocab.json"), ("kg_adj_0905.txt", "kg_conn.txt"),
    ):  # fmt: skip
        shutil.copyfile(sample / "emb_data" / old, emb / name)
    named = {
        "types": ["hyena_types_0905.json:hyena_vocab.json"],
        "relations": ["kg_relation_types_0905.json", "kg_adj_0905.txt"],
    }
    sources = Sources(sample / "entity_data", emb, **named)
    table = build_from_files(sources, tmp_path / "table")
    assert table.summary().endswith("387 types, 18,391 relations")


@pytest.mark.parametrize("name", ["bootleg_wiki.yaml", "sample_config.yaml"])
def test_no_key_of_the_second_generation_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    sample = shared_data("bootleg_sample")
    printed = converted(sample, f"{SECOND}/configs/tutorial/{name}", tmp_path, capsys)
    assert "unknown here" not in printed
    assert "data_config.word_embedding.cache_dir" in printed  # not cut at the terminal's width
    own = yaml.safe_load((tmp_path / "own.yaml").read_text())
    assert own["learning_rate"] == 2e-5
    assert own["data_config"]["mention_encoding"] == "window"


@pytest.mark.slow
@pytest.mark.parametrize("generation", ["first", "second"])
def test_from_conversion_to_evaluation(
    tmp_path: Path, encoder: Path, capsys: pytest.CaptureFixture[str], generation: str
) -> None:
    if generation == "second":
        pytest.importorskip("marisa_trie")
    sample = shared_data("bootleg_sample")
    for old, new in FOLDERS[generation].items():
        shutil.copytree(sample / old, tmp_path / "data" / new, copy_function=shutil.copyfile)
        for folder in (tmp_path / "data").rglob("*"):
            folder.chmod(0o755)
    printed = converted(sample, CONFIGS[generation], tmp_path, capsys)
    command = next(line for line in printed.splitlines() if "built by bsmeta/entities.py" in line)
    arguments = command.split("bsmeta/entities.py ")[1].split()

    def run(script: str, *arguments: str) -> str:
        done = run_warm([sys.executable, str(REPOSITORY / "bsmeta" / script), *arguments], tmp_path)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    assert " entities, " in run("entities.py", *arguments)
    assert len(EntityTable.open(tmp_path / "data/sample_entity_data/table")) > 1000
    run(
        "train.py", "--config-dir", ".", "--config-name", "own", f"model_name={encoder}",
        "encoder_layers=null", "num_train_epochs=null", "max_train_steps=3", "eval_steps=2",
        "data_config.max_entity_length=32", "data_config.window_length=32", "out_dir=run",
        "eval_slices=[unif_all,unif_TS,unif_NS_all]", "data_config.prep_workers=1",
    )  # fmt: skip
    names = [
        one["name"]
        for one in json.loads((tmp_path / "run/evaluation/evaluation.json").read_text())["slices"]
    ]
    assert names == ["final_loss", "unif_NS_all", "unif_all", "unif_TS"]
    dev = tmp_path / "data/sample_text_data/dev.jsonl"
    run("evaluate.py", "checkpoint=run", f"validation_file={dev}", "bootstrap_resamples=50")
    again = json.loads((tmp_path / "run/evaluation-dev/evaluation.json").read_text())
    gold = sum(sum(json.loads(line)["gold"]) for line in dev.read_text().splitlines())
    assert again["slices"][0]["metrics"]["mentions"] == gold
