"""Each task has its own keys, and a configuration belongs to the task that it begins with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bsmeta.config.checks.run import check_launch
from bsmeta.config.launch import Launch
from bsmeta.config.saved_runs import load_resolved, read_saved_config
from bsmeta.config.schema import RunConfig
from bsmeta.config.startup_table import list_table_rows
from bsmeta.config.steps import Schedule
from bsmeta.config.task_entry import TaskEntry, find_entry
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.keys import key
from bsmeta.tasks import TASKS
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from bsmeta.tasks.classification.task import TextClassifier
from bsmeta.tasks.disambiguation.task import EntityDisambiguator
from bsmeta.tasks.spelling.correction import CandidateCorrection
from bsmeta.tasks.spelling.task import SequenceDetection, WordDetection
from bsmeta.training.task import Task


@dataclass(frozen=True, kw_only=True)
class RowsConfig(RunConfig):
    """A run on the rows of a table."""

    task: str = key("rows", "what is trained")
    batch_max_length: int = key(64, "tokens of a step", at_least=1)


ROWS = TaskEntry(
    schema=f"{__name__}:RowsConfig", make=lambda _: pytest.fail("made"), has_epochs=True
)
BOTH = {**TASKS, "rows": ROWS}
LAUNCH = Launch(source="test", num_processes=2, distributed_type="MULTI_GPU")


def test_a_key_of_another_task_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: rows\nmodel_name: gpt2\n")
    with pytest.raises(ConfigurationError, match="model_name .*unknown key.*a key of RowsConfig"):
        load_resolved(tmp_path / "config.yaml", RowsConfig)
    with pytest.raises(ConfigurationError, match="trained with task=rows; expected causal_lm"):
        read_saved_config(tmp_path / "config.yaml", {"causal_lm": TASKS["causal_lm"]}, {})


def test_the_task_must_match_the_schema() -> None:
    entry, (problem,) = find_entry(RowsConfig(task="causal_lm"), BOTH)
    assert entry is ROWS
    assert "begins with the schema of rows" in problem.expected
    _, (problem,) = find_entry(RowsConfig(task="row"), BOTH)
    assert problem.fix == "task=rows"


def test_checks_skip_keys_that_a_task_does_not_have(tmp_path: Path) -> None:
    config = RowsConfig(out_dir=str(tmp_path / "run"), num_train_epochs=2, batch_max_length=0)
    with pytest.raises(ConfigurationError, match="1 problem in .*\n1. batch_max_length in"):
        check_launch(config, LAUNCH, ROWS)
    config = replace(config, batch_max_length=64)
    run = check_launch(config, LAUNCH, ROWS)
    assert run.deepspeed_config is None
    rows = dict(list_table_rows(run))
    assert rows["global batch"] == ("rows vary; 1 (accumulation) x 2 (processes) = 2 micro-batches")
    assert rows["steps"] == "those of 2 epochs"
    assert "model" not in rows


def test_entries_know_which_tasks_have_a_finish_method() -> None:
    """The checks need this before a task is loaded."""
    classes = {
        "causal_lm": CausalLanguageModel, "classification": TextClassifier,
        "sed_words": WordDetection, "sed_sequence": SequenceDetection, "sec": CandidateCorrection,
        "disambiguation": EntityDisambiguator,
    }  # fmt: skip
    finishes = {name: entry.finishes for name, entry in TASKS.items()}
    assert finishes == {name: kind.finish is not Task.finish for name, kind in classes.items()}


@pytest.mark.parametrize(
    "name", ["num_train_epochs", "evals_per_epoch", "logs_per_epoch", "saves_per_epoch"]
)
def test_epochs_are_refused_for_a_task_without_epochs(name: str, tmp_path: Path) -> None:
    config = RowsConfig(out_dir=str(tmp_path / "run"), **{name: 2})
    without = TaskEntry(schema=ROWS.schema, make=ROWS.make)
    with pytest.raises(ConfigurationError, match=f"{name} .* null: task=rows has no epochs"):
        check_launch(config, LAUNCH, without)
    with pytest.raises(ConfigurationError, match=f"{name}: this task has no epochs"):
        Schedule.of(config)


def test_a_schedule_turns_epochs_into_steps() -> None:
    config = RowsConfig(num_train_epochs=2.5, evals_per_epoch=3, logs_per_epoch=20, save_steps=7)
    assert Schedule.of(config, 10) == Schedule(25, logging_steps=1, eval_steps=3, save_steps=7)
    assert Schedule.of(RowsConfig(), 10).max_steps == 100_000
    assert Schedule.of(RowsConfig(saves_per_epoch=2), 10).save_steps == 5
    config = replace(config, extra_steps_to_eval_save_at=[25, 26])
    with pytest.raises(ConfigurationError, match=r"\[25, 26\]: the run has 25 steps"):
        Schedule.of(config, 10)
