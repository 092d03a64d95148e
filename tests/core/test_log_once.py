"""A message is logged once in a process, however often it is reported."""

from __future__ import annotations

import logging

import pytest

from bsmeta.core.log_once import log_once


def test_a_repeated_message_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    logger = logging.getLogger("bsmeta.log_once")
    for message in ("the disk is slow", "the disk is slow", "the disk is full"):
        log_once(logger, logging.WARNING, message)
    assert caplog.messages == ["the disk is slow", "the disk is full"]
