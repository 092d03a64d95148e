"""Tasks made of the held-out pages of the sample: what they show, ask and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import DataError
from bsmeta.studies.cloze import (
    CLOZE,
    QUESTIONS,
    SITE,
    TITLE,
    WORD,
    Page,
    ask_titles,
    ask_words,
    read_pages,
    write_tasks,
)
from tests.conftest import REPOSITORY

SAMPLE = REPOSITORY / "examples/webdocs/c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cloze")
    data = DataConfig(validation_file=str(SAMPLE))
    write_tasks(data, folder, [*QUESTIONS], shots=5, training_overlap=None)
    return folder


def questions(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_each_question_has_one_correct_continuation_of_its_page(tasks: Path) -> None:
    asked = questions(tasks, CLOZE)
    assert len(asked) > 40
    assert {question["answer"] for question in asked} == {0, 1, 2, 3}
    for question in asked:
        assert len(set(question["choices"])) == 4
        assert 300 <= len(question["beginning"]) < 400
        assert all(choice.startswith(" ") and len(choice) >= 120 for choice in question["choices"])
        assert question["url"].startswith("https://")
    by_right = {question["choices"][question["answer"]]: question for question in asked}
    assert len(by_right) > 40  # so no page lends its continuation to most others


@pytest.mark.parametrize("name", [WORD, TITLE, SITE])
def test_five_examples_and_a_question_fit_in_512_tokens_of_three_characters(
    name: str, tasks: Path
) -> None:
    asked = questions(tasks, name)
    assert len(asked) > 50
    assert {question["answer"] for question in asked} == {0, 1, 2, 3}
    longest = max(
        len(question["beginning"]) + max(map(len, question["choices"])) + len("\n\n")
        for question in asked
    )
    assert 6 * longest < 3 * 512
    for question in asked:
        assert len(set(question["choices"])) == 4
        assert "\n\n" not in question["beginning"]
        assert all(
            choice[0] == " " and choice[1:] == choice[1:].strip() for choice in question["choices"]
        )
    assert len({question["beginning"] for question in asked}) == len(asked)


def test_the_right_word_comes_next_and_the_others_are_not_on_the_page(tasks: Path) -> None:
    pages, _ = read_pages(DataConfig(validation_file=str(SAMPLE)), None)
    lines = {page.url: page.line for page in pages}
    for question in questions(tasks, WORD):
        line, right = lines[question["url"]], question["choices"][question["answer"]]
        assert question["beginning"] + right in line
        assert right.strip() not in question["beginning"]
        others = [choice for choice in question["choices"] if choice != right]
        assert not any(other.strip() in line for other in others)
        assert {(len(other) - len(right)) in (-1, 0, 1) for other in others} == {True}


def test_the_choices_occur_on_similar_numbers_of_pages() -> None:
    """`shared` is on 8 of 90 pages; only one more word is on 8 to 15 pages."""
    fill = "aa " * 70

    def page(number: int, words: str) -> Page:
        return Page(f"https://a.b/{number}", "a.b", "", "", f"{fill}{words} .")

    alone = [page(number, f"word{chr(97 + number)}") for number in range(8)]
    shared = [page(10 + number, "shared") for number in range(8)]
    others = [page(20 + number, "") for number in range(74)]
    asked = list(ask_words([*alone, *shared, *others]))
    rights = {question["choices"][question["answer"]] for question in asked}
    assert rights == {f" word{chr(97 + number)}" for number in range(8)}  # no match for `shared`


def test_the_right_title_is_hidden_and_the_others_are_of_the_same_host() -> None:
    def page(number: int, host: str) -> Page:
        line = f"Title {number}¶ and more text of this page, Title {number} again. " + "body " * 40
        return Page(f"https://{host}/{number}", host, f"Title {number} — {host}", "", line)

    of_a = [page(number, "a.org") for number in range(10, 14)]
    asked = list(ask_titles([*of_a, page(20, "b.org"), page(21, "b.org")]))
    assert len(asked) == 6
    for one in asked:
        assert "Title 1" not in one["beginning"]
        assert "Title 2" not in one["beginning"]
        assert one["beginning"].endswith("body\nTitle:")
    assert {choice[-5:] for question in asked[:4] for choice in question["choices"]} == {"a.org"}
    assert {choice[-5:] for choice in asked[4]["choices"]} == {"a.org", "b.org"}  # b has only two


def test_the_tasks_are_deterministic_and_equal_for_all_arms(tasks: Path, tmp_path: Path) -> None:
    metadata = MetadataConfig(metadata_list=["url", "timestamp"])
    config = DataConfig(validation_file=str(SAMPLE), metadata_config=metadata)
    write_tasks(config, tmp_path, [*QUESTIONS], training_overlap=None)
    for name in QUESTIONS:
        assert questions(tmp_path, name) == questions(tasks, name)
        settings = json.loads((tmp_path / f"{name}.yaml").read_text())
        assert settings["dataset_kwargs"]["data_files"]["test"] == str(tmp_path / f"{name}.jsonl")


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        (CLOZE, "pages of at least 420 characters"),
        (WORD, "pages with a content word after 180 characters"),
        (TITLE, "pages with a title, and 60 characters without it"),
        (SITE, "pages of at least 4 hosts, and 60 characters without their name"),
    ],
)
def test_too_few_pages_are_refused(name: str, needs: str, tmp_path: Path) -> None:
    shard = tmp_path / "test.jsonl"
    shard.write_text(json.dumps({"text": "a few words " * 60}) + "\n")
    message = f"0 questions of {name} from 1 pages; expected 6 or more \\({needs}; with 4 different"
    data = DataConfig(validation_file=str(shard))
    with pytest.raises(DataError, match=message):
        write_tasks(data, tmp_path / "task", [name], shots=5, training_overlap=None)
