"""What is wrong with the data of a run ends it before the first step, not at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.disambiguation.config import DisambiguationConfig, DisambiguationDataConfig
from bsmeta.tasks.disambiguation.task import EntityDisambiguator
from tests.tasks.disambiguation.helpers import lines, write_lines

Start = Callable[..., int]


@pytest.fixture
def start(world: Path, encoder: Path, tmp_path: Path) -> Start:
    """What the trainer asks a task for first, with other dev or test sentences."""

    def call(
        dev: list[Any] | None = None, test: list[Any] | None = None, prep: str = "", **keys: Any
    ) -> int:
        files = {"train_file": str(world / "train.jsonl"), "dev_file": str(world / "dev.jsonl")}
        for name, rows in (("dev", dev), ("test", test)):
            if rows is not None:
                files[f"{name}_file"] = str(write_lines(tmp_path / f"{name}.jsonl", rows))
        data = DisambiguationDataConfig(
            **files, entity_table=str(world / "entities"), prep_dir=str(tmp_path / "prep" / prep),
            max_entity_length=48, window_length=32,
        )  # fmt: skip
        config = DisambiguationConfig(model_name=str(encoder), data_config=data, **keys)
        return EntityDisambiguator(config).steps_per_epoch(1)

    return call


def test_a_malformed_line_of_the_test_file(start: Start, tmp_path: Path) -> None:
    wrong = [*lines(3, seed=4), {**lines(1, seed=5)[0], "char_spans": [[0, 999]]}]
    with pytest.raises(DataError, match=rf"{tmp_path}/test.jsonl: 1 problem.*\n  line 4: char_spa"):
        start(test=wrong)


def test_a_held_out_file_without_gold_mentions(start: Start) -> None:
    weak = [{**line, "gold": [False] * len(line["gold"])} for line in lines(3, seed=4)]
    for name in ("dev", "test"):
        with pytest.raises(DataError, match=f"{name}.jsonl has no gold mention to score"):
            start(**{name: weak}, prep=name)


def test_slices_are_those_of_the_code_and_of_the_lines(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    slices = {"rare": {"0": 0.0}, "unif_NS_TL": {"0": 1.0}}
    dev = [{**line, "slices": slices} for line in lines(4, seed=4)]
    chosen = ["unif_all", "unif_TS", "unif_NS_all", "rare"]
    assert start(dev, eval_slices=chosen, keep_best_by="rare_accuracy") == 2
    assert "the lines define the slice unif_NS_TL, too; theirs is unif_NS_TL_of_lines" in (
        caplog.text
    )
    with pytest.raises(ConfigurationError, match=r"no slice 'unif_NSTL' .did you mean unif_NS_TL"):
        start(dev, eval_slices=["unif_NSTL"])
    with pytest.raises(ConfigurationError, match="no slice 'rare'"):
        start(eval_slices=["rare"], prep="other")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"keep_best_by": "acuracy"}, r"keep_best_by=acuracy: .* .did you mean accuracy\?"),
        ({"keep_best_by": "tail_accuracy", "eval_slices": ["toes"]},
         "expected one of loss, accuracy, .*toes_accuracy"),
    ],
)  # fmt: skip
def test_the_metric_of_the_best_checkpoint(
    start: Start, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        start(**keys)


def test_the_model_that_is_compared(start: Start, tmp_path: Path, encoder: Path) -> None:
    with pytest.raises(ConfigurationError, match="compare_with=.*no config.yaml beside the model"):
        start(compare_with=str(encoder))
