"""Entry points: what they refuse before a program starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.tasks import TASKS

NESTED = {
    "train.py word detection": (
        ["--config-name=sed_words", "noise.word_probability=1.2", "small_model.heads=0"],
        ["noise.word_probability", "small_model.heads"],
    ),
    "train.py noise": (
        ["--config-name=sec", "noise.method=typo", "noise.edit_probability=0"],
        ["noise.method", "noise.edit_probability"],
    ),
    "train.py": (
        ["--config-name=demo", "data_config.metadata_config.metadata_dropout={url: 2}"],
        ["data_config.metadata_config.metadata_dropout.url"],
    ),
    "explain.py": (["data_config.hub_retries=-1"], ["data_config.hub_retries"]),
    "prepare.py": (["data_config.max_bad_documents=-1"], ["data_config.max_bad_documents"]),
    "evaluate.py": (["slices=[{by: size}]", "controls=[form,other]"], ["slices.0.by", "controls"]),
    "generate.py": (["top_p=0"], ["top_p"]),
    "predict.py": (["on_bad_row=drop"], ["on_bad_row"]),
    "analyze.py": (["bins=0"], ["bins"]),
    "annotate.py": (["timestamp_sources=[url,header]"], ["timestamp_sources"]),
    "entities.py": (["max_candidates=0"], ["max_candidates"]),
    "download.py": (["timeout=0"], ["timeout"]),
    "quick.py": (["split_by=page", "minutes=0"], ["split_by", "minutes"]),
}


def program(name: str) -> tuple[Callable[..., Any], Any, str, bool]:
    """The arguments with which a program calls `run_entry_point`."""
    from bsmeta import (
        analyze,
        annotate,
        download,
        entities,
        evaluate,
        explain,
        generate,
        predict,
        train,
    )
    from bsmeta.annotate import command
    from bsmeta.annotate.config import AnnotateConfig
    from bsmeta.config.programs.analyzing import AnalyzeConfig
    from bsmeta.config.programs.copying import PrepareConfig
    from bsmeta.config.programs.downloading import DownloadConfig
    from bsmeta.config.programs.entity_table import EntitiesConfig
    from bsmeta.config.programs.explaining import ExplainConfig
    from bsmeta.config.programs.generating import GenerateConfig
    from bsmeta.config.programs.predicting import PredictConfig
    from bsmeta.data import prepare
    from bsmeta.quick import command as quick
    from bsmeta.quick.config import QuickConfig

    del annotate
    tasks = [entry.config for entry in TASKS.values()]
    return {
        "train.py": (train.main, tasks, "v2", True),
        "explain.py": (explain.main, [ExplainConfig], "v2", True),
        "prepare.py": (prepare.main, PrepareConfig, "v2", False),
        "evaluate.py": (evaluate.main, EvaluateConfig, "evaluate", False),
        "generate.py": (generate.main, GenerateConfig, "generate", False),
        "predict.py": (predict.main, PredictConfig, "predict", False),
        "analyze.py": (analyze.main, AnalyzeConfig, "analyze", False),
        "annotate.py": (command.main, AnnotateConfig, "annotate", False),
        "entities.py": (entities.main, EntitiesConfig, "entities", False),
        "download.py": (download.main, DownloadConfig, "download", False),
        "quick.py": (quick.main, QuickConfig, "quick", False),
    }[name.split()[0]]


@pytest.mark.parametrize("case", NESTED)
def test_programs_refuse_nested_values(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, named = NESTED[case]
    main, schemas, config_name, takes_composition = program(case)
    monkeypatch.setattr(sys, "argv", [case.split()[0], *arguments])
    with pytest.raises(SystemExit) as caught:
        run_entry_point(main, schemas, config_name, takes_composition=takes_composition)
    assert caught.value.code == 2
    errors = capsys.readouterr().err
    for name in named:
        assert f". {name} in Hydra configuration: found " in errors
