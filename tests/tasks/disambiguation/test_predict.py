"""A trained model on new texts: mentions given or detected, records in and out."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bsmeta
from bsmeta.core.errors import DataError
from bsmeta.tasks.checkpoints import open_task
from bsmeta.tasks.disambiguation.profiles import add_entities, remove_entities
from bsmeta.training.task import Predicts, PredictsFromData
from tests.conftest import REPOSITORY
from tests.tasks.disambiguation.helpers import CONTEXTS, write_lines, write_world
from tests.tasks.disambiguation.test_training import arguments

Launch = Callable[..., subprocess.CompletedProcess[str]]
TRAIN, PREDICT = (REPOSITORY / "bsmeta" / name for name in ("train.py", "predict.py"))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """A run that has learned the meanings of the small world, with its data beside it."""
    from tests.conftest import command, run_warm

    folder = tmp_path_factory.mktemp("trained")
    write_world(folder, train=480)
    more = (
        "num_train_epochs=8",
        "evals_per_epoch=null",
        "eval_steps=0",
        "keep_best_by=null",
        "export_best=false",
    )
    done = run_warm(command(TRAIN, *arguments(folder, encoder, folder / "run", *more), processes=1))
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "run"


def sentence(theme: str, word: str) -> str:
    return f"the {CONTEXTS[theme][0]} near {word} with {CONTEXTS[theme][1]}"


@pytest.mark.long
def test_mentions_given_and_detected(run_folder: Path) -> None:
    task, folder = open_task(str(run_folder), {})
    assert isinstance(task, Predicts)
    model = task.load(folder)
    river, money = sentence("river", "Bass"), sentence("money", "seal")
    place = river.index("Bass")
    found = task.predict(
        model,
        [
            {"text": river, "mentions": [{"start": place, "end": place + 4, "alias": "bass"}]},
            {"text": money},
            {"text": "nothing here"},
            {"text": river, "mentions": [{"start": 0, "end": 3}]},
            {"text": " ".join([money] * 40)},
        ],
    )
    given, detected, none, unknown, long = (record["entities"] for record in found)
    (entity,) = given
    assert entity.pop("score") >= 0.5  # of two candidates
    meaning = entity["entity"].removeprefix("bass-")
    assert entity == {
        "mention": "Bass", "start": place, "end": place + 4, "alias": "bass",
        "entity": f"bass-{meaning}", "title": f"bass ({meaning})",
    }  # fmt: skip
    assert [(entity["mention"], entity["alias"]) for entity in detected] == [("seal", "seal")]
    assert none == unknown == []
    # A long text has a mention every 28 characters, in as many rows as it takes.
    assert [entity["start"] for entity in long] == [
        money.index("seal") + n * (len(money) + 1) for n in range(40)
    ]
    assert {entity["alias"] for entity in long} == {"seal"}


def test_an_alias_is_found_in_any_case_and_an_unknown_one_is_counted(
    run_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, folder = open_task(str(run_folder), {})
    assert isinstance(task, Predicts)
    text = sentence("river", "BASS")
    start = text.index("BASS")
    mentions = [
        {"start": start, "end": start + 4, "alias": alias} for alias in ("Bass", " bass\n", "perch")
    ]
    mentions += [{"start": start, "end": start + 4}, {"start": 0, "end": 3}]
    found, none = task.predict(
        task.load(folder), [{"text": text, "mentions": mentions}, {"text": text, "mentions": []}]
    )
    assert [(one["mention"], one["alias"]) for one in found["entities"]] == [("BASS", "bass")] * 3
    assert none == {"entities": []}
    assert caplog.messages == [
        "given mentions left out, because no entity has their alias: 2 ('perch', 'the')"
    ]


BAD = [
    ([{"start": 3, "end": 99}], "mentions: [3, 99] in a text of 7 characters"),
    ([{"start": 3, "end": 3}], "mentions: [3, 3] in a text of 7 characters"),
    ("bank", "mentions: Expected `array`, got `str`; expected a list of start and end"),
    ([{"start": 0}], "mentions: Object missing required field `end` - at `$[0]`; expected a list"),
    ([{"start": 0, "end": 4, "alias": 7}], "mentions: Expected `str | null`, got `int` - at `$[0]"),
    ([{"start": [], "end": 4}], "mentions: Expected `int`, got `array` - at `$[0].start`; expect"),
]


def test_bad_mentions_are_refused_with_their_lines_before_any_prediction(
    launch: Launch, run_folder: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"text": "bank", "mentions": [{"start": 0, "end": 4}]}]
    bad = BAD[:4]
    rows += [{"text": "old sea", "mentions": mentions} for mentions, _ in bad]
    rows += [{"text": "seal", "mentions": None}]
    write_lines(tmp_path / "in.jsonl", rows)
    arguments = (
        f"checkpoint={run_folder}", f"input={tmp_path}/in.jsonl", f"output={tmp_path}/out.jsonl",
    )  # fmt: skip
    done = launch(PREDICT, *arguments, check=False)
    assert done.returncode == 2
    assert f"in.jsonl: {len(bad)} bad rows in all; correct the file, or leave" in done.stderr
    for number, (_, reason) in enumerate(bad, 2):
        assert f"row {number} (line {number}): {reason}" in done.stderr
    assert not (tmp_path / "out.jsonl.part").exists()

    done = launch(PREDICT, *arguments, "on_bad_row=skip")
    assert f"in.jsonl: {len(bad)} rows left out\n  row 2 (line 2): mentions: [3, 99]" in done.stderr
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["entities"][0]["alias"] for record in found] == ["bank", "seal"]


def test_bad_mentions_are_listed_by_the_api(run_folder: Path) -> None:
    model = bsmeta.load(str(run_folder), task="disambiguation")
    good = {"text": "bank", "mentions": [{"start": 0, "end": 4}]}
    with pytest.raises(DataError) as error:
        model.predict([good, *({"text": "old sea", "mentions": bad} for bad, _ in BAD)])
    for number, (_, reason) in enumerate(BAD, 1):
        assert f"texts[{number}]: {reason}" in str(error.value)


def test_the_encoder_that_a_run_began_with_is_not_needed(run_folder: Path, tmp_path: Path) -> None:
    task, folder = open_task(str(run_folder), {"model_name": str(tmp_path / "gone")})
    assert isinstance(task, Predicts)
    (record,) = task.predict(task.load(folder), [{"text": sentence("river", "bass")}])
    assert [entity["alias"] for entity in record["entities"]] == ["bass"]


def test_a_text_is_encoded_once_however_many_mentions_it_has(run_folder: Path) -> None:
    task, folder = open_task(str(run_folder), {"data_config": {"max_mentions": 2}})
    assert isinstance(task, Predicts)
    model = task.load(folder)
    encoded: list[int] = []
    model.mention_encoder.register_forward_pre_hook(
        lambda _, __, inputs: encoded.append(len(inputs["input_ids"])), with_kwargs=True
    )
    text = " . ".join(sentence("river", "bass") for _ in range(6))
    (found,) = task.predict(model, [{"text": text}])
    assert [one["mention"] for one in found["entities"]] == ["bass"] * 6
    assert sum(encoded) == 1


def test_answers_do_not_depend_on_the_texts_beside_them(run_folder: Path) -> None:
    task, folder = open_task(str(run_folder), {})
    assert isinstance(task, Predicts)
    model = task.load(folder)
    rows_and_tokens: list[tuple[int, int]] = []
    model.mention_encoder.register_forward_pre_hook(
        lambda _, __, inputs: rows_and_tokens.append(tuple(inputs["input_ids"].shape)),
        with_kwargs=True,
    )
    short, long = sentence("river", "bass"), " . ".join([sentence("money", "seal")] * 6)
    records = [{"text": text} for text in (short, long, short)]

    together = list(task.predict(model, records))
    assert rows_and_tokens == [(2, 8), (1, 43)]  # the short texts are not padded to the long one
    alone = [next(iter(task.predict(model, [record]))) for record in records]
    for result, expected in zip(together, alone, strict=True):
        assert len(result["entities"]) in (1, 6)
        for entity, other in zip(result["entities"], expected["entities"], strict=True):
            assert entity.pop("score") == pytest.approx(other.pop("score"), abs=1e-4)
            assert entity == other


def test_predictions_below_the_lowest_score_are_dropped(run_folder: Path) -> None:
    task, folder = open_task(str(run_folder), {"min_score": 1.0})
    assert isinstance(task, Predicts)
    (record,) = task.predict(task.load(folder), [{"text": "bank"}])
    assert record == {"entities": []}


def test_an_added_entity_is_a_candidate_at_once_without_encoding_the_others_again(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bsmeta.tasks.disambiguation.embeddings import EntityEncoder

    task, folder = open_task(str(run_folder), {})
    assert isinstance(task, Predicts)
    assert isinstance(task, PredictsFromData)
    before = task.data_fingerprint()
    assert [*task.predict(task.load(folder), [{"text": sentence("money", "crane")}])]
    new: dict[str, Any] = {
        "entity_id": "crane-new", "mentions": [["crane", 1000.0], ["zorp", 1.0]], "title": "crane",
        "description": "coin loan price", "types": {}, "relations": [],
    }  # fmt: skip
    add_entities(write_lines(run_folder / "new.jsonl", [new]), run_folder.parent / "entities")
    encoded: list[int] = []
    encode = EntityEncoder.encode

    def counted(self: EntityEncoder, entities: np.ndarray, **how: Any) -> np.ndarray:
        encoded.extend(entities.tolist())
        return encode(self, entities, **how)

    monkeypatch.setattr(EntityEncoder, "encode", counted)
    task, folder = open_task(str(run_folder), {})
    assert isinstance(task, Predicts)
    texts = [{"text": sentence("money", word)} for word in ("zorp", "crane")]
    first, _ = task.predict(task.load(folder), texts)
    assert [entity["entity"] for entity in first["entities"]] == ["crane-new"]
    assert encoded == [len(task.data.table) - 1]  # type: ignore[attr-defined]
    assert isinstance(task, PredictsFromData)
    assert task.data_fingerprint() != before  # an interrupted call is not continued with it


def test_a_model_predicts_with_the_edited_table_and_names_the_edits(
    run_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "entities"
    shutil.copytree(run_folder.parent / "entities", table)
    keys = {"data_config": {"entity_table": str(table)}}
    texts = [{"text": sentence("river", word)} for word in ("seal", "spring")]

    def link() -> list[list[str]]:
        task, folder = open_task(str(run_folder), keys)
        assert isinstance(task, Predicts)
        records = task.predict(task.load(folder), texts)
        return [[entity["entity"] for entity in record["entities"]] for record in records]

    assert link() == [["seal-river"], ["spring-river"]]
    caplog.clear()
    names = ("seal-river", "spring-river", "spring-money")
    remove_entities(
        write_lines(tmp_path / "names.jsonl", [{"entity_id": name} for name in names]), table
    )
    assert link() == [["seal-money"], []]
    (message,) = [text for text in caplog.messages if "was edited" in text]
    assert message.startswith(f"{table} was edited since {run_folder}/")
    assert message.endswith(
        "3 removed (seal-river, spring-river, spring-money); candidates and texts of entities are "
        "those of the edited table"
    )


def test_the_program_writes_the_entities_of_each_record(
    launch: Launch, run_folder: Path, tmp_path: Path
) -> None:
    records = [
        {"id": n, "text": sentence("river", word)} for n, word in enumerate(("bass", "match"))
    ]
    write_lines(tmp_path / "in.jsonl", records)
    launch(
        PREDICT, f"checkpoint={run_folder}", f"input={tmp_path}/in.jsonl",
        f"output={tmp_path}/out.jsonl",
    )  # fmt: skip
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(record["id"], record["entities"][0]["alias"]) for record in found] == [
        (0, "bass"), (1, "match"),
    ]  # fmt: skip
