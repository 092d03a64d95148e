"""Schema of `data_config`: where documents come from, and how they become batches."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import Any

from bsmeta.config.keys import key
from bsmeta.config.metadata import MetadataConfig

SCHEME = "hf://"
"""The scheme of the address of a file on the Hugging Face Hub."""


@dataclass(kw_only=True)
class DataConfig:
    """Where documents come from, and how they become batches."""

    train_file: Any = key(
        None,
        "training shards: a path, a glob, or a list of them; also on the Hub: "
        "hf://datasets/OWNER/NAME[@REVISION]/GLOB",
        is_path=True,
    )
    validation_file: str | None = key(
        None,
        "the held-out shard (a path, or one file on the Hub); a training shard of this name is "
        "always left out",
        is_path=True,
    )
    dataset_name: str | None = key(
        None,
        "data set in which train_file and validation_file lie (other than absolute paths): a local "
        "folder, or OWNER/NAME on the Hub; without train_file, all its *.jsonl.gz",
    )
    dataset_revision: str | None = key(
        None, "branch, tag or commit of what is read from the Hub; null: main"
    )
    exclude: list[str] = key(
        [], "further shards that are never trained on (file names or globs)", is_path=True
    )
    metadata_config: MetadataConfig = key(MetadataConfig, "which metadata, and how it reads")

    per_device_train_batch_size: int = key(
        8,
        "sequences in a micro-batch of one process",
        deepspeed="train_micro_batch_size_per_gpu",
        at_least=1,
    )
    per_device_eval_batch_size: int = key(
        8, "sequences of max_seq_len in an evaluation batch of one process", at_least=1
    )
    reader: str = key(
        "native",
        "tf: read lines with TensorFlow's tf.data, from any file system that it knows",
        choices=("native", "tf"),
    )
    prepared: str | None = key(
        None,
        "folder of python -m bsmeta.data.prepare: the same batches without making them again",
        is_path=True,
    )
    packing: str = key(
        "best_fit",
        "best_fit: documents packed into sequences; pad: one chunk a sequence",
        choices=("best_fit", "pad"),
    )
    cross_document_attention: bool = key(
        False,
        "documents packed into a sequence see those before them, and positions run through the "
        "sequence; false: attention and positions restart with each document",
    )
    tokenizer_backend: str = key(
        "auto",
        "what runs the tokenizer in training; auto: the fastest that is installed and gives the "
        "same ids",
        choices=("auto", "hf", "tiktoken", "gigatoken"),
    )
    num_streams: int = key(
        8,
        "logical streams, each with as many bytes of documents; world size x workers must divide "
        "it",
        at_least=1,
    )
    window_documents: int = key(
        512, "documents that a stream reads, packs and shuffles at a time", at_least=1
    )
    num_workers: int = key(
        0, "loader processes of each rank (0: in the training process)", at_least=0
    )

    on_changed_data: str = key(
        "error",
        "a resumed run whose shards, tokenizer, seed or data settings differ from the "
        "checkpoint's; warn: log the differences and continue",
        choices=("error", "warn"),
    )
    cache_dir: str | None = key(
        None,
        "folder for access points of shards, hashes of held-out documents and what is read from "
        "the Hub; null: bsmeta in the user's cache folder",
        is_path=True,
    )
    hub_cache_gb: float = key(
        20.0,
        "most GB of shards from the Hub that are kept in cache_dir, by all processes together; "
        "0: none",
        at_least=0,
    )
    hub_retries: int = key(
        10,
        "failures of the Hub in a row (5xx, 429, timeouts, cut connections) that are retried",
        at_least=0,
    )

    on_test_overlap: str = key(
        "error",
        "a training document with the text of one of validation_file, or a URL of it (column url "
        "or metadata_url; scheme, fragment, closing slash and the like aside); drop: leave it "
        "out, and count",
        choices=("error", "drop"),
    )
    bad_documents: str = key(
        "strict",
        "strict: stop at the first; skip: count it and continue",
        choices=("strict", "skip"),
    )
    max_bad_documents: int = key(1000, "skip: give up after so many", at_least=0)
    max_document_chars: int = key(
        10_000_000,
        "a document of more characters (with its metadata) is a bad one: encoding takes up to 80 "
        "bytes of memory for each",
        at_least=1,
    )


def local_dataset(config: DataConfig) -> str | None:
    """The folder that `dataset_name` names; None if it is not set, or names a data set on the Hub.

    An existing folder takes precedence over a data set of the same name, as in `datasets`.
    """
    name = config.dataset_name or ""
    folder = os.path.expanduser(name)
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1
    return folder if name and (is_path or os.path.isdir(folder)) else None


def in_dataset(entry: str, config: DataConfig) -> str:
    """Resolves a file name; with `dataset_name`, a relative one is in that data set."""
    if not config.dataset_name or entry.startswith("/") or "://" in entry:
        return entry
    folder = local_dataset(config)
    if folder is None:
        return f"{SCHEME}datasets/{config.dataset_name}/{entry}"
    return os.path.join(glob.escape(folder) if glob.has_magic(entry) else folder, entry)
