"""The command that builds the table of entities and adds to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.programs.entity_table import EntitiesConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.entities import main
from bsmeta.tasks.classification.config import ClassificationConfig
from tests.tasks.disambiguation.helpers import CITY, LINCOLN, TODD, write


def test_builds_adds_and_describes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(tmp_path / "entities")
    profiles = write(tmp_path / "profiles.jsonl", [LINCOLN, TODD])
    main(EntitiesConfig(table=table, profiles=str(profiles)))
    assert capsys.readouterr().out == (
        f"{table}: 2 entities, 3 aliases (1 of several entities, 2 at most), 3 types, 1 relations\n"
    )
    main(EntitiesConfig(table=table, add=str(write(tmp_path / "new.jsonl", [CITY]))))
    added = capsys.readouterr().out
    assert added == (
        f"{table}: 1 added: 3 entities, 3 aliases (1 of several entities, 3 at most), 4 types, "
        "1 relations\n"
    )
    main(EntitiesConfig(table=table))
    assert capsys.readouterr().out == added.replace("1 added: ", "")


@pytest.mark.parametrize(
    ("content", "reason"), [("", "is empty (0 bytes)"), ("\n\n", "has only blank lines")]
)
def test_a_file_without_profiles_is_refused(content: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.jsonl"
    file.write_text(content)
    table = tmp_path / "entities"
    with pytest.raises(DataError) as error:
        main(EntitiesConfig(table=str(table), profiles=str(file)))
    assert str(error.value) == (
        f"{file} {reason}; write or download it again; expected a profile on each line"
    )
    assert not table.exists()

    main(EntitiesConfig(table=str(table), profiles=str(write(tmp_path / "one.jsonl", [CITY]))))
    with pytest.raises(DataError, match=r"profiles.jsonl (is empty|has only blank lines)"):
        main(EntitiesConfig(table=str(table), add=str(file)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"profiles": "a.jsonl"}, "table is not set"),
        ({"table": "t", "add": "a.jsonl", "profiles": "b.jsonl"}, "profiles and add are set"),
        ({"table": "t", "emb_dir": "emb"}, "emb_dir is set without entity_dir"),
        ({"table": "t", "checkpoint": "run"}, "checkpoint is set without add or update"),
        (
            {"table": "t", "add": "a.jsonl", "max_candidates": 5},
            "max_candidates is set without profiles or entity_dir",
        ),
        (
            {"table": "t", "profiles": "a.jsonl", "types": ["wiki"]},
            "types is set without entity_dir",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        main(EntitiesConfig(**keys))


def test_a_model_of_another_task_is_refused(tmp_path: Path) -> None:
    table = str(tmp_path / "entities")
    main(
        EntitiesConfig(
            table=table, profiles=str(write(tmp_path / "profiles.jsonl", [LINCOLN, TODD]))
        )
    )
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model.parent / "config.yaml").write_text(format_yaml(ClassificationConfig()))
    new = str(write(tmp_path / "new.jsonl", [CITY]))
    with pytest.raises(ConfigurationError, match="is a model of task=classification; expected a"):
        main(EntitiesConfig(table=table, add=new, checkpoint=str(model.parent)))
