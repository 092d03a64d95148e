"""`predict.py`, but the process gets the signal SIGNAL when the row AT is predicted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta import predict
    from bsmeta.config.entry_point import run_entry_point
    from bsmeta.config.programs.predicting import PredictConfig
    from bsmeta.tasks.classification import task

    whole = task.TextClassifier.predict

    def stopped(self: Any, *arguments: Any) -> Iterator[dict[str, Any]]:
        for number, result in enumerate(whole(self, *arguments), 1):
            if number == int(os.environ["AT"]):
                os.kill(os.getpid(), int(os.environ["SIGNAL"]))
            yield result

    task.TextClassifier.predict = stopped  # type: ignore[method-assign]
    run_entry_point(predict.main, PredictConfig, "predict")
