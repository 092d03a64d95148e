"""Schema of `data_config`: where documents come from, and how they become batches; its checks.

The checks read no data; they find values that are invalid whatever the data are.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, format_value, raise_problems
from bsmeta.core.keys import find_bound_problems, key
from bsmeta.core.secrets import format_url

MAX_PARTS = 1 << 20
"""Maximum sum of a mixture's weights as integers in lowest terms, which is the number of sequences
in its period. A run computes the period when it starts, which takes about a second at this size."""

EXTRACTORS = ("resiliparse", "trafilatura")
"""The extractors of a page's main content; see `DataConfig.content`."""

BY_TEXT = "text"
"""The `row_budget` with which only the text tokens of a row count."""

HUB_SCHEME = "hf://"
"""The scheme of addresses of files on the Hugging Face Hub."""

OBJECT_STORES = ("s3://", "gs://", "az://")
"""The schemes of addresses of objects in buckets."""

REMOTE_SCHEMES = (HUB_SCHEME, *OBJECT_STORES)
"""The schemes of files that are read in ranges, without a download."""

_HELD_OUT_KEY = "data_config.validation_file"

_WEB_SCHEMES = ("http://", "https://")

_SCHEME_ALIASES = {"s3a://": "s3://", "s3n://": "s3://", "gcs://": "gs://"}
"""Other spellings of the schemes of buckets, and the scheme that is read."""

_AZURE_ALIASES = ("abfs://", "abfss://", "wasb://", "wasbs://")
"""Other schemes of containers on Azure, whose addresses also name the account."""


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One source of a mixture (`data_config.sources`)."""

    name: str = key("")
    """name of the source in the log, in names of documents, and as metadata (`source`)"""
    train_file: Any = key(None, is_path=True, takes_addresses=True)
    """shards of the source, in the notation of data_config.train_file"""
    columns: dict[str, str] = key({})
    """columns of the source; {}: data_config.columns"""
    weight: float = key(1.0, above=0.0)
    """share of the sequences, relative to the other weights"""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Sources of documents, and how they become batches."""

    train_file: Any = key(None, is_path=True, takes_addresses=True)
    """training shards: a path, a glob, or a list of them; also on the Hub
    (hf://datasets/OWNER/NAME[@REVISION]/GLOB) and in buckets (s3://BUCKET/GLOB,
    gs://BUCKET/GLOB, az://CONTAINER/GLOB)"""
    validation_file: str | None = key(None, is_path=True, takes_addresses=True)
    """held-out shard (a path, or one file at hf://, s3://, gs:// or az://), which must be
    readable; a training shard of this name is always omitted"""
    dataset_name: str | None = key(None)
    """data set that contains train_file and validation_file (except absolute paths): a local
    folder, or OWNER/NAME on the Hub; without train_file, all its *.jsonl.gz"""
    dataset_revision: str | None = key(None)
    """branch, tag or commit to read from the Hub; null: main"""
    exclude: list[str] = key([], is_path=True, takes_addresses=True)
    """further shards that are never trained on (file names or globs)"""
    columns: dict[str, str] = key({})
    """columns of the text and the metadata, as dotted paths: {text: content, url: url, quality:
    metadata.score}; plain values become global records, lists of records are used unchanged, and
    no other column is read. {}: text, and metadata_… columns of records"""
    sources: list[SourceConfig] = key([])
    """a mixture, in place of train_file: [{name: web, train_file: web/*.jsonl.gz, weight: 0.7},
    {name: books, train_file: books/*.jsonl.gz, weight: 0.3}]"""
    content: str = key("all", choices=("all", *EXTRACTORS, "union", "intersection"))
    """part of a page's text to train on: all, or the main content that an extractor found (column
    content_spans of shards made with annotators=[…, content]), that either found (union), or that
    both found (intersection)"""
    metadata_config: MetadataConfig = key(MetadataConfig)
    """selection and rendering of metadata"""

    per_device_train_batch_size: int = key(
        8, deepspeed="train_micro_batch_size_per_gpu", at_least=1
    )
    """sequences in a micro-batch of one process"""
    per_device_eval_batch_size: int = key(8, at_least=1)
    """sequences of max_seq_len in an evaluation batch of one process"""
    reader: str = key("native", choices=("native", "tf"))
    """reader of addresses (SCHEME://…); tf: TensorFlow, with all of its file systems"""
    prepared: str | None = key(None, is_path=True)
    """folder of python -m bsmeta.data.prepare: the same batches, already packed"""
    packing: str = key("best_fit", choices=("best_fit", "pad"))
    """best_fit: pack documents into sequences; pad: one chunk a sequence"""
    row_budget: str = key("sequence", choices=("sequence", BY_TEXT))
    """content of a row's max_seq_len tokens; sequence: text and metadata; text: text alone, with
    extra room for metadata, so that each step trains on the same text, cut at the same places, with
    any metadata (the loss is over text only)"""
    row_metadata_budget: int | None = key(None, at_least=1)
    """row_budget=text: largest number of metadata tokens in a row, beyond which metadata is cut;
    null: max_seq_len"""
    cross_document_attention: bool = key(False)
    """let the documents of a sequence attend to earlier ones, with continuous positions; false:
    attention and positions restart with each document"""
    tokenizer_backend: str = key("auto", choices=("auto", "hf", "tiktoken", "gigatoken"))
    """implementation of the tokenizer in training; auto: the fastest that is installed and gives
    the same ids"""
    max_lost_text: float = key(0.05, at_least=0.0, at_most=1.0)
    """share of the bytes of the first documents that the tokenizer may lose (unknown tokens;
    changed or dropped capitals, accents, tabs) before the run is refused"""
    num_streams: int = key(8, at_least=1)
    """number of logical streams (equal bytes each); a multiple of world size x workers"""
    window_documents: int = key(512, at_least=1)
    """number of documents that a stream reads, packs and shuffles at a time"""
    num_workers: int = key(0, at_least=0)
    """loader processes of each rank (0: in the training process)"""

    on_changed_data: str = key("error", choices=("error", "warn"))
    """reaction to a resumed run whose shards, tokenizer, seed or data settings differ from the
    checkpoint's; warn: log the differences and continue"""
    cache_dir: str | None = key(None, is_path=True)
    """folder of the caches: access points and samples of shards, fingerprints of documents, data
    from the Hub and from buckets; null: $BSMETA_CACHE, or bsmeta in the user's cache
    folder"""
    hub_cache_gb: float = key(20.0, at_least=0)
    """size limit in GB of the cache of shards from the Hub and from buckets, shared by all
    processes (0: no cache)"""
    hub_retries: int = key(10, at_least=0)
    """consecutive failures of the Hub or a bucket (5xx, 429, timeouts, dropped connections) to
    retry"""

    on_test_overlap: str = key("error", choices=("error", "drop"))
    """reaction to a training document with the text or the URL (column url or metadata_url;
    ignoring scheme, fragment, closing slash and the like) of a document in validation_file; drop:
    omit and count it"""
    bad_documents: str = key("strict", choices=("strict", "skip"))
    """strict: stop at the first bad document; skip: count it and continue"""
    max_bad_documents: int = key(1000, at_least=0)
    """skip: number of bad documents after which the run ends"""
    max_document_chars: int = key(10_000_000, at_least=1)
    """characters of the largest good document (with its metadata); encoding takes up to 80 bytes of
    memory a character"""


def compute_metadata_room(config: DataConfig) -> int:
    """Returns the number of metadata tokens that a row may have beyond `max_seq_len`."""
    if config.row_budget != BY_TEXT or not config.metadata_config.metadata_list:
        return 0
    if config.row_metadata_budget is None:
        return config.metadata_config.max_seq_len
    return config.row_metadata_budget


def compute_row_length(config: DataConfig) -> int:
    """Returns the length of a row in tokens; with `row_budget=text`, its maximum length."""
    return config.metadata_config.max_seq_len + compute_metadata_room(config)


def build_source_configs(config: DataConfig) -> dict[str, DataConfig]:
    """Returns the configuration of each source by its name; `{"": config}` without a mixture."""
    if not config.sources:
        return {"": config}
    return {
        source.name: replace(
            config,
            train_file=source.train_file,
            columns=source.columns or config.columns,
            sources=[],
        )
        for source in config.sources
    }


def compute_parts(weights: Sequence[float]) -> list[int]:
    """Returns the smallest integers that are proportional to weights in decimal notation."""
    fractions = [Fraction(repr(float(weight))) for weight in weights]
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    integers = [int(fraction * scale) for fraction in fractions]
    divisor = math.gcd(*integers)
    return [integer // divisor for integer in integers]


def iterate_train_entries(config: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields the entries of `train_file`, or of each source's: the key, and a path or glob.

    Relative paths are resolved inside `dataset_name` if it is set.

    Raises:
        ConfigurationError: If a `train_file` has another type.
    """
    if config.sources:
        train_files = {
            f"data_config.sources.{number}.train_file": source.train_file
            for number, source in enumerate(config.sources)
        }
    else:
        train_files = {"data_config.train_file": config.train_file}

    for name, train_file in train_files.items():
        entries = train_file or []
        if isinstance(train_file, (str, os.PathLike)):
            entries = [train_file]
        if not isinstance(entries, (list, tuple)):
            raise ConfigurationError(
                f"{name}: found {format_value(train_file)}, expected a path, a glob, or a list of "
                "them",
                [name],
            )
        for entry in entries:
            yield name, resolve_in_dataset(str(entry), config)


def describe_train_files(config: DataConfig) -> str:
    """Describes the training shards for reports, with the share of each source of a mixture."""
    if config.sources:
        total_weight = sum(source.weight for source in config.sources)
        return "; ".join(
            f"{source.name} ({source.weight / total_weight:.3g}): {source.train_file}"
            for source in config.sources
        )

    train_file = config.train_file
    if isinstance(train_file, list):
        return ", ".join(map(str, train_file))
    return str(train_file or "*.jsonl.gz")


def find_local_dataset(config: DataConfig) -> str | None:
    """Returns the folder that `dataset_name` names; None if it is unset or on the Hub.

    An existing folder takes precedence over a data set of the same name, as in `datasets`.
    """
    name = config.dataset_name
    if not name:
        return None

    folder = os.path.expanduser(name)
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1
    return folder if is_path or os.path.isdir(folder) else None


def resolve_in_dataset(entry: str, config: DataConfig) -> str:
    """Resolves a path, glob or address: a relative path is in `dataset_name`, if that is set."""
    if not config.dataset_name or entry.startswith("/") or "://" in entry:
        return entry

    folder = find_local_dataset(config)
    if folder is None:
        return f"{HUB_SCHEME}datasets/{config.dataset_name}/{entry}"
    if glob.has_magic(entry):
        folder = glob.escape(folder)
    return os.path.join(folder, entry)


def check_data(config: DataConfig) -> None:
    """Refuses values that are invalid whatever the data are.

    Raises:
        ConfigurationError: Listing the problems.
    """
    raise_problems(list(find_data_problems(config)))


def find_data_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields a problem for each invalid value, and for each invalid combination of values."""
    yield from find_bound_problems(config, "data_config.")
    yield from _find_column_problems("data_config.columns", config.columns)
    yield from _find_source_problems(config)
    yield from _find_address_problems(config)
    yield from _find_pattern_problems(config)

    if config.dataset_revision is not None:
        entries = [entry for _, entry in _iterate_file_entries(config)]
        if not any(_takes_revision(entry) for entry in entries):
            expected = "null: nothing is read from the Hub, or only at a revision of its own (@)"
            fix = "leave it out, or name the data as data_config.dataset_name or hf://datasets/…"
            yield _describe_refusal(config, "dataset_revision", expected, fix)


def _find_column_problems(key: str, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yields a problem for each path of a column that is malformed, or leads into another's value.

    Args:
        key: The dotted key of the columns.
    """
    paths = {"text": "text", **columns} if columns else {}
    for name, path in paths.items():
        inner_paths = [other for other in paths.values() if other.startswith(f"{path}.")]
        if not all(path.split(".")):
            expected = "a path: the name of a column, or names joined by dots"
            fix = f"{key}.{name}=column.field"
            yield Problem(f"{key}.{name}", HYDRA, format_value(path), expected, fix)
        elif inner_paths:
            expected = f"a value; {inner_paths[0]} is a field of it"
            yield Problem(
                f"{key}.{name}", HYDRA, format_value(path), expected, "map only one of the two"
            )


def _find_source_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields a problem for each incomplete source, equal names, and `train_file` beside sources."""
    names = [source.name for source in config.sources]
    for number, source in enumerate(config.sources):
        key = f"data_config.sources.{number}"
        yield from _find_column_problems(f"{key}.columns", source.columns)

        yield from _find_source_name_problems(f"{key}.name", source.name, names[:number])

        if not source.train_file:
            found = format_value(source.train_file)
            fix = f"{key}.train_file=FOLDER/*.jsonl.gz (or a list of files)"
            yield Problem(f"{key}.train_file", HYDRA, found, "its shards", fix)

    yield from _find_weight_problems([source.weight for source in config.sources])

    if config.sources and config.train_file is not None:
        expected = "null, because data_config.sources names the shards"
        yield _describe_refusal(config, "train_file", expected, "data_config.train_file=null")


def _find_source_name_problems(
    key: str, name: str, earlier_names: Sequence[str]
) -> Iterator[Problem]:
    """Yields a problem if the name of a source has invalid characters, or is not unique."""
    if not re.fullmatch(r"[\w.-]+", name):
        expected = "a name of letters, digits, dots, hyphens and underscores"
        yield Problem(key, HYDRA, format_value(name), expected, f"{key}=web")
    elif name in earlier_names:
        expected = "a name of its own: another source has this one"
        yield Problem(key, HYDRA, format_value(name), expected, f"rename one {name}")


def _find_weight_problems(weights: Sequence[float]) -> Iterator[Problem]:
    """Yields a problem if the weights of a mixture have too long a period."""
    if not weights or not all(0 < weight < math.inf for weight in weights):
        return  # out of bounds, and refused for that
    if sum(compute_parts(weights)) > MAX_PARTS:
        content = f"weights {', '.join(map(str, weights))}"
        expected = "weights whose shares are exact in fewer digits"
        shares = [f"{weight / sum(weights):.3f}" for weight in weights]
        fix = f"weights {', '.join(shares)}"
        yield Problem("data_config.sources", HYDRA, content, expected, fix)


def _find_address_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields a problem for each address in a file system that the reader cannot read."""
    for name, entry in _iterate_file_entries(config):
        address = re.match(r"([a-z][a-z0-9+.-]*)://", entry, re.IGNORECASE)
        if address is None:
            continue

        printable_entry = format_url(entry)
        scheme_prefix = address[0].lower()
        is_read_by_tensorflow = config.reader == "tf" and name != _HELD_OUT_KEY
        if is_read_by_tensorflow and scheme_prefix in (HUB_SCHEME, *_WEB_SCHEMES):
            expected = "a path or address that TensorFlow reads (data_config.reader=tf)"
            fix = "data_config.reader=native"
            yield Problem(name, HYDRA, format_value(printable_entry), expected, fix)
        elif not is_read_by_tensorflow and scheme_prefix not in REMOTE_SCHEMES:
            stores = "s3://BUCKET/…, gs://BUCKET/… or az://CONTAINER/…"
            expected = f"a path, or {HUB_SCHEME}datasets/OWNER/NAME/…, {stores}"
            location = printable_entry[len(scheme_prefix) :]
            fix = _suggest_readable_entry(name, scheme_prefix, location)
            content = f"{format_value(printable_entry)} ({scheme_prefix})"
            yield Problem(name, HYDRA, content, expected, fix)


def _suggest_readable_entry(name: str, scheme_prefix: str, location: str) -> str:
    """Returns the fix for an address that cannot be read.

    Args:
        name: The key that has the address.
        scheme_prefix: The scheme of the address and `://`, in lower case.
        location: The rest of the address.
    """
    if scheme_prefix == "file://":
        return f"{name}={location}"
    if scheme_prefix in _SCHEME_ALIASES:
        return f"{name}={_SCHEME_ALIASES[scheme_prefix]}{location}"
    if scheme_prefix in _AZURE_ALIASES:
        return f"{name}=az://CONTAINER/PATH, with AZURE_STORAGE_ACCOUNT_NAME set to the account"

    fix = f"copy the files here, or mount {scheme_prefix}… as a folder, and name the path"
    if name != _HELD_OUT_KEY and scheme_prefix not in _WEB_SCHEMES:
        fix += "; data_config.reader=tf reads what TensorFlow has a file system for"
    return fix


def _find_pattern_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields a problem if `validation_file` is a local glob, which could match several shards."""
    path = resolve_in_dataset(config.validation_file or "", config)
    if "://" in path or not glob.has_magic(path) or os.path.exists(path):
        return

    files = sorted(glob.glob(path, recursive=True))
    count = {0: "no file", 1: "1 file"}.get(len(files), f"{len(files)} files")
    content = f"{format_value(path)}, a pattern that matches {count}"
    fix = f"{_HELD_OUT_KEY}={files[0] if files else 'FILE'}"
    yield Problem(_HELD_OUT_KEY, HYDRA, content, "the path of one file", fix)


def _iterate_file_entries(config: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields the keys that name training and held-out files, each with a resolved entry."""
    entries = list(iterate_train_entries(config))
    if not entries and config.dataset_name:
        entries = [("data_config.dataset_name", resolve_in_dataset("", config))]
    yield from entries

    if config.validation_file:
        yield _HELD_OUT_KEY, resolve_in_dataset(config.validation_file, config)


def _takes_revision(entry: str) -> bool:
    """Whether an entry is read from the Hub and does not name a revision itself."""
    return entry.startswith(HUB_SCHEME) and "@" not in "/".join(entry.split("/")[:5])


def _describe_refusal(config: DataConfig, name: str, expected: str, fix: str) -> Problem:
    """Returns the problem of a key of `data_config` with the value that it has."""
    return Problem(f"data_config.{name}", HYDRA, format_value(getattr(config, name)), expected, fix)
