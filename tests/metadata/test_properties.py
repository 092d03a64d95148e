"""Rules that hold for any document, against an implementation that goes position by position."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.tokens import map_text_positions
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Rendered, Renderer
from tests.metadata.helpers import config, global_record, html, local, render

LOCAL_KEYS = ["html", "entity", "entity_paragraph", "paragraph", "mood"]
GLOBAL_KEYS = ["url", "title", "length", "source"]
KEYS = [*LOCAL_KEYS, *GLOBAL_KEYS]
REASONS = {
    "not_json",
    "not_an_object",
    "missing_text",
    "text_not_string",
    "wrong_type",
    "missing_position",
    "negative_position",
    "end_before_start",
    "position_beyond_text",
    "relative_position_too_large",
    "html_attributes_mismatch",
    "not_a_timestamp",
}

words = st.text(st.characters(codec="utf-8"), max_size=8)


@st.composite
def local_records(
    draw: st.DrawFn, length: int, keys: list[str], related: set[str]
) -> dict[str, Any]:
    key = draw(st.sampled_from(keys))
    start, end = sorted((draw(st.integers(0, length)), draw(st.integers(0, length))))
    # Few values, so that equal relative positions are common.
    places = st.tuples(st.integers(0, 1), st.integers(0, 1))
    relative = draw(places) if key in related else ()
    value = draw(st.one_of(st.sampled_from("abcdef"), words))
    if key == "html":
        return html(value, start, end, *relative, id=draw(st.sampled_from(["", "x", "\U0001f600"])))
    return local(key, value, start, end, *relative)


@st.composite
def cases(draw: st.DrawFn) -> tuple[MetadataConfig, str, list[dict[str, Any]]]:
    """Draws a valid configuration, text and records, with many tags at few positions."""
    text = draw(st.text(st.characters(codec="utf-8"), max_size=3))
    keys = draw(st.lists(st.sampled_from(LOCAL_KEYS), min_size=1, max_size=2, unique=True))
    related = draw(st.sets(st.sampled_from(keys)))
    records = draw(st.lists(local_records(len(text), keys, related), max_size=8))
    records += draw(
        st.lists(st.builds(global_record, st.sampled_from(GLOBAL_KEYS), words), max_size=3)
    )
    wrapped = draw(st.lists(st.sampled_from(LOCAL_KEYS), unique=True))
    chosen = config(
        draw(st.permutations(KEYS)),
        entity_setting=draw(st.sampled_from(["beg", "end"])),
        metadata_position=draw(st.sampled_from(["prepend", "append", "both"])),
        local_metadata_special_token_start={key: f"<{key}>" for key in wrapped},
        local_metadata_special_token_end={key: f"</{key}>" for key in wrapped},
    )
    return chosen, text, records


def slow_body(settings: MetadataConfig, text: str, records: list[dict]) -> list[tuple[str, int]]:
    """Returns the body as pairs of a chunk and its type number (0: a character of the text)."""
    tags = []  # kind, start, end, opening, closing, relative start, relative end
    for kind, key in enumerate(settings.metadata_list, start=1):
        type_records = [
            record for record in records if record["key"] == key and record["type"] == "local"
        ]
        related = all("relative_start_pos" in record for record in type_records)
        for record in type_records:
            opening, closing = slow_strings(settings, record)
            at = record["char_start_idx"], record["char_end_idx"]
            relative_keys = ("relative_start_pos", "relative_end_pos")
            relative = tuple(record[place] for place in relative_keys) if related else None
            tags.append((kind, *at, opening, closing, relative))
    body: list[tuple[str, int]] = []
    for position in range(len(text) + 1):
        strings = [pair for pair in slow_position(tags, position) if pair[0]]
        body += slow_wrapped(settings, strings)
        body += [(text[position], 0)] if position < len(text) else []
    return body


def slow_strings(settings: MetadataConfig, record: dict) -> tuple[str, str]:
    value = record["value"]
    entity = value.replace("_", " ")
    match record["key"]:
        case "html":
            return f"<{value} id:{record['html_attrs']['values'][0]}>", f"</{value}>"
        case "entity":
            return "", f" [[{entity}]]"
        case "entity_paragraph" if settings.entity_setting == "beg":
            return f" |{entity}|", ""
        case "entity_paragraph":
            return "", f" |{entity}|"
        case key:
            return f"[{key}: {value}]", f"[/{key}: {value}]"


def slow_position(tags: list[tuple], position: int) -> list[tuple[str, int]]:
    """Returns all strings at a position, by zone and then by type."""
    closings, empties, empty_closings, openings = [], [], [], []
    kinds = sorted({tag[0] for tag in tags})
    for kind in kinds:
        type_tags = [tag for tag in tags if tag[0] == kind]
        if type_tags[0][5] is not None:
            continue
        closings += [(tag[4], kind) for tag in type_tags if tag[1] < tag[2] == position]
        empty_closings += [(tag[4], kind) for tag in type_tags if tag[1] == tag[2] == position]
    for kind in reversed(kinds):
        type_tags = [tag for tag in tags if tag[0] == kind]
        if type_tags[0][5] is not None:
            empties += [(string, kind) for string in slow_related(type_tags, position)]
            continue
        empties += [(tag[3], kind) for tag in reversed(type_tags) if tag[1] == tag[2] == position]
        opened = [tag for tag in reversed(type_tags) if position == tag[1] < tag[2]]
        openings += [(tag[3], kind) for tag in sorted(opened, key=lambda tag: -tag[2])]
    return [*closings, *empties, *empty_closings, *openings]


def slow_related(tags: list[tuple], position: int) -> list[str]:
    """Returns the strings of a type, ordered by relative position and then by nesting."""
    strings = []
    for row, (_, start, end, opening, closing, (first, last)) in enumerate(tags):
        if start == end == position:
            strings += [((first, "b", row, 0), opening), ((last, "b", row, 1), closing)]
        elif start == position:
            strings.append(((first, "c opening", -end, row), opening))
        elif end == position:
            strings.append(((last, "a closing", -start, -row), closing))
    return [string for _, string in sorted(strings)]


def slow_wrapped(settings: MetadataConfig, strings: list[tuple[str, int]]) -> list[tuple[str, int]]:
    before = settings.local_metadata_special_token_start or {}
    after = settings.local_metadata_special_token_end or {}
    wrapped: list[tuple[str, int]] = []
    for place, (string, kind) in enumerate(strings):
        key = settings.metadata_list[kind - 1]
        if key in before and (place == 0 or strings[place - 1][1] != kind):
            wrapped.append((before[key], kind))
        wrapped.append((string, kind))
        if key in after and (place == len(strings) - 1 or strings[place + 1][1] != kind):
            wrapped.append((after[key], kind))
    return wrapped


def remove_spans(rendered: Rendered) -> str:
    kept, previous = "", 0
    for start, end in rendered.spans.tolist():
        kept += rendered.body[previous:start]
        previous = end
    return kept + rendered.body[previous:]


@pytest.mark.long
@budget(max_examples=300)
@given(cases())
def test_body_and_spans_equal_a_slow_reference(case: tuple) -> None:
    settings, text, records = case
    rendered = render(settings, text, *records)
    slow = slow_body(settings, text, records)
    assert rendered.body == "".join(chunk for chunk, _ in slow)
    spans, end = [], 0
    for chunk, kind in slow:
        end += len(chunk)
        if kind:
            spans.append((end - len(chunk), end, kind))
    rows = zip(rendered.spans.tolist(), rendered.span_token_types.tolist(), strict=True)
    assert [(*span, kind) for span, kind in rows] == spans


@given(cases())
def test_removing_the_inserted_spans_restores_the_text(case: tuple) -> None:
    settings, text, records = case
    rendered = render(settings, text, *records)
    assert remove_spans(rendered) == text == rendered.text
    (length,) = map_text_positions(np.array([len(rendered.body)], np.int32), rendered.spans)
    assert length == len(text)


@given(cases())
def test_spans_are_sorted_disjoint_and_cover_prefix_and_suffix(case: tuple) -> None:
    settings, text, records = case
    rendered = render(settings, text, *records)
    for spans, kinds in (
        (rendered.prefix_spans, rendered.prefix_token_types),
        (rendered.spans, rendered.span_token_types),
        (rendered.suffix_spans, rendered.suffix_token_types),
    ):
        assert (spans.dtype, kinds.dtype) == (np.int32, np.uint8)
        assert spans.shape == (len(kinds), 2)
        assert (spans[:, 0] < spans[:, 1]).all()
        assert (spans[1:, 0] >= spans[:-1, 1]).all()
    for string, spans in (
        (rendered.prefix, rendered.prefix_spans),
        (rendered.suffix, rendered.suffix_spans),
    ):
        assert "".join(string[start:end] for start, end in spans.tolist()) == string
    present = {record["key"] for record in records}
    assert rendered.types == tuple(key for key in settings.metadata_list if key in present)


@given(cases())
def test_separate_columns_and_a_single_list_render_alike(case: tuple) -> None:
    settings, text, records = case
    columns: dict[str, list[dict]] = {}
    for record in records:
        columns.setdefault(f"metadata_{record['key']}", []).append(record)
    line = json.dumps({"text": text, **columns}).encode()
    document = DocumentDecoder(settings).decode(line)
    in_columns = Renderer(settings).render(document, settings.metadata_list)
    in_a_list = render(settings, text, *records)
    assert (in_columns.prefix, in_columns.body) == (in_a_list.prefix, in_a_list.body)
    assert (in_columns.suffix, in_columns.types) == (in_a_list.suffix, in_a_list.types)


numbers = st.one_of(st.integers(-3, 12), st.integers(), st.floats(allow_nan=False))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    partial(st.lists, max_size=2),
    max_leaves=3,
)
attributes = st.fixed_dictionaries({"attrs": st.lists(words), "values": st.lists(words)})
loose_records = st.fixed_dictionaries(
    {},
    optional={
        "key": st.one_of(st.sampled_from([*KEYS, "timestamp"]), anything),
        "type": st.one_of(st.sampled_from(["global", "local"]), anything),
        "value": st.one_of(words, anything),
        "char_start_idx": st.one_of(st.integers(0, 8), anything),
        "char_end_idx": st.one_of(st.integers(0, 8), anything),
        "relative_start_pos": anything,
        "relative_end_pos": anything,
        "html_attrs": st.one_of(attributes, anything),
    },
)
loose_lines = st.fixed_dictionaries(
    {},
    optional={
        "text": st.one_of(words, anything),
        "url": st.one_of(words, anything),
        "metadata": st.one_of(st.lists(loose_records, max_size=3), anything),
        **{f"metadata_{key}": st.one_of(st.lists(loose_records), anything) for key in KEYS},
    },
)


@given(st.one_of(loose_lines, anything))
def test_any_line_is_rendered_or_raises_bad_document(line: Any) -> None:
    settings = config([*KEYS, "timestamp"])
    try:
        document = DocumentDecoder(settings).decode(json.dumps(line).encode())
        rendered = Renderer(settings).render(document, settings.metadata_list)
    except BadDocument as error:
        reason = error.reason
    else:
        reason = None
        assert remove_spans(rendered) == line["text"]
    assert reason is None or reason in REASONS
