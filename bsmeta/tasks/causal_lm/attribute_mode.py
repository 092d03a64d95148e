"""`mode=attribute`: infers metadata from text by Bayes' rule, and measures the accuracy.

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
    cut_continuations,
    limit_batch_tokens,
    open_scorer,
    plan_batches,
)
from bsmeta.tasks.checkpoints import announce_data

ROWS = 20
"""Maximum number of candidates to print; the file has all of them."""

TOP = (1, 5)
"""A document counts as right if its label is among the first of this number of guesses."""

NAMES = {"top_1": "first guess", "top_5": "first five", "majority_class": "always the majority"}
"""Titles of the accuracies in the table."""


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
        self._max_tokens = limit_batch_tokens(len(tokenizer), rows, length)
        self.text_bytes = 0
        self.lost_bytes = 0

    def score(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Computes log p(text | candidate) in nats.

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
        owners: list[tuple[int, int]] = []  # for each window, the numbers of text and candidate
        for number, document in enumerate(encoded):
            self._count_lost(texts[number], document)
            chunks = cut_continuations(document, self._prefixes, self._room)
            for chunk in chunks if self._all_pieces else chunks[:1]:
                for candidate, window in enumerate(chunk):
                    if window.scored.any():
                        windows.append(window)
                        owners.append((number, candidate))

        index_batches = plan_batches([len(window.ids) for window in windows], self._max_tokens)
        batches = []
        for indices in index_batches:
            batches.append([windows[index] for index in indices])
        with open_scorer(self._model, self._device) as scorer:
            scores = scorer.score(batches)

        sums = np.zeros((len(texts), len(self._prefixes)))
        tokens = np.zeros(len(texts), np.int64)
        for index, values in zip(chain(*index_batches), chain(*scores), strict=True):
            text, candidate = owners[index]
            if not np.isfinite(values).all():
                raise DataError(
                    "checkpoint: the model's log-probabilities are not finite under "
                    f"{self.prefixes[candidate]!r}, for a text that begins with "
                    f"{texts[text][:40]!r}; expected a checkpoint with finite weights, or "
                    "precision=float32"
                )
            sums[text, candidate] += values.sum()
            if candidate == 0:  # all candidates score the same tokens
                tokens[text] += len(values)
        return sums, tokens

    def _count_lost(self, text: str, document: EncodedDocument) -> None:
        lengths = utf8_lengths(text)
        self.text_bytes += int(lengths.sum())
        if document.lost is not None:
            self.lost_bytes += int(lengths[document.lost].sum())

    def describe_lost_text(self) -> str:
        """Describes the bytes that are left out of all scores."""
        return describe_lost_bytes(self.lost_bytes, self.text_bytes)


class Labels:
    """Labels of one metadata type."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        self.key = key
        self._type = type_of(key)
        self._config = config

    def of_document(self, document: Document) -> str | None:
        """Returns the label of a document's first global record of the type; None without one."""
        values = [
            str(record.value) for record in document.records(self.key) if not record.is_local()
        ]
        try:
            return self._type.group(values[0], self._config) if values else None
        except BadDocument as error:
            raise DataError(f"metadata_{self.key}: {error}") from error

    def of_candidate(self, text: str) -> str:
        """Returns the label of a candidate that a user gave (such as a host or a complete URL).

        Raises:
            ConfigurationError: It has no label of this type.
        """
        reason = ""
        label = None
        try:
            label = self._type.group(text, self._config)
        except BadDocument as error:
            reason = f": {error}"
        if label is None:
            raise ConfigurationError(f"candidates: {text} is no {self.key}{reason}")
        return label

    def record(self, label: str) -> Record:
        """Makes the record that presents the label to the model."""
        value = self._type.value_of_group(label, self._config)
        return Record(value=value, key=self.key, type="global")


@dataclass(frozen=True)
class Candidates:
    """The candidates that texts are attributed to.

    Attributes:
        labels: The labels of the candidates, the most frequent first.
        counts: int64 [candidates], number of held-out documents with each label.
        truths: int64 [documents], index of each held-out document's label; -1 if it is not a
            candidate.
    """

    labels: list[str]
    counts: np.ndarray
    truths: np.ndarray

    def log_prior(self, kind: str, document: int | None) -> np.ndarray:
        """Computes the prior log-probabilities float64 [candidates].

        Args:
            kind: `uniform`, or `empirical`: the counts in the held-out documents without the
                document itself, with one added to each (Laplace smoothing).
            document: Index of the held-out document; None for another text.
        """
        if kind == "uniform":
            return np.full(len(self.labels), -np.log(len(self.labels)))

        counts = self.counts + 1.0
        if document is not None and self.truths[document] >= 0:
            counts[self.truths[document]] -= 1
        return np.log(counts / counts.sum())


def find_candidates(
    labels: Labels, requested: Sequence[str], documents: HeldOutDocuments | None
) -> Candidates:
    """Returns the requested candidates, or without any all labels of the held-out documents.

    Raises:
        ConfigurationError: There are fewer than two candidates.
    """
    document_labels: list[str | None] = []
    if documents is not None:
        document_labels = [labels.of_document(documents[index]) for index in range(len(documents))]
    counts = Counter(label for label in document_labels if label is not None)

    names = [labels.of_candidate(text) for text in requested] or list(counts)
    names = sorted(dict.fromkeys(names), key=lambda name: (-counts[name], name))
    if len(names) < 2:
        raise ConfigurationError(
            f"candidates={names}: expected at least two values of {labels.key}, given or in the "
            "held-out file"
        )

    numbers = {name: number for number, name in enumerate(names)}
    truths = [numbers.get(label or "", -1) for label in document_labels]
    return Candidates(
        labels=names,
        counts=np.array([counts[name] for name in names]),
        truths=np.array(truths, dtype=np.int64),
    )


@dataclass(frozen=True)
class Attribution:
    """The result of an attribution.

    Attributes:
        candidates: The candidates that the texts could be attributed to.
        posterior: float64 [documents, candidates], log p(candidate | text).
        tokens: int64 [documents], number of scored tokens of each text.
        names: Name of each document.
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
        correct = np.take_along_axis(self.posterior, self.truths[:, None], axis=1)
        return (self.posterior >= correct).sum(axis=1)


def compute_posterior(likelihoods: np.ndarray, log_priors: np.ndarray) -> np.ndarray:
    """Computes posterior log-probabilities float64 [texts, candidates], each row normalized.

    Args:
        likelihoods: float64 [texts, candidates], log p(text | candidate).
        log_priors: float64 [texts, candidates].
    """
    joint = likelihoods + log_priors
    return joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)


def attribute(config: GenerateConfig, opened: OpenedModel) -> None:
    """Infers the metadata of the held-out documents, or of `prompt`, and reports it."""
    data = opened.train.data_config
    if config.validation_file is not None:
        data = replace(data, validation_file=config.validation_file)
    _check_attributable(config, data.metadata_config)
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

    console = report_console(highlight=False)
    if config.prompt:
        _attribute_prompt(config, candidates, likelihoods, console)
        return

    assert documents is not None
    with progress_bar("scoring", 1) as progress:
        attribution = _attribute_documents(config, documents, candidates, likelihoods, progress)
    report = _make_report(config, opened.location.model, likelihoods, attribution)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")

    show_attribution(report, console)
    if likelihoods.lost_bytes:
        console.print(f"left out: {likelihoods.describe_lost_text()}", soft_wrap=True)
    console.print(f"written to {path}", soft_wrap=True)


def _check_attributable(config: GenerateConfig, metadata: MetadataConfig) -> None:
    """Rejects a type without a value before the text, or one that the model was not trained on."""
    kind = type_of(config.type)
    if kind.is_local or kind.always_present:
        raise ConfigurationError(
            f"type={config.type}: expected a type with a value before the text; "
            f"{config.type} has none"
        )
    check_type(config.type, f"type={config.type}", metadata)


def _make_report(
    config: GenerateConfig, model: str, likelihoods: Likelihoods, attribution: Attribution
) -> dict[str, Any]:
    return {
        "settings": redact_values(asdict(config)),
        "model": model,
        "type": config.type,
        "prior": config.prior,
        "example_prefix": likelihoods.prefixes[0],
        "text_bytes": likelihoods.text_bytes,
        "lost_bytes": likelihoods.lost_bytes,
        "metrics": compute_metrics(
            attribution, resamples=config.bootstrap_resamples, seed=config.seed
        ),
        "candidates": list_candidates(attribution),
        "documents": list_documents(attribution),
    }


def report_path(folder: Path, type_name: str) -> Path:
    """Returns the path of the report on a metadata type, which the model's configuration names.

    Raises:
        UnsafeNameError: If it would not be in the folder.
    """
    return path_inside(folder, f"attribution-{type_name}.json", f"type={type_name}")


def _attribute_prompt(
    config: GenerateConfig, candidates: Candidates, likelihoods: Likelihoods, console: Console
) -> None:
    """Prints the candidates of one text, the most probable first."""
    scores, tokens = likelihoods.score([config.prompt])
    if not tokens[0]:
        lost = ""
        if likelihoods.lost_bytes:
            lost = f"; no bytes are left to score: {likelihoods.describe_lost_text()}"
        raise ConfigurationError(f"prompt={config.prompt!r}: expected at least two tokens{lost}")

    log_prior = candidates.log_prior(config.prior, None)
    probabilities = np.exp(compute_posterior(scores, log_prior[None])[0])
    best = np.argsort(-probabilities, kind="stable")[:ROWS]

    columns = [
        Column(str(config.type)),
        Column("p(value | text)", "{:.4f}".format),
        Column("log p(text | value), nats", "{:.2f}".format),
    ]
    rows: list[list[Cell]] = [
        [candidates.labels[number], probabilities[number], scores[0, number]] for number in best
    ]
    print_table(console, Table("", "", columns, rows))
    if likelihoods.lost_bytes:
        console.print(f"left out: {likelihoods.describe_lost_text()}", soft_wrap=True)


def _attribute_documents(
    config: GenerateConfig,
    documents: HeldOutDocuments,
    candidates: Candidates,
    likelihoods: Likelihoods,
    progress: Advance,
) -> Attribution:
    """Scores every document whose label is a candidate, in batches."""
    labeled = np.flatnonzero(candidates.truths >= 0)
    scores = np.zeros((len(labeled), len(candidates.labels)))
    tokens = np.zeros(len(labeled), np.int64)
    for start in range(0, len(labeled), config.batch_size):
        progress(start / len(labeled))
        batch = slice(start, start + config.batch_size)
        texts = [documents[index].text for index in labeled[batch]]
        scores[batch], tokens[batch] = likelihoods.score(texts)
    progress(1.0)

    is_scored = tokens > 0
    if not is_scored.any():
        raise ConfigurationError(
            f"type={config.type}: no held-out document has one of the candidates "
            f"{', '.join(candidates.labels[:5])}{', …' if len(candidates.labels) > 5 else ''} and "
            "a text of two tokens"
            + (f"; left out: {likelihoods.describe_lost_text()}" if likelihoods.lost_bytes else "")
        )

    indices = labeled[is_scored].tolist()
    priors = np.stack([candidates.log_prior(config.prior, index) for index in indices])
    return Attribution(
        candidates=candidates,
        posterior=compute_posterior(scores[is_scored], priors),
        tokens=tokens[is_scored],
        names=[documents.name(index) for index in indices],
        documents=indices,
    )


def show_attribution(report: dict[str, Any], console: Console) -> None:
    """Prints the accuracy, beside the accuracy of always guessing the most frequent candidate."""
    metrics = report["metrics"]
    console.print(
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
    print_table(console, Table("", "", columns, rows))

    columns = [
        Column("candidate"),
        Column("documents", COUNT),
        Column("correct", COUNT),
        Column("guessed", COUNT),
        Column("most often taken for"),
    ]
    rows = [[*row.values()] for row in report["candidates"][:ROWS]]
    print_table(console, Table("", "", columns, rows))

    console.print(
        f"mean reciprocal rank {metrics['mean_reciprocal_rank']:.3f}; the right one costs "
        f"{metrics['mean_bits_of_the_truth']:.2f} bits; majority: {metrics['majority_label']}"
    )


def compute_metrics(attribution: Attribution, *, resamples: int, seed: int) -> dict[str, Any]:
    """Computes the accuracy of the best guess, of the best five, and of the majority class.

    Each accuracy has its 95% bootstrap interval over documents.
    """
    ranks = attribution.ranks
    truths = attribution.truths
    labels = attribution.candidates.labels
    majority = int(np.bincount(truths, minlength=len(labels)).argmax())

    is_right = {f"top_{count}": ranks <= count for count in TOP}
    is_right["majority_class"] = truths == majority
    values = np.stack([*is_right.values()]).astype(np.float64)
    intervals = bootstrap(values, np.ones_like(values), resamples=resamples, seed=seed)
    shares = {
        name: {"share": float(row.mean()), **asdict(interval)}
        for name, row, interval in zip(is_right, values, intervals, strict=True)
    }

    log_probabilities = attribution.posterior[np.arange(len(truths)), truths]
    return {
        "documents": len(truths),
        "candidates": len(labels),
        "tokens": int(attribution.tokens.sum()),
        **shares,
        "majority_label": labels[majority],
        "mean_reciprocal_rank": float((1 / ranks).mean()),
        "mean_bits_of_the_truth": float(-log_probabilities.mean() / np.log(2)),
    }


def list_candidates(attribution: Attribution) -> list[dict[str, Any]]:
    """Returns each candidate's documents, its correct guesses, and its main wrong guess."""
    guesses = attribution.posterior.argmax(axis=1)
    truths = attribution.truths
    labels = attribution.candidates.labels

    rows = []
    for number, label in enumerate(labels):
        has_label = truths == number
        confusions = np.bincount(guesses[has_label], minlength=len(labels))
        correct = int(confusions[number])
        confusions[number] = 0  # leave only the wrong guesses
        rows.append(
            {
                "label": label,
                "documents": int(has_label.sum()),
                "correct": correct,
                "guessed": int((guesses == number).sum()),
                "most_often_taken_for": labels[confusions.argmax()] if confusions.any() else None,
            }
        )
    return rows


def list_documents(attribution: Attribution) -> list[dict[str, Any]]:
    """Returns each document's label, the label's rank and log-probability, and the best guess."""
    labels = attribution.candidates.labels
    truths = attribution.truths
    ranks = attribution.ranks

    rows = []
    for number, name in enumerate(attribution.names):
        posterior = attribution.posterior[number]
        truth = truths[number]
        rows.append(
            {
                "document": name,
                "label": labels[truth],
                "guess": labels[int(posterior.argmax())],
                "rank": int(ranks[number]),
                "log_probability": float(posterior[truth]),
                "tokens": int(attribution.tokens[number]),
            }
        )
    return rows
