"""Values of `data_config.metadata_config` that cannot be sampled or rendered."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterator, Mapping

from bsmeta.config.checks.bounds import bound_problems
from bsmeta.config.checks.problems import HYDRA, Problem, nearest, show
from bsmeta.config.metadata import (
    COLUMN_KEYS,
    MOST_TYPES,
    HtmlParserConfig,
    MetadataConfig,
    during,
    weight_of,
)

_TEMPLATE_FIELDS = {"timestamp": {"key", "value", "year", "month"}}
_HERE = "data_config.metadata_config"
_LIST = "metadata_list"


def metadata_problems(config: MetadataConfig) -> list[Problem]:
    """All that is wrong with the configuration; empty if nothing is."""
    found = [*_list_problems(config), *_number_problems(config)]
    found += bound_problems(config, f"{_HERE}.")
    found += _template_problems(config)
    found += _bucket_problems(config)
    found += _html_problems(config.html_parser_config)
    found += _schedule_problems(config)
    found += _undrawn_problems(config)
    return found


def _undrawn_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Types that are asked for and can never be drawn: the run would train on text alone."""
    columns = config.metadata_column_list
    if columns == [] and config.metadata_list and config.metadata_list != ["meta_tokens"]:
        expected = f"columns that hold {', '.join(config.metadata_list)}, or null (all of them)"
        fix = _set("metadata_column_list", "null (for text alone: metadata_probability=0)")
        yield _problem("metadata_column_list", "[]", expected, fix)
    phases = {f"schedule.{n}.": during(one, config) for n, one in enumerate(config.schedule)}
    for prefix, phase in (phases or {"": config}).items():
        types = phase.metadata_list
        if not types or not phase.metadata_probability > 0:
            continue
        dropped = {name for name, chance in phase.metadata_dropout.items() if chance >= 1}
        if phase.html_overall_sample_rate <= 0:
            dropped.add("html")
        if dropped.issuperset(types):
            found = f"{', '.join(types)} left out of every document"
            fix = "a chance below 1 (for text alone: metadata_probability=0)"
            expected = "a type that can be drawn"
            yield _problem(f"{prefix}metadata_dropout", found, expected, fix)
        elif phase.random_sample_metadata and not any(weight_of(name, phase) for name in types):
            key = f"{prefix}random_sample_metadata_weights"
            fix = "give one of them a weight (for text alone: metadata_probability=0)"
            expected = "a type of metadata_list that can be drawn"
            yield _problem(key, f"0 for {', '.join(types)}", expected, fix)


def _list_problems(config: MetadataConfig) -> Iterator[Problem]:
    types = config.metadata_list
    if len(types) > MOST_TYPES:
        expected = f"at most {MOST_TYPES}, because a kind of token is a byte"
        yield _problem(_LIST, f"{len(types)} types", expected, "drop some")
    for name in sorted({name for name in types if types.count(name) > 1}):
        yield _problem(_LIST, f"{name} more than once", "each type once", f"drop one {name}")
    for name in types:
        if name in COLUMN_KEYS:
            expected = f"the key of its records, {COLUMN_KEYS[name]}"
            fix = f"{COLUMN_KEYS[name]} there; a column belongs into metadata_column_list"
            yield _problem(_LIST, f"the column {name}", expected, fix)
    if config.loss_on_metadata_types is not None and not config.loss_on_metadata:
        name = "loss_on_metadata_types"
        expected = "null, because loss_on_metadata is false"
        yield _problem(name, show(config.loss_on_metadata_types), expected, _set(name[:-6], "true"))
    by_type: dict[str, Mapping[str, object]] = {
        "metadata_dropout": config.metadata_dropout,
        "metadata_templates": config.metadata_templates,
        "value_bucket_bounds": config.value_bucket_bounds,
        "value_bucket_scale": config.value_bucket_scale,
        "loss_on_metadata_types": dict.fromkeys(config.loss_on_metadata_types or ()),
    }
    for name, named in by_type.items():
        for unknown in [one for one in named if one not in types]:
            expected = f"types of metadata_list{nearest(unknown, types)}"
            fix = f"add {unknown} to metadata_list, or drop it here"
            yield _problem(name, f"the type {unknown}", expected, fix)


def _chance_problems(config: MetadataConfig) -> Iterator[Problem]:
    chances = {
        "metadata_probability": config.metadata_probability,
        "html_overall_sample_rate": config.html_overall_sample_rate,
    }
    chances |= {f"metadata_dropout.{name}": at for name, at in config.metadata_dropout.items()}
    for name, chance in chances.items():
        if not 0 <= chance <= 1:
            yield _problem(
                name, show(chance), "a chance from 0 to 1", _set(name, "0.5, for example")
            )
    for name, weight in config.random_sample_metadata_weights.items():
        if not 0 <= weight < math.inf:
            key = f"random_sample_metadata_weights.{name}"
            yield _problem(key, show(weight), "a number of 0 or more", _set(key, "1.0"))


def _number_problems(config: MetadataConfig) -> Iterator[Problem]:
    yield from _chance_problems(config)
    if config.max_seq_len < 2:
        fix = _set("max_seq_len", "1024, for example")
        yield _problem("max_seq_len", show(config.max_seq_len), "at least 2 tokens", fix)
    longest = config.prefix_max_tokens
    if longest is not None and not 1 <= longest < config.max_seq_len:
        expected = f"1 to {config.max_seq_len - 1} (max_seq_len - 1), or null"
        yield _problem(
            "prefix_max_tokens", show(longest), expected, _set("prefix_max_tokens", "null")
        )
    if "meta_tokens" in config.metadata_list and config.num_meta_tokens < 1:
        expected = "1 or more, because metadata_list asks for meta_tokens"
        fix = _set("num_meta_tokens", "5")
        yield _problem("num_meta_tokens", show(config.num_meta_tokens), expected, fix)


def _template_problems(config: MetadataConfig) -> Iterator[Problem]:
    for name, template in config.metadata_templates.items():
        key = f"metadata_templates.{name}"
        fields = _TEMPLATE_FIELDS.get(name, {"key", "value"})
        names = ", ".join(f"{{{field}}}" for field in sorted(fields))
        expected = f"a text with some of {names} in it"
        try:
            found = list(string.Formatter().parse(template))
        except ValueError as error:
            fix = "double a brace to show it"
            yield _problem(key, show(template), f"{expected} ({error})", fix)
            continue
        named = {field for _, field, _, _ in found} - {None}
        if any(form or conversion for _, _, form, conversion in found):
            yield _problem(
                key, show(template), f"{expected}, and no format after a name", "drop it"
            )
        if not named <= fields or named <= {"key"}:
            yield _problem(
                key, show(template), expected, _set(key, "'{key}: {value}', for example")
            )


def _bucket_problems(config: MetadataConfig) -> Iterator[Problem]:
    for name, bounds in config.value_bucket_bounds.items():
        key = f"value_bucket_bounds.{name}"
        if not bounds or any(low >= high for low, high in itertools.pairwise(bounds)):
            yield _problem(key, show(bounds), "rising numbers", _set(key, "[10,100], for example"))
        if name in config.value_bucket_scale:
            expected = f"no bounds, because value_bucket_scale names {name}, too"
            yield _problem(key, show(bounds), expected, f"drop {name} from one of the two")
    for name, scale in config.value_bucket_scale.items():
        if not 0 < scale < math.inf:
            key = f"value_bucket_scale.{name}"
            yield _problem(key, show(scale), "a number above 0", _set(key, "1.0"))


def _schedule_problems(config: MetadataConfig) -> Iterator[Problem]:
    shares = [phase.share for phase in config.schedule]
    if shares and (min(shares) <= 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6)):
        expected = f"shares above 0 that make 1 (they make {sum(shares):g})"
        yield _problem("schedule", f"the shares {shares}", expected, "change the shares")
    for number, phase in enumerate(config.schedule):
        for unknown in [name for name in phase.types or () if name not in config.metadata_list]:
            expected = f"types of metadata_list{nearest(unknown, config.metadata_list)}"
            fix = f"add {unknown} to metadata_list, or drop it here"
            yield _problem(f"schedule.{number}.types", f"the type {unknown}", expected, fix)
        for one in _chance_problems(during(phase, config)):
            key = one.key.replace(_HERE, f"{_HERE}.schedule.{number}")
            yield Problem(key, one.file, one.found, one.expected, "write a number from 0 to 1")


def _html_problems(rules: HtmlParserConfig) -> Iterator[Problem]:
    section, name_list = "html_parser_config", "tags_to_remove_alone_tag_name"
    names = rules.tags_to_remove_alone_tag_name
    for end in ("min", "max"):
        field = f"tags_to_remove_alone_txt_{end}_chr_len"
        lengths = getattr(rules, field)
        if len(lengths) != len(names):
            expected = f"a length for each of the {len(names)} names of {name_list}"
            fix = "give as many lengths as names"
            yield _problem(f"{section}.{field}", f"{len(lengths)} lengths", expected, fix)
    for name in sorted({name for name in names if names.count(name) > 1}):
        fix = f"drop one {name}, and its lengths"
        yield _problem(f"{section}.{name_list}", f"{name} more than once", "each once", fix)


def _problem(name: str, found: str, expected: str, fix: str) -> Problem:
    return Problem(f"{_HERE}.{name}", HYDRA, found, expected, fix)


def _set(name: str, value: str) -> str:
    return f"{_HERE}.{name}={value}"
