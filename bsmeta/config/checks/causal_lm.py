"""Checks specific to `task=causal_lm`: shards, streams, metadata, model, held-out file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.data import data_problems
from bsmeta.config.checks.files import file_problems, model_name_problems
from bsmeta.config.checks.problems import HYDRA, Problem, show
from bsmeta.config.checks.speed import speed_problems
from bsmeta.config.launch import Launch

METRICS = (
        "bits_per_byte_with", "bits_per_byte_without", "text_bits_per_byte", "difference",
        "difference_low", "difference_high", "perplexity_with", "perplexity_without",
        "mean_document_difference", "mean_document_difference_low",
        "mean_document_difference_high", "sign_test_p",
    )  # fmt: skip
"""The metrics of an evaluation during training."""


def value_problems(config: CausalLMConfig, overridden: Collection[str] = ()) -> Iterator[Problem]:
    """Yields problems that do not depend on the launch.

    Args:
        config: The run.
        overridden: The keys set on the command line.
    """
    yield from model_name_problems(config, overridden)
    data = config.data_config
    if data.train_file is None and data.dataset_name is None:
        fix = "data_config.train_file=FOLDER/*.jsonl.gz (or a list of files, or dataset_name)"
        yield Problem("data_config.train_file", HYDRA, "null", "the training shards", fix)
    yield from data_problems(data)
    yield from file_problems(config)


def start_problems(
    config: CausalLMConfig, launch: Launch, document: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields problems that depend on the launch or the DeepSpeed JSON.

    Args:
        config: The run.
        launch: How it is started.
        document: The DeepSpeed JSON, if one is used and could be read.
    """
    yield from _streams(config, launch)
    yield from _held_out(config)
    yield from speed_problems(config, launch, document)


def _streams(config: CausalLMConfig, launch: Launch) -> Iterator[Problem]:
    """Yields a problem unless every loader worker of every process gets equally many streams."""
    streams, workers = config.data_config.num_streams, max(1, config.data_config.num_workers)
    readers = launch.num_processes * workers
    if streams >= 1 and streams % readers:
        sum_ = f"{launch.num_processes} (processes) x {workers} (data_config.num_workers)"
        yield Problem(
            key="data_config.num_streams",
            file=HYDRA,
            found=str(streams),
            expected=f"a multiple of {sum_} = {readers}",
            fix=f"data_config.num_streams={-(-streams // readers) * readers}, or (on a resumed "
            "run, which must keep num_streams) other numbers of processes or workers",
        )


def _held_out(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields the keys that need an evaluation although there is no held-out file."""
    best = config.keep_best_by if config.eval_steps else None
    asked = {"keep_best_by": best, "start_with_eval": config.start_with_eval or None}
    for key, value in asked.items():
        if value is not None and config.data_config.validation_file is None:
            expected = "no evaluation, because there is no held-out file"
            fix = f"data_config.validation_file=FILE, or leave {key} out"
            yield Problem(key, HYDRA, show(value), expected, fix)
