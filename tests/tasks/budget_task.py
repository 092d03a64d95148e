"""A task on a table: texts of varying length classified under a token budget, epoch by epoch.

It uses what the language model does not: steps of varying rows, epochs, two evaluated splits, a
metric to maximize, and work after the last step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from bsmeta.config.schema import RunConfig
from bsmeta.core.keys import key
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.store import open_store
from bsmeta.data.table.stream import TableStream, TokenBudgetSteps
from bsmeta.training.ranks.processes import FinishContext, Processes
from bsmeta.training.task import Loss, Metric, Task

if TYPE_CHECKING:
    from datasets import Dataset

ROWS = 90
VOCABULARY = 32


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(RunConfig):
    """A run of this task."""

    task: str = key("budget", "what is trained")
    store: str = key("store", "folder of the encoded rows", is_path=True)
    batch_max_length: int = key(400, "padded tokens of a step over all processes", at_least=1)
    batch_shares: int = key(4, "what processes x accumulation must divide", at_least=1)
    bucket_span: int = key(6, "width of a length bucket in tokens", at_least=1)
    num_workers: int = key(0, "loader processes of each rank", at_least=0)


def build_rows() -> Dataset:
    """Returns texts of 1 to 24 tokens; the label is whether most tokens are odd."""
    from datasets import Dataset

    def encode(row: dict[str, int]) -> dict[str, Any]:
        draw = np.random.default_rng(row["number"])
        ids = draw.integers(1, VOCABULARY, size=1 + row["number"] % 24).tolist()
        return {"ids": ids, "label": int(2 * sum(n % 2 for n in ids) > len(ids))}

    return Dataset.from_dict({"number": list(range(ROWS + 40))}).map(encode)


class Classifier(nn.Module):
    """The mean of token embeddings, with dropout, through one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16, padding_idx=0)
        self.dropout = nn.Dropout(0.1)
        self.layer = nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = (ids > 0).unsqueeze(2)
        mean = (self.embedding(ids) * mask).sum(1) / mask.sum(1)
        return self.layer(self.dropout(mean)).float()


class BudgetTask(Task):
    """Rows 0 to 89 are trained on, 20 are for validation, the last 20 for the test."""

    def __init__(self, config: BudgetConfig) -> None:
        self._config = config
        self._rows = open_store(Path(config.store), {"rows": ROWS + 40}, build_rows)
        lengths = np.array([len(ids) for ids in self._rows["ids"][:ROWS]])
        self._order = TokenBudgetSteps(
            lengths, config.batch_max_length, config.bucket_span, config.batch_shares, config.seed
        )

    def build_model(self) -> nn.Module:
        return Classifier()

    def steps_per_epoch(self, world_size: int) -> int:
        return self._order.steps_per_epoch

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> TableStream:
        return TableStream(
            self._order,
            self.collate,
            rank=rank,
            world_size=world_size,
            accumulation=self._config.gradient_accumulation_steps,
            num_workers=self._config.num_workers,
            fingerprint={"rows": ROWS, "seed": self._config.seed},
            state=state,
        )

    def collate(self, rows: np.ndarray, epoch: int) -> MicroBatch:
        chosen = self._rows[rows.tolist()]
        ids = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in chosen["ids"]], True)
        tokens = int((ids > 0).sum())
        return MicroBatch(
            tensors={"ids": ids, "label": torch.tensor(chosen["label"])},
            weight=float(len(rows)),
            tokens=tokens,
            padding=ids.numel() - tokens,
            documents=[f"{epoch}:{row}" for row in rows],
        )

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        logits = model(batch["ids"])
        return Loss(functional.cross_entropy(logits, batch["label"], reduction="sum"))

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        first, second = range(ROWS, ROWS + 20), range(ROWS + 20, ROWS + 40)
        return [
            *self._measure(model, first, "validation"),
            *self._measure(model, second, "unseen"),
        ]

    def _measure(self, model: nn.Module, rows: range, split: str) -> list[Metric]:
        batch = self.collate(np.array(rows), 0).tensors
        device = next(model.parameters()).device
        with torch.no_grad():
            logits = model(batch["ids"].to(device)).cpu()
        right = (logits.argmax(1) == batch["label"]).float().mean()
        loss = functional.cross_entropy(logits, batch["label"])
        name = "accuracy" if split == "validation" else f"{split}_accuracy"
        return [
            Metric(name, float(right), better="max", split=split),
            Metric(f"{split}_loss", float(loss), split=split),
        ]

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        folder.mkdir(parents=True)
        save_file(weights, folder / "model.safetensors")

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Evaluates the test split by the exported model, which all ranks have."""
        assert context.exported is not None
        exported = Classifier().eval()
        exported.load_state_dict(load_file(context.exported / "model/model.safetensors"))
        metrics = self._measure(exported, range(ROWS + 20, ROWS + 40), "test")
        assert context.gather(context.exported) == [context.exported] * context.size
        if context.rank == 0:
            found = {"exported": context.exported.name, **{m.name: m.value for m in metrics}}
            (context.folder / "test.json").write_text(json.dumps(found))
        return metrics


def main(config: BudgetConfig) -> int:
    from bsmeta.core.signals import StopRequest
    from bsmeta.training.run import run_training
    from bsmeta.training.run_folder.early_ends import record_stopped_start

    if kill_at := os.environ.get("KILL_AT"):
        kill_before_step(int(kill_at))
    deepspeed = None
    if stage := os.environ.get("ZERO_STAGE"):
        deepspeed = {
            "zero_optimization": {"stage": int(stage)},
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
            "gradient_clipping": config.gradient_clipping,
            "steps_per_print": 10**9,
        }
    stop = StopRequest()
    stop.install(partial(record_stopped_start, Path(config.out_dir)), os.getppid())
    return run_training(config, BudgetTask(config), deepspeed, stop)


if __name__ == "__main__":
    from killed_train import kill_before_step

    sys.path.pop(0)
    from bsmeta.config.entry_point import run_entry_point

    run_entry_point(main, BudgetConfig, "budget_config")
