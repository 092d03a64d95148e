"""Schema of `data_config.metadata_config`: which metadata a document is given, and how it reads."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from bsmeta.config.keys import key

COLUMN_KEYS = {
    "website_desc": "website_description",
    "generation_datasource": "datasource",
    "generation_length_text": "length",
    "generation_length_sentence": "length",
}
"""Columns of the data (without `metadata_`) whose records have another key than their name."""

MOST_TYPES = 255
"""Types of a run at most: a kind of token is a byte, and 0 is text."""


@dataclass(kw_only=True)
class HtmlTagRules:
    """Rules that hold for every html tag (`html_parser_config.all_tags_rules`)."""

    attributes_to_keep: list[str] | None = key(
        ["class", "id"], "html attributes that are rendered; null renders all"
    )
    txt_max_chr_len: float = key(
        float("-inf"),
        "tags around at least txt_min_chr_len and at most this many characters are dropped",
    )
    txt_min_chr_len: float = key(float("-inf"), "see txt_max_chr_len")
    tags_exceptions_to_txt_max_min_chr_len: list[str] = key(
        [], "tag names to which the length rule does not apply"
    )


@dataclass(kw_only=True)
class HtmlParserConfig:
    """Which html tags and attributes are rendered."""

    all_tags_rules: HtmlTagRules = key(HtmlTagRules, "rules for every tag")
    tags_to_remove_alone_tag_name: list[str] = key(
        [], "tags dropped by name, keeping their content"
    )
    tags_to_remove_alone_txt_max_chr_len: list[float] = key(
        [], "for each of those names: dropped only around at most so many characters"
    )
    tags_to_remove_alone_txt_min_chr_len: list[float] = key(
        [], "for each of those names: dropped only around at least so many characters"
    )


@dataclass(kw_only=True)
class Phase:
    """A part of the run with its own choice of metadata; what is null stays as it is outside."""

    share: float = key(1.0, "share of max_train_steps that it takes; together they make 1")
    metadata_probability: float | None = key(None, "share of documents that are given any metadata")
    types: list[str] | None = key(None, "keys of metadata_list that may be drawn")
    random_sample_metadata: bool | None = key(None, "draw some of the types present, or use all")
    random_sample_metadata_weights: dict[str, float] | None = key(None, "weight of each type")
    metadata_dropout: dict[str, float] | None = key(None, "chance that a type is left out")
    html_overall_sample_rate: float | None = key(None, "chance that html may be drawn at all")


@dataclass(kw_only=True)
class MetadataConfig:
    """Which metadata a document is given, and how it reads."""

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
        ],
        "keys that may be used, in the order in which they are rendered",
    )
    metadata_column_list: list[str] | None = key(
        None, "columns (without `metadata_`) that are read; null reads every one of metadata_list"
    )
    metadata_probability: float = key(0.5, "share of documents that are given any metadata")
    random_sample_metadata: bool = key(
        True, "draw k of the n types present (k uniform in 1..n); false uses all of them"
    )
    random_sample_metadata_weights: dict[str, float] = key(
        {}, "weight of each type (key or column) in that draw; 1 where not named, 0: never drawn"
    )
    metadata_dropout: dict[str, float] = key(
        {}, "chance that a type (key) is left out of a document before that draw"
    )
    html_overall_sample_rate: float = key(1.0, "chance that html may be drawn at all")
    schedule: list[Phase] = key(
        [], "phases of the run, in order, such as [{share: 0.9}, {share: 0.1, types: []}]"
    )
    without_metadata_same_context: bool = key(
        False, "leave all metadata out, but cut the text where the run with metadata cuts it"
    )

    metadata_position: str = key(
        "prepend", "global records: prepend (in the prefix) | append (after the text) | both"
    )
    metadata_prefix_start_seq: str = key("", "text before the prefix")
    metadata_sep: str = key(" | ", "between the records of the prefix")
    metadata_key_value_sep: str = key(": ", "between key and value of a record")
    metadata_prefix_sep: str = key(" |||", "closes the prefix")
    metadata_prefix_special_token_state: bool = key(
        False, "add metadata_prefix_start_seq and metadata_prefix_sep to the tokenizer"
    )
    metadata_text_sep: str = key(" ", "between the prefix and the text; belongs to neither")
    metadata_suffix_start_seq: str = key(" ||| ", "between the text and appended records")
    metadata_templates: dict[str, str] = key(
        {}, "how a global record of a type (key) reads: `URL: {value}`; timestamp: {year}, {month}"
    )
    url_granularity: str = key(
        "full", "part of the url: full | host | registered_domain | suffix | path | hash (of host)"
    )
    value_bucket_bounds: dict[str, list[float]] = key(
        {}, "types (keys) whose numbers are rendered as the interval between these rising bounds"
    )
    value_bucket_scale: dict[str, float] = key(
        {}, "types (keys) whose numbers are rendered as floor(scale * number)"
    )
    num_meta_tokens: int = key(5, "learnable tokens that the type `meta_tokens` puts in the prefix")

    treat_local_metadata_as_regular_text: bool = key(
        True, "local records count as text (trained on); only the prefix is masked"
    )
    # {} and not null by default: Hydra cannot set a mapping from the command line over null.
    local_metadata_special_tokens: dict[str, str] | None = key(
        {}, "how a local type is announced in the prefix (its own name where not named)"
    )
    add_local_metadata_special_tokens_in_prefix: bool = key(
        True, "announce the local types of a document in its prefix"
    )
    local_metadata_special_token_start: dict[str, str] | None = key(
        {}, "text before each run of a local type's tags"
    )
    local_metadata_special_token_end: dict[str, str] | None = key(
        {}, "text after each run of a local type's tags"
    )
    local_metadata_special_token_state: bool = key(
        False, "add those two to the tokenizer as special tokens"
    )
    entity_setting: str = key(
        "beg", "entity_paragraph: entities at the `beg` or `end` of their paragraph"
    )
    html_parser_config: HtmlParserConfig = key(HtmlParserConfig, "which html is rendered")

    max_seq_len: int = key(1024, "length of a sequence in tokens")
    prefix_on: str = key(
        "every_piece", "pieces of a long document that carry the prefix: every_piece | first_piece"
    )
    prefix_max_tokens: int | None = key(
        None, "longest prefix in tokens (cut, keeping its end); null: max_seq_len // 2"
    )
    loss_on_metadata: bool = key(False, "take loss on metadata tokens, too")
    loss_on_metadata_types: list[str] | None = key(
        None, "with loss_on_metadata: only on tokens of these types (keys)"
    )


def phase_configs(config: MetadataConfig) -> list[MetadataConfig]:
    """What metadata is drawn by, phase by phase; the configuration itself without a schedule.

    Only for sampling: the order and the numbers of types stay those of the whole configuration.
    """
    return [_during(phase, config) for phase in config.schedule] or [config]


def _during(phase: Phase, config: MetadataConfig) -> MetadataConfig:
    names = {one.name for one in fields(phase)} - {"share", "types"}
    changed = {name: getattr(phase, name) for name in names if getattr(phase, name) is not None}
    if phase.types is not None:
        changed["metadata_list"] = [name for name in config.metadata_list if name in phase.types]
    return replace(config, schedule=[], **changed)


def phase_starts(config: MetadataConfig, max_train_steps: int) -> list[int]:
    """The number of updates before each phase; the first is 0."""
    shares = [phase.share for phase in config.schedule]
    return [0, *(round(max_train_steps * at) for at in itertools.accumulate(shares[:-1]))]


_CHOICES = {
    "metadata_position": ("prepend", "append", "both"),
    "url_granularity": ("full", "host", "registered_domain", "suffix", "path", "hash"),
    "entity_setting": ("beg", "end"),
    "prefix_on": ("every_piece", "first_piece"),
}
_TEMPLATE_FIELDS = {"timestamp": {"key", "value", "year", "month"}}
_HERE = "data_config.metadata_config"


def metadata_problems(config: MetadataConfig) -> list[str]:
    """All that is wrong with the configuration, one line a problem; empty if nothing is."""
    found = [*_list_problems(config), *_number_problems(config)]
    for name, choices in _CHOICES.items():
        value = getattr(config, name)
        if value not in choices:
            found.append(f"{name} is {value!r}; expected one of {', '.join(choices)}")
    found += _template_problems(config)
    found += _bucket_problems(config)
    found += _html_problems(config.html_parser_config)
    found += _schedule_problems(config)
    return [f"{_HERE}.{problem}" for problem in found]


def _list_problems(config: MetadataConfig) -> Iterator[str]:
    keys = config.metadata_list
    if len(keys) > MOST_TYPES:
        yield f"metadata_list has {len(keys)} types; at most {MOST_TYPES} are possible"
    for name in sorted({name for name in keys if keys.count(name) > 1}):
        yield f"metadata_list names {name} more than once; name it once"
    for name in keys:
        if name in COLUMN_KEYS:
            yield f"metadata_list names the column {name}; name its key, {COLUMN_KEYS[name]}"
    if config.loss_on_metadata_types is not None and not config.loss_on_metadata:
        yield "loss_on_metadata_types is given, but loss_on_metadata is false; set it to true"
    by_type: dict[str, Mapping[str, object]] = {
        "metadata_dropout": config.metadata_dropout,
        "metadata_templates": config.metadata_templates,
        "value_bucket_bounds": config.value_bucket_bounds,
        "value_bucket_scale": config.value_bucket_scale,
        "loss_on_metadata_types": dict.fromkeys(config.loss_on_metadata_types or ()),
    }
    for name, types in by_type.items():
        for unknown in [one for one in types if one not in keys]:
            yield f"{name} names {unknown}, which metadata_list lacks; add it there or drop it here"


def _chance_problems(config: MetadataConfig) -> Iterator[str]:
    chances = {
        "metadata_probability": config.metadata_probability,
        "html_overall_sample_rate": config.html_overall_sample_rate,
    }
    chances |= {f"metadata_dropout.{name}": at for name, at in config.metadata_dropout.items()}
    for name, chance in chances.items():
        if not 0 <= chance <= 1:
            yield f"{name} is {chance}; expected a chance from 0 to 1"
    for name, weight in config.random_sample_metadata_weights.items():
        if not 0 <= weight < math.inf:
            yield f"random_sample_metadata_weights.{name} is {weight}; expected 0 or more"


def _number_problems(config: MetadataConfig) -> Iterator[str]:
    yield from _chance_problems(config)
    if config.max_seq_len < 2:
        yield f"max_seq_len is {config.max_seq_len}; expected at least 2 tokens"
    longest = config.prefix_max_tokens
    if longest is not None and not 1 <= longest < config.max_seq_len:
        yield f"prefix_max_tokens is {longest}; expected 1 to max_seq_len - 1, or null"
    if "meta_tokens" in config.metadata_list and config.num_meta_tokens < 1:
        yield f"num_meta_tokens is {config.num_meta_tokens}; metadata_list asks for meta_tokens"


def _template_problems(config: MetadataConfig) -> Iterator[str]:
    for name, template in config.metadata_templates.items():
        fields = _TEMPLATE_FIELDS.get(name, {"key", "value"})
        try:
            found = list(string.Formatter().parse(template))
        except ValueError as error:
            yield f"metadata_templates.{name} is {template!r}: {error} (double a brace to show it)"
            continue
        named = {field for _, field, _, _ in found} - {None}
        if any(form or conversion for _, _, form, conversion in found):
            yield f"metadata_templates.{name} is {template!r}; expected no format after a name"
        if not named <= fields or named <= {"key"}:
            expected = ", ".join(f"{{{field}}}" for field in sorted(fields))
            yield f"metadata_templates.{name} is {template!r}; expected some of {expected} in it"


def _bucket_problems(config: MetadataConfig) -> Iterator[str]:
    for name, bounds in config.value_bucket_bounds.items():
        if not bounds or any(low >= high for low, high in itertools.pairwise(bounds)):
            yield f"value_bucket_bounds.{name} is {bounds}; expected rising numbers"
        if name in config.value_bucket_scale:
            yield f"value_bucket_scale and value_bucket_bounds both name {name}; drop it from one"
    for name, scale in config.value_bucket_scale.items():
        if not 0 < scale < math.inf:
            yield f"value_bucket_scale.{name} is {scale}; expected more than 0"


def _schedule_problems(config: MetadataConfig) -> Iterator[str]:
    shares = [phase.share for phase in config.schedule]
    if shares and (min(shares) <= 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6)):
        yield f"schedule has the shares {shares}; expected numbers above 0 that make 1"
    for number, phase in enumerate(config.schedule):
        for unknown in [name for name in phase.types or () if name not in config.metadata_list]:
            yield f"schedule.{number}.types names {unknown}, which metadata_list lacks; add it"
        for problem in _chance_problems(_during(phase, config)):
            yield f"schedule.{number}.{problem}"


def _html_problems(rules: HtmlParserConfig) -> Iterator[str]:
    names = rules.tags_to_remove_alone_tag_name
    for end in ("min", "max"):
        field = f"tags_to_remove_alone_txt_{end}_chr_len"
        count = len(getattr(rules, field))
        if count != len(names):
            yield (
                f"html_parser_config.{field} has {count} lengths for the {len(names)} names of "
                "tags_to_remove_alone_tag_name; give one for each"
            )
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"html_parser_config.tags_to_remove_alone_tag_name has {name} more than once"
