"""Schemas of `task=causal_lm`, and of the programs beside `train.py`.

`explain.py`, `bsmeta.data.prepare` and `bsmeta.data.stage` take the data of a training run, so
their schemas add to that of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bsmeta.config.data import DataConfig
from bsmeta.config.schema import PretrainedConfig
from bsmeta.core.keys import inherited, key

SLICE_KINDS = ("site", "length", "time")
WINDOWS = ("sliding", "all_pieces", "first_piece")
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(kw_only=True)
class LoraKeys:
    """Low-rank adapters, which are trained in place of the weights of a pretrained model."""

    rank: int = key(0, at_least=0)
    """rank of the adapters; 0: all weights are trained (else pip install 'bsmeta[lora]')"""
    alpha: int | None = key(None, at_least=1)
    """the change that adapters make is scaled by alpha / rank; null: 2 x rank"""
    dropout: float = key(0.0, at_least=0.0, below=1.0)
    """dropout of the inputs of adapters"""
    targets: list[str] = key([])
    """names of the layers that get adapters (q_proj); []: all linear layers but the output"""


@dataclass(kw_only=True)
class CausalLMConfig(PretrainedConfig):
    """A training run of a causal language model."""

    micro_batch_key: ClassVar[str | None] = "data_config.per_device_train_batch_size"
    metrics: ClassVar[tuple[str, ...] | None] = (
        "bits_per_byte_with",
        "bits_per_byte_without",
        "text_bits_per_byte",
        "difference",
        "difference_low",
        "difference_high",
        "perplexity_with",
        "perplexity_without",
        "mean_document_difference",
        "mean_document_difference_low",
        "mean_document_difference_high",
        "sign_test_p",
    )

    task: str = inherited(PretrainedConfig, "task", "causal_lm")
    data_config: DataConfig = key(DataConfig)
    """where documents come from"""
    attn_implementation: str = key(
        "auto",
        choices=("auto", "eager", "sdpa", "varlen", "flash_attention_2", "flex_attention"),
    )
    """how attention is computed; varlen: torch's flash attention within documents; auto: on a GPU
    in bf16 or fp16, FlashAttention 3 or 2 where installed, else varlen where the model permits it,
    else sdpa; the log names the choice and its reason"""
    lora: LoraKeys = key(LoraKeys)
    """adapters in place of the weights"""
    gradient_checkpointing: bool = key(False)
    """recompute activations in the backward pass"""
    gradient_checkpointing_every: int = key(1, at_least=1)
    """gradient_checkpointing: in every n-th layer (1: in all)"""
    loss_chunk_logits: int = key(2**26, at_least=0)
    """logits of a micro-batch that exist at one time: its loss and gradient are made in chunks
    where there would be more; 0: all at once"""
    torch_compile: bool = key(False)
    """torch.compile each layer for batches of one shape (not under ZeRO-3)"""
    liger_kernel: bool = key(False)
    """Liger's Triton kernels for norms, rotary positions and MLP (pip install, GPUs only)"""

    eval_documents: int = key(64, at_least=1, heading="Evaluation during training")
    """held-out documents used by the evaluations during training"""


@dataclass(kw_only=True)
class ExplainConfig(CausalLMConfig):
    """Documents as a training run with these keys sees them."""

    document: str | None = key(None, heading="What to show")
    """the document to show, as logs name it: <shard>:<number>; null: the very first"""
    limit: int = key(1, at_least=1)
    """documents to show, from that one on"""
    epoch: int = key(0, at_least=0)
    """the pass over the data whose random choices are shown"""
    step: int = key(1, at_least=1)
    """with a schedule of the metadata: the step (from 1) whose phase is shown"""
    types: list[str] | None = key(None)
    """give every document those of these types that it has, instead of drawing; []: none"""
    json: bool = key(False)
    """one JSON object a document and line on standard output, and nothing else there"""
    html: str | None = key(None, is_path=True)
    """write a page to this file instead of showing it in the terminal"""
    tokens: bool = key(False)
    """in the terminal: show where each token begins"""
    sequences: int = key(8, at_least=0)
    """in the terminal and the page: packed sequences of a window to show"""


@dataclass(kw_only=True)
class PrepareConfig(CausalLMConfig):
    """The training sequences of a run with these keys, made ahead."""

    out: str | None = key(None, is_path=True, heading="What to prepare")
    """folder to write, for data_config.prepared of the run"""
    epochs: int = key(1, at_least=1)
    """passes of each stream over its shards that are prepared"""
    world_size: int = key(1, at_least=1)
    """processes of the run, from which follows where a schedule of the metadata switches"""


@dataclass(kw_only=True)
class StageConfig(CausalLMConfig):
    """The files of a run with these keys, copied to a disk."""

    out: str | None = key(None, is_path=True, heading="What to copy")
    """folder to write, on a disk of this machine or one that several share"""
    parallel_files: int = key(4, at_least=1)
    """files that are copied at the same time"""


@dataclass(kw_only=True)
class SliceConfig:
    """Documents to report by themselves, such as `{by: length, edges: [1000, 10000]}`."""

    by: str = key("site", choices=SLICE_KINDS)
    """site: host of the address; length: bytes of text; time: year"""
    sites: list[str] = key([])
    """site: host names or patterns such as *.python.org"""
    top: int = key(10, at_least=1)
    """site, where none are named: number of most frequent hosts"""
    edges: list[int] = key([], at_least=0)
    """length, time: where one slice ends and the next begins"""


@dataclass(kw_only=True)
class EvaluateConfig:
    """An evaluation of a trained model on held-out documents."""

    checkpoint: Any = key("runs/demo", is_path=True, takes_addresses=True)
    """a run folder (its model/, else that of its newest checkpoint with one), a checkpoint folder,
    a folder that from_pretrained loads, or a Hub model as hf://owner/name; or a list of them"""
    untrained: bool = key(False)
    """also the model that the (first) run started from, before any training"""
    training_config: str | None = key(None, is_path=True)
    """config.yaml of the run; null: found beside the model (defaults for a Hub model)"""
    overrides: dict[str, Any] = key({})
    """keys of that configuration to change: +overrides.data_config.bad_documents=skip"""
    out_dir: str | None = key(None, is_path=True)
    """where the report goes; null: evaluation/ in the run folder (for another validation_file than
    the run's: evaluation-NAME/; evaluation-NAME-FOLDER/ for a second file of that name)"""

    validation_file: str | None = key(None, is_path=True, takes_addresses=True)
    """held-out shard; null: that of the training run"""
    max_documents: int | None = key(None, at_least=1)
    """number of documents to use, from the first"""
    deduplicate: bool = key(True)
    """use only the first of the documents with one text"""
    metadata_list: list[str] | None = key(None)
    """types to evaluate; null: those of the training run"""
    comparisons: list[str] = key(["all", "each"], choices=("all", "each", "left_out", "added"))
    """all: every type together; each: every type alone; left_out: all but one, for each; added: all
    against all but one, for each"""
    chosen: list[str] = key([])
    """further sets of types, such as url+title"""
    controls: list[str] = key(
        ["matched", "form", "separator"],
        choices=("shuffled", "wrong", "matched", "form", "separator"),
    )
    """all, each and chosen again, and compared with, values of another document: shuffled (any
    other), wrong (a different value), matched (wrong, of about the same length); or a prefix
    without content: form (junk words, to about the length of the document's own prefix in
    characters), separator (only what closes a prefix)"""
    prompt: bool = key(False)
    """all, each and chosen again in plain English (`Title: ...; URL: ....`)"""
    slices: list[SliceConfig] = key([])
    """kinds of documents to report by themselves, such as [{by: site, top: 5}, {by: length, edges:
    [1000, 10000]}, {by: time, edges: [2018]}] (length in bytes)"""
    windows: str = key("sliding", choices=WINDOWS)
    """sliding: overlapping windows, so that all text has context; all_pieces: the chunks that
    training uses, each of which begins without context (differences are then larger); first_piece:
    the first max_seq_len tokens"""
    position_edges: list[int] = key([0, 256, 1024, 4096, 16384], at_least=0)
    """bytes at which the bins of the position curves begin (in the document, and of context)"""

    per_device_eval_batch_size: int | None = key(None, at_least=1)
    """full sequences in a batch of one process; null: that of the training run"""
    precision: str = key("auto", choices=PRECISIONS)
    """auto: bfloat16 on a GPU if the run was trained in bf16"""
    cluster: str = key("document", choices=("document", "host"))
    """unit of intervals and p-values; document: other documents of these hosts; host: other hosts
    (jackknife over hosts, no resamples; at least ten hosts, otherwise intervals are wide)"""
    bootstrap_resamples: int = key(10_000, at_least=1)
    """resamples of the documents for each interval"""
    seed: int = key(42, at_least=0)
    """seed of the resamples and of the controls"""


@dataclass(kw_only=True)
class GenerateConfig:
    """Text under given metadata (mode=text), or metadata of given text (mode=attribute)."""

    mode: str = key("text", choices=("text", "attribute"))
    """text: generate under metadata; attribute: infer metadata from text"""
    checkpoint: str = key("runs/demo", is_path=True, takes_addresses=True)
    """a run folder (its model/, else that of its newest checkpoint with one), a checkpoint folder,
    a folder that from_pretrained loads, or a Hub model as hf://owner/name"""
    training_config: str | None = key(None, is_path=True)
    """config.yaml of the run; null: found beside the model (defaults for a Hub model)"""
    overrides: dict[str, Any] = key({})
    """keys of that configuration to change"""
    precision: str = key("auto", choices=PRECISIONS)
    """auto: bfloat16 on a GPU if the run was trained in bf16"""

    metadata: dict[str, Any] = key({})
    """values of global types, such as {url: 'https://docs.python.org/', title: Sets}; a local type
    can be announced: {html: true}"""
    prompt: str = key("")
    """text to continue (without metadata and prompt, the first word is a guess: training takes no
    loss on it); in mode=attribute: the text, instead of a file's"""
    null_metadata: dict[str, Any] = key({})
    """metadata of the context that guidance leads away from"""
    guidance: float = key(1.0, finite=True)
    """g in `null + g (metadata - null)` of log-probabilities: 1 plain, above 1 stronger"""
    max_new_tokens: int = key(100, at_least=1)
    """tokens to write at most; ends at the end-of-text token, too"""
    temperature: float = key(0.8, at_least=0, finite=True)
    """0: always the most likely token; 1: as the model says"""
    top_p: float = key(0.95, above=0, at_most=1)
    """draw from the smallest set of tokens that has this probability"""
    seed: int = key(42, at_least=0)
    """seed of the first sample; the next one has the next number"""
    num_samples: int = key(1, at_least=1)
    """texts to write under the same metadata"""
    batch_size: int = key(16, at_least=1)
    """texts written, or scored under all candidates, at one time"""

    compare: list[dict[str, Any]] = key([])
    """metadata to see side by side from the same seeds, such as [{}, {title: Sets}]"""
    interactive: bool = key(False)
    """read prompts and key=value lines from standard input"""
    input: str | None = key(None, is_path=True)
    """JSON lines of requests: metadata, prompt, and any key that says how to draw"""
    output: str | None = key(None, is_path=True)
    """JSON lines to write: the requests with their samples"""

    type: str = key("url")
    """attribute: the metadata type to infer"""
    candidates: list[str] = key([])
    """attribute: its values (url: hosts, timestamp: years); []: those of the held-out file"""
    prior: str = key("uniform", choices=("uniform", "empirical"))
    """attribute: of the candidates; empirical: how often each is in the file"""
    windows: str = key("first_piece", choices=("first_piece", "all_pieces"))
    """attribute: how much of the text is read"""
    validation_file: str | None = key(None, is_path=True, takes_addresses=True)
    """attribute: held-out shard; null: that of the training run"""
    max_documents: int | None = key(None, at_least=1)
    """attribute: number of documents to use, from the first"""
    bootstrap_resamples: int = key(10_000, at_least=1)
    """attribute: resamples for each interval"""
    out_dir: str | None = key(None, is_path=True)
    """attribute: where attribution-{type}.json goes; null: the run folder"""


@dataclass(kw_only=True)
class PredictConfig:
    """The predictions of a trained model for new records."""

    checkpoint: str = key("runs/classification", is_path=True)
    """a run folder (its model/, else that of its newest checkpoint with one), or a checkpoint
    folder"""
    overrides: dict[str, Any] = key({})
    """keys of the training configuration to change, such as
    +overrides.data_config.text_column=body"""
    input: str | None = key(None, is_path=True)
    """records: .csv, .tsv or .jsonl, also .gz, with the columns of the training; or, for a spelling
    task, a text: any other file, or - for standard input"""
    output: str | None = key(None, is_path=True)
    """the records with their predictions: .csv or .jsonl. OUTPUT.part until it is complete; the
    same call continues it (for a text: null prints the result)"""
    show: str = key("auto", choices=("auto", "text", "color", "json", "diff"))
    """what is made of a text: text: the corrected text alone; color: the text, with errors in red
    and corrections in green; json: each change with its character offsets; diff: the corrections,
    for `patch`; auto: color on a terminal, otherwise text (a detector has neither text nor diff)"""
    csv_separator: str = key("auto")
    """character between columns; auto: , ; tab or |"""
    csv_encoding: str = key("auto")
    """encoding of a CSV file; auto: UTF-8, UTF-16 or UTF-32"""
    on_bad_row: str = key("refuse", choices=("refuse", "skip"))
    """a record without text, or that cannot be read; skip: leave it out, and count"""
    spreadsheet_safe: bool = key(False)
    """put ' before cells of a .csv output that a spreadsheet would compute (=1+1); false: cells are
    as they were read"""


@dataclass(kw_only=True)
class DownloadConfig:
    """Downloads the files of a manifest, verifies and unpacks them."""

    manifest: str | None = key(None, is_path=True)
    """JSON or YAML file with `files`: each `path`, `address`, `bytes`, `sha256`, and of an archive
    `unpack` (a folder) and `unpacked_bytes`"""
    folder: str | None = key(None, is_path=True)
    """where the files go"""
    mirror: str | None = key(None)
    """what relative addresses begin with: http(s):// or file://; null: the folder of the
    manifest"""
    keep_archives: bool = key(False)
    """keep archives that were unpacked"""
    retries: int = key(8, at_least=0)
    """failures in a row after which a download is given up; progress starts over"""
    timeout: float = key(60.0, above=0)
    """seconds without data after which a request is repeated"""


@dataclass(kw_only=True)
class EntitiesConfig:
    """The table of the entities that mentions may mean: built, added to, or described."""

    table: str | None = key(None, is_path=True)
    """folder of the table"""
    profiles: str | None = key(None, is_path=True)
    """build the table from profiles: .jsonl(.gz, .zst), an entity each line"""
    entity_dir: str | None = key(None, is_path=True)
    """build the table from the entity files of Bootleg: the folder that has entity_mappings/ (in
    the second generation also type_mappings/ and kg_mappings/)"""
    emb_dir: str | None = key(None, is_path=True)
    """the first generation's folder of types and relations"""
    types: list[str] | None = key(None)
    """files of emb_dir with types: FILE, or FILE:VOCABULARY if that is not type_vocab.json; or the
    systems of type_mappings/; null: qid2types.json, or all systems; []: none"""
    relations: list[str] | None = key(None)
    """files of emb_dir or kg_mappings/ with relations: FILE, or FILE:VOCABULARY if that is not
    relation_vocab.json; null: qid2relations.json and kg_conn.txt, or qid2relations; []: none"""
    max_candidates: int | None = key(None, at_least=1)
    """candidates that an alias keeps: those with the highest scores; null: 30, or what
    entity_mappings/config.json says"""
    add: str | None = key(None, is_path=True)
    """profiles of entities to add to the table, which keeps its numbers"""
    checkpoint: str | None = key(None, is_path=True)
    """a run folder or a checkpoint, whose model encodes the added entities at once; null: each when
    it is first a candidate"""
