"""Schema of `data_config.metadata_config`: which metadata a document is given, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.config.keys import key


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
    local_metadata_special_tokens: dict[str, str] | None = key(
        None, "how a local type is announced in the prefix (its own name where not named)"
    )
    add_local_metadata_special_tokens_in_prefix: bool = key(
        True, "announce the local types of a document in its prefix"
    )
    local_metadata_special_token_start: dict[str, str] | None = key(
        None, "text before each run of a local type's tags"
    )
    local_metadata_special_token_end: dict[str, str] | None = key(
        None, "text after each run of a local type's tags"
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


_CHOICES = {
    "metadata_position": ("prepend", "append", "both"),
    "url_granularity": ("full", "host", "registered_domain", "suffix", "path", "hash"),
    "entity_setting": ("beg", "end"),
    "prefix_on": ("every_piece", "first_piece"),
}


def metadata_problems(config: MetadataConfig) -> list[str]:
    """All that is wrong with the configuration, one line a problem; empty if nothing is."""
    return []
