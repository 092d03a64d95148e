"""Schemas of `task=causal_lm`, and of the programs beside `train.py`.

`explain.py`, `bsmeta.data.prepare` and `bsmeta.data.stage` use the data of a training run, so their
schemas extend the run's.
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
    """Low-rank adapters, trained instead of the weights of a pretrained model."""

    rank: int = key(0, at_least=0)
    """rank of the adapters; 0: train all weights (adapters need pip install 'bsmeta[lora]')"""
    alpha: int | None = key(None, at_least=1)
    """numerator of the scale of the adapters' output, alpha / rank; null: 2 x rank"""
    dropout: float = key(0.0, at_least=0.0, below=1.0)
    """dropout of the adapters' inputs"""
    targets: list[str] = key([])
    """names of the layers with adapters (q_proj); []: all linear layers except the output"""


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
    """the documents"""
    attn_implementation: str = key(
        "auto",
        choices=("auto", "eager", "sdpa", "varlen", "flash_attention_2", "flex_attention"),
    )
    """implementation of attention; varlen: torch's flash attention within documents; auto: on a GPU
    in bf16 or fp16, FlashAttention 3 or 2 if installed, else varlen if the model permits it, else
    sdpa; the log names the choice and its reason"""
    lora: LoraKeys = key(LoraKeys)
    """adapters to train instead of the weights"""
    gradient_checkpointing: bool = key(False)
    """recompute activations in the backward pass"""
    gradient_checkpointing_every: int = key(1, at_least=1)
    """gradient_checkpointing: in every n-th layer (1: in all)"""
    loss_chunk_logits: int = key(2**26, at_least=0)
    """limit of the logits in memory: the loss and gradient of a larger micro-batch are computed in
    chunks; 0: no limit"""
    torch_compile: bool = key(False)
    """torch.compile each layer for batches of one shape (not under ZeRO-3)"""
    liger_kernel: bool = key(False)
    """Liger's Triton kernels for norms, rotary positions and MLP (pip install, GPUs only)"""

    eval_documents: int = key(64, at_least=1, heading="Evaluation during training")
    """number of held-out documents in each evaluation during training"""


@dataclass(kw_only=True)
class ExplainConfig(CausalLMConfig):
    """Documents as a training run with these keys reads them."""

    document: str | None = key(None, heading="What to show")
    """first document to show, by its name in logs: <shard>:<number>; null: the very first"""
    limit: int = key(1, at_least=1)
    """number of documents to show"""
    epoch: int = key(0, at_least=0)
    """pass over the data (from 0) whose random choices are shown"""
    step: int = key(1, at_least=1)
    """with a schedule of the metadata: the step (from 1) whose phase is shown"""
    types: list[str] | None = key(None)
    """types to render wherever a document has them, instead of drawing; []: none"""
    json: bool = key(False)
    """print one JSON object a document and line, and nothing else, on standard output"""
    html: str | None = key(None, is_path=True)
    """write a page to this file instead of showing it in the terminal"""
    tokens: bool = key(False)
    """in the terminal: mark the beginning of each token"""
    sequences: int = key(8, at_least=0)
    """in the terminal and the page: number of packed sequences of a window to show"""


@dataclass(kw_only=True)
class PrepareConfig(CausalLMConfig):
    """Training sequences, prepared for a run with these keys."""

    out: str | None = key(None, is_path=True, heading="What to prepare")
    """folder to write, for data_config.prepared of the run"""
    epochs: int = key(1, at_least=1)
    """number of passes of each stream over its shards to prepare"""
    world_size: int = key(1, at_least=1)
    """processes of the run, which determine where a schedule of the metadata switches"""


@dataclass(kw_only=True)
class StageConfig(CausalLMConfig):
    """The files of a run with these keys, copied to a disk."""

    out: str | None = key(None, is_path=True, heading="What to copy")
    """folder to write, on a disk of this machine or a shared one"""
    parallel_files: int = key(4, at_least=1)
    """number of files to copy at the same time"""


@dataclass(kw_only=True)
class SliceConfig:
    """Documents to report separately, such as `{by: length, edges: [1000, 10000]}`."""

    by: str = key("site", choices=SLICE_KINDS)
    """site: host of the address; length: bytes of text; time: year"""
    sites: list[str] = key([])
    """site: host names or patterns such as *.python.org"""
    top: int = key(10, at_least=1)
    """site, without sites: number of most frequent hosts"""
    edges: list[int] = key([], at_least=0)
    """length, time: values at which a new slice begins"""


@dataclass(kw_only=True)
class EvaluateConfig:
    """An evaluation of a trained model on held-out documents."""

    checkpoint: Any = key("runs/demo", is_path=True, takes_addresses=True)
    """a run folder (its model/, else the newest model/ of its checkpoints), a checkpoint folder, a
    folder that from_pretrained loads, or a Hub model as hf://owner/name; or a list of them"""
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


@dataclass(kw_only=True)
class GenerateConfig:
    """Text under given metadata (mode=text), or metadata of given text (mode=attribute)."""

    mode: str = key("text", choices=("text", "attribute"))
    """text: generate under metadata; attribute: infer metadata from text"""
    checkpoint: str = key("runs/demo", is_path=True, takes_addresses=True)
    """a run folder (its model/, else the newest model/ of its checkpoints), a checkpoint folder, a
    folder that from_pretrained loads, or a Hub model as hf://owner/name"""
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
    loss on it); mode=attribute: the text, instead of a file's"""
    null_metadata: dict[str, Any] = key({})
    """metadata of the context to guide away from"""
    guidance: float = key(1.0, finite=True)
    """scale g in `null + g (metadata - null)` of log-probabilities: 1 plain, above 1 stronger"""
    max_new_tokens: int = key(100, at_least=1)
    """largest number of tokens to generate; the end-of-text token ends a text earlier"""
    temperature: float = key(0.8, at_least=0, finite=True)
    """temperature of sampling (0: always the most likely token)"""
    top_p: float = key(0.95, above=0, at_most=1)
    """probability of the smallest set of tokens to draw from"""
    seed: int = key(42, at_least=0)
    """seed of the first sample; each further sample uses the next number"""
    num_samples: int = key(1, at_least=1)
    """number of texts to generate under the same metadata"""
    batch_size: int = key(16, at_least=1)
    """number of texts to generate, or to score under all candidates, at one time"""

    compare: list[dict[str, Any]] = key([])
    """metadata to compare side by side from the same seeds, such as [{}, {title: Sets}]"""
    interactive: bool = key(False)
    """read prompts and key=value lines from standard input"""
    input: str | None = key(None, is_path=True)
    """file of requests in JSON lines: metadata, prompt, and any key of sampling"""
    output: str | None = key(None, is_path=True)
    """file to write in JSON lines: the requests with their samples"""

    type: str = key("url")
    """attribute: the metadata type to infer"""
    candidates: list[str] = key([])
    """attribute: candidate values (url: hosts, timestamp: years); []: all in the held-out file"""
    prior: str = key("uniform", choices=("uniform", "empirical"))
    """attribute: prior of the candidates; empirical: their frequency in the file"""
    windows: str = key("first_piece", choices=("first_piece", "all_pieces"))
    """attribute: chunks of the text to read"""
    validation_file: str | None = key(None, is_path=True, takes_addresses=True)
    """attribute: held-out shard; null: the training run's"""
    max_documents: int | None = key(None, at_least=1)
    """attribute: number of documents to use, from the first"""
    bootstrap_resamples: int = key(10_000, at_least=1)
    """attribute: resamples for each interval"""
    out_dir: str | None = key(None, is_path=True)
    """attribute: folder of attribution-{type}.json; null: the run folder"""


@dataclass(kw_only=True)
class PredictConfig:
    """Predictions of a trained model for new records."""

    checkpoint: str = key("runs/classification", is_path=True)
    """a run folder (its model/, else the newest model/ of its checkpoints), or a checkpoint
    folder"""
    overrides: dict[str, Any] = key({})
    """keys of the training configuration to change, such as
    +overrides.data_config.text_column=body"""
    input: str | None = key(None, is_path=True)
    """records: .csv, .tsv or .jsonl, also .gz, with the columns of the training; or, for a spelling
    task, a text: any other file, or - for standard input"""
    output: str | None = key(None, is_path=True)
    """file of the records with their predictions: .csv or .jsonl; named OUTPUT.part until it is
    complete, which the same call continues (for a text: null prints the result)"""
    show: str = key("auto", choices=("auto", "text", "color", "json", "diff"))
    """output for a text; text: the corrected text alone; color: the text, with errors in red and
    corrections in green; json: each change with its character offsets; diff: the corrections, for
    `patch`; auto: color on a terminal, otherwise text (a detector has neither text nor diff)"""
    csv_separator: str = key("auto")
    """character between columns; auto: , ; tab or |"""
    csv_encoding: str = key("auto")
    """encoding of a CSV file; auto: UTF-8, UTF-16 or UTF-32"""
    on_bad_row: str = key("refuse", choices=("refuse", "skip"))
    """reaction to a record that has no text or cannot be read; skip: omit and count it"""
    spreadsheet_safe: bool = key(False)
    """put ' before cells of a .csv output that a spreadsheet would compute (=1+1); false: write
    cells unchanged"""


@dataclass(kw_only=True)
class DownloadConfig:
    """Files of a manifest to download, verify and unpack."""

    manifest: str | None = key(None, is_path=True)
    """JSON or YAML file with `files`: each `path`, `address`, `bytes`, `sha256`, and of an archive
    `unpack` (a folder) and `unpacked_bytes`"""
    folder: str | None = key(None, is_path=True)
    """folder to download into"""
    mirror: str | None = key(None)
    """base of relative addresses, http(s):// or file://; null: the folder of the manifest"""
    keep_archives: bool = key(False)
    """keep archives after unpacking them"""
    retries: int = key(8, at_least=0)
    """consecutive failures after which a download is given up; progress resets the count"""
    timeout: float = key(60.0, above=0)
    """seconds without data after which a request is repeated"""


@dataclass(kw_only=True)
class EntitiesConfig:
    """The table of entities that mentions may refer to: build it, extend it, or describe it."""

    table: str | None = key(None, is_path=True)
    """folder of the table"""
    profiles: str | None = key(None, is_path=True)
    """profiles to build the table from: .jsonl(.gz, .zst), one entity a line"""
    entity_dir: str | None = key(None, is_path=True)
    """entity files of Bootleg to build the table from: the folder with entity_mappings/ (in the
    second generation also type_mappings/ and kg_mappings/)"""
    emb_dir: str | None = key(None, is_path=True)
    """the first generation's folder of types and relations"""
    types: list[str] | None = key(None)
    """files of emb_dir with types: FILE, or FILE:VOCABULARY if that is not type_vocab.json; or the
    systems of type_mappings/; null: qid2types.json, or all systems; []: none"""
    relations: list[str] | None = key(None)
    """files of emb_dir or kg_mappings/ with relations: FILE, or FILE:VOCABULARY if that is not
    relation_vocab.json; null: qid2relations.json and kg_conn.txt, or qid2relations; []: none"""
    max_candidates: int | None = key(None, at_least=1)
    """number of candidates of an alias to keep, by their scores; null: as in
    entity_mappings/config.json, else 30"""
    add: str | None = key(None, is_path=True)
    """profiles of entities to add to the table, whose entities keep their numbers"""
    checkpoint: str | None = key(None, is_path=True)
    """a run folder or a checkpoint, whose model encodes the added entities now; null: each entity
    is encoded when it first becomes a candidate"""
