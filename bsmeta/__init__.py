"""bsmeta: language models trained on text together with its metadata.

    run = bsmeta.train_model("demo", {"seed": 1})       # or bsmeta.open_run("runs/demo")
    report = bsmeta.evaluate_model(run)                 # on the held-out documents
    model = bsmeta.load("runs/demo")                    # predicts, scores, generates
    bsmeta.render("A set is", {"title": "Set types"})   # a document as training sees it
    for batch in bsmeta.stream("demo"): ...             # the batches of training

These names are imported when they are first used, so `import bsmeta` loads almost nothing.

An entry point run as a script (`python bsmeta/train.py`) has this folder first on `sys.path`, so
that `bsmeta/evaluate.py` would shadow the `evaluate` library and `bsmeta/config` anything called
`config`. Every entry point imports this package before anything else; the folder is removed from
the path only here. Under `python -P` (PYTHONSAFEPATH) the working folder is removed, too: Python
leaves it out, but `accelerate launch` adds it to PYTHONPATH for DeepSpeed.

MKL is set to give a matrix product the same bits wherever its operands lie in memory. On some
processors it does not do so by default, and two equal runs on one machine would differ. It reads
the variable at its first call.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bsmeta.api.documents import RenderedDocument, render
    from bsmeta.api.models import LanguageModel, Model, Predictor, Score, load
    from bsmeta.api.programs import run_program, train_model
    from bsmeta.api.reports import Report, evaluate_model
    from bsmeta.api.runs import Run, Status, open_run
    from bsmeta.api.streams import BatchStream, stream
    from bsmeta.core.errors import UserError
    from bsmeta.data.batch import MicroBatch
    from bsmeta.tasks.causal_lm.generation.writer import Result, Sample
    from bsmeta.training.checkpoints.checkpoint import Checkpoint

    __version__: str

_PACKAGE_FOLDER = os.path.dirname(os.path.realpath(__file__))
_REMOVED_FOLDERS = {_PACKAGE_FOLDER}
if sys.flags.safe_path:
    _REMOVED_FOLDERS |= {os.path.realpath(os.curdir)} - {os.path.dirname(_PACKAGE_FOLDER)}
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) not in _REMOVED_FOLDERS]

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_MODULES = {
    **dict.fromkeys(("RenderedDocument", "render"), "bsmeta.api.documents"),
    **dict.fromkeys(("LanguageModel", "Model", "Predictor", "Score", "load"), "bsmeta.api.models"),
    **dict.fromkeys(("run_program", "train_model"), "bsmeta.api.programs"),
    **dict.fromkeys(("Report", "evaluate_model"), "bsmeta.api.reports"),
    **dict.fromkeys(("Run", "Status", "open_run"), "bsmeta.api.runs"),
    **dict.fromkeys(("BatchStream", "stream"), "bsmeta.api.streams"),
    **dict.fromkeys(("Result", "Sample"), "bsmeta.tasks.causal_lm.generation.writer"),
    "Checkpoint": "bsmeta.training.checkpoints.checkpoint",
    "MicroBatch": "bsmeta.data.batch",
    "UserError": "bsmeta.core.errors",
}

__all__ = [
    "BatchStream", "Checkpoint", "LanguageModel", "MicroBatch", "Model", "Predictor",
    "RenderedDocument", "Report", "Result", "Run", "Sample", "Score", "Status", "UserError",
    "evaluate_model", "load", "open_run", "render", "run_program", "stream", "train_model",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from bsmeta.core.version import __version__

            return __version__
        if name not in _MODULES:
            raise AttributeError(f"module 'bsmeta' has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
