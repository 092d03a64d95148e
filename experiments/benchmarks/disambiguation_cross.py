"""Measures whether a cross-encoder that reranks first candidates improves a disambiguator.

    python experiments/benchmarks/disambiguation_cross.py train RUN FOLDER --mentions 4000
    python experiments/benchmarks/disambiguation_cross.py score RUN FOLDER held_out.jsonl.gz

RUN is a run of task=disambiguation. Its training documents train the cross-encoder; its table must
not count the mentions of the held-out documents. The cross-encoder starts from the weights of
`model_name`, and reads the sentence around a marked mention with the texts of up to four
candidates. It is trained with a softmax over them: the most popular ones, with a right one among
them. The log share of a candidate in the scores of the alias, without the mention's own document,
is added to its score.

`train` sees each mention once, and prints one JSON line for every `--save-every` mentions: the
accuracy on these mentions before they were trained on, by popularity alone and with the
cross-encoder. FOLDER gets the weights. `score` prints a JSON line for each of these: the accuracy
on held-out mentions whose two best candidates differ by less than `MAX_MARGIN` in the score of the
bi-encoder. There, the score of the cross-encoder is multiplied by a weight and added to that of the
bi-encoder, if the difference is below a margin. For each half of the held-out documents, weight and
margin are chosen on the other half.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from bsmeta.config.saved_runs import read_saved_config
from bsmeta.core.changed_values import replace_values
from bsmeta.core.process import run_and_report
from bsmeta.data.text.tokenizer import find_special_tokens
from bsmeta.models.shapes import read_hidden_size
from bsmeta.tasks import TASKS
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.data import Candidates, DocumentCounts, RunData, find_candidates
from bsmeta.tasks.disambiguation.evaluate import Scorer, compute_candidate_embeddings
from bsmeta.tasks.disambiguation.model import BiEncoder, build_model
from bsmeta.tasks.disambiguation.texts import (
    MENTION_END,
    MENTION_START,
    EntityTexts,
    Mentions,
    Row,
    cut_window,
    pad_sequences,
)
from bsmeta.training.optimization import set_learning_rate
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.task import sort_into_batches

CANDIDATES = 4
WINDOW_TOKENS = 40
CANDIDATE_TOKENS = 24
CANDIDATE_PARTS = ("title", "types", "description")
SCORED_ROWS = 64
SCORED_MENTIONS = 32
POOL_BATCHES = 16
"""Number of training batches whose mentions are sorted by length together."""
WARMUP_STEPS = 40
DECAY_SHARE = 0.2
COSINE_SCALE = 20.0
MAX_MARGIN = 3.0
"""Mentions whose two highest scores differ by this much are neither trained on nor reranked."""
MARGINS = (0.5, 1.0, 1.5, 2.0, MAX_MARGIN)
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
RESAMPLES = 2000


@dataclass(frozen=True)
class Example:
    """A mention with its first candidates.

    Attributes:
        window: Tokens of the sentence around the marked mention, with special tokens.
        mention: Range of the mention in the window, with its markers.
        candidates: Tokens of the text of each candidate.
        scores: Scores that ranked the candidates, of the bi-encoder, or `prior`, float
            [candidates].
        prior: Log share of each candidate in the scores of the alias, float [candidates].
        is_gold: bool [candidates].
        document: Number of the document.
    """

    window: list[int]
    mention: tuple[int, int]
    candidates: list[list[int]]
    scores: np.ndarray
    prior: np.ndarray
    is_gold: np.ndarray
    document: int

    @property
    def length(self) -> int:
        """Number of tokens of the window and all candidates."""
        return len(self.window) + sum(map(len, self.candidates))

    @property
    def margin(self) -> float:
        """Difference between the two highest of `scores`."""
        second, first = np.sort(self.scores)[-2:]
        return float(first - second)


class ExampleBuilder:
    """Encodes mentions that have several candidates, with the first of these."""

    def __init__(self, data: RunData) -> None:
        self._data = data
        self._texts = EntityTexts(data.table, data.tokenizer, CANDIDATE_PARTS, CANDIDATE_TOKENS)
        self._prefix, self._suffix = find_special_tokens(data.tokenizer)
        self._markers = tuple(data.tokenizer.convert_tokens_to_ids([MENTION_START, MENTION_END]))

    def build_trained(self, rows: Sequence[Row], counts: DocumentCounts) -> list[Example]:
        """Builds examples of training rows, with the most popular candidates and a right one.

        Args:
            counts: Counts of training mentions; those of the mention's own document do not count.
        """
        mentions = Mentions(rows)
        candidates = find_candidates(
            self._data.table, mentions.aliases, mentions.entities, mentions.documents, counts
        )
        return self._build(rows, candidates, candidates.prior[:, :, 0], is_trained=True)

    def build_scored(self, rows: Sequence[Row], model: BiEncoder) -> list[Example]:
        """Builds examples of held-out rows, with the candidates that a bi-encoder ranks first."""
        embeddings = compute_candidate_embeddings(self._data, model, rows, ALONE)
        scorer = Scorer(model, self._data, embeddings, ALONE.device)
        examples = []
        for batch in sort_into_batches([len(row.tokens) for row in rows], SCORED_ROWS):
            batch_rows = [rows[number] for number in batch]
            scored = scorer(batch_rows)
            scores = scored.scores[:, : scored.candidates.entities.shape[1]]
            examples += self._build(batch_rows, scored.candidates, scores, is_trained=False)
        return examples

    def _build(
        self, rows: Sequence[Row], candidates: Candidates, scores: np.ndarray, *, is_trained: bool
    ) -> list[Example]:
        """Builds examples of mentions with several candidates; of training, with a right one.

        Args:
            scores: float [mentions, candidates], by which the first candidates are chosen.
        """
        windows = []
        for row in rows:
            windows += [
                self._cut_window(row, start, end)
                for start, end in zip(row.starts.tolist(), row.ends.tolist(), strict=True)
            ]
        documents = Mentions(rows).documents

        examples = []
        for mention, (window, span) in enumerate(windows):
            is_gold = candidates.is_gold[mention]
            order = np.argsort(-scores[mention], kind="stable")
            order = order[candidates.entities[mention][order] >= 0]
            if len(order) < 2 or (is_trained and not is_gold.any()):
                continue

            columns = order[:CANDIDATES]
            if is_trained and not is_gold[columns].any():
                columns[-1] = is_gold.argmax()
            entities = candidates.entities[mention, columns].tolist()
            examples.append(
                Example(
                    window=window,
                    mention=span,
                    candidates=[self._encode_candidate(entity) for entity in entities],
                    scores=scores[mention, columns],
                    prior=candidates.prior[mention, columns, 0],
                    is_gold=is_gold[columns],
                    document=int(documents[mention]),
                )
            )
        return examples

    def _cut_window(self, row: Row, start: int, end: int) -> tuple[list[int], tuple[int, int]]:
        tokens = cut_window(row.tokens, start, end, self._markers, WINDOW_TOKENS).tolist()
        first = tokens.index(self._markers[0]) + len(self._prefix)
        last = tokens.index(self._markers[1]) + len(self._prefix)
        return [*self._prefix, *tokens, *self._suffix], (first, last + 1)

    def _encode_candidate(self, entity: int) -> list[int]:
        return self._texts.tokens(entity)[len(self._prefix) :]


def build_inputs(examples: Sequence[Example], layout: str) -> dict[str, torch.Tensor]:
    """Builds the inputs of `CrossEncoder.forward`.

    Args:
        layout: `pairs`: a sequence for each candidate, in which all tokens see each other;
            `shared`: a sequence for each mention, in which the tokens of a candidate see the
            window and themselves, and the window sees only itself.
    """
    sequences: list[tuple[Example, list[list[int]]]] = []
    for example in examples:
        if layout == "pairs":
            sequences += [(example, [candidate]) for candidate in example.candidates]
        else:
            sequences.append((example, example.candidates))

    ids = []
    segments = []
    positions = []
    spans = []
    for example, candidates in sequences:
        window_length = len(example.window)
        lengths = [len(candidate) for candidate in candidates]
        ids.append([*example.window, *(token for candidate in candidates for token in candidate)])
        segments.append(np.repeat(np.arange(len(lengths) + 1), [window_length, *lengths]))
        steps = [np.arange(window_length + length)[window_length:] for length in lengths]
        positions.append(np.concatenate([np.arange(window_length), *steps]))
        ends = window_length + np.cumsum(lengths)
        spans += [
            (len(ids) - 1, *example.mention, end - length, end)
            for length, end in zip(lengths, ends.tolist(), strict=True)
        ]

    segment = torch.from_numpy(pad_sequences(segments, -1))
    is_key = segment[:, None, :] >= 0
    if layout == "pairs":
        mask = is_key.expand(-1, segment.shape[1], -1)
    else:
        mask = is_key & ((segment[:, None, :] == 0) | (segment[:, None, :] == segment[:, :, None]))
    return {
        "input_ids": torch.from_numpy(pad_sequences(ids, 0)),
        "attention_mask": mask[:, None],
        "position_ids": torch.from_numpy(pad_sequences(positions, 0)),
        "spans": torch.tensor(spans),
        "counts": torch.tensor([len(example.candidates) for example in examples]),
    }


class CrossEncoder(nn.Module):
    """Scores the candidates of mentions by the states of an encoder that reads both.

    The score is the scaled cosine of the mean states of mention and candidate, which makes use of
    the pretrained encoder from the first step, plus a linear layer over both and their product.

    Args:
        encoder: Any encoder that accepts an attention mask for each pair of tokens.
    """

    def __init__(self, encoder: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.layer = nn.Linear(3 * hidden_size, 1)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        spans: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        """Computes the scores of the candidates of each mention.

        Args:
            input_ids, position_ids: int64 [sequences, tokens].
            attention_mask: bool [sequences, 1, tokens, tokens].
            spans: int64 [pairs, 5]: index of the sequence, start and end of the mention, start and
                end of the candidate.
            counts: int64 [mentions]: number of candidates.

        Returns:
            float32 [mentions, candidates]; -inf pads.
        """
        states = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids
        ).last_hidden_state.float()
        sequences = spans[:, 0]
        mentions = average_spans(states, sequences, spans[:, 1], spans[:, 2])
        candidates = average_spans(states, sequences, spans[:, 3], spans[:, 4])

        cosines = functional.cosine_similarity(mentions, candidates)
        features = torch.cat([mentions, candidates, mentions * candidates], dim=1)
        scores = COSINE_SCALE * cosines + self.layer(features).squeeze(1)

        columns = torch.arange(int(counts.max()))
        is_candidate = columns[None, :] < counts[:, None]
        padded = torch.full(is_candidate.shape, -torch.inf)
        return padded.masked_scatter(is_candidate, scores)


def average_spans(
    states: torch.Tensor, sequences: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """Averages states over ranges of tokens, float [ranges, hidden]."""
    sums = functional.pad(states.cumsum(1), (0, 0, 1, 0))
    totals = sums[sequences, ends] - sums[sequences, starts]
    return totals / (ends - starts)[:, None]


def compute_scores(
    model: CrossEncoder, examples: Sequence[Example], arguments: argparse.Namespace
) -> torch.Tensor:
    """Computes the scores of the candidates, float32 [examples, candidates]; -inf pads."""
    inputs = build_inputs(examples, arguments.layout)
    with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
        scores: torch.Tensor = model(**inputs)
    return scores


def train(model: CrossEncoder, examples: Sequence[Example], arguments: argparse.Namespace) -> None:
    """Trains once on all examples, and saves the weights after every `save_every` of them."""
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad],
        lr=arguments.learning_rate,
    )
    batches = order_batches([example.length for example in examples], arguments.batch_size)
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), folder / "0.safetensors")

    model.train()
    began = time.process_time()
    trained = 0
    last_saved = 0
    results: list[tuple[bool, bool]] = []
    for step, batch in enumerate(batches):
        progress = step / len(batches)
        share = min(1.0, (step + 1) / WARMUP_STEPS, (1 - progress) / DECAY_SHARE)
        set_learning_rate(optimizer.param_groups, arguments.learning_rate * share)
        results += train_step(model, [examples[number] for number in batch], optimizer, arguments)
        trained += len(batch)

        if trained - last_saved >= arguments.save_every or step == len(batches) - 1:
            popular, right = np.mean(results[last_saved:], axis=0)
            line = {
                "layout": arguments.layout,
                "mentions": trained,
                "cpu_seconds": round(time.process_time() - began, 1),
                "most_popular": percent(popular),
                "with_cross_encoder": percent(right),
            }
            print(json.dumps(line), flush=True)
            save_file(model.state_dict(), folder / f"{trained}.safetensors")
            last_saved = trained


def train_step(
    model: CrossEncoder,
    batch: Sequence[Example],
    optimizer: torch.optim.Optimizer,
    arguments: argparse.Namespace,
) -> list[tuple[bool, bool]]:
    """Trains on a batch.

    Returns:
        For each example, whether the prior alone was right, and with the cross-encoder.
    """
    prior = torch.from_numpy(pad_floats([example.prior for example in batch]))
    is_gold = torch.from_numpy(pad_sequences([example.is_gold for example in batch], 0)).bool()
    scores = compute_scores(model, batch, arguments) + prior
    losses = -scores.log_softmax(1).masked_fill(~is_gold, -torch.inf).logsumexp(1)
    losses.mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

    answers = scores.argmax(1).tolist()
    return [
        (is_right(example, example.prior), bool(example.is_gold[answer]))
        for example, answer in zip(batch, answers, strict=True)
    ]


def pad_floats(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """Pads sequences with zeros, float32 [sequences, max_length]."""
    padded = np.zeros((len(sequences), max(map(len, sequences))), np.float32)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded


def order_batches(lengths: Sequence[int], size: int) -> list[np.ndarray]:
    """Orders examples at random, and sorts them by length within pools of several batches."""
    generator = np.random.default_rng(0)
    order = generator.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), POOL_BATCHES * size):
        pool = order[start : start + POOL_BATCHES * size]
        pool_batches = sort_into_batches([lengths[number] for number in pool], size)
        generator.shuffle(pool_batches)
        batches += [pool[indices] for indices in pool_batches]
    return batches


def is_right(example: Example, scores: np.ndarray) -> bool:
    """Whether the candidate with the highest score is a gold one."""
    return bool(example.is_gold[scores.argmax()])


def rerank(
    examples: Sequence[Example], scores: Sequence[np.ndarray], weight: float, margin: float
) -> np.ndarray:
    """Marks the right answers, bool [examples], with reranking below a margin."""
    answers = []
    for example, cross_scores in zip(examples, scores, strict=True):
        weight_here = weight if example.margin < margin else 0.0
        answers.append(is_right(example, example.scores + weight_here * cross_scores))
    return np.array(answers)


def choose_weight(
    examples: Sequence[Example], scores: Sequence[np.ndarray], is_used: np.ndarray
) -> tuple[float, float]:
    """Chooses weight and margin with the most right answers among the used examples."""
    results = {}
    for margin in MARGINS:
        for weight in WEIGHTS:
            right = rerank(examples, scores, weight, margin)
            results[weight, margin] = int(right[is_used].sum())
    return max(results, key=results.__getitem__)


def estimate_gain(differences: np.ndarray, documents: np.ndarray) -> tuple[float, float, float]:
    """Estimates the mean of paired differences, with its 95% bootstrap interval over documents."""
    _, numbers = np.unique(documents, return_inverse=True)
    sums = np.bincount(numbers, differences)
    counts = np.bincount(numbers)
    drawn = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(differences.mean()), float(low), float(high)


def percent(share: float) -> float:
    """A share in percent, with one decimal."""
    return round(100 * float(share), 1)


def open_data(folder: str) -> RunData:
    """Opens the data of a run."""
    saved = Path(folder) / "config.yaml"
    config = read_saved_config(saved, {"disambiguation": TASKS["disambiguation"]}, {})
    assert isinstance(config, DisambiguationConfig)
    return RunData(config)


def build_cross_encoder(data: RunData, train_layers: int | None = None) -> CrossEncoder:
    """Builds a cross-encoder with the weights of `model_name`.

    Args:
        train_layers: Number of last layers that are trained; None: all, and the embeddings.
    """
    config = replace_values(data.config, {"train_layers": train_layers})
    encoder = build_model(config, data.tokenizer).mention_encoder
    return CrossEncoder(encoder, read_hidden_size(encoder.config))


def run_training(arguments: argparse.Namespace) -> None:
    """Trains a cross-encoder on mentions drawn from the training documents."""
    data = open_data(arguments.run)
    meanings = data.train.read_meanings()
    counts = DocumentCounts(meanings.documents, meanings.aliases, meanings.entities)
    generator = np.random.default_rng(0)
    numbers = generator.permutation(len(data.train.lengths))[: arguments.mentions]
    examples = ExampleBuilder(data).build_trained(data.train.read(numbers), counts)
    examples = [example for example in examples if example.margin < MAX_MARGIN]
    drawn = generator.permutation(len(examples))[: arguments.mentions]
    model = build_cross_encoder(data, arguments.train_layers)
    train(model, [examples[number] for number in drawn], arguments)


def run_scoring(arguments: argparse.Namespace) -> None:
    """Scores all saved weights on mentions of held-out rows that are drawn at random."""
    data = open_data(arguments.run)
    rows = data.open_file(Path(arguments.held_out)).read_gold()
    numbers = np.random.default_rng(1).permutation(len(rows))[: arguments.rows]
    drawn_rows = [rows[number] for number in numbers]
    bi_encoder = data.load_model(Path(arguments.run) / "model")
    ambiguous = ExampleBuilder(data).build_scored(drawn_rows, bi_encoder)
    examples = [example for example in ambiguous if example.margin < MAX_MARGIN]
    facts = {
        "mentions": sum(len(row.aliases) for row in drawn_rows),
        "ambiguous": len(ambiguous),
        "below_largest_margin": len(examples),
    }
    print(json.dumps(facts), flush=True)

    model = build_cross_encoder(data).eval()
    files = Path(arguments.folder).glob("*.safetensors")
    for path in sorted(files, key=lambda path: int(path.stem)):
        model.load_state_dict(load_file(path))
        result = {"trained": int(path.stem)} | score(model, examples, arguments)
        print(json.dumps(result), flush=True)


def score(
    model: CrossEncoder, examples: Sequence[Example], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Compares a cross-encoder, alone and combined, with the bi-encoder."""
    scores: list[np.ndarray] = [np.empty(0)] * len(examples)
    began = time.process_time()
    for batch in sort_into_batches([example.length for example in examples], SCORED_MENTIONS):
        with torch.no_grad():
            batch_scores = compute_scores(model, [examples[i] for i in batch], arguments).numpy()
        for number, example_scores in zip(batch, batch_scores, strict=True):
            scores[number] = example_scores[: len(examples[number].candidates)]
    seconds = time.process_time() - began

    documents = np.array([example.document for example in examples])
    halves = np.unique(documents, return_inverse=True)[1] % 2
    combined = np.zeros(len(examples), bool)
    for half in (0, 1):
        weight, margin = choose_weight(examples, scores, halves != half)
        is_in_half = halves == half
        combined[is_in_half] = rerank(examples, scores, weight, margin)[is_in_half]

    bi_encoder = np.array([is_right(example, example.scores) for example in examples])
    alone = [
        is_right(example, cross_scores + example.prior)
        for example, cross_scores in zip(examples, scores, strict=True)
    ]
    gain, low, high = estimate_gain(combined.astype(int) - bi_encoder, documents)
    weight, margin = choose_weight(examples, scores, np.ones(len(examples), bool))
    return {
        "bi_encoder": percent(bi_encoder.mean()),
        "cross_encoder": percent(float(np.mean(alone))),
        "combined": percent(combined.mean()),
        "gain": [percent(gain), percent(low), percent(high)],
        "documents": len({*documents.tolist()}),
        "weight": weight,
        "margin": margin,
        "mentions_per_cpu_second": round(len(examples) / seconds, 1),
    }


def main() -> None:
    """Runs the step of the command line."""
    parser = argparse.ArgumentParser()
    steps = parser.add_subparsers(required=True)
    train_parser = steps.add_parser("train")
    train_parser.set_defaults(run_step=run_training)
    score_parser = steps.add_parser("score")
    score_parser.set_defaults(run_step=run_scoring)
    for step_parser in (train_parser, score_parser):
        step_parser.add_argument("run")
        step_parser.add_argument("folder")
        step_parser.add_argument("--layout", choices=("pairs", "shared"), default="shared")
        step_parser.add_argument("--bf16", action="store_true")

    train_parser.add_argument("--mentions", type=int, default=4000)
    train_parser.add_argument("--save-every", type=int, default=1000)
    train_parser.add_argument("--train-layers", type=int, default=3)
    train_parser.add_argument("--batch-size", type=int, default=16)
    train_parser.add_argument("--learning-rate", type=float, default=1e-4)
    score_parser.add_argument("held_out")
    score_parser.add_argument("--rows", type=int, default=300)

    arguments = parser.parse_args()
    torch.manual_seed(0)
    arguments.run_step(arguments)


if __name__ == "__main__":
    sys.exit(run_and_report(main))
