"""Schema of `data_config.metadata_config`: which metadata a document gets, and its rendering."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from bsmeta.core.keys import key

MAX_TYPES = 31
"""Maximum number of metadata types in a run: the types of a document are bits of an int32."""


@dataclass(frozen=True, kw_only=True)
class HtmlTagRules:
    """Rules that apply to every html tag (`html_parser_config.all_tags_rules`)."""

    attributes_to_keep: list[str] | None = key(["class", "id"])
    """html attributes that are rendered; null renders all"""
    txt_max_chr_len: float = key(float("-inf"))
    """tags around at least txt_min_chr_len and at most this many characters are dropped"""
    txt_min_chr_len: float = key(float("-inf"))
    """see txt_max_chr_len"""
    tags_exceptions_to_txt_max_min_chr_len: list[str] = key([])
    """tag names to which the length rule does not apply"""


@dataclass(frozen=True, kw_only=True)
class HtmlParserConfig:
    """A selection of the html tags and attributes to render."""

    all_tags_rules: HtmlTagRules = key(HtmlTagRules)
    """rules for every tag"""
    tags_to_remove_alone_tag_name: list[str] = key([])
    """tags dropped by name, keeping their content"""
    tags_to_remove_alone_txt_max_chr_len: list[float] = key([])
    """for each of these tag names: largest number of characters around which it is dropped"""
    tags_to_remove_alone_txt_min_chr_len: list[float] = key([])
    """for each of these tag names: smallest number of characters around which it is dropped"""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run with its own sampling of metadata; null keeps the value of the run."""

    share: float = key(1.0, above=0, at_most=1)
    """length of the phase as a share of max_train_steps; all shares sum to 1"""
    at_decay: bool = key(False)
    """begin the last phase where the learning rate begins to fall (lr_scheduler_type=wsd),
    regardless of the shares"""
    metadata_probability: float | None = key(None, at_least=0, at_most=1)
    """share of documents with any metadata"""
    types: list[str] | None = key(None)
    """keys of metadata_list that may be drawn"""
    random_sample_metadata: bool | None = key(None)
    """draw some of the types present, or use all"""
    random_sample_metadata_weights: dict[str, float] | None = key(None, at_least=0, finite=True)
    """weight of each type"""
    metadata_dropout: dict[str, float] | None = key(None, at_least=0, at_most=1)
    """chance that a type is left out"""
    html_overall_sample_rate: float | None = key(None, at_least=0, at_most=1)
    """chance that html may be drawn at all"""


@dataclass(frozen=True, kw_only=True)
class MetadataConfig:
    """Selection and rendering of a document's metadata."""

    metadata_list: list[str] = key(
        [
            "html",
            "timestamp",
            "website_description",
            "title",
            "url",
            "datasource",
            "length",
            "entity",
        ]
    )
    """keys that may be used, in rendering order"""
    metadata_column_list: list[str] | None = key(None)
    """columns to read (without `metadata_`); null: the columns of metadata_list"""
    metadata_probability: float = key(0.5, at_least=0, at_most=1)
    """share of documents with any metadata"""
    random_sample_metadata: bool = key(True)
    """draw k of the n types present (k uniform in 1..n); false: use all of them"""
    random_sample_metadata_weights: dict[str, float] = key({}, at_least=0, finite=True)
    """weight of each type (key or column) in this draw; default 1, 0: never drawn"""
    metadata_dropout: dict[str, float] = key({}, at_least=0, at_most=1)
    """probability that a type (key) is dropped from a document before this draw"""
    html_overall_sample_rate: float = key(1.0, at_least=0, at_most=1)
    """probability that html may be drawn at all"""
    metadata_values: str = key("own", choices=("own", "shuffled", "constant", "random"))
    """values to render; own: the document's. For controls, in training and evaluation: shuffled
    (another document's in the window), or a prefix of the same length in tokens without content:
    constant (one text for all documents) or random (tokens drawn for each document)"""
    schedule: list[Phase] = key([])
    """phases of the run, in order, such as [{share: 0.9}, {share: 0.1, types: []}]"""
    without_metadata_same_context: bool = key(False)
    """omit all metadata, but cut the text where the run with metadata cuts it"""

    metadata_position: str = key("prepend", choices=("prepend", "append", "both"))
    """global records: prepend (in the prefix), append (after the text) or both"""
    metadata_prefix_start_seq: str = key("")
    """text before the prefix"""
    metadata_sep: str = key(" | ")
    """separator between the records of the prefix"""
    metadata_key_value_sep: str = key(": ")
    """separator between key and value of a record"""
    metadata_prefix_sep: str = key(" |||")
    """end of the prefix"""
    metadata_prefix_special_token_state: bool = key(False)
    """add metadata_prefix_start_seq and metadata_prefix_sep to the tokenizer as special tokens"""
    metadata_text_sep: str = key(" ")
    """separator between the prefix and the text, part of neither"""
    metadata_suffix_start_seq: str = key(" ||| ")
    """separator between the text and appended records"""
    metadata_boundary_token: str = key("")
    """special token in place of metadata_prefix_sep with metadata_text_sep, and of
    metadata_suffix_start_seq: since no tokenizer merges across it, a document as one string has the
    ids of training in any program (checked before step 1); "": none"""
    metadata_templates: dict[str, str] = key({})
    """template of a type's (key) global records: `URL: {value}`; timestamp: {year}, {month}"""
    url_granularity: str = key(
        "full", choices=("full", "host", "registered_domain", "suffix", "path", "hash")
    )
    """part of the url to render; hash: of the host"""
    value_bucket_bounds: dict[str, list[Any]] = key({})
    """types (keys) whose numbers are rendered as an interval between these ascending bounds"""
    value_bucket_scale: dict[str, float] = key({}, above=0)
    """types (keys) whose numbers are rendered as floor(scale * number)"""
    num_meta_tokens: int = key(5, at_least=1)
    """number of learnable tokens of the type `meta_tokens` in the prefix"""

    treat_local_metadata_as_regular_text: bool = key(True)
    """train on local records as on text; only the prefix is masked"""
    # {} rather than null by default: Hydra cannot replace null by a mapping on the command line.
    local_metadata_special_tokens: dict[str, str] | None = key({})
    """announcement of a local type in the prefix (default: its name)"""
    add_local_metadata_special_tokens_in_prefix: bool = key(True)
    """announce the local types of a document in its prefix"""
    local_metadata_special_token_start: dict[str, str] | None = key({})
    """text before each run of a local type's tags"""
    local_metadata_special_token_end: dict[str, str] | None = key({})
    """text after each run of a local type's tags"""
    local_metadata_special_token_state: bool = key(False)
    """add these start and end texts to the tokenizer as special tokens"""
    entity_setting: str = key("beg", choices=("beg", "end"))
    """entity_paragraph: position of the entities, at the `beg` or `end` of their paragraph"""
    html_parser_config: HtmlParserConfig = key(HtmlParserConfig)
    """selection of the html to render"""

    special_tokens_in_text: bool = key(False)
    """encode a special token that is spelled out in a text or a value as that token, as in the
    published code; false: encode it as text"""

    max_seq_len: int = key(1024, at_least=2)
    """length of a sequence in tokens"""
    prefix_on: str = key("every_piece", choices=("every_piece", "first_piece"))
    """chunks of a long document that begin with the prefix"""
    long_documents: str = key("split", choices=("split", "truncate"))
    """training documents longer than a sequence: split (train on all chunks) or truncate (train on
    the first chunk)"""
    bos_token: bool = key(False)
    """put the tokenizer's BOS token, if there is one, before each document and each chunk with the
    prefix, also without metadata"""
    prefix_max_tokens: int | None = key(None, at_least=1)
    """largest length of the prefix in tokens (cut at its beginning); null: max_seq_len // 2"""
    loss_on_metadata: bool = key(False)
    """include metadata tokens in the loss"""
    loss_on_metadata_types: list[str] | None = key(None)
    """loss_on_metadata: only the tokens of these types (keys)"""
    loss_on_first_text: bool = key(True)
    """include the first token of text after a prefix (or BOS) in the loss; false: exclude it, as in
    a chunk without a prefix, where nothing predicts it"""


class Separators(NamedTuple):
    """The strings between the metadata and the text.

    Attributes:
        prefix_end: The end of the prefix.
        lead: Joins prefix and text; tokenized with the text, but part of neither.
        suffix_start: The beginning of the suffix.
    """

    prefix_end: str
    lead: str
    suffix_start: str


def choose_separators(config: MetadataConfig) -> Separators:
    """Returns the separators of a configuration; a boundary token replaces all others."""
    token = config.metadata_boundary_token
    if token:
        return Separators(prefix_end=token, lead="", suffix_start=token)
    return Separators(
        config.metadata_prefix_sep, config.metadata_text_sep, config.metadata_suffix_start_seq
    )


def configure_phases(config: MetadataConfig) -> list[MetadataConfig]:
    """Returns the configuration of each phase of the schedule; a run without one is one phase.

    They are only for sampling: the order of types, and their token types, depend on the
    configuration of the whole run.
    """
    if not config.schedule:
        return [config]
    return [apply_phase(phase, config) for phase in config.schedule]


def apply_phase(phase: Phase, config: MetadataConfig) -> MetadataConfig:
    """Returns the configuration of a run during a phase."""
    changes: dict[str, Any] = {}
    for field in fields(phase):
        value = getattr(phase, field.name)
        if field.name not in ("share", "at_decay", "types") and value is not None:
            changes[field.name] = value

    if phase.types is not None:
        changes["metadata_list"] = [name for name in config.metadata_list if name in phase.types]
    return replace(config, schedule=[], **changes)


def compute_phase_starts(
    config: MetadataConfig, max_train_steps: int, decay_start: int | None = None
) -> list[int]:
    """Returns the number of steps before each phase; 0 for the first.

    Args:
        max_train_steps: The number of steps of the run.
        decay_start: The number of steps before the decay of the learning rate, with which a phase
            may begin (`at_decay`); None: there is no decay, so that this phase never begins.
    """
    shares = [phase.share for phase in config.schedule if not phase.at_decay]
    starts = [0]
    for elapsed_share in itertools.accumulate(shares[:-1]):
        starts.append(round(max_train_steps * elapsed_share))

    if len(shares) < len(config.schedule):
        starts.append(max_train_steps if decay_start is None else decay_start)
    return starts
