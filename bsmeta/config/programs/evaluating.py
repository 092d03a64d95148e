"""Schema of `evaluate.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.programs.precision import PRECISIONS
from bsmeta.core.keys import key

SLICE_KINDS = ("site", "length", "time")
WINDOWS = ("sliding", "all_pieces", "first_piece")


@dataclass(frozen=True, kw_only=True)
class SliceConfig:
    """Groups of documents to report separately, such as `{by: length, edges: [1000, 10000]}`."""

    by: str = key("site", choices=SLICE_KINDS)
    """site: host of the address; length: bytes of text; time: year"""
    sites: list[str] = key([])
    """site: host names or patterns such as *.python.org"""
    top: int = key(10, at_least=1)
    """site, without sites: number of most frequent hosts"""
    edges: list[int] = key([], at_least=0)
    """length, time: values at which a new slice begins"""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """An evaluation of a trained model on held-out documents."""

    checkpoint: Any = key("runs/demo", is_path=True, takes_addresses=True)
    """a run folder (its model/, else the newest model/ of its checkpoints), a checkpoint folder, a
    folder that from_pretrained loads, the address of a run in a bucket (s3:// or gs://BUCKET/PREFIX)
    or of its checkpoint, or a Hub model as hf://owner/name; or a list of them"""
    untrained: bool = key(False)
    """also evaluate the model that the (first) run started from, before any training"""
    training_config: str | None = key(None, is_path=True)
    """config.yaml of the run; null: found beside the model (defaults for a Hub model)"""
    overrides: dict[str, Any] = key({})
    """keys of that configuration to change: +overrides.data_config.bad_documents=skip"""
    out_dir: str | None = key(None, is_path=True)
    """folder of the report; null: evaluation/ in the run folder (for another validation_file than
    the run's: evaluation-NAME/; evaluation-NAME-FOLDER/ for a second file of that name)"""

    validation_file: str | None = key(None, is_path=True, takes_addresses=True)
    """held-out shard; null: the training run's"""
    max_documents: int | None = key(None, at_least=1)
    """number of documents to use, from the first"""
    deduplicate: bool = key(True)
    """use only the first of several documents with the same text"""
    on_training_overlap: str = key("error", choices=("error", "drop"))
    """reaction to a document of another validation_file than the run's whose text or URL is in a
    training shard of the run; drop: leave it out and count it"""
    overlap_check_gb: float = key(10.0, at_least=0)
    """size limit in GB of the local training shards to compare with such a file; the report says
    which shards were not compared (0: none is)"""
    metadata_list: list[str] | None = key(None)
    """types to evaluate; null: the training run's"""
    comparisons: list[str] = key(["all", "each"], choices=("all", "each", "left_out", "added"))
    """all: all types together; each: each type alone; left_out: all types except one, for each;
    added: all types against all except one, for each"""
    chosen: list[str] = key([])
    """further sets of types, such as url+title"""
    controls: list[str] = key(
        ["matched", "form", "separator"],
        choices=("shuffled", "wrong", "matched", "form", "separator"),
    )
    """controls for all, each and chosen. Values of another document: shuffled (any other), wrong (a
    different value), matched (wrong, of about the same length); or a prefix without content: form
    (junk words of about the length of the document's own prefix in characters), separator (only the
    separator that closes a prefix)"""
    prompt: bool = key(False)
    """also all, each and chosen in plain English (`Title: ...; URL: ....`)"""
    slices: list[SliceConfig] = key([])
    """groups of documents to report separately, such as [{by: site, top: 5}, {by: length, edges:
    [1000, 10000]}, {by: time, edges: [2018]}] (length in bytes)"""
    windows: str = key("sliding", choices=WINDOWS)
    """sliding: overlapping windows, so that all text has context; all_pieces: the chunks of
    training, each of which begins without context (differences are then larger); first_piece: the
    first max_seq_len tokens"""
    position_edges: list[int] = key([0, 256, 1024, 4096, 16384], at_least=0)
    """bytes (in the document, or of context) at which the bins of the position curves begin"""

    per_device_eval_batch_size: int | None = key(None, at_least=1)
    """full sequences in a batch of one process; null: the training run's"""
    precision: str = key("auto", choices=PRECISIONS)
    """auto: bfloat16 on a GPU if the run was trained in bf16"""
    cluster: str = key("document", choices=("document", "host"))
    """population of intervals and p-values; document: other documents of these hosts; host: other
    hosts (jackknife over hosts, no resamples; with fewer than ten hosts, intervals are wide)"""
    bootstrap_resamples: int = key(10_000, at_least=1)
    """resamples of the documents for each interval"""
    seed: int = key(42, at_least=0)
    """seed of the resamples and of the controls"""
