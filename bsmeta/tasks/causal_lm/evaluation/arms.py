"""Arms, the ways in which a document is presented to the model, and the comparisons of two arms.

An arm defines the metadata that a document is rendered with; a comparison pairs two arms.

Some arms are controls. If a model gains from `url: …` with any address, it gains from the form and
not from the content. Values of other documents (`bsmeta.metadata.donors`) separate the two. A
prefix of junk words, or only the end of a prefix, has form without content: its gain is the effect
of form, such as the sign that a document begins here.

The prompt style, `Title: …; URL: …; Entities: A, B.` before the unchanged text, is how a user would
write metadata for a model that was never trained on it: markup is left out, and local metadata
whose values are words is listed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from bsmeta.config.metadata import MetadataConfig, choose_separators
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.encoding import FREQUENT_WORDS
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import OWN
from bsmeta.metadata.processors import find_type
from bsmeta.metadata.rendering import Rendered, Renderer

TEXT = "text"
"""The group whose only comparison has identical arms: every document as text alone."""

TRAINING = "training"
PROMPT = "prompt"
FORM = "form"
SEPARATOR = "separator"
"""Styles of arms, see `Arm.style`."""

AGAINST_PREFIX = "own_against_"
"""Prefix of the groups that compare an arm with its control instead of with no metadata."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to present a document to the model.

    Attributes:
        types: The metadata types to use (where the document has them).
        values: `own`: the document's values; `shuffled`: values of another document; `wrong`:
            values of another document that differ from its own; `matched`: wrong values of similar
            length.
        style: `training`: as in training; `prompt`: field names in plain English; `form`: a prefix
            of junk words of similar length; `separator`: only the end of a prefix.
    """

    types: tuple[str, ...] = ()
    values: str = OWN
    style: str = TRAINING

    def __str__(self) -> str:
        if not self.types:
            return "without metadata"
        types = ", ".join(self.types)
        variants = [name for name in (self.values, self.style) if name not in (OWN, TRAINING)]
        return f"{types} ({', '.join(variants)})" if variants else types


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms over the same bytes: the effect of `test` relative to `base`.

    Attributes:
        name: Unique among the comparisons, such as `each/url`.
        group: The group that it belongs to, such as `all` or `each`.
    """

    name: str
    group: str
    base: Arm
    test: Arm

    @property
    def subject(self) -> str:
        """The name without the group: `all`, or types joined by +."""
        return self.name.partition("/")[2] or self.name

    def vary(self, group: str, *, base: Arm | None = None, test: Arm | None = None) -> Comparison:
        """Returns the comparison with another arm, in another group."""
        name = f"{group}/{self.subject}"
        return Comparison(name, group, base or self.base, test or self.test)


WITHOUT_METADATA = Arm()
TEXT_ALONE = Comparison(TEXT, TEXT, WITHOUT_METADATA, WITHOUT_METADATA)
"""The comparison with identical arms, which scores every document without metadata."""


def plan_comparisons(groups: Sequence[str], types: Sequence[str]) -> list[Comparison]:
    """Returns the comparisons of these groups, in the order of the groups."""
    everything = Arm(tuple(types))
    comparisons = []
    for group in groups:
        if group == "all":
            comparisons.append(Comparison(group, group, WITHOUT_METADATA, everything))
            continue
        for name in types:
            alone = Arm((name,))
            others = Arm(tuple(other for other in types if other != name))
            arms = {
                "each": (WITHOUT_METADATA, alone),
                "left_out": (WITHOUT_METADATA, others),
                "added": (others, everything),
            }
            base, test = arms[group]
            comparisons.append(Comparison(f"{group}/{name}", group, base, test))
    return comparisons


def list_comparisons(config: EvaluateConfig, types: Sequence[str]) -> list[Comparison]:
    """Returns the text alone, then all comparisons that the configuration requests.

    Raises:
        ConfigurationError: If a name is unknown; the message lists all names.
    """
    requested = plan_comparisons(config.comparisons, types)
    requested += _list_chosen_comparisons(config, types)

    # Comparisons with the text alone are repeated for each control, and for the prompt style.
    repeated = [
        comparison for comparison in requested if comparison.group in ("all", "each", "chosen")
    ]

    against_nothing = []
    against_control = []
    for control in config.controls:
        for comparison in repeated:
            arm = apply_control(comparison.test, control)
            against_nothing.append(comparison.vary(control, test=arm))
            against_control.append(comparison.vary(AGAINST_PREFIX + control, base=arm))

    prompts = []
    if config.prompt:
        for comparison in repeated:
            arm = replace(comparison.test, style=PROMPT)
            prompts.append(comparison.vary(PROMPT, test=arm))
    return [TEXT_ALONE, *requested, *against_nothing, *against_control, *prompts]


def _list_chosen_comparisons(config: EvaluateConfig, types: Sequence[str]) -> list[Comparison]:
    """Returns a comparison for each entry of `chosen`, whose types are joined by +."""
    problems: list[str] = []
    comparisons = []
    for entry in config.chosen:
        names = entry.split("+")
        problems += [
            f"chosen={list(config.chosen)}: {name} is not in metadata_list {list(types)}"
            for name in names
            if name not in types
        ]
        arm = Arm(tuple(name for name in types if name in names))
        comparisons.append(Comparison(f"chosen/{entry}", "chosen", WITHOUT_METADATA, arm))
    if problems:
        raise ConfigurationError("\n".join(problems))
    return comparisons


def apply_control(arm: Arm, control: str) -> Arm:
    """Returns the arm with the values of another document, or in a style without content."""
    if control in (FORM, SEPARATOR):
        return replace(arm, style=control)
    return replace(arm, values=control)


class StyledRenderer:
    """Renders documents in the style of an arm.

    Attributes:
        config: The metadata settings, with the separators of the style.
    """

    def __init__(self, style: str, config: MetadataConfig) -> None:
        if style == PROMPT:
            config = replace(
                config,
                metadata_sep="; ",
                metadata_prefix_sep=".",
                metadata_prefix_start_seq="",
                metadata_boundary_token="",
            )
        self.config = config
        self._style = style
        self._renderer = Renderer(config)

    def render(self, document: Document, types: Sequence[str]) -> Rendered:
        """Renders a document with its metadata of these types, or only its text if it has none.

        Only the training style inserts local metadata into the text.
        """
        if self._style == TRAINING:
            return self._renderer.render(document, types)
        plain = Rendered(document.text, body=document.text)
        if self._style == PROMPT:
            return self._render_prompt(document, types, plain)
        return self._render_form(document, types, plain)

    def _render_form(self, document: Document, types: Sequence[str], plain: Rendered) -> Rendered:
        """Renders the text after a prefix without content.

        The prefix has junk words of the same length (`FORM`), or only its start and end markers.
        """
        rendered = self._renderer.render(document, types)
        start = self.config.metadata_prefix_start_seq
        end = choose_separators(self.config).prefix_end
        words = ""
        if self._style == FORM:
            num_characters = len(rendered.prefix) - len(start) - len(end)
            words = _draw_junk(rendered.prefix, num_characters)
        full_prefix = start + words + end
        prefix = full_prefix.lstrip()  # without words, the end may begin with a blank
        if not rendered.prefix or not prefix:
            return plain

        # Start and end may be special tokens, as in training; the words may not.
        marker_spans = np.array(
            [[0, len(start)], [len(full_prefix) - len(end), len(full_prefix)]], np.int32
        )
        num_stripped = len(full_prefix) - len(prefix)
        return replace(
            plain,
            prefix=prefix,
            prefix_configured=(marker_spans - num_stripped).clip(min=0),
            prefix_spans=np.array([[0, len(prefix)]], np.int32),
            prefix_token_types=rendered.prefix_token_types[:1],
            lead=rendered.lead,
            types=rendered.types,
        )

    def _render_prompt(self, document: Document, types: Sequence[str], plain: Rendered) -> Rendered:
        """Renders the text after a sentence with its metadata."""
        config = self.config
        fields = {}
        for key in config.metadata_list:
            field = _make_field(key, document) if key in types else ""
            if field:
                fields[key] = field
        if not fields:
            return plain

        *first_fields, last_field = fields.values()
        strings = [field + config.metadata_sep for field in first_fields]
        strings.append(last_field + config.metadata_prefix_sep)
        lengths = [len(string) for string in strings]
        bounds = np.cumsum([0, *lengths], dtype=np.int32)
        token_types = [1 + config.metadata_list.index(key) for key in fields]
        return replace(
            plain,
            prefix="".join(strings),
            prefix_spans=np.stack((bounds[:-1], bounds[1:]), axis=1),
            prefix_token_types=np.array(token_types, np.uint8),
            lead=" ",
            types=tuple(fields),
        )


def _draw_junk(prefix: str, min_characters: int) -> str:
    """Draws random words of at least `min_characters` in total; a prefix always gets the same."""
    rng = random.Random(xxhash.xxh3_64_intdigest(prefix.encode("utf-8", "surrogatepass")))
    words = ""
    while len(words) < min_characters:
        words += (" " if words else "") + rng.choice(FREQUENT_WORDS)
    return words


def _make_field(key: str, document: Document) -> str:
    """Returns a type with its values, such as `Title: Sets`; "" if no value of it is text."""
    metadata_type = find_type(key)
    values = [
        metadata_type.format_for_prompt(str(record.value))
        for record in document.records(key)
        if metadata_type.is_listed or not record.is_local()
    ]
    name = metadata_type.prompt_label or key.replace("_", " ").capitalize()
    return f"{name}: {', '.join(dict.fromkeys(values))}" if values else ""
