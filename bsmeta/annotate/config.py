"""Defines the keys of `bsmeta annotate`: pages, annotators, shards and processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.data import EXTRACTORS
from bsmeta.core.keys import key

OFF = "off"
MARK = "mark"
DROP = "drop"


@dataclass(frozen=True, kw_only=True)
class AnnotateConfig:
    """Annotates raw pages and writes shards of text with metadata."""

    input: Any = key(
        None,
        "raw pages: path, folder or glob (or a list of them) of .warc(.gz), .warc.wet(.gz), "
        ".jsonl(.gz, .zst) or .json(.gz, .zst) with `url` and `html` or with `text`, .parquet",
        is_path=True,
        heading="Pages and shards",
    )
    output: str | None = key(
        None, "folder of the shards: one .jsonl.gz per input file", is_path=True
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
        "names of annotators, or dotted paths of your own classes (my.module.Class)",
    )
    replace: list[str] = key(
        [],
        "annotators whose columns are recomputed in complete shards, together with the columns of "
        "annotators that depend on them; executor=local only",
    )
    only: list[str] | None = key(
        None,
        "run only these annotators; other columns of existing shards are kept, even if their "
        "annotators have changed",
    )
    keep_html: bool = key(False, "keep the raw page in column `html`")
    report: bool = key(True, "write report.html and report.json once all shards are complete")
    report_pages: int = key(
        10, "number of pages that the report shows beside their text", at_least=0
    )

    profile: str = key(
        "published",
        "text of a page: published (without scripts, headers, footers, forms and short blocks, as "
        "in c4-en-html-with-metadata) or all",
        choices=("published", "all"),
        heading="Annotators",
    )
    content_extractors: list[str] = key(
        ["resiliparse", "trafilatura"],
        "content: extractors of the main content; trafilatura is more accurate, and takes most of "
        "the time of all annotators",
        choices=EXTRACTORS,
    )
    timestamp_sources: list[str] = key(
        ["url", "page", "visible"],
        "timestamp: sources of a date, in order: url (year and month), page (declared dates), "
        "visible (a date that readers see, by htmldate), crawl (time of the crawl); no date is "
        "later than the crawl",
        choices=("url", "page", "visible", "crawl"),
    )
    descriptions: str | None = key(
        None,
        "website_description: table of domains and descriptions (.tsv, .jsonl or .sqlite; see "
        "python -m bsmeta.annotate.descriptions)",
        is_path=True,
    )
    description_sources: list[str] = key(
        ["table", "page"],
        "website_description: sources, in order: table, page (meta description)",
        choices=("table", "page"),
    )
    length_of: list[str] = key(
        ["text"], "length: units whose length is recorded", choices=("text", "sentence")
    )
    sentence_splitter: str = key(
        "rules",
        "length: end of a sentence: rules (abbreviations and decimals do not end one) or "
        "full_stops (every full stop does, as published)",
        choices=("rules", "full_stops"),
    )
    paragraph_values: bool = key(
        False, "paragraph: record the text of each (as published) instead of its number"
    )
    spelling_model: str | None = key(
        None,
        "spelling: model that flags misspelled words: run of task=sed_words, or one of its "
        "checkpoints",
        is_path=True,
    )
    label_model: str | None = key(
        None,
        "label: classifier: run of task=classification, or one of its checkpoints",
        is_path=True,
    )
    entity_source: str = key(
        "links",
        "entity: links (an anchor's text mentions the target page, if the input contains it) or "
        "checkpoint (mentions detected by a trained disambiguator)",
        choices=("links", "checkpoint"),
    )
    entity_model: str | None = key(
        None,
        "entity_source=checkpoint: run of task=disambiguation, or one of its checkpoints",
        is_path=True,
    )
    entity_min_score: float | None = key(
        None,
        "entity_source=checkpoint: minimum probability of an entity; null: `min_score` of the "
        "model's run",
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
        0.1, "disambiguation: share of the pages that go to dev.jsonl", at_least=0, below=1
    )

    duplicates: str = key(
        OFF,
        "pages whose text is the same as an earlier page's, or similar: off (not looked for), mark "
        "(column `metadata_duplicate` names the earlier page) or drop (only the first page, in the "
        "order of input files and records, has a row)",
        choices=(OFF, MARK, DROP),
        heading="Duplicates",
    )
    duplicate_threshold: float = key(
        0.8,
        "share of common shingles (Jaccard similarity, as estimated) from which two texts are "
        "duplicates",
        at_least=0.5,
        at_most=1,
    )
    duplicate_permutations: int = key(
        128,
        "number of values in a page's signature, each of 4 bytes; with more, similarities are "
        "estimated more accurately",
        at_least=16,
        at_most=1024,
    )
    duplicate_shingle: int = key(
        5,
        "words of a shingle; in scripts without spaces between words, characters",
        at_least=1,
        at_most=50,
    )
    duplicate_min_words: int = key(
        20,
        "texts of fewer words (or characters, as above) are duplicates only of the same text",
        at_least=1,
    )
    held_out: Any = key(
        None,
        "held-out pages: files as in `input`; pages of other files that copy one of them, even "
        "nearly, are dropped or marked. An input file that is held out itself stays whole",
        is_path=True,
    )
    held_out_copies: str = key(DROP, "held_out: what is done with the copies", choices=(MARK, DROP))
    duplicates_only: bool = key(
        False,
        "only look for duplicates, such as in finished shards, and write duplicates.jsonl: no "
        "shards are made, and copies of held-out pages are an error",
    )

    executor: str = key(
        "local",
        "local (processes of this machine), slurm or ray (many machines, through datatrove)",
        choices=("local", "slurm", "ray"),
        heading="Processes and limits",
    )
    workers: int | None = key(
        None, "processes per machine or SLURM task; null: its number of cores", at_least=1
    )
    tasks: int | None = key(
        None, "slurm, ray: number of tasks; null: one per input file", at_least=1
    )
    task_memory_gb: int = key(4, "slurm, ray: memory per worker, in GB", at_least=1)
    slurm_partition: str = key("", "slurm: partition; empty: default of the cluster")
    slurm_time: str = key("24:00:00", "slurm: time limit of a task")
    slurm_setup: str = key("", "slurm: shell command that prepares the environment of a task")
    chunk_pages: int = key(
        64, "maximum number of pages in a chunk, which is written as a whole", at_least=1
    )
    chunk_mb: float = key(16, "size of the pages at which a chunk ends, in MB", above=0)
    page_mb: float = key(
        8, "size limit of a page, in MB; larger ones are counted as too_large and not read", above=0
    )
    page_seconds: float = key(
        30, "time limit of a page, in seconds; its process is then replaced", above=0
    )
    on_bad_record: str = key(
        "skip",
        "damaged records of a WARC file: refuse the file, skip them (counted, offsets in the "
        "journal; a file that is cut off is refused) or salvage (read a file that is cut off, too)",
        choices=("refuse", "skip", "salvage"),
    )
    worker_gb: float = key(
        4, "memory limit of a process, in GB; pages that need more are counted", above=0
    )
    check_disk: bool = key(
        True, "refuse to start if the shards are unlikely to fit on the disk of `output`"
    )


@dataclass(frozen=True, kw_only=True)
class DescriptionsConfig:
    """Makes a table of domains and descriptions from a dump of Wikipedia's articles."""

    dump: str | None = key(
        None, "pages-articles.xml of Wikipedia, plain or compressed (.bz2, .gz)", is_path=True
    )
    output: str | None = key(None, "the table: .tsv, .jsonl or .sqlite", is_path=True)
