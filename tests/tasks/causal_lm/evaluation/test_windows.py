"""Windows of a document, with and without metadata."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig, compute_row_length
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.rendering import Renderer
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.windows import WINDOW_CUTTERS, cut_sliding
from tests.conftest import REPOSITORY
from tests.tasks.causal_lm.evaluation.conftest import documents

PACKAGE = REPOSITORY / "bsmeta"


@pytest.mark.parametrize("windows", ["first_piece", "all_pieces"])
def test_windows_have_the_same_text_with_and_without_metadata(
    tokenizer: PreTrainedTokenizerBase, data_config: DataConfig, windows: str
) -> None:
    config = replace(data_config, row_budget="text")
    metadata = config.metadata_config
    encoder, renderer = DocumentEncoder(tokenizer, config), Renderer(metadata)
    decoder = DocumentDecoder(metadata)
    with_metadata = 0
    for line in documents():
        document = decoder.decode(msgspec.json.encode(line))
        readings = []
        for types in (metadata.metadata_list, ()):
            (encoded,) = encoder.encode([renderer.render(document, types)])
            windows_cut = WINDOW_CUTTERS[windows](encoded, config)
            assert all(len(window.ids) <= compute_row_length(config) for window in windows_cut)
            readings.append(
                [
                    (window.ids[window.scored], window.starts[window.scored])
                    for window in windows_cut
                ]
            )
            with_metadata += sum(
                len(window.ids) - window.scored.sum() > 1 for window in windows_cut
            )
        for one, other in zip(*readings, strict=True):
            assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))
    assert with_metadata


def held_out(config: DataConfig) -> HeldOutDocuments:
    return HeldOutDocuments(config, max_documents=None, deduplicate=True, training_overlap=None)


def changed(config: DataConfig, **values: Any) -> DataConfig:
    return replace(config, metadata_config=replace(config.metadata_config, **values))


def test_sliding_windows_have_the_prefix_where_training_has_it(
    tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    document = held_out(data_config)[9]  # several sequences long
    for prefix_on in ("every_piece", "first_piece"):
        config = changed(data_config, prefix_on=prefix_on)
        rendered = Renderer(config.metadata_config).render(document, ("title",))
        (encoded,) = DocumentEncoder(tokenizer, config).encode([rendered])
        prefix, windows = encoded.prefix_ids.tolist(), cut_sliding(encoded, config)
        carries = [window.ids[: len(prefix)].tolist() == prefix for window in windows]
        assert carries == [True] + [prefix_on == "every_piece"] * (len(windows) - 1)
        assert all(len(window.ids) <= 64 for window in windows)
        own = np.concatenate([window.ids[window.first_new :] for window in windows])
        assert own.tolist() == encoded.ids.tolist()
        for window in windows[1:]:  # half of the room is context
            shown = len(prefix) if prefix_on == "every_piece" else 0
            assert window.first_new - shown == (64 - shown) // 2


def list_callers(path: Path, name: str) -> list[ast.FunctionDef]:
    """Returns the functions of a module that call `name`."""
    functions = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    ]
    return [
        function
        for function in functions
        if any(
            isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name
            for node in ast.walk(function)
        )
    ]


def test_only_one_module_makes_windows_and_sums() -> None:
    """A single module makes the windows that a model scores, so that lost tokens are excluded."""
    module = "tasks/causal_lm/evaluation/windows.py"
    imports = ("causal_lm.evaluation.windows import", "causal_lm.evaluation.readings import")
    modules = [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if any(line in path.read_text() for line in imports) or path == PACKAGE / module
    ]
    makers = {
        (path.relative_to(PACKAGE).as_posix(), function.name): function
        for path in modules
        for function in list_callers(path, "Window")
    }
    assert {*makers} == {
        (module, "cut_all_pieces"), (module, "cut_sliding"), (module, "cut_continuations")
    }  # fmt: skip
    assert all("are_preserved(" in ast.unparse(function) for function in makers.values())
    callers = {
        (path.relative_to(PACKAGE).as_posix(), function.name)
        for path in modules
        for function in list_callers(path, "sum_paired")
    }
    assert callers == {("tasks/causal_lm/evaluation/paired.py", "_sum_block")}
