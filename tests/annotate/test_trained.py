"""What trained models find in pages: entities, and the spelling quality of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bsmeta.annotate.annotator import AnnotationError
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.inputs.sources import InputRecord
from bsmeta.annotate.plan import make_annotators
from bsmeta.core.errors import ConfigurationError
from bsmeta.models.manifest import MANIFEST
from bsmeta.tasks.checkpoints import open_task
from bsmeta.tasks.disambiguation.model import BiEncoder
from bsmeta.tasks.disambiguation.task import EntityDisambiguator
from bsmeta.tasks.spelling.detector import Ranker, RankerConfig
from bsmeta.tasks.spelling.inputs import CandidateInputs
from bsmeta.tasks.spelling.lexicon import build_lexicon
from tests.annotate.helpers import annotate, annotated, rows, some_pages, values, write_pages
from tests.conftest import REPOSITORY, command, run_warm
from tests.tasks.disambiguation.helpers import write_encoder, write_world

TRAIN = REPOSITORY / "bsmeta" / "train.py"
TOPICS = (("the boat and the river", "water"), ("a loan of the bank", "money"))
SENTENCE = "the boat near the old bank saw fish with water by the spring . "


def train(*arguments: str) -> None:
    done = run_warm(command(TRAIN, *arguments, processes=1))
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def disambiguator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disambiguator")
    encoder = write_encoder(folder / "encoder", dropout=0.0)
    train(
        "--config-name", "disambiguation", f"model_name={encoder}", *write_world(folder, train=240),
        "data_config.max_entity_length=32", "num_train_epochs=12", "learning_rate=1e-2",
        "trackers=[]", "mixed_precision=no", "bootstrap_resamples=10", f"out_dir={folder}/run",
        "keep_best_by=null", "export_best=false", "evals_per_epoch=null", "eval_steps=0",
    )  # fmt: skip
    return folder / "run"


def pages(path: Path) -> str:
    """A page of two paragraphs, and one without mentions."""
    html = f"<h1>About</h1><p>{SENTENCE}</p><p>Nothing . {SENTENCE}</p>"
    found = [{"url": "https://example.org/a", "html": html}]
    found.append({"url": "https://example.org/b", "html": f"<p>{'nothing ' * 20}</p>"})
    return str(write_pages(path / "pages.jsonl.gz", found))


@pytest.mark.long
def test_a_trained_disambiguator_annotates_entities(disambiguator: Path, tmp_path: Path) -> None:
    source = pages(tmp_path)
    settings: dict[str, Any] = {
        "annotators": ["html", "entity", "entity_paragraph"], "profile": "all",
        "entity_source": "checkpoint", "entity_model": str(disambiguator),
    }  # fmt: skip
    assert annotate(source, tmp_path / "out", workers=2, **settings) == 0
    row, other = rows(tmp_path / "out" / "pages.jsonl.gz")
    assert row["annotation_errors"] == {}
    found = row["metadata_entity"]
    texts = [row["text"][record["char_start_idx"] : record["char_end_idx"]] for record in found]
    assert texts == ["bank", "spring"] * 2
    for text, one in zip(texts, found, strict=True):
        word, _, meaning = one["entity"].partition("-")
        assert (word, meaning in ("river", "money")) == (text, True)
        assert one["value"] == f"{word}_({meaning})"
    paragraphs = [record["value"] for record in row["metadata_entity_paragraph"]]
    assert paragraphs == [record["value"] for record in found]
    assert other["metadata_entity"] == []


def test_improbable_entities_are_dropped(disambiguator: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"annotators": ["html", "entity"], "profile": "all"}
    settings |= {"entity_source": "checkpoint", "entity_model": str(disambiguator)}
    source = pages(tmp_path)
    assert annotate(source, tmp_path / "out", entity_min_score=1.0, **settings) == 0
    assert [row["metadata_entity"] for row in rows(tmp_path / "out/pages.jsonl.gz")] == [[], []]
    changed = [
        make_annotators(AnnotateConfig(entity_min_score=score, **settings))[1].fingerprint()
        for score in (None, 0.5, 0.5)
    ]
    assert changed[0] != changed[1] == changed[2]


@pytest.mark.long
def test_entities_are_annotated_where_the_trained_detector_finds_mentions(tmp_path: Path) -> None:
    """The layer that tags tokens is set to tag `bank` only, which the dictionary cannot."""
    encoder = write_encoder(tmp_path / "encoder", dropout=0.0)
    run = tmp_path / "run"
    train(
        "--config-name", "disambiguation", f"model_name={encoder}", *write_world(tmp_path),
        "data_config.max_entity_length=32", "num_train_epochs=1", "trackers=[]",
        "mixed_precision=no", "bootstrap_resamples=10", f"out_dir={run}", "keep_best_by=null",
        "export_best=false", "evals_per_epoch=null", "eval_steps=0", "mention_detection=detector",
    )  # fmt: skip
    task, folder = open_task(str(run), {})
    assert isinstance(task, EntityDisambiguator)
    model = task.load(folder)
    assert isinstance(model, BiEncoder)
    ids = task.data.tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        states = model.mention_encoder(**ids).last_hidden_state[0]
    position = ids.tokens().index("bank")
    state = states[position] / states[position].square().sum()
    threshold = (states @ state).sort().values[-2:].mean()

    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["tag_layer.weight"] = torch.stack([0 * state, state, 0 * state])
    weights["tag_layer.bias"] = torch.tensor([threshold, 0.0, -1.0])
    save_file(weights, path)
    (folder / MANIFEST).unlink()  # it has the hash of the trained weights

    settings: dict[str, Any] = {"annotators": ["html", "entity"], "profile": "all"}
    settings |= {"entity_source": "checkpoint", "entity_model": str(run)}
    page = {"url": "https://example.org/a", "html": f"<p>{SENTENCE}</p>"}
    source = str(write_pages(tmp_path / "pages.jsonl.gz", [page]))
    assert annotate(source, tmp_path / "out", workers=2, **settings) == 0
    (row,) = rows(tmp_path / "out" / "pages.jsonl.gz")
    spans = [(one["char_start_idx"], one["char_end_idx"]) for one in row["metadata_entity"]]
    assert [row["text"][start:end] for start, end in spans] == ["bank"]

    both, _ = open_task(str(run), {"mention_detection": "both"})
    assert isinstance(both, EntityDisambiguator)
    (result,) = both.predict(both.load(folder), [{"text": SENTENCE}])
    assert [entity["mention"] for entity in result["entities"]] == ["bank", "spring"]


def test_a_missing_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="entity_model=runs/disambiguation"):
        make_annotators(AnnotateConfig(annotators=["entity"], entity_source="checkpoint"))


def test_a_model_of_another_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("task: sed_words\n")
    config = AnnotateConfig(
        annotators=["entity"], entity_source="checkpoint", entity_model=str(tmp_path)
    )
    with pytest.raises(ConfigurationError, match="a model of task=sed_words; expected"):
        make_annotators(config)


KNOWN = "Page the words of a paragraph that is longer than sixty-four characters below which it"


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    """A run folder with a detector that flags words missing from its training text."""
    inputs = CandidateInputs(build_lexicon([KNOWN, KNOWN], [], {}))
    model = Ranker(RankerConfig(features=inputs.features, width=8, layers=0, heads=1))
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1e-20)  # as good as nothing; a folder of zeros is refused as damaged
        # The first unit is on for a word that is known, the second for what may replace a word.
        model.read.weight[0, [0, 5]] = 50.0
        model.read.bias[:2] = torch.tensor([-75.0, 10.0])
        model.read.weight[1, 0] = -20.0
        model.own.weight[[0, 1], [0, 1]] = 1.0
        model.score.weight[0, :2] = 1.0
    model.save_pretrained(tmp_path / "run" / "model")
    inputs.write(tmp_path / "run" / "model")
    (tmp_path / "run" / "config.yaml").write_text("task: sed_words\n")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("the words of a paragraph", "0.0000"),
        ("teh words off a paragraph", "0.4000"),
        ("teh 東京 กรุงเทพ words", "0.5000"),  # of the words in the script of the lexicon
        ("teh " * 2499 + "the", "0.9996"),
        ("teh " * 2500 + "the", "1.0000"),  # the last word is beyond what is read
    ],
)
def test_a_text_is_annotated_with_its_share_of_flagged_words(
    detector: Path, text: str, share: str
) -> None:
    record = InputRecord(text=text)
    assert values(annotated(record, "spelling", spelling_model=str(detector))) == [share]


def test_a_page_in_another_script_has_no_share(detector: Path) -> None:
    with pytest.raises(AnnotationError, match="no_words_of_known_script"):
        annotated(InputRecord(text="東京 กรุงเทพ"), "spelling", spelling_model=str(detector))


def test_records_depend_on_the_model(detector: Path) -> None:
    config = AnnotateConfig(annotators=["spelling"], spelling_model=str(detector))
    before = make_annotators(config)[0].fingerprint()
    assert make_annotators(config)[0].fingerprint() == before
    (detector / "model" / "words.json").write_text('{"text": {}, "listed": {}}')
    assert make_annotators(config)[0].fingerprint() != before


def test_worker_processes_use_the_model(detector: Path, tmp_path: Path) -> None:
    pages = write_pages(tmp_path / "pages.jsonl.gz", some_pages(6))
    settings = {"annotators": ["html", "spelling"], "spelling_model": str(detector)}
    assert annotate(str(pages), tmp_path / "shards", workers=2, chunk_pages=2, **settings) == 0
    found = [values({"spelling": row["metadata_spelling"]}) for row in rows(*_shards(tmp_path))]
    assert len(found) == 6
    assert all(0 < float(share) < 1 for (share,) in found)


def _shards(folder: Path) -> list[Path]:
    return sorted((folder / "shards").glob("*.jsonl.gz"))


def test_a_run_without_a_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="spelling_model=runs/sed_words"):
        make_annotators(AnnotateConfig(annotators=["spelling"]))
    with pytest.raises(ConfigurationError, match="label_model=runs/classification"):
        make_annotators(AnnotateConfig(annotators=["label"]))


def test_a_text_is_annotated_with_its_label(tmp_path: Path) -> None:
    lines = [f"{text} {n},{label}" for n in range(9) for text, label in TOPICS]
    (tmp_path / "topics.csv").write_text("\n".join(["body,label", *lines]))
    train(
        "--config-name", "classification", f"data_config.csv={tmp_path}/topics.csv",
        "data_config.text_column=body", "method=linear", f"out_dir={tmp_path}/run",
        f"tokenizer_name={REPOSITORY}/examples/tokenizer", "trackers=[]", "bootstrap_resamples=10",
        f"model_config_file={REPOSITORY}/examples/leanings/config.json",
    )  # fmt: skip
    for text, label in TOPICS:
        found = annotated(InputRecord(text=text), "label", label_model=str(tmp_path / "run"))
        assert values(found) == [label]
