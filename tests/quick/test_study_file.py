"""The study that trains more seeds of both models."""

from __future__ import annotations

from pathlib import Path

from bsmeta.quick.config import QuickConfig
from bsmeta.quick.documents import Page
from bsmeta.quick.sizes import Device
from bsmeta.quick.study_file import write_study_file
from bsmeta.quick.training import Data, prepare_training
from bsmeta.studies.config import load_study
from bsmeta.studies.runs import check_study
from tests.quick.pages import make_row

CPU = Device("2 CPU cores", 30e9, 16)


def test_the_study_trains_the_same_models_with_more_seeds(tmp_path: Path) -> None:
    folder = tmp_path / "my folder"
    rows = map(make_row, range(30))
    pages = [Page(row["text"], {"title": row["title"]}) for row in rows]
    data = Data(["title"], pages[:24], pages[24:])
    config = QuickConfig(seed=7, overrides={"weight_decay": 0.5})
    plan = prepare_training(config, data, CPU, folder)
    command = write_study_file(config, plan, data, CPU, folder, 2.0)
    assert command == (
        f"BSMETA_LAUNCH_FILE=cpu.yaml BSMETA_PROCESSES=1 bsmeta study '{folder}/study.yaml'"
    )

    study = load_study(folder / "study.yaml")
    check_study(study)
    assert study.seeds == [8, 9, 10, 11, 12]
    assert (study.baseline, list(study.arms)) == ("without", ["without", "with"])
    assert study.claims["metadata"].smallest_difference == 0.01
    assert "weight_decay=0.5" in study.overrides
    assert f"max_train_steps={plan.sizes.steps}" in study.overrides
    assert study.arms["with"].overrides == ["data_config.metadata_config.metadata_list=['title']"]
