"""Prepares the training sequences in advance, once for all runs with the same data.

    python -m bsmeta.data.prepare --config-name v2 data_config.train_file='shards/*.jsonl.gz' \
        epochs=1 out=FOLDER

accepts every key that training accepts. Training with the same keys and
`data_config.prepared=FOLDER` then has the same batches as without it, and continues live after the
prepared epochs. The folder appears only when it is complete. Called again for an existing folder,
it checks the content.
`data_config.num_workers` streams are prepared at a time (0: one, in this process).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from bsmeta.config.batch import BatchPlan
from bsmeta.config.checks.bounds import refuse_out_of_bounds
from bsmeta.config.checks.data import check_data
from bsmeta.config.compose import run_entry_point, to_yaml
from bsmeta.config.differences import differing
from bsmeta.config.errors import ConfigurationError, UserError
from bsmeta.config.prepare import PrepareConfig
from bsmeta.data.live import LiveStreams, phases_of
from bsmeta.data.prepared import (
    FORMAT,
    MANIFEST,
    as_saved,
    read_manifest,
    verify,
)
from bsmeta.data.preparing import StreamWriter, columns_of
from bsmeta.data.tokenizer import load_tokenizer


def main(config: PrepareConfig) -> None:
    """Writes the folder, or checks an existing one, and prints a summary of its content."""
    refuse_out_of_bounds(config)
    check_data(config.data_config)
    if config.out is None:
        raise ConfigurationError("out is not set; expected the folder to write")
    manifest = prepare(config, load_tokenizer(config), Path(config.out))
    print(summary(config, manifest))


def prepare(config: PrepareConfig, tokenizer: PreTrainedTokenizerBase, out: Path) -> dict[str, Any]:
    """Writes the sequences of all streams.

    Returns:
        The manifest.

    Raises:
        ConfigurationError: If the folder exists with other data, or cannot be written.
        DataError: If documents cannot be read or used, or the folder exists and is damaged.
    """
    data = config.data_config
    plan = BatchPlan.of(config, config.world_size)
    phases = phases_of(data, config.max_train_steps, plan.global_batch)
    live = LiveStreams(data, tokenizer, config.seed, phases)
    columns = columns_of(data, len(tokenizer))
    manifest = {
        "format": FORMAT,
        "epochs": config.epochs,
        "fingerprint": live.fingerprint,
        "columns": columns,
        "shards": [shard.name for shard in live.shards],
    }
    if out.exists():
        return checked(out, as_saved(manifest))
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        writer = StreamWriter(live, data, columns, config.epochs, partial)
        manifest["streams"] = written(writer, data.num_workers)
        (partial / "config.yaml").write_text(to_yaml(config))
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
        partial.rename(out)
    except OSError as error:
        raise ConfigurationError(f"out={out} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def written(writer: StreamWriter, num_workers: int) -> list[dict[str, Any]]:
    """Writes all streams, several at a time, and shows the progress."""
    streams = []
    with progress() as bar:
        task = bar.add_task("streams", total=len(writer), tokens=0)
        for one in DataLoader(writer, batch_size=None, num_workers=num_workers):
            if isinstance(one, UserError):
                raise one
            streams.append(one)
            bar.update(task, advance=1, tokens=sum(entry["tokens"] for entry in streams))
    return streams


def progress() -> Progress:
    """A progress bar on standard error."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]:,} tokens"),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
    )


def checked(out: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an existing folder, after checking that it is intact.

    Raises:
        ConfigurationError: If it has other data, which is left unchanged.
        DataError: If it has no prepared data, or is damaged.
    """
    manifest = read_manifest(out)
    saved = {name: manifest[name] for name in expected}
    differences = "\n".join(differing("", saved, expected, "there"))
    if differences:
        raise ConfigurationError(
            f"out={out} holds other prepared data; name another folder, or delete it:\n"
            f"{differences}"
        )
    verify(out, manifest)
    print(f"{out} is there already; all its hashes are right", file=sys.stderr)
    return manifest


def summary(config: PrepareConfig, manifest: dict[str, Any]) -> str:
    """A one-line summary of a folder's content."""
    streams: Sequence[dict[str, Any]] = manifest["streams"]
    sequences, tokens, documents = (
        sum(one[name] for one in streams) for name in ("sequences", "tokens", "documents")
    )
    size = sum(file["bytes"] for one in streams for file in one["files"].values())
    places = sequences * config.data_config.metadata_config.max_seq_len
    return (
        f"{config.out}: {documents:,} documents in {sequences:,} sequences of {len(streams)} "
        f"streams, {tokens:,} tokens (fill {tokens / max(places, 1):.4f}), {size / 2**20:,.1f} MB"
    )


if __name__ == "__main__":
    run_entry_point(main, PrepareConfig, "v2")
