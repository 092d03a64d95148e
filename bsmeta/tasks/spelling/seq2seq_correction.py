"""The task `sec` with a sequence-to-sequence model of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase

from bsmeta.config.metric_table import compute_values, select_training_rows
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.model_files import (
    create_model,
    read_model_and_report,
    read_model_config,
    read_tokenizer,
)
from bsmeta.data.batch import MicroBatch
from bsmeta.data.text.sentences import cut_text
from bsmeta.data.text.tokenizer import (
    count_trained_tokens,
    fingerprint_tokenizer,
    load_tokenizer_from,
)
from bsmeta.models.embeddings import add_embeddings
from bsmeta.models.exporting import write_model
from bsmeta.models.pretrained import (
    check_model_folder,
    explain_load_errors,
    load_exported,
    refuse_other_weights,
)
from bsmeta.tasks.spelling.corrections import (
    Correction,
    align_chunks,
    count_correction_outcomes,
    restrict_corrections,
)
from bsmeta.tasks.spelling.corrector import Corrector, TextLoss
from bsmeta.tasks.spelling.inputs import NOISE_ROOM
from bsmeta.tasks.spelling.metrics import CORRECTION_METRICS, Judged
from bsmeta.tasks.spelling.samples import Pair, Sample
from bsmeta.training.metric_values import make_metrics
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import Loss, Metric, run_on_all_ranks, sort_into_budgeted_batches

IGNORED = -100  # the label of padding


class Seq2SeqCorrection(Corrector):
    """Corrects texts with `generate`; batches are sized by the longer side of each pair."""

    chooses = False

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        name = str(self._config.tokenizer_name or self._config.model_name)
        tokenizer = load_tokenizer_from(name)
        if tokenizer.pad_token_id is None or tokenizer.eos_token_id is None:
            raise ConfigurationError(
                f"tokenizer_name: {name} has no padding or no end-of-text token; name the "
                "tokenizer of a sequence-to-sequence model",
                ["tokenizer_name"],
            )
        return tokenizer

    @property
    def _measure(self) -> Any:
        return [fingerprint_tokenizer(self._tokenizer), NOISE_ROOM]

    def _estimate_max_tokens(self, samples: Sequence[Sample]) -> np.ndarray:
        correct = np.array(self._count_text_tokens([sample.correct for sample in samples]))
        source = np.array(self._count_text_tokens([sample.source for sample in samples]))
        has_noise = np.array([sample.target is None for sample in samples])
        with_room = np.ceil(correct * NOISE_ROOM).astype(np.int64)
        return np.where(has_noise, with_room, np.maximum(source, correct))

    def _count_text_tokens(self, texts: Sequence[str]) -> list[int]:
        """Counts the tokens of each text, including the end-of-text token."""
        if not texts:
            return []
        return [len(ids) for ids in self._tokenizer(list(texts), verbose=False)["input_ids"]]

    def build_model(self) -> nn.Module:
        """Builds the model to train, in float32 on the CPU."""
        model_class = AutoModelForSeq2SeqLM
        config_file = self._config.model_config_file
        if config_file is not None:
            with explain_load_errors("model_config_file", config_file, model_class):
                return create_model(model_class, read_model_config(config_file))

        source = str(self._config.model_name)
        setting = f"model_name={source}"
        check_model_folder(source, setting)
        with explain_load_errors("model_name", source, model_class):
            model, loading_report = read_model_and_report(
                model_class, source, dtype=torch.float32, ignore_mismatched_sizes=True
            )
        refuse_other_weights(model, loading_report, source, setting)

        num_trained = count_trained_tokens(source, self._config.tokenizer_name, self._tokenizer)
        add_embeddings(model, len(self._tokenizer), num_trained)
        return model

    def _fits(self, words: Sequence[str], room: int) -> bool:
        return self._count_text_tokens([" ".join(words)])[0] <= room

    def _build_micro_batch(self, pairs: Sequence[Pair]) -> MicroBatch:
        tensors = self.make_tensors(pairs)
        tokens = int(tensors["attention_mask"].sum())
        targets = float((tensors["labels"] != IGNORED).sum())
        size = max(tensors["input_ids"].numel(), tensors["labels"].numel())
        return MicroBatch(
            tensors=tensors,
            weight=targets,
            tokens=tokens,
            padding=size - tokens,
            documents=[pair.name for pair in pairs],
            counts={"texts": float(len(pairs)), "targets": targets},
        )

    def make_tensors(self, pairs: Sequence[Pair]) -> dict[str, torch.Tensor]:
        """Makes `input_ids`, `attention_mask` and `labels`: int64 [texts, tokens]."""
        tensors = self._encode([" ".join(pair.source) for pair in pairs])
        target = self._encode([" ".join(pair.correct) for pair in pairs])
        labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, IGNORED)
        return {**tensors, "labels": labels}

    def _encode(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Makes `input_ids` and `attention_mask`: int64 [texts, tokens]."""
        encoded = self._tokenizer(list(texts), padding=True, return_tensors="pt", verbose=False)
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the cross-entropy of the target tokens, and the share of right predictions."""
        labels = batch["labels"]
        logits = model(**batch).logits.float()
        losses = functional.cross_entropy(
            logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="sum"
        )

        is_target = labels != IGNORED
        is_right = (logits.detach().argmax(2) == labels) & is_target
        return Loss(losses, {"token_accuracy": (is_right.sum(), is_target.sum())})

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Computes the loss of the validation samples, and scores corrections of the first.

        The first are `val_corrections` samples, and their correct texts for false alarms.
        """
        pairs = self._validation
        if not pairs:
            return []

        first_pairs = pairs[: self._config.val_corrections]
        source = [" ".join(pair.source) for pair in first_pairs]
        correct = [" ".join(pair.correct) for pair in first_pairs]
        counts = count_correction_outcomes(source, self.judge(model, source, context), correct)
        clean_counts = count_correction_outcomes(
            correct, self.judge(model, correct, context), correct
        )

        judged = Judged(
            counts, clean_counts.flagged_rate, self._compute_mean_loss(model, pairs, context)
        )
        values = compute_values(select_training_rows(CORRECTION_METRICS), judged)
        return make_metrics(CORRECTION_METRICS, values)

    def _count_tokens(self, pairs: Sequence[Pair]) -> np.ndarray:
        return np.maximum(
            self._count_text_tokens([" ".join(pair.source) for pair in pairs]),
            self._count_text_tokens([" ".join(pair.correct) for pair in pairs]),
        )

    def _compute_losses(
        self, model: nn.Module, pairs: Sequence[Pair], device: torch.device
    ) -> list[TextLoss]:
        tensors = {name: tensor.to(device) for name, tensor in self.make_tensors(pairs).items()}
        with torch.no_grad():
            logits = model(**tensors).logits.float()
        losses = functional.cross_entropy(
            logits.transpose(1, 2), tensors["labels"], ignore_index=IGNORED, reduction="none"
        )

        sums = losses.double().sum(1).tolist()
        targets = (tensors["labels"] != IGNORED).sum(1).tolist()
        return [*map(TextLoss, sums, targets)]

    def _find_line_changes(
        self, model: nn.Module, lines: Sequence[str], context: Processes
    ) -> list[list[Correction]]:
        """Corrects lines in chunks of at most `max_characters`.

        White space and words longer than a chunk are unchanged.
        """
        line_chunks = [cut_text(line, self._config.max_characters) for line in lines]
        corrected_chunks = self._correct_chunks(model, line_chunks, context)
        changes = [
            align_chunks(chunks, corrected)
            for chunks, corrected in zip(line_chunks, corrected_chunks, strict=True)
        ]
        if self._detector is None and not self.kept_words:
            return changes

        flags = self.flags([line.split() for line in lines], context)
        return [
            restrict_corrections(line, corrections, line_flags)
            for line, corrections, line_flags in zip(lines, changes, flags, strict=True)
        ]

    def _correct_chunks(
        self, model: nn.Module, line_chunks: Sequence[Sequence[str]], context: Processes
    ) -> list[list[str]]:
        """Corrects the chunks of each line, without the white space around them."""
        limit = self._config.max_characters
        corrected: list[list[str]] = []
        texts: list[str] = []
        positions: list[tuple[int, int]] = []  # the line and the chunk of each text
        for line, chunks in enumerate(line_chunks):
            stripped = [chunk.strip() for chunk in chunks]
            corrected.append(stripped)
            for number, chunk in enumerate(stripped):
                if 0 < len(chunk) <= limit:
                    texts.append(chunk)
                    positions.append((line, number))

        def correct(batch: np.ndarray) -> list[str]:
            return self._generate(model, [texts[number] for number in batch], context.device)

        batches = sort_into_budgeted_batches(
            self._count_text_tokens(texts), self._config.batch_max_length
        )
        results = run_on_all_ranks(batches, correct, context)
        for (line, number), result in zip(positions, results, strict=True):
            corrected[line][number] = result
        return corrected

    def _generate(self, model: nn.Module, texts: Sequence[str], device: torch.device) -> list[str]:
        """Generates the corrections of texts."""
        inputs = {name: tensor.to(device) for name, tensor in self._encode(texts).items()}
        tokens = inputs["input_ids"].shape[1]

        # Engines wrap the model without its `generate`.
        plain_model = cast(Any, getattr(model, "module", model))
        with torch.no_grad():
            ids = plain_model.generate(
                **inputs,
                num_beams=self._config.num_beams,
                do_sample=False,
                max_new_tokens=tokens + tokens // 4 + 8,  # a correction is little longer
            )
        corrected = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [" ".join(text.split()) for text in corrected]

    def load(self, folder: Path) -> nn.Module:
        model = load_exported(AutoModelForSeq2SeqLM, folder, "model", "task=sec")
        try:
            self._tokenizer = read_tokenizer(folder)
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: the model cannot be loaded: {error}") from error
        return model

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        write_model(model, weights, folder, self._config.export_dtype)
        self._tokenizer.save_pretrained(str(folder))
        self._write_card(folder)
