"""Result files that are read again: what is in them, and files that cannot be used."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.tasks.classification.evaluate import write_predictions, write_stats
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import Scored, ScoredSets
from bsmeta.tasks.classification.prediction_files import (
    Predictions,
    align_runs,
    describe_labels,
    find_stats,
    read_predictions,
    read_stats,
)
from bsmeta.tasks.classification.results import SetCounts
from tests.tasks.classification.helpers import CHUNKS, LABELS, LOGITS, results

NAME = "ads_testset_predictions.csv"


def write_run(folder: Path) -> Path:
    """Writes the result files of a run on three texts, of which two are predicted right."""
    folder.mkdir(exist_ok=True)
    write_predictions(folder / NAME, Scored.of(CHUNKS, LOGITS), LABELS)
    write_stats(
        folder / "ads_train_test_stats.json",
        {"epochs": [{"epoch": 1.0, "training_loss": float("nan")}], "test": results().as_dict()},
    )
    return folder / NAME


def read_run(file: Path) -> Predictions:
    stats = find_stats(file)
    return read_predictions(file, None if stats is None else read_stats(stats))


def replace_text(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_the_files_of_a_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"))
    assert run.rows.tolist() == [3, 7, 9]
    assert run.labels == LABELS
    assert run.truth.tolist() == [0, 2, 1]
    assert run.predicted.tolist() == [0, 2, 0]
    assert run.probabilities is not None
    assert run.probabilities[0].tolist() == pytest.approx([0.8, 0.1, 0.1])
    assert describe_labels(run, 2) == "neutral"
    assert describe_labels(run, 2, predicted=True) == "left"


def test_predictions_alone_are_enough(tmp_path: Path) -> None:
    file = write_run(tmp_path)
    (tmp_path / "ads_train_test_stats.json").unlink()
    assert find_stats(file) is None
    assert read_run(file).labels == LABELS
    compressed = tmp_path / "ads.csv.gz"
    compressed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_run(compressed).predicted.tolist() == [0, 2, 0]


def test_an_output_of_predict_has_rows_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "predicted.csv"
    file.write_text("text,leaning,prediction,chunks\na,left,left,1\nb,right,left,1\n")
    run = read_predictions(file, None, "leaning")
    assert (run.rows.tolist(), run.labels, run.probabilities) == ([1, 2], ("left", "right"), None)


def test_more_labels_than_are_listed(tmp_path: Path) -> None:
    file = tmp_path / NAME
    file.write_text("row,label,prediction,probability,chunks\n4,b,a,0.25,1\n2,a,a,0.5,1\n")
    run = read_predictions(file, None)
    assert run.rows.tolist() == [2, 4]
    assert run.probabilities is not None
    assert run.probabilities.tolist() == [[0.5], [0.25]]


def test_labels_that_spreadsheets_would_compute(tmp_path: Path) -> None:
    scored = Scored.of([Chunk([1], 0, 3, 0, "a"), Chunk([1], 1, 4, 0, "b")], np.zeros((2, 2)))
    write_predictions(tmp_path / NAME, scored, ["=1+1", "'=1"], spreadsheet_safe=True)
    run = read_predictions(tmp_path / NAME, None)
    assert (run.labels, run.truth.tolist()) == (("=1+1", "'=1"), [0, 1])


def test_labels_with_line_ends_are_read_as_they_were_written(tmp_path: Path) -> None:
    scored = Scored.of([Chunk([1], 0, 3, 0, "a"), Chunk([1], 1, 4, 0, "b")], np.zeros((2, 2)))
    write_predictions(tmp_path / NAME, scored, ["a\rb", 'c\n"d"'])
    run = read_predictions(tmp_path / NAME, None)
    assert (run.labels, run.truth.tolist()) == (("a\rb", 'c\n"d"'), [0, 1])


def write_sets(folder: Path) -> Path:
    """Writes the predictions of a run with several labels a text."""
    chunks = [Chunk([1], (0, 2), 3, 0, "a"), Chunk([1], (), 4, 0, "b")]
    logits = np.array([[2.0, -2.0, -2.0], [-2.0, -2.0, -2.0]])
    scored = ScoredSets.of(chunks, logits, np.full(3, 0.5))
    write_predictions(folder / NAME, scored, LABELS)
    return folder / NAME


def test_several_labels_a_text(tmp_path: Path) -> None:
    run = read_predictions(write_sets(tmp_path), None)
    assert run.has_several
    assert run.truth.tolist() == [[True, False, True], [False, False, False]]
    assert run.predicted.tolist() == [[True, False, False], [False, False, False]]
    assert describe_labels(run, 0) == "left, right"
    assert describe_labels(run, 1) == "none"
    assert SetCounts.of(run.truth, run.predicted).texts == 2


def swap_probabilities(file: Path) -> None:
    """Exchanges the names of two columns of probabilities."""
    text = file.read_text().replace("probabilities.left", "swapped")
    text = text.replace("probabilities.neutral", "probabilities.left")
    file.write_text(text.replace("swapped", "probabilities.neutral"))


def test_swapped_columns_of_probabilities_are_refused(tmp_path: Path) -> None:
    file = write_run(tmp_path)
    swap_probabilities(file)
    with pytest.raises(DataError) as error:
        read_run(file)
    assert str(error.value) == (
        f"{file}: line 2: the prediction is 'left' with a probability of 0.1, but 'neutral' has "
        "0.8 (such rows: 2); expected the most probable label, in columns probabilities.LABEL of "
        "the same model"
    )


@pytest.mark.parametrize(
    "probabilities", ["0.500000,0.500000", "0.500000,0.500001", "0.51,0.49", "1,0"]
)
def test_ties_and_rounded_probabilities_are_accepted(probabilities: str, tmp_path: Path) -> None:
    file = tmp_path / NAME
    header = "row,label,prediction,probabilities.a,probabilities.b"
    file.write_text(f"{header}\n1,b,a,{probabilities}\n")
    assert read_predictions(file, None).predicted.tolist() == [0]


def cut_within_a_line(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def cut_within_a_cell(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-12])


def cut_after_a_line(file: Path) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def keep_the_header(file: Path) -> None:
    file.write_text(file.read_text().splitlines(keepends=True)[0])


def cut_stats(file: Path) -> None:
    stats = file.with_name("ads_train_test_stats.json")
    stats.write_bytes(stats.read_bytes()[:-20])


def empty_stats(file: Path) -> None:
    file.with_name("ads_train_test_stats.json").write_text('{"epochs": [], "test": null}')


def other_json(file: Path) -> None:
    file.with_name("ads_train_test_stats.json").write_text("[]")


def change(old: str, new: str) -> Callable[[Path], None]:
    return lambda file: replace_text(file, old, new)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_within_a_line, "ends within a line: it is cut, or still being written"),
        (cut_within_a_cell, "is the file cut?"),
        (cut_after_a_line, "has 2 rows, but the statistics of the run are of 3 texts"),
        (keep_the_header, "has a header and no predictions"),
        (cut_stats, "is damaged, cut, or no file of statistics"),
        (other_json, "is damaged, cut, or no file of statistics"),
        (empty_stats, "the statistics of this run have no scores on the test split"),
        (change("prediction", "predicted"), "'prediction'"),
        (change("probabilities.left", "other"), "has no column 'probabilities.left'"),
        (change("\n7,", "\n3,"), "several predictions for row 3; expected one for each"),
        (change("\n7,", "\nseven,"), "'seven' in column 'row'; expected a number"),
        (change("7,right", "7,rigth"), "the label 'rigth' is none of the run's 3 labels"),
        (change("7,right,right", "7,right,left"), "in the statistics; expected files of the same"),
        (change("0.800000", "1.800000"), "'1.800000' in column 'probabilities.left'; expected a"),
        (change("0.800000", "0.700000"), "the probabilities sum to 0.9, not to 1"),
        (change("0.800000", "nan"), "'nan' in column 'probabilities.left'; expected a"),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    file = write_run(tmp_path)
    damage(file)
    with pytest.raises(UserError) as caught:
        read_run(file)
    assert message in str(caught.value)


def test_missing_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.csv cannot be read"):
        read_predictions(tmp_path / "no.csv", None)
    with pytest.raises(DataError, match=r"stats=.*no\.json cannot be read"):
        read_stats(tmp_path / "no.json")
    with pytest.raises(ConfigurationError, match="expected a CSV file, such as the NAME_testset"):
        read_predictions(tmp_path / "predicted.jsonl", None)


def test_a_list_that_is_cut(tmp_path: Path) -> None:
    file = write_sets(tmp_path)
    replace_text(file, '"[""left"",""right""]"', '"[""left""]x]"')
    with pytest.raises(DataError, match="is not a list of labels; expected JSON such as"):
        read_predictions(file, None)


def read_rows(folder: Path, *lines: str, header: str = "row,label,prediction") -> Predictions:
    folder.mkdir()
    (folder / "p.csv").write_text("\n".join([header, *lines, ""]))
    return read_predictions(folder / "p.csv", None)


def test_runs_with_other_predicted_labels_have_the_same_indexes(tmp_path: Path) -> None:
    first = read_rows(tmp_path / "1", "1,a,b", "2,b,b")
    second = read_rows(tmp_path / "2", "2,b,d", "1,a,a")
    runs = align_runs([first, second])
    assert [run.labels for run in runs] == [("a", "b", "d")] * 2
    assert [run.truth.tolist() for run in runs] == [[0, 1]] * 2
    assert runs[1].predicted.tolist() == [0, 2]


def refuse(*runs: Predictions) -> str:
    with pytest.raises(DataError) as caught:
        align_runs(runs)
    return str(caught.value)


def test_runs_that_cannot_be_compared(tmp_path: Path) -> None:
    first = read_rows(tmp_path / "1", "1,a,a", "2,b,b", "3,a,b")
    other_rows = read_rows(tmp_path / "2", "1,a,a", *(f"{row},b,b" for row in range(10, 17)))
    assert refuse(first, other_rows).endswith(
        "7 are only in it (row 10, 11, 12, 13, 14, and 2 more), and 2 are missing (row 2, 3); "
        "expected predictions for the same test split (data_config.split_seed, split_fractions, "
        "split_by, split_column)"
    )
    other_labels = read_rows(tmp_path / "3", "1,a,a", "2,a,b", "3,a,b")
    assert "row 2 has the label b in " in refuse(first, other_labels)
    sets = read_rows(tmp_path / "4", '1,"[""a""]","[]"', '2,"[]","[]"', '3,"[]","[]"')
    assert "has one label a text, and" in refuse(first, sets)


def test_probabilities_follow_their_labels(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path)).reorder_labels(["right", "other", "left", "neutral"])
    assert run.truth.tolist() == [2, 0, 3]
    assert run.probabilities is not None
    assert run.probabilities[0].tolist() == pytest.approx([0.1, 0.0, 0.8, 0.1])
