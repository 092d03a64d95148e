"""Every program under a terminal, with data that would act on it in every field and name."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from bsmeta.cli import PROGRAMS
from tests.annotate.helpers import write_pages
from tests.data.helpers import page, write_shard
from tests.tasks.classification.helpers import TEXT
from tests.tasks.disambiguation.helpers import profiles, write_lines
from tests.tasks.spelling.helpers import arguments
from tests.terminal import OWN, find_sequences, run_in_terminal

# Writes the clipboard, begins a link, a style that the project has not, a style by C1; overwrites
# the line; turns the text around.
EVIL = "\x1b]52;c;QUFB\x07\x1b]8;;x:y\x07\x1b[5;35m\x9b9m\rover\u202eleft"
SHOWN = "\\x1b]52;c;QUFB\\x07"
SETTINGS = (
    "max_train_steps=2", "num_warmup_steps=0", "save_steps=0", "eval_steps=2", "eval_documents=2",
    "trackers=[]", "gradient_accumulation_steps=1", "data_config.window_documents=4",
    "data_config.per_device_train_batch_size=1", "data_config.num_streams=1",
    "data_config.metadata_config.max_seq_len=64",
    "data_config.metadata_config.metadata_list=[title,url]",
)  # fmt: skip


def quote(key: str, value: object) -> str:
    """Returns an argument for Hydra with a value without quotes."""
    return f'{key}="{value}"'


@dataclass(frozen=True)
class World:
    """A folder with data of all kinds; all fields and names contain `EVIL`.

    Attributes:
        results: Exit code and output of the calls that were made in the folder.
    """

    folder: Path
    results: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def shard(self) -> Path:
        return self.folder / "shards" / f"{EVIL}.jsonl.gz"

    @property
    def held_out(self) -> Path:
        return self.folder / f"held-out {EVIL}.jsonl.gz"

    @property
    def table(self) -> Path:
        return self.folder / f"{EVIL}.csv"

    def named(self, ending: str) -> Path:
        """Returns a file whose name contains `EVIL`; it need not exist."""
        return self.folder / f"other {EVIL}{ending}"


def evil_page(number: int) -> dict[str, Any]:
    document = page(number, 20)
    document["text"] = f"{EVIL} {document['text']}"
    for key in ("url", "title"):
        document[f"metadata_{key}"][0]["value"] += EVIL
    return document


def write_table(path: Path) -> None:
    """Writes texts with three labels; many control characters would be refused as binary."""
    labels = ["left", "right"] * 20 + [EVIL] * 3
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [(f"text {row} {TEXT}", label) for row, label in enumerate(labels)]
        csv.writer(file).writerows([("text", "label"), *rows])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The data, and the runs of train_language_model and train_classifier, whose output is kept."""
    made = World(tmp_path_factory.mktemp("world"))
    made.shard.parent.mkdir()
    write_shard(made.shard, [evil_page(number) for number in range(8)])
    write_shard(made.held_out, [evil_page(number) for number in range(8, 12)])
    write_table(made.table)
    write_lines(made.folder / "texts.jsonl", [{"text": EVIL, EVIL: EVIL}] * 3)
    (made.folder / "text.txt").write_text(f"teh {EVIL} letters {EVIL}\r\nrecieve\n")
    raw = {"url": f"https://example.org/{EVIL}", "html": f"<title>{EVIL}</title><p>{EVIL} {TEXT}"}
    write_pages(made.named(".jsonl.gz"), [raw] * 3)
    write_lines(made.named(".jsonl"), [{**profile, "title": EVIL} for profile in profiles()])
    arms = {
        "none": {"overrides": []},
        "url": {"overrides": [quote("model_name", EVIL)], "label": EVIL},
    }
    study = {"title": EVIL, "out_dir": f"study {EVIL}", "config": "demo", "seeds": [1],
             "baseline": "none", "arms": arms, "curve": [1.0]}  # fmt: skip
    made.named(".yaml").write_text(yaml.safe_dump(study))
    made.named(".json").write_text(json.dumps({"run_config": {"save_dir": EVIL}, EVIL: {EVIL: 1}}))
    return made


def data_keys(world: World) -> list[str]:
    return [
        "--config-name", "demo", quote("data_config.train_file", world.shard.parent),
        quote("data_config.validation_file", world.held_out), *SETTINGS,
    ]  # fmt: skip


CALLS: dict[str, Callable[[World], list[str]]] = {
    "quick": lambda world: [
        str(world.shard), str(world.held_out), "near_copies=false", "check_only=true"
    ],
    "train": lambda world: [*data_keys(world), "out_dir=run"],
    "train a classifier": lambda world: [
        "--config-name", "demo_classification", quote("data_config.csv", world.table),
        "data_config.database=null", "data_config.label_column=label", "num_train_epochs=1",
        "data_config.split_by=null", "method=linear", "out_dir=labels", "trackers=[]",
        "results_dir=results", "bootstrap_resamples=20",
    ],
    "evaluate": lambda _: ["checkpoint=run", "bootstrap_resamples=20"],
    "evaluate a classifier": lambda world: [
        "checkpoint=labels", quote("validation_file", world.table), "bootstrap_resamples=20"
    ],
    "explain": lambda world: [*data_keys(world), "limit=2"],
    "generate": lambda _: [
        "checkpoint=run", quote("prompt", EVIL), "max_new_tokens=4",
        quote("metadata", "{title: x}").replace('"', ""),
    ],
    "generate attributes": lambda _: ["checkpoint=run", "mode=attribute", "type=title"],
    "train a detector": lambda world: [
        *arguments("sed_words", world.folder, world.folder / "detector", "num_train_epochs=1"),
    ],
    "predict a text": lambda _: ["checkpoint=detector", "input=text.txt", "show=color"],
    "predict": lambda world: [
        "checkpoint=labels", "input=texts.jsonl", quote("output", world.named(".csv")),
    ],
    "analyze": lambda world: [
        quote("predictions", f"results/{EVIL}_testset_predictions.csv"),
        quote("table", world.table), "bootstrap_resamples=20",
    ],
    "annotate": lambda world: [
        quote("input", world.named(".jsonl.gz")), quote("output", world.named("")), "workers=1",
        "report=true", "annotators=[html,url,title]",
    ],
    "descriptions": lambda world: [quote("dump", world.named(".xml")), "output=table.sqlite"],
    "prepare": lambda world: [*data_keys(world), quote("out", world.named(" prepared"))],
    "stage": lambda world: [*data_keys(world), quote("out", world.named(" staged"))],
    "index": lambda world: [str(world.shard)],
    "entities": lambda world: [
        quote("table", world.named(" entities")), quote("profiles", world.named(".jsonl"))
    ],
    "build": lambda _: [quote("target", EVIL)],
    "convert": lambda world: [str(world.named(".json"))],
    "download": lambda world: [quote("manifest", world.named(".none")), "folder=files"],
    "study": lambda world: [str(world.named(".yaml")), "--dry-run"],
    "sweep": lambda _: [
        "swept", "--config", "demo", "--dry-run", quote("model_name", EVIL), "seed=1,2"
    ],
    "downstream": lambda world: [str(world.named(" model"))],
    "spelling-tests": lambda world: [str(world.named(".txt")), "--out", "tests"],
    "init": lambda world: [EVIL, "--x"],
}  # fmt: skip
"""Calls of each program that show something of the data."""

NEEDED = {
    "evaluate": "train",
    "evaluate a classifier": "train a classifier",
    "generate": "train",
    "generate attributes": "train",
    "predict a text": "train a detector",
    "predict": "train a classifier",
    "analyze": "train a classifier",
}
"""Calls that need the output of another one."""

REFUSED = {
    "annotate", "build", "stage", "descriptions", "download", "downstream", "spelling-tests",
    "init",
}  # fmt: skip
"""Calls whose file does not exist, or has a value that is refused; the error shows it."""
SILENT = {"train a detector"}
"""Calls whose output others need, and which show nothing of the data."""


def test_every_program_is_called() -> None:
    assert {call.split(" ")[0] for call in CALLS} == {*PROGRAMS, "init"}


def call_once(name: str, world: World) -> tuple[int, str]:
    """Makes a call, unless it was made before; returns its exit code and its output."""
    if name not in world.results:
        program = name.split(" ")[0]
        world.results[name] = run_in_terminal(
            ["-m", "bsmeta", program, *CALLS[name](world)], world.folder, BSMETA_CONFIG=""
        )
    return world.results[name]


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
def test_a_terminal_receives_no_sequence_of_the_data(name: str, world: World) -> None:
    if name in NEEDED:  # whose test may run later, or in another process
        call_once(NEEDED[name], world)

    code, received = call_once(name, world)
    assert find_sequences(received) == []
    assert "\x1b[5;35m" not in received
    assert "\rover" not in received
    assert (SHOWN in OWN.sub("", received)) == (name not in SILENT)
    assert "Traceback" not in received
    assert code == (2 if name in REFUSED else 0), received
