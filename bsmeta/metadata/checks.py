"""Checks `data_config.metadata_config` for values that cannot be sampled or rendered.

Settings of a single type (the html rules, the number of meta tokens) are checked by its class.
"""

from __future__ import annotations

import math
import operator
import string
from collections.abc import Iterable, Iterator, Mapping, Set

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.config.metadata import MAX_TYPES, MetadataConfig, apply_phase
from bsmeta.core.errors import Problem, format_value, suggest_nearest
from bsmeta.core.keys import find_bound_problems
from bsmeta.metadata.metadata_type import (
    CONFIG_KEY,
    CONSTANT,
    RANDOM,
    format_setting,
    make_problem,
)
from bsmeta.metadata.processors import PROCESSORS, find_type, map_columns

_LIST_KEY = "metadata_list"
_SPECIAL_TOKEN_KEYS = (
    "local_metadata_special_tokens",
    "local_metadata_special_token_start",
    "local_metadata_special_token_end",
)
# Setting by type -> the attribute of `MetadataType` that says whether the setting affects a type.
_EFFECT_ATTRIBUTES = {
    "metadata_templates": "takes_template",
    "value_bucket_bounds": "takes_buckets",
    "value_bucket_scale": "takes_buckets",
}


def find_metadata_problems(config: MetadataConfig) -> list[Problem]:
    """Returns a problem for each invalid setting of the metadata."""
    problems = [*_find_type_list_problems(config), *find_bound_problems(config, f"{CONFIG_KEY}.")]
    problems += _find_prefix_problems(config)
    problems += _find_template_problems(config)
    problems += _find_bucket_problems(config)
    for metadata_type in PROCESSORS.values():
        problems += metadata_type.find_problems(config)
    problems += _find_schedule_problems(config)
    problems += _find_sampling_problems(config)
    problems += _find_substitute_problems(config)
    return problems


def _find_prefix_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Yields a problem for an unusable boundary token, and for a prefix that fills a sequence."""
    token = config.metadata_boundary_token
    if token and (token.split() != [token] or token.isalnum()):
        key = "metadata_boundary_token"
        expected = 'a string that no text contains, without blanks, such as <|text|>, or ""'
        yield make_problem(key, format_value(token), expected, format_setting(key, "'<|text|>'"))

    max_tokens = config.prefix_max_tokens
    if max_tokens is not None and 2 <= config.max_seq_len <= max_tokens:
        key = "prefix_max_tokens"
        expected = f"1 to {config.max_seq_len - 1} (max_seq_len - 1), or null"
        yield make_problem(key, format_value(max_tokens), expected, format_setting(key, "null"))


def _find_sampling_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Yields a problem for each setting that prevents any type from being sampled."""
    needs_columns = any(not find_type(name).always_present for name in config.metadata_list)
    if config.metadata_column_list == [] and needs_columns:
        expected = f"columns that hold {', '.join(config.metadata_list)}, or null (all of them)"
        fix = format_setting(
            "metadata_column_list", "null (for text alone: metadata_probability=0)"
        )
        yield make_problem("metadata_column_list", "[]", expected, fix)

    if not config.schedule:
        yield from _find_phase_sampling_problems(config, "")
    for index, phase in enumerate(config.schedule):
        phase_config = apply_phase(phase, config)
        yield from _find_phase_sampling_problems(phase_config, f"schedule.{index}.")


def _find_phase_sampling_problems(phase: MetadataConfig, key_prefix: str) -> Iterator[Problem]:
    """Yields a problem if no type can be sampled in a phase of the schedule.

    Args:
        phase: The metadata configuration during the phase.
        key_prefix: Prepended to the phase's keys in messages, such as `schedule.0.`.
    """
    types = phase.metadata_list
    if not types or not phase.metadata_probability > 0:
        return

    dropped_types = {name for name, chance in phase.metadata_dropout.items() if chance >= 1}
    dropped_types.update(name for name in types if find_type(name).get_sample_rate(phase) <= 0)
    has_weight = any(find_type(name).find_weight(name, phase) for name in types)
    if dropped_types.issuperset(types):
        content = f"{', '.join(types)} left out of every document"
        expected = "a type that can be sampled"
        fix = "a chance below 1 (for text alone: metadata_probability=0)"
        yield make_problem(f"{key_prefix}metadata_dropout", content, expected, fix)
    elif phase.random_sample_metadata and not has_weight:
        key = f"{key_prefix}random_sample_metadata_weights"
        expected = "a type of metadata_list that can be sampled"
        fix = "give one of them a weight (for text alone: metadata_probability=0)"
        yield make_problem(key, f"0 for {', '.join(types)}", expected, fix)


def _find_substitute_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Yields a problem for metadata outside the prefix, if constants or random tokens replace it.

    They can replace the prefix only.
    """
    values = config.metadata_values
    if values not in (CONSTANT, RANDOM):
        return

    local_types = [name for name in config.metadata_list if find_type(name).is_local]
    if local_types:
        expected = (
            f"no types about places in the text, because metadata_values={values} replaces "
            "the prefix only"
        )
        fix = f"leave {', '.join(local_types)} out"
        yield make_problem(_LIST_KEY, ", ".join(local_types), expected, fix)

    if config.metadata_position != "prepend":
        expected = f"prepend, because metadata_values={values} replaces the prefix only"
        fix = format_setting("metadata_position", "prepend")
        yield make_problem("metadata_position", config.metadata_position, expected, fix)


def _find_type_list_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Yields a problem for each invalid entry of `metadata_list`, and for types missing in it."""
    types = config.metadata_list
    keys_by_column = map_columns()
    if len(types) > MAX_TYPES:
        expected = f"at most {MAX_TYPES}, because each type needs a bit of a 32-bit integer"
        yield make_problem(_LIST_KEY, f"{len(types)} types", expected, "drop some")
    for name in sorted({name for name in types if types.count(name) > 1}):
        yield make_problem(
            _LIST_KEY, f"{name} more than once", "each type once", f"drop one {name}"
        )
    for name in types:
        if name in keys_by_column:
            expected = f"the key of its records, {keys_by_column[name]}"
            fix = f"{keys_by_column[name]} there; a column belongs in metadata_column_list"
            yield make_problem(_LIST_KEY, f"the column {name}", expected, fix)

    if config.loss_on_metadata_types is not None and not config.loss_on_metadata:
        expected = "null, because loss_on_metadata is false"
        yield make_problem(
            "loss_on_metadata_types",
            format_value(config.loss_on_metadata_types),
            expected,
            format_setting("loss_on_metadata", "true"),
        )
    yield from _find_unlisted_type_problems(config)


def _find_unlisted_type_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Yields a problem for each setting by type that names a type missing in `metadata_list`."""
    settings_by_type: dict[str, Mapping[str, object]] = {
        "metadata_dropout": config.metadata_dropout,
        "metadata_templates": config.metadata_templates,
        "value_bucket_bounds": config.value_bucket_bounds,
        "value_bucket_scale": config.value_bucket_scale,
        "loss_on_metadata_types": dict.fromkeys(config.loss_on_metadata_types or ()),
    }
    for setting, types in settings_by_type.items():
        yield from _find_unlisted_types(setting, types, config)


def _find_unlisted_types(
    setting: str, types: Iterable[str], config: MetadataConfig
) -> Iterator[Problem]:
    """Yields a problem for each of a setting's types that is missing in `metadata_list`."""
    for name in types:
        if name not in config.metadata_list:
            expected = f"types of metadata_list{suggest_nearest(name, config.metadata_list)}"
            fix = f"add {name} to metadata_list, or drop it here"
            yield make_problem(setting, f"the type {name}", expected, fix)


def _find_template_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Yields a problem for each template that cannot be filled in or does not use the value."""
    for name, template in config.metadata_templates.items():
        if not find_type(name).takes_template:
            continue  # without effect: see `list_metadata_notes`

        key = f"metadata_templates.{name}"
        fields = find_type(name).template_fields
        names = ", ".join(f"{{{field}}}" for field in sorted(fields))
        expected = f"a text with some of {names} in it"
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            fix = "double a brace to show it"
            yield make_problem(key, format_value(template), f"{expected} ({error})", fix)
            continue

        used_fields = {field for _, field, _, _ in parts} - {None}
        if any(form or conversion for _, _, form, conversion in parts):
            yield make_problem(
                key, format_value(template), f"{expected}, and no format after a name", "drop it"
            )
        if not used_fields <= fields or used_fields <= {"key"}:
            yield make_problem(
                key,
                format_value(template),
                expected,
                format_setting(key, "'{key}: {value}', for example"),
            )


def _find_bucket_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Yields a problem for bucket bounds that do not increase, or that conflict with a scale."""
    for name, bounds in config.value_bucket_bounds.items():
        key = f"value_bucket_bounds.{name}"
        are_numbers = all(type(bound) in (int, float) for bound in bounds)
        if not bounds or not are_numbers or any(map(operator.ge, bounds, bounds[1:])):
            yield make_problem(
                key,
                format_value(bounds),
                "rising numbers",
                format_setting(key, "[10,100], for example"),
            )

        if name in config.value_bucket_scale:
            expected = f"no bounds, because value_bucket_scale also names {name}"
            yield make_problem(
                key, format_value(bounds), expected, f"drop {name} from one of the two"
            )


def _find_schedule_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Yields a problem for a misplaced `at_decay`, for wrong shares, and for unlisted types."""
    for index, phase in enumerate(config.schedule):
        if phase.at_decay and (index == 0 or index + 1 < len(config.schedule)):
            expected = "false: only the last of several phases may begin with the decay"
            fix = "drop at_decay there, or put the phase last"
            yield make_problem(f"schedule.{index}.at_decay", "true", expected, fix)

    shares = [phase.share for phase in config.schedule if not phase.at_decay]
    if shares and not math.isclose(sum(shares), 1, abs_tol=1e-6):
        expected = f"shares that make 1 (they make {sum(shares):g})"
        yield make_problem("schedule", f"the shares {shares}", expected, "change the shares")

    for index, phase in enumerate(config.schedule):
        yield from _find_unlisted_types(f"schedule.{index}.types", phase.types or (), config)


def _describe_replaced_separators(config: MetadataConfig) -> Iterator[str]:
    """Yields a note if the boundary token replaces separators that have been configured."""
    if not config.metadata_boundary_token:
        return

    defaults = MetadataConfig()
    separators = ("metadata_prefix_sep", "metadata_text_sep", "metadata_suffix_start_seq")
    replaced = [name for name in separators if getattr(config, name) != getattr(defaults, name)]
    if replaced:
        token = format_value(config.metadata_boundary_token)
        yield (
            f"{CONFIG_KEY}: {', '.join(replaced)} not used: metadata_boundary_token={token} takes "
            "their place"
        )


def find_row_budget_problems(config: DataConfig) -> list[Problem]:
    """Returns a problem for each setting that makes a row's text or loss depend on the metadata.

    Neither may depend on it under `row_budget=text`; under others, there is no problem.
    """
    if config.row_budget != BY_TEXT:
        return []

    metadata = config.metadata_config
    reasons = {
        "loss_on_metadata": "the loss is over text only",
        "without_metadata_same_context": "the text is the same in any case (metadata_list=[])",
        "special_tokens_in_text": "runs with other special tokens would have other text tokens",
    }
    local_types = [name for name in metadata.metadata_list if find_type(name).is_local]
    if local_types:
        reason = f"the loss is over text only, and {', '.join(local_types)} would be in the text"
        reasons["treat_local_metadata_as_regular_text"] = reason

    problems: list[Problem] = []
    for name, reason in reasons.items():
        if getattr(metadata, name):
            expected = f"false under data_config.row_budget={BY_TEXT}: {reason}"
            problems.append(make_problem(name, "true", expected, format_setting(name, "false")))
    return problems


def list_metadata_notes(config: MetadataConfig) -> list[str]:
    """Returns a note for each setting that has no effect.

    Such a setting names types that are not in `metadata_list`, or that ignore it. It is allowed, so
    that models that were trained with it can still be used. Weights name keys or columns. Special
    tokens may name any known type, because a configuration may serve several values of
    `metadata_list`.
    """
    if not config.metadata_list or not config.metadata_probability > 0:
        return []

    notes = [*_describe_replaced_separators(config)]
    known_types = {*PROCESSORS, *config.metadata_list}
    for setting, names in _list_absent_types(config, known_types).items():
        if names:
            types = ", ".join(names)
            notes.append(f"{CONFIG_KEY}.{setting} names {types}, which metadata_list does not have")

    for setting, attribute in _EFFECT_ATTRIBUTES.items():
        unaffected = [
            name
            for name in getattr(config, setting)
            if name in known_types and not getattr(find_type(name), attribute)
        ]
        if unaffected:
            notes.append(f"{CONFIG_KEY}.{setting} has no effect on {', '.join(unaffected)}")
    return notes


def _list_absent_types(config: MetadataConfig, known_types: Set[str]) -> dict[str, list[str]]:
    """Returns the types without effect that weights and special tokens name, by setting."""
    keys_by_column = map_columns()
    absent_types: dict[str, list[str]] = {}
    absent_types["random_sample_metadata_weights"] = [
        name
        for name in config.random_sample_metadata_weights
        if keys_by_column.get(name, name) not in config.metadata_list
    ]
    for setting in _SPECIAL_TOKEN_KEYS:
        strings_by_type = getattr(config, setting) or {}
        absent_types[setting] = [name for name in strings_by_type if name not in known_types]
    return absent_types
