"""Schema of `annotate.py`: raw pages, the annotators, and where and how the shards are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.data import EXTRACTORS
from bsmeta.core.keys import key


@dataclass(frozen=True, kw_only=True)
class AnnotateConfig:
    """Raw pages, made into shards of text with metadata."""

    input: Any = key(
        None,
        "the pages: a path, a folder or a glob (or a list) of .warc(.gz), .warc.wet(.gz), "
        ".jsonl(.gz, .zst) with `url` and `html` or with `text`, .parquet",
        is_path=True,
        heading="Pages and shards",
    )
    output: str | None = key(
        None, "folder of the shards: one .jsonl.gz for each input file", is_path=True
    )
    annotators: list[str] = key(
        [
            "html",
            "url",
            "title",
            "timestamp",
            "website_description",
            "datasource",
            "length",
            "paragraph",
            "language",
        ],
        "what is recorded about each page: names, or classes of yours as dotted paths "
        "(my.module.Class)",
    )
    replace: list[str] = key(
        [],
        "annotators whose columns are recomputed in shards that are complete, with those of "
        "annotators that need them; executor=local only",
    )
    only: list[str] | None = key(
        None,
        "the only annotators that run; the other columns of existing shards stay as they are, even "
        "if their annotators have changed",
    )
    keep_html: bool = key(False, "keep the raw page in the column `html`")
    report: bool = key(True, "write report.html and report.json when all shards are complete")
    report_pages: int = key(10, "pages that the report shows beside their text", at_least=0)

    profile: str = key(
        "published",
        "which parts of a page are its text: published (without script, header, footer, form and "
        "short blocks, as in c4-en-html-with-metadata) or all",
        choices=("published", "all"),
        heading="Annotators",
    )
    content_extractors: list[str] = key(
        ["resiliparse", "trafilatura"],
        "content: what finds the main content of a page; trafilatura finds it better, and takes "
        "most of the time of all annotators",
        choices=EXTRACTORS,
    )
    timestamp_sources: list[str] = key(
        ["url", "page"],
        "where a date is looked for, in order: url (year and month), page (what it declares), "
        "crawl (the time of the crawl)",
        choices=("url", "page", "crawl"),
    )
    descriptions: str | None = key(
        None,
        "website_description: table of domains and descriptions (.tsv, .jsonl or .sqlite; see "
        "python -m bsmeta.annotate.descriptions)",
        is_path=True,
    )
    description_sources: list[str] = key(
        ["table", "page"],
        "website_description: where it is looked for, in order: table, page (meta description)",
        choices=("table", "page"),
    )
    length_of: list[str] = key(
        ["text"], "length: of the text, and of each sentence", choices=("text", "sentence")
    )
    sentence_splitter: str = key(
        "rules",
        "length of sentences: rules (knows abbreviations and decimals) or full_stops (every full "
        "stop ends one, as published)",
        choices=("rules", "full_stops"),
    )
    paragraph_values: bool = key(
        False, "paragraph: the text of each as its value (as published) instead of its number"
    )
    spelling_model: str | None = key(
        None,
        "spelling: a trained model that flags misspelled words: a run of task=sed_words, or one of "
        "its checkpoints",
        is_path=True,
    )
    label_model: str | None = key(
        None,
        "label: a trained classifier: a run of task=classification, or one of its checkpoints",
        is_path=True,
    )
    entity_source: str = key(
        "links",
        "entity: links (an anchor's text is a mention of the page that it leads to, if that is "
        "among the input) or checkpoint (what a trained disambiguator detects)",
        choices=("links", "checkpoint"),
    )
    entity_model: str | None = key(
        None,
        "entity_source=checkpoint: a run of task=disambiguation, or one of its checkpoints",
        is_path=True,
    )
    entity_min_score: float | None = key(
        None,
        "entity_source=checkpoint: entities with a lower probability are dropped; null: the "
        "`min_score` of the model's run",
        at_least=0,
        at_most=1,
    )
    disambiguation: str | None = key(
        None,
        "entity: also write profiles.jsonl, train.jsonl and dev.jsonl for the disambiguation task "
        "to this folder",
        is_path=True,
    )
    disambiguation_dev_share: float = key(
        0.1, "share of the pages that dev.jsonl is made from", at_least=0, below=1
    )

    executor: str = key(
        "local",
        "local: processes of this machine; slurm, ray: on many machines, through datatrove",
        choices=("local", "slurm", "ray"),
        heading="Processes and limits",
    )
    workers: int | None = key(
        None, "processes of a machine or of a SLURM task; null: its cores", at_least=1
    )
    tasks: int | None = key(
        None, "slurm, ray: number of tasks; null: one for each input file", at_least=1
    )
    task_memory_gb: int = key(4, "slurm, ray: memory of a task per worker", at_least=1)
    slurm_partition: str = key("", "slurm: partition; empty: the cluster's default")
    slurm_time: str = key("24:00:00", "slurm: time limit of a task")
    slurm_setup: str = key("", "slurm: command that sets up the environment of a task")
    chunk_pages: int = key(
        64, "pages that are annotated, compressed and written together", at_least=1
    )
    chunk_mb: float = key(16, "size of its pages, in MB, at which a chunk also ends", above=0)
    page_mb: float = key(8, "a larger page is counted as too_large and not read", above=0)
    page_seconds: float = key(
        30, "a page that takes longer ends its process, which is replaced", above=0
    )
    worker_gb: float = key(
        4, "memory that a process may allocate; a page that needs more is counted", above=0
    )
    check_disk: bool = key(
        True, "refuse to start if the shards will probably not fit on the disk of `output`"
    )


@dataclass(frozen=True, kw_only=True)
class DescriptionsConfig:
    """A table of domains and descriptions, made from a dump of Wikipedia's articles."""

    dump: str | None = key(
        None, "pages-articles.xml of Wikipedia, plain or compressed (.bz2, .gz)", is_path=True
    )
    output: str | None = key(None, "the table: .tsv, .jsonl or .sqlite", is_path=True)
