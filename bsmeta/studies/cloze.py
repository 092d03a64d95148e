"""Makes tasks for lm-evaluation-harness of held-out pages: no network, no labels, four choices.

| task | a question shows | and asks |
|---|---|---|
| `bsmeta_cloze` | the beginning of a page | which text follows |
| `bsmeta_word` | text of a page up to a content word | which word comes next |
| `bsmeta_title` | the first text of a page without its title | which title belongs to it |
| `bsmeta_site` | the beginning of a page | which host it is from |

The answers of the last two are metadata. A model that was trained with titles or URLs was given
these answers, so the two tasks measure knowledge of metadata, not of language.

The word is the last thing that a question of `bsmeta_word` needs: the context ends before it, and
the choices are words alone, as in LAMBADA (Paperno et al. 2016). A causal model cannot read the
text after a blank. Scoring each word with the rest of its sentence would let it, but most bytes of
the answer would then be the same in all choices, and bits per byte would measure the sentence.

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

_CANDIDATE = re.compile(r"(?<= )[a-z]{5,14}(?=[ .,;:!?])")
_SEPARATOR = re.compile(r" [—–|·:-] |: ")
"""Between the title of a page and the name of its site."""
_MAX_PAGE_SHARE = 0.1
"""Share of the pages beyond which a word is not a content word, but a word like `which`."""

Question = dict[str, Any]


@dataclass(frozen=True)
class Page:
    """A held-out page.

    Attributes:
        host: The host, as in the sites of a study's report; empty if unknown.
        title: Empty if unknown.
        line: The text with each run of white space as one blank.
    """

    url: str
    host: str
    title: str
    text: str
    line: str


def write_tasks(config: DataConfig, folder: Path, names: Sequence[str], shots: int = 0) -> None:
    """Writes tasks and their questions, made from `validation_file`, to a folder.

    Args:
        names: Keys of `QUESTIONS`.
        shots: Maximum number of examples before a question.

    Raises:
        DataError: If too few pages are long enough, or have what the task asks for.
    """
    pages, source = read_pages(config)
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
    """Returns the file of a task, in the form of lm-evaluation-harness."""
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


def read_pages(config: DataConfig) -> tuple[list[Page], str]:
    """Reads the pages of `validation_file` without duplicates; also returns the name of the file.

    They do not depend on the metadata of the run, so that all arms answer the same questions.
    """
    metadata = MetadataConfig(metadata_list=["title"])
    documents = HeldOutDocuments(
        replace(config, metadata_config=metadata), max_documents=None, deduplicate=True
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
    halves: list[tuple[Page, str, str]] = []
    for page in pages:
        beginning, following = _split_text(page.text)
        if following:
            halves.append((page, beginning, following))
    all_following = sorted({following for _, _, following in halves})
    if len(all_following) < NUM_CHOICES:
        return

    for page, beginning, following in halves:
        rng = random.Random(derive_seed("cloze", page.url, beginning))
        others = [text for text in all_following if text != following]
        yield _make_question(page, beginning, following, rng.sample(others, NUM_CHOICES - 1), rng)


def _split_text(text: str) -> tuple[str, str]:
    """Returns the beginning of a text and the text after it, cut before blanks.

    Both are empty if the text is too short.
    """
    first = text.find(" ", CONTEXT_CHARS)
    second = text.find(" ", first + CONTINUATION_CHARS)
    # A text without blanks, such as one in Chinese, would be shown far beyond the limits.
    if first < 0 or second < 0 or second > CONTEXT_CHARS + 3 * CONTINUATION_CHARS:
        return "", ""
    return text[:first], text[first:second]


def ask_words(pages: Sequence[Page]) -> Iterator[Question]:
    """Asks which content word comes next: that word, or three like it that the page does not have.

    Words are alike if their lengths, and the numbers of pages that have them, are almost the same
    (by powers of two), so that neither length nor frequency gives the answer away. In such a class,
    a word that is on more pages is more often the answer, so it is drawn more often as well.
    """
    page_counts: Counter[str] = Counter()
    for page in pages:
        page_counts.update(set(_CANDIDATE.findall(page.line)))
    words_by_class = _group_content_words(page_counts, len(pages))

    for page in pages:
        rng = random.Random(derive_seed("word", page.url, page.line))
        positions = _find_first_positions(page.line)
        for word in rng.sample(sorted(positions), len(positions)):
            text_before = _cut_text_before(page.line, positions[word])
            others = words_by_class[_classify_word(word, page_counts[word])]
            if word in text_before or word not in others:
                continue  # it could be copied, or is no content word
            others = [other for other in others if other not in page.line]
            if len(others) >= NUM_CHOICES - 1:
                wrong = [f" {other}" for other in _draw_weighted(others, page_counts, rng)]
                yield _make_question(page, text_before, f" {word}", wrong, rng)
                break


def _group_content_words(
    page_counts: Mapping[str, int], num_pages: int
) -> defaultdict[tuple[int, int], list[str]]:
    """Groups the words that few pages have by length and frequency.

    Args:
        page_counts: Number of pages that have each word.
    """
    words_by_class: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for word in sorted(page_counts):
        if page_counts[word] <= max(_MAX_PAGE_SHARE * num_pages, 1):
            words_by_class[_classify_word(word, page_counts[word])].append(word)
    return words_by_class


def _find_first_positions(line: str) -> dict[str, int]:
    """Returns where each word to ask for first stands, with enough text before it."""
    positions: dict[str, int] = {}
    for match in _CANDIDATE.finditer(line):
        if match.start() > MAX_CHARS_BEFORE_WORD:
            positions.setdefault(match[0], match.start())
    return positions


def _draw_weighted(
    words: Sequence[str], weights: Mapping[str, int], rng: random.Random
) -> list[str]:
    """Draws words without replacement, with weights (Efraimidis and Spirakis 2006)."""
    keys = {word: rng.random() ** (1 / weights[word]) for word in words}
    return sorted(words, key=lambda word: keys[word])[-(NUM_CHOICES - 1) :]


def _classify_word(word: str, pages: int) -> tuple[int, int]:
    """Returns the class of words of about the same length and frequency (within a factor of 2)."""
    return (len(word) + 1) // 2, pages.bit_length()


def _cut_text_before(line: str, end: int) -> str:
    """Returns whole words of the text before a word, without the blank at the end."""
    return line[line.find(" ", end - 1 - MAX_CHARS_BEFORE_WORD) + 1 : end - 1]


def ask_titles(pages: Sequence[Page]) -> Iterator[Question]:
    """Asks which title belongs to a page, among the titles of its host if there are enough.

    Among titles of several hosts, the name of the site would be the answer.
    """
    titles = {page: _cut_at_blank(page.title, MAX_TITLE_CHARS) for page in pages if page.title}
    titles_by_host: defaultdict[str, set[str]] = defaultdict(set)
    for page, title in titles.items():
        titles_by_host[page.host].add(title)
    all_titles = set(titles.values())

    for page, title in titles.items():
        shown = _find_beginning(page.line, _SEPARATOR.split(title)[0])
        others = titles_by_host[page.host] - {title}
        if len(others) < NUM_CHOICES - 1:
            others = all_titles - {title}
        if shown and len(others) >= NUM_CHOICES - 1:
            rng = random.Random(derive_seed("title", page.url, page.line))
            wrong = [f" {other}" for other in rng.sample(sorted(others), NUM_CHOICES - 1)]
            yield _make_question(page, f"{shown}\nTitle:", f" {title}", wrong, rng)


def _find_beginning(line: str, left_out: str) -> str:
    """Returns the first text of a page without these words, which could be copied; "" if none."""
    start = 0
    while len(shown := _cut_at_blank(line[start:], MAX_BEGINNING_CHARS)) >= MIN_BEGINNING_CHARS:
        position = shown.lower().find(left_out.lower())
        if position < 0:
            return shown
        start = line.find(" ", start + position + len(left_out)) + 1 or len(line)
    return ""


def ask_sites(pages: Sequence[Page]) -> Iterator[Question]:
    """Asks which host a page is from."""
    hosts = sorted({page.host for page in pages if page.host})
    if len(hosts) < NUM_CHOICES:
        return
    for page in pages:
        shown = _find_beginning(page.line, page.host) if page.host else ""
        if shown:
            rng = random.Random(derive_seed("site", page.url, page.line))
            others = [host for host in hosts if host != page.host]
            wrong = [f" {other}" for other in rng.sample(others, NUM_CHOICES - 1)]
            yield _make_question(page, f"{shown}\nSite:", f" {page.host}", wrong, rng)


def _cut_at_blank(text: str, limit: int) -> str:
    """Cuts a text to a number of characters, at a blank if there is one."""
    if len(text) <= limit:
        return text
    return text[:limit].rsplit(" ", 1)[0]


def _make_question(
    page: Page, beginning: str, right: str, wrong: Sequence[str], rng: random.Random
) -> Question:
    answer = rng.randrange(NUM_CHOICES)
    choices = [*wrong]
    choices.insert(answer, right)
    return {
        "url": page.url,
        "host": page.host,
        "beginning": beginning,
        "choices": choices,
        "answer": answer,
    }


def _drop_repeats(questions: Iterator[Question]) -> Iterator[Question]:
    """Yields the first of the questions that show the same text.

    So no example shows the text of the question that it stands before.
    """
    seen = set()
    for question in questions:
        if question["beginning"] not in seen:
            seen.add(question["beginning"])
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
