"""Shards of the shipped raw pages: read, streamed, trained on and evaluated as they are."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bsmeta.annotate.plan import ANNOTATORS
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.metadata.content import KeptText, read_content_spans
from bsmeta.metadata.decoding import DocumentDecoder
from tests.annotate.helpers import RAWPAGES, annotate, rows
from tests.conftest import REPOSITORY
from tests.docs.pages import runnable

TYPES = ["html", "title", "url", "datasource", "length", "paragraph", "entity", "entity_paragraph"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    left_out = {"content", "spelling", "label", "duplicate"}
    names = [name for name in ANNOTATORS if name not in left_out]
    assert annotate(str(RAWPAGES), folder, annotators=names) == 0
    return folder


def overrides(shards: Path, out: Path) -> list[str]:
    """Returns keys that make the main job small."""
    return [
        f"data_config.train_file={shards}",
        f"data_config.validation_file={shards}/raw-000.jsonl.gz",
        "data_config.per_device_train_batch_size=2",
        "data_config.per_device_eval_batch_size=2",
        "data_config.metadata_config.max_seq_len=256",
        "model_config_file=${repo:examples/model/config.json}",
        "tokenizer_name=${repo:examples/tokenizer}",
        "mixed_precision=no",
        "gradient_checkpointing=false",
        "gradient_accumulation_steps=1",
        "num_warmup_steps=0",
        "max_train_steps=6",
        "trackers=[]",
        f"out_dir={out}",
    ]


def test_pages_have_their_types(shards: Path) -> None:
    written_rows = [row for path in sorted(shards.glob("*.gz")) for row in rows(path)]
    assert len(written_rows) == 84
    for name in ("html", "url", "title", "datasource"):
        assert all(row[ANNOTATORS[name].columns[0]] for row in written_rows), name
    for column in ("metadata_entity", "metadata_entity_paragraph"):
        assert sum(bool(row[column]) for row in written_rows) > 20
    assert all(row["annotation_errors"] == {} for row in written_rows)


def test_training_reads_every_record(shards: Path) -> None:
    config = compose_command_line(
        CausalLMConfig, "v2", [f"data_config.metadata_config.metadata_list={TYPES}"]
    )
    metadata = replace(config.data_config.metadata_config, metadata_column_list=None)
    decoder = DocumentDecoder(metadata)
    for path in sorted(shards.glob("*.gz")):
        for row in rows(path):
            document = decoder.decode(json.dumps(row).encode())
            for key in TYPES:
                for record in document.records(key):
                    start, end = record.char_start_idx, record.char_end_idx
                    if record.is_local():
                        assert start is not None
                        assert end is not None
                        assert 0 <= start <= end <= len(row["text"])
            assert len(document.records("html")) == len(row["metadata_html"])


@pytest.mark.slow
def test_the_main_job_trains_on_the_shards_and_is_evaluated(
    shards: Path, tmp_path: Path, launch: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    keys = overrides(shards, tmp_path / "run")
    launch(REPOSITORY / "bsmeta" / "train.py", "--config-name", "v2", *keys, processes=2)
    events = [
        json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    ]
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == [1, 2, 3, 4, 5, 6]
    assert not [event for event in events if event["event"] == "bad_documents"]
    done = launch(
        REPOSITORY / "bsmeta" / "evaluate.py",
        f"checkpoint={tmp_path / 'run'}",
        "max_documents=6",
        "comparisons=[all]",
        "controls=[]",
    )
    assert "all together" in done.stdout
    assert (tmp_path / "run/evaluation/evaluation.json").is_file()


def test_the_commands_of_the_readme_train_on_the_main_content(
    launch: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Menus are in the text of the shards, but not in the training text."""
    (block,) = (code for code in runnable("README.md") if "annotate.py input=examples" in code)
    keys = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]
    other_keys = [key for key in keys[0][2:] if not key.startswith(("input=", "output="))]
    script = REPOSITORY / "bsmeta" / "annotate.py"
    launch(
        script, f"input={RAWPAGES}", f"output={tmp_path}", "workers=1", "report=false", *other_keys
    )
    (content,) = (key.removeprefix("data_config.content=") for key in keys[1] if "content=" in key)
    menus = ["modules |", "Previous topic", "Report a Bug", "Show Source", "This Page"]
    whole: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for path in sorted(tmp_path.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            text = json.loads(line)["text"]
            trained_on = KeptText(text, read_content_spans(line, content)).text
            whole.update(menu for menu in menus if menu in text)
            kept.update(menu for menu in menus if menu in trained_on)
    assert whole == dict.fromkeys(menus, 13) | {"modules |": 14, "Previous topic": 23}
    assert kept == {"modules |": 1}
