"""Makes tasks for lm-evaluation-harness from held-out pages: no network, no labels, four choices.

| task | a question shows | and asks |
|---|---|---|
| `bsmeta_cloze` | the beginning of a page | which text follows |
| `bsmeta_word` | text of a page up to a content word | which word comes next |
| `bsmeta_title` | the first text of a page without its title | which title belongs to it |
| `bsmeta_site` | the beginning of a page | which host it is from |

The answers of the last two are metadata. A model that was trained with titles or URLs was given
these answers, so the two tasks measure knowledge of metadata, not of language.

In `bsmeta_word` the context ends before the word, and the choices are single words, as in LAMBADA
(Paperno et al. 2016), because a causal model cannot read the text after a gap. If each choice
included the rest of the sentence, most bytes of the answer would be the same in all choices, and
bits per byte would measure the sentence.

A question of the last three shows about 150 to 180 characters on one line, so that five examples
and the question fit in 512 tokens of three characters.

Questions follow from the pages and their order alone. The examples of a question are drawn by the
harness among the other questions, from a fixed seed; no two questions show the same text.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import DataError
from bsmeta.core.files import write_json, write_text
from bsmeta.data import derive_seed
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.slices import list_document_facts
from bsmeta.tasks.causal_lm.evaluation.training_overlap import TrainingOverlap

CLOZE = "bsmeta_cloze"
WORD = "bsmeta_word"
TITLE = "bsmeta_title"
SITE = "bsmeta_site"
NUM_CHOICES = 4
CONTEXT_CHARS = 300
"""Characters that `bsmeta_cloze` shows (up to the next blank)."""
CONTINUATION_CHARS = 120
"""Characters of each of its choices (up to the next blank)."""
MAX_CHARS_BEFORE_WORD = 180
"""Maximum number of characters that `bsmeta_word` shows."""
MAX_BEGINNING_CHARS = 150
"""Maximum number of characters of a page that a question about its title or host shows."""
MIN_BEGINNING_CHARS = 60
"""Minimum number of characters of a page that such a question shows."""
MAX_TITLE_CHARS = 60
"""Maximum number of characters of a title."""

_CANDIDATE_WORD = re.compile(r"(?<= )[a-z]{5,14}(?=[ .,;:!?])")
_SEPARATOR = re.compile(r" [—–|·:-] |: ")
"""Between the title of a page and the name of its site."""
_MAX_PAGE_SHARE = 0.1
"""Share of the pages above which a word is taken for a function word, such as `which`."""

Question = dict[str, Any]


@dataclass(frozen=True)
class Page:
    """A held-out page.

    Attributes:
        url: Empty if unknown.
        host: The host, as in the sites of a study's report; empty if unknown.
        title: Empty if unknown.
        text: The text as in the file.
        line: The text with each run of white space replaced by one blank.
    """

    url: str
    host: str
    title: str
    text: str
    line: str


def write_tasks(
    config: DataConfig,
    folder: Path,
    names: Sequence[str],
    shots: int = 0,
    *,
    training_overlap: TrainingOverlap | None,
) -> None:
    """Writes tasks and their questions, made from `validation_file`, to a folder.

    Args:
        config: The data of a run, with `validation_file`.
        names: Keys of `QUESTIONS`.
        shots: Maximum number of examples before a question.
        training_overlap: As for `HeldOutDocuments`.

    Raises:
        DataError: If too few pages are long enough, or have the title or host that a task needs; or
            if a page is in a training shard.
    """
    pages, source = read_pages(config, training_overlap)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        questions = list(_drop_repeats(QUESTIONS[name](pages)))
        min_questions = max(NUM_CHOICES, shots + 1)
        if len(questions) < min_questions:
            raise DataError(
                f"{source}: {len(questions)} questions of {name} from {len(pages)} pages; expected "
                f"{min_questions} or more ({_REQUIREMENTS[name]}; with {NUM_CHOICES} different "
                "answers, and one more question than downstream.shots)"
            )

        lines = (json.dumps(question, ensure_ascii=False) + "\n" for question in questions)
        file = folder / f"{name}.jsonl"
        write_text(file, "".join(lines))
        write_json(folder / f"{name}.yaml", _make_harness_settings(name, file))  # JSON is YAML


def _make_harness_settings(name: str, questions: Path) -> dict[str, Any]:
    """Returns the content of a task file of lm-evaluation-harness.

    Args:
        questions: The file of the questions.
    """
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(questions.resolve())}},
        "test_split": "test",
        "fewshot_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{beginning}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


def read_pages(
    config: DataConfig, training_overlap: TrainingOverlap | None
) -> tuple[list[Page], str]:
    """Reads the pages of `validation_file` without duplicates; also returns the path of the file.

    The pages do not depend on the metadata of the run, so that all arms answer the same questions.
    """
    metadata = MetadataConfig(metadata_list=["title"])
    documents = HeldOutDocuments(
        replace(config, metadata_config=metadata),
        max_documents=None,
        deduplicate=True,
        training_overlap=training_overlap,
    )
    hosts = list_document_facts(documents, metadata)["site"]
    pages = []
    for index, host in enumerate(hosts):
        document = documents[index]
        titles = [str(record.value) for record in document.records("title")]
        title = " ".join(titles[0].split()) if titles else ""
        line = " ".join(document.text.split())
        pages.append(Page(document.url or "", host or "", title, document.text, line))
    return pages, str(documents.path)


def ask_continuations(pages: Sequence[Page]) -> Iterator[Question]:
    """Asks which text follows the beginning of a page."""
    split_pages: list[tuple[Page, str, str]] = []
    for page in pages:
        beginning, continuation = _split_text(page.text)
        if continuation:
            split_pages.append((page, beginning, continuation))
    continuations = sorted({continuation for _, _, continuation in split_pages})
    if len(continuations) < NUM_CHOICES:
        return

    for page, beginning, continuation in split_pages:
        rng = random.Random(derive_seed("cloze", page.url, beginning))
        others = [other for other in continuations if other != continuation]
        wrong = rng.sample(others, NUM_CHOICES - 1)
        yield _make_question(page, beginning, continuation, wrong, rng)


def _split_text(text: str) -> tuple[str, str]:
    """Returns the beginning of a text and its continuation, both cut before blanks.

    Both are empty if the text is too short.
    """
    context_end = text.find(" ", CONTEXT_CHARS)
    end = text.find(" ", context_end + CONTINUATION_CHARS)
    # A text without blanks, such as one in Chinese, would be shown far beyond the limits.
    if context_end < 0 or end < 0 or end > CONTEXT_CHARS + 3 * CONTINUATION_CHARS:
        return "", ""
    return text[:context_end], text[context_end:end]


def ask_words(pages: Sequence[Page]) -> Iterator[Question]:
    """Asks which content word comes next; the wrong choices are words that the page does not have.

    All choices have about the same length and document frequency (within a factor of two), so that
    neither gives the answer away. Among such words, the answer is more often one on more pages, so
    these are drawn more often as wrong choices, too.
    """
    page_counts: Counter[str] = Counter()
    for page in pages:
        page_counts.update(set(_CANDIDATE_WORD.findall(page.line)))
    words_by_class = _group_content_words(page_counts, len(pages))

    for page in pages:
        question = _ask_word(page, page_counts, words_by_class)
        if question is not None:
            yield question


def _ask_word(
    page: Page,
    page_counts: Mapping[str, int],
    words_by_class: Mapping[tuple[int, int], Sequence[str]],
) -> Question | None:
    """Asks for a random content word of a page; None if the page has no suitable one.

    Args:
        page_counts: Number of pages that have each word.
        words_by_class: The result of `_group_content_words`.
    """
    rng = random.Random(derive_seed("word", page.url, page.line))
    positions = _find_first_positions(page.line)
    for word in rng.sample(sorted(positions), len(positions)):
        text_before = _cut_text_before(page.line, positions[word])
        similar_words = words_by_class.get(_classify_word(word, page_counts[word]), ())
        if word in text_before or word not in similar_words:
            continue  # it could be copied, or is not a content word

        others = [other for other in similar_words if other not in page.line]
        if len(others) >= NUM_CHOICES - 1:
            wrong = [f" {other}" for other in _draw_wrong_words(others, page_counts, rng)]
            return _make_question(page, text_before, f" {word}", wrong, rng)
    return None


def _group_content_words(
    page_counts: Mapping[str, int], num_pages: int
) -> dict[tuple[int, int], list[str]]:
    """Groups content words, the words of few pages, by their class (see `_classify_word`).

    Args:
        page_counts: Number of pages that have each word.
    """
    words_by_class: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for word in sorted(page_counts):
        if page_counts[word] <= max(_MAX_PAGE_SHARE * num_pages, 1):
            words_by_class[_classify_word(word, page_counts[word])].append(word)
    return words_by_class


def _find_first_positions(line: str) -> dict[str, int]:
    """Returns the first position of each candidate word that has enough text before it."""
    positions: dict[str, int] = {}
    for match in _CANDIDATE_WORD.finditer(line):
        if match.start() > MAX_CHARS_BEFORE_WORD:
            positions.setdefault(match[0], match.start())
    return positions


def _draw_wrong_words(
    words: Sequence[str], page_counts: Mapping[str, int], rng: random.Random
) -> list[str]:
    """Draws words without replacement, with the number of their pages as weights.

    The method is from Efraimidis and Spirakis (2006).
    """
    ranks = {word: rng.random() ** (1 / page_counts[word]) for word in words}
    return sorted(words, key=lambda word: ranks[word])[-(NUM_CHOICES - 1) :]


def _classify_word(word: str, num_pages: int) -> tuple[int, int]:
    """Returns the class of words of about the same length and frequency.

    Args:
        num_pages: Number of pages that have the word; equal within a factor of 2 in a class.
    """
    return (len(word) + 1) // 2, num_pages.bit_length()


def _cut_text_before(line: str, word_start: int) -> str:
    """Returns the last whole words of the text before a word, without the blank at the end."""
    end = word_start - 1
    start = line.find(" ", end - MAX_CHARS_BEFORE_WORD) + 1
    return line[start:end]


def ask_titles(pages: Sequence[Page]) -> Iterator[Question]:
    """Asks which title belongs to a page; the choices are titles of its host if it has enough.

    Among titles of several hosts, the name of the site would give the answer away.
    """
    titles = {page: _cut_at_blank(page.title, MAX_TITLE_CHARS) for page in pages if page.title}
    titles_by_host: defaultdict[str, set[str]] = defaultdict(set)
    for page, title in titles.items():
        titles_by_host[page.host].add(title)
    all_titles = set(titles.values())

    for page, title in titles.items():
        beginning = _find_beginning_without(_SEPARATOR.split(title)[0], page.line)
        others = titles_by_host[page.host] - {title}
        if len(others) < NUM_CHOICES - 1:
            others = all_titles - {title}
        if beginning and len(others) >= NUM_CHOICES - 1:
            rng = random.Random(derive_seed("title", page.url, page.line))
            wrong = [f" {other}" for other in rng.sample(sorted(others), NUM_CHOICES - 1)]
            yield _make_question(page, f"{beginning}\nTitle:", f" {title}", wrong, rng)


def _find_beginning_without(answer: str, line: str) -> str:
    """Returns the first long enough part of a page without the answer, which could be copied.

    Returns "" if there is none.
    """
    start = 0
    while True:
        beginning = _cut_at_blank(line[start:], MAX_BEGINNING_CHARS)
        if len(beginning) < MIN_BEGINNING_CHARS:
            return ""

        position = beginning.lower().find(answer.lower())
        if position < 0:
            return beginning

        blank = line.find(" ", start + position + len(answer))
        if blank < 0:
            return ""
        start = blank + 1


def ask_sites(pages: Sequence[Page]) -> Iterator[Question]:
    """Asks which host a page is from."""
    hosts = sorted({page.host for page in pages if page.host})
    if len(hosts) < NUM_CHOICES:
        return

    for page in pages:
        beginning = _find_beginning_without(page.host, page.line) if page.host else ""
        if beginning:
            rng = random.Random(derive_seed("site", page.url, page.line))
            others = [host for host in hosts if host != page.host]
            wrong = [f" {other}" for other in rng.sample(others, NUM_CHOICES - 1)]
            yield _make_question(page, f"{beginning}\nSite:", f" {page.host}", wrong, rng)


def _cut_at_blank(text: str, limit: int) -> str:
    """Cuts a text to at most `limit` characters, at a blank if there is one."""
    if len(text) <= limit:
        return text
    return text[:limit].rsplit(" ", 1)[0]


def _make_question(
    page: Page, beginning: str, right: str, wrong: Sequence[str], rng: random.Random
) -> Question:
    """Returns a question whose choices have the right answer at a random position."""
    answer = rng.randrange(NUM_CHOICES)
    choices = list(wrong)
    choices.insert(answer, right)
    return {
        "url": page.url,
        "host": page.host,
        "beginning": beginning,
        "choices": choices,
        "answer": answer,
    }


def _drop_repeats(questions: Iterator[Question]) -> Iterator[Question]:
    """Yields only the first of the questions that show the same text.

    Otherwise an example could show the text of the question that follows it.
    """
    seen_texts = set()
    for question in questions:
        if question["beginning"] not in seen_texts:
            seen_texts.add(question["beginning"])
            yield question


QUESTIONS: dict[str, Callable[[Sequence[Page]], Iterator[Question]]] = {
    CLOZE: ask_continuations,
    WORD: ask_words,
    TITLE: ask_titles,
    SITE: ask_sites,
}
_REQUIREMENTS = {
    CLOZE: f"pages of at least {CONTEXT_CHARS + CONTINUATION_CHARS} characters",
    WORD: f"pages with a content word after {MAX_CHARS_BEFORE_WORD} characters",
    TITLE: f"pages with a title, and {MIN_BEGINNING_CHARS} characters without it",
    SITE: (
        f"pages of at least {NUM_CHOICES} hosts, and {MIN_BEGINNING_CHARS} characters without "
        "their name"
    ),
}
