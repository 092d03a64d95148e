"""A model whose embeddings are its output layer, too."""

from __future__ import annotations

from torch import nn


class Tied(nn.Module):
    """100 x 8 embeddings that are the output layer, too; 50 x 8 positions that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(100, 8), nn.Embedding(50, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.words.weight
