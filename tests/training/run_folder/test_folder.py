"""The run folder: one run at a time, nothing overwritten unasked, logs cut where a run resumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.errors import ConfigurationError, TrainingError
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.run_folder.early_ends import write_refusal
from bsmeta.training.run_folder.events import METRICS
from bsmeta.training.run_folder.folder import MARK, RunFolder


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    first.open(CausalLMConfig(), resume=False, overwrite=False)
    with pytest.raises(ConfigurationError, match="held by another run"):
        second.open(CausalLMConfig(), resume=True, overwrite=True)


def test_an_earlier_run_is_only_replaced_when_asked(tmp_path: Path) -> None:
    earlier = RunFolder(tmp_path)
    earlier.open(CausalLMConfig(), resume=False, overwrite=False)
    earlier._lock.file_lock.release()
    (tmp_path / METRICS).write_text("{}\n")
    with pytest.raises(ConfigurationError, match="an empty folder. Replace it"):
        RunFolder(tmp_path).open(CausalLMConfig(), resume=False, overwrite=False)
    (tmp_path / "checkpoint-5step").mkdir()
    with pytest.raises(ConfigurationError, match="resume_from_checkpoint_dir=latest"):
        RunFolder(tmp_path).open(CausalLMConfig(), resume=False, overwrite=False)
    assert (tmp_path / METRICS).exists()
    RunFolder(tmp_path).open(CausalLMConfig(), resume=False, overwrite=True)
    assert not (tmp_path / METRICS).exists()
    assert (tmp_path / MARK).exists()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("names", [["thesis.tex"], [METRICS], ["a", "b", "c", "config.yaml"]])
def test_a_folder_not_made_by_a_run_is_refused_and_unchanged(
    tmp_path: Path, names: list[str], overwrite: bool, resume: bool
) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigurationError, match=f"holds .*{names[0]}.* expected a new or empty"):
        RunFolder(tmp_path).open(CausalLMConfig(), resume=resume, overwrite=overwrite)
    write_refusal(tmp_path, "learning_rate")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(names)
    assert {entry.read_text() for entry in tmp_path.iterdir()} == {"mine"}


def test_copied_checkpoints_may_be_resumed_but_their_folder_is_never_emptied(
    tmp_path: Path,
) -> None:
    (tmp_path / "checkpoint-5step").mkdir()
    (tmp_path / "thesis.tex").write_text("mine")
    run = RunFolder(tmp_path)
    run.open(CausalLMConfig(), resume=True, overwrite=True)
    run._lock.file_lock.release()
    assert not (tmp_path / MARK).exists()
    with pytest.raises(ConfigurationError, match="thesis.tex"):
        RunFolder(tmp_path).open(CausalLMConfig(), resume=False, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_folder_that_also_holds_other_runs_is_not_emptied(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "first"):
        run = RunFolder(path)
        run.open(CausalLMConfig(), resume=False, overwrite=False)
        run._lock.file_lock.release()
        (path / METRICS).write_text("{}\n")
    with pytest.raises(ConfigurationError, match="first, which belong to other runs"):
        RunFolder(tmp_path).open(CausalLMConfig(), resume=False, overwrite=True)
    assert (tmp_path / "first" / METRICS).exists()


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "file" / "run", tmp_path / "loop" / "run", Path("/proc/run")):
        with pytest.raises(ConfigurationError, match="cannot be used: "):
            RunFolder(path).open(CausalLMConfig(), resume=False, overwrite=False)
        write_refusal(path, "learning_rate")


def test_lines_after_the_resumed_step_and_a_truncated_line_are_dropped(tmp_path: Path) -> None:
    lines = [json.dumps({"event": "step", "step": step}) for step in (1, 2, 3)]
    for file in (METRICS, "documents-rank0.jsonl"):
        (tmp_path / file).write_text("\n".join([*lines, '{"event": "st']))
    RunFolder(tmp_path).begin(CausalLMConfig(), 2)
    for file in (METRICS, "documents-rank0.jsonl"):
        assert (tmp_path / file).read_text() == lines[0] + "\n" + lines[1] + "\n"


def test_the_configuration_of_an_earlier_run_stays_until_the_new_one_begins(tmp_path: Path) -> None:
    def seed() -> int:
        return int(yaml.safe_load((tmp_path / "config.yaml").read_text())["seed"])

    first = RunFolder(tmp_path)
    first.open(CausalLMConfig(seed=1), resume=False, overwrite=False)
    assert seed() == 1
    first.begin(CausalLMConfig(seed=1), 0)
    del first
    (tmp_path / "checkpoint-4step").mkdir()
    again = RunFolder(tmp_path)
    again.open(CausalLMConfig(seed=2), resume=True, overwrite=False)
    assert seed() == 1
    again.begin(CausalLMConfig(seed=2), 3)
    assert seed() == 2
    assert not (tmp_path / "checkpoint-4step").exists()


def begin_run(folder: Path) -> RunFolder:
    run = RunFolder(folder)
    run.open(CausalLMConfig(seed=3), resume=False, overwrite=False)
    run.begin(CausalLMConfig(seed=3), 0)
    run.write_status("running", 0, None)
    return run


def read_files(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}


def test_a_deleted_folder_is_rebuilt_by_the_next_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin_run(tmp_path / "run")
    metrics = run.open_log(METRICS)
    metrics.write({"step": 1})
    before = read_files(run.path)
    assert set(before) == {MARK, ".lock", ".owner", "config.yaml", "status.json", METRICS}
    shutil.rmtree(run.path)
    metrics.write({"step": 2})
    assert read_files(run.path) == {**before, METRICS: '{"step": 1}\n{"step": 2}\n'}
    metrics.write({"step": 3})
    assert caplog.text.count("was deleted during the run") == 1
    with pytest.raises(ConfigurationError, match="held by another run"):
        RunFolder(run.path).open(CausalLMConfig(), resume=True, overwrite=True)
    assert run.rebuild_with_logs(ALONE)
    assert not run.rebuild_with_logs(ALONE)


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_run_in_place_of_a_deleted_folder_is_not_changed(
    tmp_path: Path, *, is_finished: bool
) -> None:
    run = begin_run(tmp_path / "run")
    metrics = run.open_log(METRICS)
    metrics.write({"step": 1})
    shutil.rmtree(run.path)
    other = begin_run(tmp_path / "run")
    if is_finished:
        other._lock.file_lock.release()
    before = read_files(run.path)
    for write in (
        lambda: metrics.write({"step": 2}),
        lambda: run.write_status("done", 2, 0),
        lambda: run.rebuild_with_logs(ALONE),
        metrics.close,
    ):
        with pytest.raises(TrainingError, match="now that of another run"):
            write()
    assert run.is_replaced()
    assert not other.is_replaced()
    assert read_files(run.path) == before


def test_user_files_in_place_of_a_deleted_folder_are_not_marked(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run")
    shutil.rmtree(run.path)
    run.path.mkdir()
    (run.path / "thesis.tex").write_text("mine")
    run.open_log(METRICS).write({"step": 1})
    assert set(read_files(run.path)) == {
        ".lock",
        ".owner",
        "config.yaml",
        "status.json",
        METRICS,
        "thesis.tex",
    }


def test_the_logs_of_other_ranks_wait_for_rank_0(tmp_path: Path) -> None:
    main, other = begin_run(tmp_path / "run"), RunFolder(tmp_path / "run")
    documents = other.open_log("documents-rank1.jsonl")
    documents.write({"step": 1})
    shutil.rmtree(main.path)
    documents.write({"step": 2})
    assert not main.path.exists()
    main.rebuild_with_logs(ALONE)
    other.rebuild_with_logs(ALONE)
    documents.write({"step": 3})
    lines = (main.path / "documents-rank1.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
