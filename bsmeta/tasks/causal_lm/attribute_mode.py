"""`mode=attribute`: p(metadata | text) by Bayes' rule over candidates; how good its guesses are.

    p(value | text) = p(text | value) p(value) / sum over the candidates

Source: "source attribution" of CTRL (Keskar et al. 2019, section 5), here over any metadata type.
A candidate has a label, the class to infer (a host, a year), and a record, which presents it to a
model that was trained on full values (`https://host/`). Prefixes differ in length, and so would the
chunks after them: texts are cut to the room that the longest prefix leaves, so that all candidates
are compared over the same tokens.

The mode prints a table, with a row per candidate or the candidates of a single text, and writes
`attribution-{type}.json`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig, in_dataset
from bsmeta.config.generating import GenerateConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import path_inside
from bsmeta.core.progress import Advance, progress_bar
from bsmeta.core.secrets import redact_values
from bsmeta.core.terminal import Console
from bsmeta.data.text.characters import utf8_lengths
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.data.text.lost_share import describe_lost_bytes
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import BadDocument, Record
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.report.inference import Interval, bootstrap
from bsmeta.report.page import COUNT, Cell, Column, Table, print_table, report_console
from bsmeta.tasks.causal_lm.checkpoints import OpenedModel
from bsmeta.tasks.causal_lm.decoding import check_type
from bsmeta.tasks.causal_lm.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.scoring import (
    Window,
    continuation_windows,
    max_batch_tokens,
    plan_batches,
    scoring,
)
from bsmeta.tasks.checkpoints import announce_data

ROWS = 20
"""Maximum number of candidates to print; the file has all of them."""

NAMES = {"top_1": "first guess", "top_5": "first five", "majority_class": "always the majority"}
TOP = (1, 5)


class Likelihoods:
    """Scores texts (all their chunks, or only the first) after the prefix of each candidate.

    Attributes:
        prefixes: The rendered prefix of each candidate.
        text_bytes: UTF-8 bytes of all texts that were scored.
        lost_bytes: Of these, bytes that the tokenizer loses, whose tokens are left out.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        config: DataConfig,
        candidates: Sequence[Record],
        *,
        all_pieces: bool,
        rows: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._device = device
        self._all_pieces = all_pieces
        self._encoder = DocumentEncoder(tokenizer, config)
        renderer = Renderer(config.metadata_config)
        heads = []
        for record in candidates:
            assert record.key is not None
            rendered = renderer.render(Document("", None, {record.key: [record]}), (record.key,))
            heads.append(replace(rendered, suffix=""))
        self.prefixes = [head.prefix for head in heads]
        self._lead = heads[0].lead
        self._prefixes = [head.prefix_ids for head in self._encoder.encode(heads)]
        length = config.metadata_config.max_seq_len
        self._room = length - max(map(len, self._prefixes))
        self._max_tokens = max_batch_tokens(len(tokenizer), rows, length)
        self.text_bytes = self.lost_bytes = 0

    def of(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """log p(text | candidate) in nats, and the number of scored tokens of each text.

        Returns:
            float64 [texts, candidates]; int64 [texts], number of scored tokens (all but the first
            text token of each chunk, and tokens that lose text).

        Raises:
            DataError: A log-probability is not finite.
        """
        encoded = self._encoder.encode(
            [Rendered(text, lead=self._lead, body=text) for text in texts]
        )
        windows: list[Window] = []
        owners: list[tuple[int, int]] = []
        for number, document in enumerate(encoded):
            self._count_lost(texts[number], document)
            chunks = continuation_windows(document, self._prefixes, self._room)
            for chunk in chunks if self._all_pieces else chunks[:1]:
                for candidate, window in enumerate(chunk):
                    if window.scored.any():
                        windows.append(window)
                        owners.append((number, candidate))

        sums = np.zeros((len(texts), len(self._prefixes)))
        tokens = np.zeros(len(texts), np.int64)
        batches = plan_batches([len(window.ids) for window in windows], self._max_tokens)
        with scoring(self._model, self._device) as scorer:
            scores = scorer.score([[windows[i] for i in batch] for batch in batches])
        for index, value in zip(chain(*batches), chain(*scores), strict=True):
            text, candidate = owners[index]
            if not np.isfinite(value).all():
                raise DataError(
                    "checkpoint: the model's log-probabilities are not finite under "
                    f"{self.prefixes[candidate]!r}, for a text that begins with "
                    f"{texts[text][:40]!r}; expected a checkpoint with finite weights, or "
                    "precision=float32"
                )
            sums[text, candidate] += value.sum()
            tokens[text] += len(value) if candidate == 0 else 0
        return sums, tokens

    def _count_lost(self, text: str, document: EncodedDocument) -> None:
        lengths = utf8_lengths(text)
        self.text_bytes += int(lengths.sum())
        if document.lost is not None:
            self.lost_bytes += int(lengths[document.lost].sum())

    @property
    def lost_text(self) -> str:
        """Describes the bytes that are left out of all scores."""
        return describe_lost_bytes(self.lost_bytes, self.text_bytes)


class Labels:
    """Labels of one metadata type."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        self.key = key
        self._type, self._config = type_of(key), config

    def of(self, document: Document) -> str | None:
        """The label of a document's first global record of the type; None if it has none."""
        values = [str(own.value) for own in document.records(self.key) if not own.is_local()]
        try:
            return self._type.group(values[0], self._config) if values else None
        except BadDocument as error:
            raise DataError(f"metadata_{self.key}: {error}") from error

    def given(self, text: str) -> str:
        """The label of a candidate that a user gave (such as a host or a complete URL).

        Raises:
            ConfigurationError: It has no label of this type.
        """
        try:
            label, reason = self._type.group(text, self._config), ""
        except BadDocument as error:
            label, reason = None, f": {error}"
        if label is None:
            raise ConfigurationError(f"candidates: {text} is no {self.key}{reason}")
        return label

    def record(self, label: str) -> Record:
        """The record that presents the label to the model."""
        value = self._type.value_of_group(label, self._config)
        return Record(value=value, key=self.key, type="global")


@dataclass(frozen=True)
class Candidates:
    """The candidates that texts are attributed to.

    Attributes:
        labels: The labels of the candidates, the most frequent first.
        counts: int64 [candidates], number of held-out documents with each label.
        truths: int64 [documents], index of each held-out document's label; -1 if that is not a
            candidate.
    """

    labels: list[str]
    counts: np.ndarray
    truths: np.ndarray

    def log_prior(self, kind: str, document: int | None) -> np.ndarray:
        """Prior log-probabilities float64 [candidates].

        `empirical` uses the counts in the held-out documents, without the document itself and with
        one added to each (Laplace smoothing).
        """
        if kind == "uniform":
            return np.full(len(self.labels), -np.log(len(self.labels)))
        counts = self.counts + 1.0
        if document is not None and self.truths[document] >= 0:
            counts[self.truths[document]] -= 1
        return np.log(counts / counts.sum())


def find_candidates(
    labels: Labels, given: Sequence[str], documents: HeldOutDocuments | None
) -> Candidates:
    """The given candidates; if there are none, all labels of the held-out documents.

    Raises:
        ConfigurationError: There are fewer than two candidates.
    """
    found: list[str | None] = []
    if documents is not None:
        found = [labels.of(documents[index]) for index in range(len(documents))]
    counts = Counter(label for label in found if label is not None)
    names = [labels.given(label) for label in given] or list(counts)
    names = sorted(dict.fromkeys(names), key=lambda name: (-counts[name], name))
    if len(names) < 2:
        raise ConfigurationError(
            f"candidates={names}: expected at least two values of {labels.key}, given or in the "
            "held-out file"
        )
    place = {name: number for number, name in enumerate(names)}
    return Candidates(
        labels=names,
        counts=np.array([counts[name] for name in names]),
        truths=np.array([place.get(label or "", -1) for label in found], dtype=np.int64),
    )


@dataclass(frozen=True)
class Attribution:
    """The result of an attribution.

    Attributes:
        candidates: The candidates that the texts could be attributed to.
        posterior: float64 [documents, candidates], log p(candidate | text).
        tokens: int64 [documents], number of scored tokens of each text.
        documents: Index of each document among the held-out documents.
    """

    candidates: Candidates
    posterior: np.ndarray
    tokens: np.ndarray
    names: list[str]
    documents: list[int]

    @property
    def truths(self) -> np.ndarray:
        """int64 [documents], index of the correct candidate of each document."""
        return self.candidates.truths[self.documents]

    @property
    def ranks(self) -> np.ndarray:
        """int64 [documents], the 1-based rank of the correct candidate; ties count against it."""
        right = np.take_along_axis(self.posterior, self.truths[:, None], axis=1)
        return (self.posterior >= right).sum(axis=1)


def posterior(likelihoods: np.ndarray, log_priors: np.ndarray) -> np.ndarray:
    """Posterior log-probabilities float64 [texts, candidates], each row normalized.

    Args:
        likelihoods: float64 [texts, candidates], log p(text | candidate).
        log_priors: float64 [texts, candidates].
    """
    joint = likelihoods + log_priors
    return joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)


def attribute(config: GenerateConfig, opened: OpenedModel) -> None:
    """Infer the metadata of the held-out documents, or of `prompt`."""
    data = opened.train.data_config
    if config.validation_file is not None:
        data = replace(data, validation_file=config.validation_file)
    kind = type_of(config.type)
    if kind.is_local or kind.always_present:
        raise ConfigurationError(
            f"type={config.type}: expected a type with a value before the text; "
            f"{config.type} has none"
        )
    check_type(config.type, f"type={config.type}", data.metadata_config)
    folder = Path(config.out_dir) if config.out_dir else opened.location.run_folder or Path()
    path = report_path(folder, config.type)

    documents = None
    if not (config.prompt and config.candidates and config.prior == "uniform"):
        if data.validation_file is not None:
            held_out = in_dataset(data.validation_file, data)
            announce_data(config, opened.location, "data_config.validation_file", held_out)
        documents = HeldOutDocuments(data, max_documents=config.max_documents, deduplicate=True)
    labels = Labels(config.type, data.metadata_config)
    candidates = find_candidates(labels, config.candidates, documents)
    likelihoods = Likelihoods(
        opened.model,
        opened.tokenizer,
        opened.train.data_config,
        [labels.record(label) for label in candidates.labels],
        all_pieces=config.windows == "all_pieces",
        rows=config.batch_size,
        device=opened.device,
    )
    out = report_console(highlight=False)
    if config.prompt:
        _attribute_prompt(config, candidates, likelihoods, out)
        return
    assert documents is not None
    with progress_bar("scoring", 1) as progress:
        found = _attribute_documents(config, documents, candidates, likelihoods, progress)
    report = {
        "settings": redact_values(asdict(config)),
        "model": opened.location.model,
        "type": config.type,
        "prior": config.prior,
        "example_prefix": likelihoods.prefixes[0],
        "text_bytes": likelihoods.text_bytes,
        "lost_bytes": likelihoods.lost_bytes,
        "metrics": summarize(found, resamples=config.bootstrap_resamples, seed=config.seed),
        "candidates": by_candidate(found),
        "documents": by_document(found),
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    show_attribution(report, out)
    if likelihoods.lost_bytes:
        out.print(f"left out: {likelihoods.lost_text}", soft_wrap=True)
    out.print(f"written to {path}", soft_wrap=True)


def report_path(folder: Path, type_name: str) -> Path:
    """The report of a metadata type, whose name the configuration of the model has chosen.

    Raises:
        UnsafeNameError: If it would not be in the folder.
    """
    return path_inside(folder, f"attribution-{type_name}.json", f"type={type_name}")


def _attribute_prompt(
    config: GenerateConfig, candidates: Candidates, likelihoods: Likelihoods, out: Console
) -> None:
    """Print the candidates of one text, the most probable first."""
    scores, tokens = likelihoods.of([config.prompt])
    if not tokens[0]:
        lost = ""
        if likelihoods.lost_bytes:
            lost = f"; no bytes are left to score: {likelihoods.lost_text}"
        raise ConfigurationError(f"prompt={config.prompt!r}: expected at least two tokens{lost}")
    log_prior = candidates.log_prior(config.prior, None)
    values = np.exp(posterior(scores, log_prior[None])[0])
    best = np.argsort(-values, kind="stable")[:ROWS]
    columns = [
        Column(str(config.type)), Column("p(value | text)", "{:.4f}".format),
        Column("log p(text | value), nats", "{:.2f}".format),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [candidates.labels[number], values[number], scores[0, number]] for number in best
    ]
    print_table(out, Table("", "", columns, rows))
    if likelihoods.lost_bytes:
        out.print(f"left out: {likelihoods.lost_text}", soft_wrap=True)


def _attribute_documents(
    config: GenerateConfig,
    documents: HeldOutDocuments,
    candidates: Candidates,
    likelihoods: Likelihoods,
    progress: Advance,
) -> Attribution:
    """Score every document whose label is a candidate, in batches."""
    own = np.flatnonzero(candidates.truths >= 0)
    scores = np.zeros((len(own), len(candidates.labels)))
    tokens = np.zeros(len(own), np.int64)
    for start in range(0, len(own), config.batch_size):
        progress(start / len(own))
        part = slice(start, start + config.batch_size)
        scores[part], tokens[part] = likelihoods.of([documents[i].text for i in own[part]])
    progress(1.0)
    kept = tokens > 0
    if not kept.any():
        raise ConfigurationError(
            f"type={config.type}: no held-out document has one of the candidates "
            f"{', '.join(candidates.labels[:5])}{', …' if len(candidates.labels) > 5 else ''} and "
            "a text of two tokens"
            + (f"; left out: {likelihoods.lost_text}" if likelihoods.lost_bytes else "")
        )
    indices = own[kept].tolist()
    priors = np.stack([candidates.log_prior(config.prior, index) for index in indices])
    names = [documents.name(index) for index in indices]
    found = posterior(scores[kept], priors)
    return Attribution(candidates, found, tokens[kept], names, indices)


def show_attribution(report: dict[str, Any], out: Console) -> None:
    """Print the accuracy, next to that of always guessing the most frequent candidate."""
    metrics = report["metrics"]
    out.print(
        f"{report['type']} of {metrics['documents']:,} documents, inferred from their text "
        f"({metrics['candidates']:,} candidates, {report['prior']} prior)"
    )
    shares = {title: metrics[name] for name, title in NAMES.items()}
    if metrics["candidates"] <= max(TOP):
        del shares[NAMES["top_5"]]  # always 100%
    rows: list[list[Cell]] = [
        [title, share["share"], Interval(share["low"], share["high"])]
        for title, share in shares.items()
    ]
    percent = "{:.1%}".format
    columns = [Column("right"), Column("share", percent), Column("95% interval", percent)]
    print_table(out, Table("", "", columns, rows))
    columns = [
        Column("candidate"), Column("documents", COUNT), Column("correct", COUNT),
        Column("guessed", COUNT), Column("most often taken for"),
    ]  # fmt: skip
    rows = [[*row.values()] for row in report["candidates"][:ROWS]]
    print_table(out, Table("", "", columns, rows))
    out.print(
        f"mean reciprocal rank {metrics['mean_reciprocal_rank']:.3f}; the right one costs "
        f"{metrics['mean_bits_of_the_truth']:.2f} bits; majority: {metrics['majority_label']}"
    )


def summarize(found: Attribution, *, resamples: int, seed: int) -> dict[str, Any]:
    """The metrics: accuracy of the best guess, of the best five, and of the majority class.

    Each accuracy has its 95% bootstrap interval over documents.
    """
    ranks, truths = found.ranks, found.truths
    labels = found.candidates.labels
    most_frequent = int(np.bincount(truths, minlength=len(labels)).argmax())
    rows = {f"top_{most}": ranks <= most for most in TOP}
    rows["majority_class"] = truths == most_frequent
    values = np.stack([*rows.values()]).astype(np.float64)
    intervals = bootstrap(values, np.ones_like(values), resamples=resamples, seed=seed)
    shares = {
        name: {"share": float(row.mean()), **asdict(interval)}
        for name, row, interval in zip(rows, values, intervals, strict=True)
    }
    right = found.posterior[np.arange(len(truths)), truths]
    return {
        "documents": len(truths),
        "candidates": len(labels),
        "tokens": int(found.tokens.sum()),
        **shares,
        "majority_label": labels[most_frequent],
        "mean_reciprocal_rank": float((1 / ranks).mean()),
        "mean_bits_of_the_truth": float(-right.mean() / np.log(2)),
    }


def by_candidate(found: Attribution) -> list[dict[str, Any]]:
    """For each candidate: its documents, the number guessed right, and the main wrong guess."""
    guesses, labels = found.posterior.argmax(axis=1), found.candidates.labels
    rows = []
    for number, label in enumerate(labels):
        own = found.truths == number
        taken_for = np.bincount(guesses[own], minlength=len(labels))
        correct, taken_for[number] = int(taken_for[number]), 0
        rows.append(
            {
                "label": label,
                "documents": int(own.sum()),
                "correct": correct,
                "guessed": int((guesses == number).sum()),
                "most_often_taken_for": labels[taken_for.argmax()] if taken_for.any() else None,
            }
        )
    return rows


def by_document(found: Attribution) -> list[dict[str, Any]]:
    """For each document: its label, the label's rank and log-probability, and the best guess."""
    labels = found.candidates.labels
    columns = (found.names, found.truths, found.posterior, found.ranks, found.tokens)
    return [
        {
            "document": name,
            "label": labels[truth],
            "guess": labels[int(row.argmax())],
            "rank": int(rank),
            "log_probability": float(row[truth]),
            "tokens": int(tokens),
        }
        for name, truth, row, rank, tokens in zip(*columns, strict=True)
    ]
