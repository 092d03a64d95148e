"""Values of `data_config.metadata_config` that cannot be sampled or rendered.

Settings of a single type (the html rules, the number of meta tokens) are checked by its class.
"""

from __future__ import annotations

import math
import operator
import string
from collections.abc import Iterator, Mapping

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.config.metadata import MOST_TYPES, MetadataConfig, during
from bsmeta.core.errors import Problem, nearest, show
from bsmeta.core.keys import bound_problems
from bsmeta.metadata.metadata_type import CONFIG_KEY, CONSTANT, RANDOM, config_problem, setting
from bsmeta.metadata.processors import PROCESSORS, column_keys, type_of

_LIST = "metadata_list"
_SPECIAL_TOKENS = (
    "local_metadata_special_tokens",
    "local_metadata_special_token_start",
    "local_metadata_special_token_end",
)
# Settings by type -> the attribute of a type that says whether it uses them.
_TAKEN = {
    "metadata_templates": "takes_template",
    "value_bucket_bounds": "takes_buckets",
    "value_bucket_scale": "takes_buckets",
}


def metadata_problems(config: MetadataConfig) -> list[Problem]:
    """All problems with the configuration; empty if there are none."""
    found = [*_list_problems(config), *bound_problems(config, f"{CONFIG_KEY}.")]
    key, longest, length = "prefix_max_tokens", config.prefix_max_tokens, config.max_seq_len
    if longest is not None and 2 <= length <= longest:
        expected = f"1 to {length - 1} (max_seq_len - 1), or null"
        found.append(config_problem(key, show(longest), expected, setting(key, "null")))
    found += _template_problems(config)
    found += _bucket_problems(config)
    for metadata_type in PROCESSORS.values():
        found += metadata_type.problems(config)
    found += _schedule_problems(config)
    found += _undrawn_problems(config)
    found += _substitute_problems(config)
    return found


def _undrawn_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Configured types that can never be drawn: the run would train on text alone."""
    columns = config.metadata_column_list
    with_records = [name for name in config.metadata_list if not type_of(name).always_present]
    if columns == [] and with_records:
        expected = f"columns that hold {', '.join(config.metadata_list)}, or null (all of them)"
        fix = setting("metadata_column_list", "null (for text alone: metadata_probability=0)")
        yield config_problem("metadata_column_list", "[]", expected, fix)
    phases = {f"schedule.{n}.": during(phase, config) for n, phase in enumerate(config.schedule)}
    for prefix, phase in (phases or {"": config}).items():
        types = phase.metadata_list
        if not types or not phase.metadata_probability > 0:
            continue
        dropped = {name for name, chance in phase.metadata_dropout.items() if chance >= 1}
        dropped.update(name for name in types if type_of(name).sample_rate(phase) <= 0)
        if dropped.issuperset(types):
            found = f"{', '.join(types)} left out of every document"
            fix = "a chance below 1 (for text alone: metadata_probability=0)"
            expected = "a type that can be drawn"
            yield config_problem(f"{prefix}metadata_dropout", found, expected, fix)
        elif phase.random_sample_metadata and not any(
            type_of(name).weight(name, phase) for name in types
        ):
            key = f"{prefix}random_sample_metadata_weights"
            fix = "give one of them a weight (for text alone: metadata_probability=0)"
            expected = "a type of metadata_list that can be drawn"
            yield config_problem(key, f"0 for {', '.join(types)}", expected, fix)


def _substitute_problems(config: MetadataConfig) -> Iterator[Problem]:
    """Metadata outside the prefix, which constant and random tokens would leave as it is."""
    values = config.metadata_values
    if values not in (CONSTANT, RANDOM):
        return
    local = [name for name in config.metadata_list if type_of(name).is_local]
    if local:
        expected = f"no types about places in the text, because metadata_values={values} replaces "
        fix = f"leave {', '.join(local)} out"
        yield config_problem(_LIST, ", ".join(local), f"{expected}the prefix only", fix)
    if config.metadata_position != "prepend":
        expected = f"prepend, because metadata_values={values} replaces the prefix only"
        fix = setting("metadata_position", "prepend")
        yield config_problem("metadata_position", config.metadata_position, expected, fix)


def _list_problems(config: MetadataConfig) -> Iterator[Problem]:
    types, keys = config.metadata_list, column_keys()
    if len(types) > MOST_TYPES:
        expected = f"at most {MOST_TYPES}, because each type needs a bit of a 32-bit integer"
        yield config_problem(_LIST, f"{len(types)} types", expected, "drop some")
    for name in sorted({name for name in types if types.count(name) > 1}):
        yield config_problem(_LIST, f"{name} more than once", "each type once", f"drop one {name}")
    for name in types:
        if name in keys:
            expected = f"the key of its records, {keys[name]}"
            fix = f"{keys[name]} there; a column belongs into metadata_column_list"
            yield config_problem(_LIST, f"the column {name}", expected, fix)
    if config.loss_on_metadata_types is not None and not config.loss_on_metadata:
        name = "loss_on_metadata_types"
        expected = "null, because loss_on_metadata is false"
        fix = setting(name.removesuffix("_types"), "true")
        yield config_problem(name, show(config.loss_on_metadata_types), expected, fix)
    by_type: dict[str, Mapping[str, object]] = {
        "metadata_dropout": config.metadata_dropout,
        "metadata_templates": config.metadata_templates,
        "value_bucket_bounds": config.value_bucket_bounds,
        "value_bucket_scale": config.value_bucket_scale,
        "loss_on_metadata_types": dict.fromkeys(config.loss_on_metadata_types or ()),
    }
    for name, named in by_type.items():
        for unknown in [key for key in named if key not in types]:
            expected = f"types of metadata_list{nearest(unknown, types)}"
            fix = f"add {unknown} to metadata_list, or drop it here"
            yield config_problem(name, f"the type {unknown}", expected, fix)


def _template_problems(config: MetadataConfig) -> Iterator[Problem]:
    for name, template in config.metadata_templates.items():
        key = f"metadata_templates.{name}"
        if not type_of(name).takes_template:
            continue  # without effect: see `metadata_notes`
        fields = type_of(name).template_fields
        names = ", ".join(f"{{{field}}}" for field in sorted(fields))
        expected = f"a text with some of {names} in it"
        try:
            found = list(string.Formatter().parse(template))
        except ValueError as error:
            fix = "double a brace to show it"
            yield config_problem(key, show(template), f"{expected} ({error})", fix)
            continue
        named = {field for _, field, _, _ in found} - {None}
        if any(form or conversion for _, _, form, conversion in found):
            yield config_problem(
                key, show(template), f"{expected}, and no format after a name", "drop it"
            )
        if not named <= fields or named <= {"key"}:
            yield config_problem(
                key, show(template), expected, setting(key, "'{key}: {value}', for example")
            )


def _bucket_problems(config: MetadataConfig) -> Iterator[Problem]:
    for name, bounds in config.value_bucket_bounds.items():
        key = f"value_bucket_bounds.{name}"
        are_numbers = all(type(bound) in (int, float) for bound in bounds)
        if not bounds or not are_numbers or any(map(operator.ge, bounds, bounds[1:])):
            yield config_problem(
                key, show(bounds), "rising numbers", setting(key, "[10,100], for example")
            )
        if name in config.value_bucket_scale:
            expected = f"no bounds, because value_bucket_scale names {name}, too"
            yield config_problem(key, show(bounds), expected, f"drop {name} from one of the two")


def _schedule_problems(config: MetadataConfig) -> Iterator[Problem]:
    shares = [phase.share for phase in config.schedule if not phase.at_decay]
    for number, phase in enumerate(config.schedule):
        if phase.at_decay and (number == 0 or number + 1 < len(config.schedule)):
            expected = "false: only the last of several phases may begin with the decay"
            fix = "drop at_decay there, or put the phase last"
            yield config_problem(f"schedule.{number}.at_decay", "true", expected, fix)
    if shares and not math.isclose(sum(shares), 1, abs_tol=1e-6):
        expected = f"shares that make 1 (they make {sum(shares):g})"
        yield config_problem("schedule", f"the shares {shares}", expected, "change the shares")
    for number, phase in enumerate(config.schedule):
        for unknown in [name for name in phase.types or () if name not in config.metadata_list]:
            expected = f"types of metadata_list{nearest(unknown, config.metadata_list)}"
            fix = f"add {unknown} to metadata_list, or drop it here"
            yield config_problem(f"schedule.{number}.types", f"the type {unknown}", expected, fix)


def row_budget_problems(config: DataConfig) -> list[Problem]:
    """Settings under which rows of the same text would differ in their text or in its loss."""
    if config.row_budget != BY_TEXT:
        return []
    metadata, found = config.metadata_config, list[Problem]()
    local = [name for name in metadata.metadata_list if type_of(name).is_local]
    reasons = {
        "loss_on_metadata": "the loss is over text only",
        "without_metadata_same_context": "the text is the same in any case (metadata_list=[])",
        "special_tokens_in_text": "runs with other special tokens would have other text tokens",
    }
    if local:
        reason = f"the loss is over text only, and {', '.join(local)} would be in the text"
        reasons["treat_local_metadata_as_regular_text"] = reason
    for name, reason in reasons.items():
        if getattr(metadata, name):
            expected = f"false under data_config.row_budget={BY_TEXT}: {reason}"
            found.append(config_problem(name, "true", expected, setting(name, "false")))
    return found


def metadata_notes(config: MetadataConfig) -> list[str]:
    """Settings without effect: of types that `metadata_list` does not have, or that ignore them.

    They are no problems, so that models that were trained with them can be used. Weights are by key
    or column. Special tokens may be of any known type: a configuration has them
    for several choices of `metadata_list`.
    """
    if not config.metadata_list or not config.metadata_probability > 0:
        return []
    keys, known = column_keys(), {*PROCESSORS, *config.metadata_list}
    named = config.random_sample_metadata_weights
    absent = {
        "random_sample_metadata_weights": [
            name for name in named if keys.get(name, name) not in config.metadata_list
        ]
    }
    for name in _SPECIAL_TOKENS:
        absent[name] = [key for key in getattr(config, name) or () if key not in known]
    notes = [
        f"{CONFIG_KEY}.{name} names {', '.join(types)}, which metadata_list does not have"
        for name, types in absent.items()
        if types
    ]
    for name, flag in _TAKEN.items():
        ignoring = [
            key for key in getattr(config, name) if key in known and not getattr(type_of(key), flag)
        ]
        if ignoring:
            notes.append(f"{CONFIG_KEY}.{name} has no effect on {', '.join(ignoring)}")
    return notes
