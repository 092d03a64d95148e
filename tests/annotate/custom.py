"""Annotators of a user's own, named by their dotted paths."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from typing import Any

from bsmeta.annotate.annotator import AnnotationError, Annotator, Columns, Row, make_global_record


class Words(Annotator):
    """The number of words; logs each page to the file $WORDS_LOG."""

    name = "words"
    columns = ("metadata_words",)

    def annotate(self, row: Row) -> Columns:
        if "WORDS_LOG" in os.environ:
            with open(os.environ["WORDS_LOG"], "a", encoding="ascii") as file:
                file.write(row.url + "\n")
        return {"metadata_words": [make_global_record("words", str(len(row.text.split())))]}


class ManyWords(Annotator):
    """Whether there are many words; needs the column of another annotator."""

    name = "many_words"
    needs = ("metadata_words",)
    columns = ("metadata_many_words",)

    def annotate(self, row: Row) -> Columns:
        count = int(row.read_column("metadata_words")[0]["value"])
        return {"metadata_many_words": [make_global_record("many_words", str(count > 60))]}


class WithoutColumns(Annotator):
    """An annotator without the required `columns`."""

    name = "without_columns"

    def annotate(self, row: Row) -> Columns:
        return {}


class Faulty(Annotator):
    """Fails on some pages; the address of a page names the failure."""

    name = "faulty"
    columns = ("metadata_faulty",)

    def annotate(self, row: Row) -> Columns:
        fault = row.url.rpartition("#")[2]
        if fault in FAULTS:
            return FAULTS[fault]()
        return {"metadata_faulty": [make_global_record("faulty", "no")]}


def _refuse() -> Any:
    raise AnnotationError("refused", "this page")


def _raise() -> Any:
    raise KeyError("a bug")


def _hang() -> Any:
    time.sleep(3600)


def _crash() -> Any:
    faulthandler.disable()  # pytest's, which would print the stacks of this process
    os.kill(os.getpid(), signal.SIGSEGV)


def _swell() -> Any:
    return bytearray(8_000_000_000)


FAULTS = {
    "refuse": _refuse,
    "raise": _raise,
    "hang": _hang,
    "crash": _crash,
    "swell": _swell,
    "nothing": lambda: None,
    "object": lambda: {"metadata_faulty": [object()]},
    "surrogate": lambda: {"metadata_faulty": ["\ud800"]},
}


class Slow(Words):
    """Like `Words`, but takes PAGE_S seconds per page."""

    def annotate(self, row: Row) -> Columns:
        time.sleep(float(os.environ.get("PAGE_S", "0.005")))
        return super().annotate(row)
