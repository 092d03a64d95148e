"""Uploads the model of a finished run to the Hugging Face Hub; no failure there changes the run."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bsmeta.core.secrets import declare_secrets, redact
from bsmeta.training.run_folder.events import METRICS
from bsmeta.training.run_folder.logs import Log

UPLOAD_TIMEOUT_S = 3600.0
"""Time limit of an upload."""

_UPLOAD_SCRIPT = """
import os
import sys
from huggingface_hub import HfApi
folder, name, visibility, *files = sys.argv[1:]
api = HfApi()  # reads HF_ENDPOINT and HF_TOKEN itself
try:
    api.create_repo(name, exist_ok=True, private=visibility == "private")
    api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload the trained model")
    for file in files:
        api.upload_file(path_or_fileobj=file, path_in_repo=os.path.basename(file), repo_id=name)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
"""

logger = logging.getLogger(__name__)


def push_model(
    run_folder: Path,
    repository: str,
    step: int,
    *,
    private: bool = True,
    timeout_s: float = UPLOAD_TIMEOUT_S,
) -> bool:
    """Uploads `model/` of a finished run; returns whether it succeeded, and never raises an error.

    The run's `config.yaml` is uploaded with a model without `metadata.yaml`: `predict.py` needs one
    of the two beside the weights. A line `{"event": "push", …}` in `metrics.jsonl` records the
    upload, or why it failed.

    Args:
        repository: `owner/name`; created if it does not exist.
        private: Whether only its owner can read a repository that is created.
    """
    model = run_folder / "model"
    run_config = run_folder / "config.yaml"
    is_complete = (model / "metadata.yaml").exists() or not run_config.exists()
    files = [] if is_complete else [run_config]
    problem = _upload_model(model, files, repository, private, timeout_s)
    if problem:
        logger.warning(
            "push_to_hub: the model is in %s, but not on the Hub: %s. To try again: "
            "hf upload %s %s",
            model,
            problem,
            repository,
            model,
        )
    else:
        logger.info("push_to_hub: uploaded to %s", repository)

    event = {"event": "push", "step": step, "repository": repository, "pushed": not problem}
    if problem:
        event["problem"] = problem
    _log_event(run_folder, event)
    return not problem


def _log_event(run_folder: Path, event: dict[str, Any]) -> None:
    """Adds an event to the log of a run that has ended."""
    try:
        log = Log(run_folder / METRICS)
        log.write(event)
        log.close()
    except OSError as error:
        logger.warning("push_to_hub: %s could not be written: %s", METRICS, error)


def _upload_model(
    folder: Path, files: Sequence[Path], repository: str, private: bool, timeout_s: float
) -> str:
    """Uploads in another process; returns the error message, "" on success.

    The run stays done even if the server refuses, fails, or does not respond for hours.
    """
    from huggingface_hub import get_token  # takes a second to import

    declare_secrets(get_token())  # it may come from a file

    visibility = "private" if private else "public"
    # -P: nothing is imported from the working folder.
    command = [sys.executable, "-P", "-c", _UPLOAD_SCRIPT, str(folder), repository, visibility]
    command += map(str, files)
    try:
        upload = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"given up after {timeout_s:g} seconds"
    except OSError as error:  # for example, not enough memory for another process
        return str(error)

    if upload.returncode == 0:
        return ""
    lines = [line.strip() for line in upload.stderr.splitlines() if line.strip()]
    return redact(lines[-1] if lines else f"exit code {upload.returncode}")
