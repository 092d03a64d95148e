"""The upload of a finished model to the Hub, after the run and without any effect on its result.

It runs in a separate process with a time limit: whatever the server does (refuses, fails, does not
respond for hours), the run stays done. `python -m bsmeta.training.publish FOLDER NAME` is that
process.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

from bsmeta.core.secrets import redact
from bsmeta.training.logs import LineLog
from bsmeta.training.run_folder import METRICS

logger = logging.getLogger(__name__)

TIMEOUT_S = 3600.0
"""Time limit of an upload."""


def push(run_folder: Path, repository: str, step: int, timeout_s: float = TIMEOUT_S) -> bool:
    """Uploads `model/` of a finished run; logs the outcome, and never raises an error.

    A line `{"event": "push", …}` in `metrics.jsonl` records whether it succeeded, or why not.

    Args:
        repository: `owner/name`; created if it does not exist.

    Returns:
        Whether the model is on the Hub.
    """
    problem = _upload(run_folder / "model", repository, timeout_s)
    if problem:
        logger.warning(
            "push_to_hub: the model is in %s, but not on the Hub: %s. To try again: "
            "hf upload %s %s",
            run_folder / "model",
            problem,
            repository,
            run_folder / "model",
        )
    else:
        logger.info("push_to_hub: uploaded to %s", repository)
    event = {"event": "push", "step": step, "repository": repository, "pushed": not problem}
    try:
        log = LineLog(run_folder / METRICS)
        log.write({**event, "problem": problem} if problem else event)
        log.close()
    except OSError as error:
        logger.warning("push_to_hub: %s could not be written: %s", METRICS, error)
    return not problem


def _upload(folder: Path, repository: str, timeout_s: float) -> str:
    """Uploads in another process; returns the error message, "" on success."""
    command = [sys.executable, "-m", __name__, str(folder), repository]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            cwd=Path(__file__).resolve().parents[2],  # so that `bsmeta` can be imported
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"given up after {timeout_s:g} seconds"
    except OSError as error:  # for example, not enough memory for another process
        return str(error)
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return redact(lines[-1] if lines else f"exit code {done.returncode}")


def main(folder: str, repository: str) -> int:
    """Runs in the upload process: creates the repository and uploads; prints errors to stderr."""
    from huggingface_hub import HfApi

    api = HfApi()  # reads HF_ENDPOINT and HF_TOKEN itself
    try:
        api.create_repo(repository, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload the trained model"
        )
    except Exception as error:  # from any library; reported to the parent process
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
