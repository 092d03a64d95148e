"""Arms: the ways in which a document is presented to the model, and the comparisons between them.

An arm defines the metadata that a document is rendered with; a comparison pairs two arms.

Some arms are controls. If a model gains from `url: …` whatever the address is, it gains from the
form and not from the content. Values of other documents (`bsmeta.metadata.rendering`) show what the
content is worth. A prefix of junk words, or only the end of a prefix, has form without content: its
gain is the effect of form, such as the sign that a document begins here. The prompt style,
`Title: …; URL: …; Entities: A, B.` before the unchanged text, is how a user would write metadata
for a model that was never trained on it: markup is left out, local metadata whose values are words
is listed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.encoding import WORDS
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import OWN
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.rendering import Rendered, Renderer

TEXT = "text"
"""The group whose only comparison has identical arms: every document as text alone."""

TRAINING, PROMPT, FORM, SEPARATOR = "training", "prompt", "form", "separator"
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
        """What it is about, whatever its group: `all`, or types joined by +."""
        return self.name.partition("/")[2] or self.name

    def varied(self, group: str, *, base: Arm | None = None, test: Arm | None = None) -> Comparison:
        """The comparison with another arm, in another group."""
        name = f"{group}/{self.subject}"
        return Comparison(name, group, base or self.base, test or self.test)


NOTHING = Arm()
TEXT_ALONE = Comparison(TEXT, TEXT, NOTHING, NOTHING)
"""The comparison with identical arms, which scores every document without metadata."""


def plan_comparisons(groups: Sequence[str], types: Sequence[str]) -> list[Comparison]:
    """The comparisons of these groups, in the order of the groups."""
    everything = Arm(tuple(types))
    found = []
    for group in groups:
        if group == "all":
            found.append(Comparison(group, group, NOTHING, everything))
            continue
        for name in types:
            alone, others = Arm((name,)), Arm(tuple(other for other in types if other != name))
            pairs = {
                "each": (NOTHING, alone), "left_out": (NOTHING, others),
                "added": (others, everything),
            }  # fmt: skip
            found.append(Comparison(f"{group}/{name}", group, *pairs[group]))
    return found


def configured_comparisons(config: EvaluateConfig, types: Sequence[str]) -> list[Comparison]:
    """The text alone, then all comparisons that the configuration requests.

    Raises:
        ConfigurationError: A name is unknown; the message lists all of them.
    """
    problems: list[str] = []
    plain = plan_comparisons(config.comparisons, types)
    for entry in config.chosen:
        wanted = entry.split("+")
        problems += [
            f"chosen={list(config.chosen)}: {name} is not in metadata_list {list(types)}"
            for name in wanted
            if name not in types
        ]
        own = Arm(tuple(name for name in types if name in wanted))
        plain.append(Comparison(f"chosen/{entry}", "chosen", NOTHING, own))
    if problems:
        raise ConfigurationError("\n".join(problems))
    repeated = [own for own in plain if own.group in ("all", "each", "chosen")]
    pairs = [(control, own) for control in config.controls for own in repeated]
    varied = [own.varied(control, test=controlled(own.test, control)) for control, own in pairs]
    varied += [
        own.varied(AGAINST + control, base=controlled(own.test, control)) for control, own in pairs
    ]
    if config.prompt:
        varied += [own.varied(PROMPT, test=replace(own.test, style=PROMPT)) for own in repeated]
    return [TEXT_ALONE, *plain, *varied]


def controlled(arm: Arm, control: str) -> Arm:
    """The arm with the values of another document, or in a style without content."""
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
                config, metadata_sep="; ", metadata_prefix_sep=".", metadata_prefix_start_seq=""
            )
        self.config = config
        self._style = style
        self._renderer = Renderer(config)

    def render(self, document: Document, types: Sequence[str]) -> Rendered:
        """The document with its metadata of these types; the text alone if they give no prefix.

        Only the style of training has local metadata at its places: it is content.
        """
        if self._style == TRAINING:
            return self._renderer.render(document, types)
        plain = Rendered(document.text, body=document.text)
        if self._style == PROMPT:
            return self._as_prompt(document, types, plain)
        own = self._renderer.render(document, types)
        start, end = self.config.metadata_prefix_start_seq, self.config.metadata_prefix_sep
        room = len(own.prefix) - len(start) - len(end)
        words = _junk(own.prefix, room) if self._style == FORM else ""
        prefix = (start + words + end).lstrip()
        if not own.prefix or not prefix:
            return plain
        return replace(
            plain,
            prefix=prefix,
            prefix_spans=np.array([[0, len(prefix)]], np.int32),
            prefix_token_types=own.prefix_token_types[:1],
            lead=own.lead,
            types=own.types,
        )

    def _as_prompt(self, document: Document, types: Sequence[str], plain: Rendered) -> Rendered:
        """The text after a sentence with its metadata."""
        config = self.config
        fields = {
            key: text
            for key in config.metadata_list
            if key in types and (text := _field(key, document))
        }
        if not fields:
            return plain
        *strings, last = fields.values()
        strings = [text + config.metadata_sep for text in strings]
        strings.append(last + config.metadata_prefix_sep)
        bounds = np.cumsum([0, *map(len, strings)], dtype=np.int32)
        token_types = [1 + config.metadata_list.index(key) for key in fields]
        return replace(
            plain,
            prefix="".join(strings),
            prefix_spans=np.stack((bounds[:-1], bounds[1:]), axis=1),
            prefix_token_types=np.array(token_types, np.uint8),
            lead=" ",
            types=tuple(fields),
        )


def _junk(prefix: str, room: int) -> str:
    """Random words of at least `room` characters in total, always the same for the same prefix."""
    draw = random.Random(xxhash.xxh3_64_intdigest(prefix.encode("utf-8", "surrogatepass")))
    words = ""
    while len(words) < room:
        words += (" " if words else "") + draw.choice(WORDS)
    return words


def _field(key: str, document: Document) -> str:
    """`Title: Sets`; "" if the document has no value of the type that is words."""
    kind = type_of(key)
    records = document.records(key)
    shown = [record for record in records if kind.is_listed or not record.is_local()]
    values = [kind.prompt_value(str(record.value)) for record in shown]
    name = kind.prompt_label or key.replace("_", " ").capitalize()
    return f"{name}: {', '.join(dict.fromkeys(values))}" if values else ""
