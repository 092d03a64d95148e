"""A folder belongs to one set of pages and settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.quick.config import QuickConfig
from bsmeta.quick.documents import Page
from bsmeta.quick.folder import claim_folder, open_folder, read_sizes, write_sizes

PAGES = [Page("a", {"title": "b"}), Page("c", {})]


def test_a_run_with_the_same_pages_and_settings_continues(tmp_path: Path) -> None:
    config = QuickConfig(pages="a.jsonl", out_dir=str(tmp_path / "out"))
    folder = Path(config.out_dir)
    claim_folder(config, folder, PAGES)
    assert read_sizes(folder) is None
    write_sizes(folder, {"steps": 3})
    claim_folder(replace(config, pages="./a.jsonl"), folder, PAGES)
    assert read_sizes(folder) == {"steps": 3}


@pytest.mark.parametrize("changes", [{"seed": 1}, {"minutes": 9}, {"overrides": {"seed": 1}}, {}])
def test_other_pages_and_settings_are_refused(changes: dict[str, object], tmp_path: Path) -> None:
    config = QuickConfig(out_dir=str(tmp_path / "out"))
    folder = Path(config.out_dir)
    claim_folder(config, folder, PAGES)
    write_sizes(folder, {"steps": 3})
    other = replace(config, **changes)
    pages = PAGES if changes else PAGES[:1]
    with pytest.raises(ConfigurationError, match="holds the result of other pages or settings;"):
        claim_folder(other, folder, pages)
    assert read_sizes(folder) == {"steps": 3}
    claim_folder(replace(other, overwrite_out_dir=True), folder, pages)
    assert read_sizes(folder) is None


def test_a_refused_start_leaves_the_folder_free(tmp_path: Path) -> None:
    config = QuickConfig(out_dir=str(tmp_path / "out"))
    folder = Path(config.out_dir)
    claim_folder(config, folder, PAGES[:1])
    (folder / "copies").mkdir()
    claim_folder(config, folder, PAGES)
    assert [path.name for path in folder.iterdir()] == [".bsmeta-quick"]


def test_a_folder_of_other_files_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    for overwrite in (False, True):
        config = QuickConfig(out_dir=str(tmp_path), overwrite_out_dir=overwrite)
        with pytest.raises(ConfigurationError, match=r"holds thesis.tex, and no \.bsmeta-quick"):
            claim_folder(config, tmp_path, PAGES)
    assert (tmp_path / "thesis.tex").read_text() == "x"

    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="file: cannot be used: Not a directory"):
        claim_folder(QuickConfig(), tmp_path / "file", PAGES)


def test_a_check_leaves_no_folder(tmp_path: Path) -> None:
    config = QuickConfig(out_dir=str(tmp_path / "out"), check_only=True)
    with open_folder(config) as folder:
        claim_folder(config, folder, PAGES)
        assert folder.is_dir()
    assert not folder.exists()
    assert not (tmp_path / "out").exists()


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    for content in ("{", "[1]"):
        (tmp_path / "plan.json").write_text(content)
        with pytest.raises(DataError, match=r"plan.json is damaged: .*; set overwrite_out_dir=tr"):
            read_sizes(tmp_path)
