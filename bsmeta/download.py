"""Downloads, verifies and unpacks the files listed in a manifest.

python bsmeta/download.py manifest=manifest.json folder=data
python bsmeta/download.py manifest=manifest.json folder=data mirror=https://example.org/wiki

The same call continues after an interruption, and does nothing if all is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.downloading import DownloadConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.process import run_stoppable
from bsmeta.core.terminal import ProgressDisplay, TextColumn


def main(config: DownloadConfig) -> int:
    """Downloads the missing files; returns the exit code, 75 if a signal ended the download."""
    for name in ("manifest", "folder"):
        if getattr(config, name) is None:
            raise ConfigurationError(f"{name} is not set; expected a path", [name])

    manifest = Path(str(config.manifest))
    folder = Path(str(config.folder))
    return run_stoppable(lambda: fetch_files(config, manifest, folder))


def fetch_files(config: DownloadConfig, manifest: Path, folder: Path) -> None:
    """Downloads the files, shows the progress, and reports how many files are complete."""
    from bsmeta.data.io.file_sets import FileSet, read_manifest

    entries = read_manifest(manifest, config.mirror)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with ProgressDisplay(*columns) as progress:
        bar_ids: dict[str, Any] = {}

        def advance(work: str, done: int, total: int) -> None:
            """Shows `done` of `total` bytes of a download or another step of work."""
            if work not in bar_ids:
                bar_ids[work] = progress.add_task(work, total=total)
            progress.update(bar_ids[work], completed=done)

        num_new = FileSet(
            entries,
            folder,
            keep_archives=config.keep_archives,
            retries=config.retries,
            timeout=config.timeout,
            advance=advance,
        ).fetch()

    print(f"{folder}: {len(entries):,} files and folders are complete, {num_new:,} of them new")


if __name__ == "__main__":
    run_entry_point(main, DownloadConfig, "download")
