"""Arms: the ways in which a document is presented to the model, and the comparisons between them.

An arm defines the metadata that a document is rendered with; a comparison pairs two arms. Every
arm is scored once, however many comparisons use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.metadata.substitutes import MATCHED, OWN, SHUFFLED, WRONG

TEXT = "text"
"""The group whose only comparison has identical arms: every document as text alone."""

TRAINING, PROMPT, FORM, SEPARATOR = "training", "prompt", "form", "separator"

CONTROLS = (SHUFFLED, WRONG, MATCHED, FORM, SEPARATOR)

AGAINST = "own_against_"
"""Prefix of the groups that compare an arm with its control instead of with no metadata."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to present a document to the model.

    Attributes:
        types: The metadata types to use (where the document has them).
        values: `own`: the document's values; `shuffled`: another document's; `wrong`: another
            document's that differ from its own; `matched`: wrong values of similar length.
        style: `training`: as in training; `prompt`: field names in plain English; `form`: a prefix
            of junk words of similar length; `separator`: only the end of a prefix.
    """

    types: tuple[str, ...] = ()
    values: str = OWN
    style: str = TRAINING

    def __str__(self) -> str:
        if not self.types:
            return "without metadata"
        variants = [name for name in (self.values, self.style) if name not in (OWN, TRAINING)]
        return ", ".join(self.types) + (f" ({', '.join(variants)})" if variants else "")


NOTHING = Arm()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms over the same bytes: the effect of `test` relative to `base`.

    Attributes:
        group: The group that it belongs to, such as `all` or `each`.
        name: Unique among the comparisons, such as `each/url`.
    """

    group: str
    name: str
    base: Arm
    test: Arm


def _all(types: tuple[str, ...]) -> list[Comparison]:
    return [Comparison("all", "all", NOTHING, Arm(types))]


def _each(types: tuple[str, ...]) -> list[Comparison]:
    return [Comparison("each", f"each/{type_}", NOTHING, Arm((type_,))) for type_ in types]


def _left_out(types: tuple[str, ...]) -> list[Comparison]:
    return [
        Comparison("left_out", f"left_out/{type_}", NOTHING, Arm(_others(types, type_)))
        for type_ in types
    ]


def _added(types: tuple[str, ...]) -> list[Comparison]:
    return [
        Comparison("added", f"added/{type_}", Arm(_others(types, type_)), Arm(types))
        for type_ in types
    ]


def _others(types: tuple[str, ...], one: str) -> tuple[str, ...]:
    return tuple(other for other in types if other != one)


COMPARISONS: dict[str, Callable[[tuple[str, ...]], list[Comparison]]] = {
    "all": _all,
    "each": _each,
    "left_out": _left_out,
    "added": _added,
}


def text_alone() -> Comparison:
    """The comparison with identical arms, which scores every document without metadata."""
    return Comparison(TEXT, TEXT, NOTHING, NOTHING)


def plan_comparisons(groups: Sequence[str], types: Sequence[str]) -> list[Comparison]:
    """The comparisons of these groups, in the order of the groups.

    Raises:
        ConfigurationError: A group name is unknown.
    """
    unknown = [group for group in groups if group not in COMPARISONS]
    if unknown:
        raise ConfigurationError(
            f"comparisons={list(groups)}: {unknown} unknown, expected any of {list(COMPARISONS)}"
        )
    return [comparison for group in groups for comparison in COMPARISONS[group](tuple(types))]


def configured_comparisons(config: EvaluateConfig, types: Sequence[str]) -> list[Comparison]:
    """The text alone, then all comparisons that the configuration requests.

    Args:
        config: The evaluation.
        types: The metadata types of the model.

    Raises:
        ConfigurationError: A name is unknown; the message lists all of them.
    """
    problems = [
        f"controls={list(config.controls)}: {control} unknown, expected any of {list(CONTROLS)}"
        for control in config.controls
        if control not in CONTROLS
    ]
    chosen = []
    for entry in config.chosen:
        wanted = entry.split("+")
        problems += [
            f"chosen={list(config.chosen)}: {comparison} is not in metadata_list {list(types)}"
            for comparison in wanted
            if comparison not in types
        ]
        own = tuple(type_ for type_ in types if type_ in wanted)
        chosen.append(Comparison("chosen", f"chosen/{entry}", NOTHING, Arm(own)))
    if problems:
        raise ConfigurationError("\n".join(problems))
    plain = [*plan_comparisons(config.comparisons, types), *chosen]
    repeated = [arm for arm in plain if arm.group in ("all", "each", "chosen")]
    varied = [
        _varied(comparison, control, controlled(comparison.test, control))
        for control in config.controls
        for comparison in repeated
    ]
    varied += [
        replace(
            _varied(comparison, AGAINST + control, comparison.test),
            base=controlled(comparison.test, control),
        )
        for control in config.controls
        for comparison in repeated
    ]
    if config.prompt:
        varied += [
            _varied(comparison, PROMPT, replace(comparison.test, style=PROMPT))
            for comparison in repeated
        ]
    return [text_alone(), *plain, *varied]


def controlled(arm: Arm, control: str) -> Arm:
    """The arm with the values of another document, or in a style without content."""
    if control in (FORM, SEPARATOR):
        return replace(arm, style=control)
    return replace(arm, values=control)


def _varied(one: Comparison, group: str, test: Arm) -> Comparison:
    """The comparison with another test arm, in another group."""
    return Comparison(group, f"{group}/{one.name.partition('/')[2] or one.name}", one.base, test)
