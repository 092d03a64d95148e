"""Answers of the Hub that are not answers: named, retried while that may help, never believed."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io.remote import store
from bsmeta.data.io.remote.hub import resolve_commit
from bsmeta.data.io.shards import list_shards
from tests.data.hub_fixtures import CONTENT, hub_file
from tests.data.hub_server import TOKEN, Answer, Fault, Hub, failing, is_anything, is_content
from tests.data.io.test_files import read

URL = "hf://datasets/owner/name/*.jsonl"


@pytest.fixture
def files(hub: Hub) -> Hub:
    """A server with files that take several pages to list."""
    hub.files = hub.listed = {f"{number}.jsonl": b"{}\n" for number in range(5)}
    return hub


def names(folder: Path) -> list[str]:
    config = DataConfig(train_file=URL, cache_dir=str(folder / "cache"), hub_retries=3)
    return [shard.name for shard in list_shards(config)]


def answer_with(where: str, body: bytes, times: int, status: int = 200) -> Fault:
    """Answers the first requests to a path that contains `where` with `body`."""
    left = [times]

    def fault(answer: Answer) -> bool:
        if where not in answer.path or not left[0]:
            return False
        left[0] -= 1
        answer.give(status, {"Content-Type": "text/html"}, body)
        return True

    return fault


def test_the_token_does_not_follow_a_link_to_another_host(files: Hub, tmp_path: Path) -> None:
    files.token = TOKEN
    with Hub(dict(files.files)) as other:

        def linking(answer: Answer) -> bool:
            if "/tree/" not in answer.path:
                return False
            answer.give_json([], {"Link": f'<{other.endpoint}{answer.path}>; rel="next"'})
            return True

        files.faults = [linking]
        with pytest.raises(DataError, match=r"next page .* host, 127\.0\.0\.1:\d+, which must"):
            names(tmp_path)
        assert other.requests == []


def test_a_link_without_a_host_is_followed(files: Hub, tmp_path: Path) -> None:
    def relative(answer: Answer) -> bool:
        if "/tree/" not in answer.path or "cursor" in answer.path:
            return False
        answer.give_json([], {"Link": f'<{answer.path}&cursor=0>; rel="next"'})
        return True

    files.faults = [relative]
    assert len(names(tmp_path)) == 5


ENTRY = {"type": "file", "path": "a.jsonl", "oid": "0" * 40, "size": 3}


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("/revision/", [], r"Expected `object`, got `array`"),
        ("/revision/", None, r"Expected `object`, got `null`"),
        ("/revision/", {"id": "owner/name"}, r"missing required field `sha`"),
        ("/revision/", {"sha": 5}, r"Expected `str`, got `int` - at `\$\.sha`"),
        ("/revision/", {"sha": "../../secret"}, r"Expected `str` matching regex"),
        ("/tree/", {"error": "busy"}, r"Expected `array`, got `object`"),
        ("/tree/", ["a.jsonl"], r"Expected `object`, got `str` - at `\$\[0\]`"),
        ("/tree/", [ENTRY | {"size": "3"}], r"Expected `int`, got `str` - at `\$\[0\]\.size`"),
        ("/tree/", [ENTRY | {"size": -3}], r"Expected `int` >= 0 - at `\$\[0\]\.size`"),
        ("/tree/", [ENTRY | {"lfs": {"oid": None}}], r"got `null` - at `\$\[0\]\.lfs\.oid`"),
    ],
)
def test_json_of_another_form_is_retried_and_named(
    files: Hub, tmp_path: Path, where: str, value: Any, message: str
) -> None:
    files.faults = [answer_with(where, json.dumps(value).encode(), 3)]
    assert len(names(tmp_path)) == 5
    resolve_commit.cache_clear()
    files.faults = [answer_with(where, json.dumps(value).encode(), 10**6)]
    with pytest.raises(DataError, match=f"given up after 4 .* JSON of another form: .*{message}"):
        names(tmp_path / "2")


@pytest.mark.parametrize(
    ("where", "body"),
    [
        ("/revision/", b""),
        ("/revision/", b"<html>sign in</html>"),
        ("/revision/", b'{"x":' + b"[" * 100_000),
        ("/tree/", b"<html>sign in</html>"),
        ("/tree/", b"\xff"),
    ],
)
def test_an_answer_that_is_not_json_is_retried_and_named(
    files: Hub, tmp_path: Path, where: str, body: bytes
) -> None:
    files.faults = [answer_with(where, body, 3)]
    assert len(names(tmp_path)) == 5
    resolve_commit.cache_clear()
    files.faults = [answer_with(where, body, 10**6)]
    with pytest.raises(DataError, match="given up after 4 failures .* the answer is not JSON"):
        names(tmp_path / "2")


def answer_in_drips(where: Callable[[Answer], bool], gap: float) -> Fault:
    """Answers byte by byte, `gap` seconds apart."""

    def fault(answer: Answer) -> bool:
        if not where(answer):
            return False
        first, last = answer.asked() if answer.range else (0, 999)
        answer.send_response(206 if answer.range else 200)
        answer.send_header("Content-Length", str(last + 1 - first))
        answer.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
        answer.end_headers()
        try:
            for byte in CONTENT[first : last + 1]:
                answer.wfile.write(bytes([byte]))
                answer.wfile.flush()
                time.sleep(gap)
        except OSError:  # the client has closed the connection
            answer.close_connection = True
        return True

    return fault


def test_a_dripping_answer_is_given_up(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte arrives before the timeout, so that the timeout never ends the answer."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 5)
    monkeypatch.setattr(store, "SLOW_TIMEOUTS", 0.02)  # 0.1 s
    hub.faults = [answer_in_drips(is_content, 0.02)]
    with pytest.raises(
        DataError, match=r"given up after 2 failures .*: only \d+ bytes came in \d+\.\d s; see"
    ):
        read(hub_file(tmp_path, retries=1))


def test_a_dripping_listing_is_given_up(
    files: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SLOW_TIMEOUTS", 0.02)
    files.faults = [answer_in_drips(lambda answer: "/tree/" in answer.path, 0.02)]
    with pytest.raises(DataError, match=r"given up after 4 failures .*: only \d+ bytes came in"):
        names(tmp_path)


def test_a_long_wait_requested_by_the_hub_is_bounded_and_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store, "MAX_REQUESTED_WAIT_S", 0.01)
    hub.faults = [failing(429, 1, {"Retry-After": "86400"}, is_anything)]
    with caplog.at_level(logging.WARNING):
        assert read(hub_file(tmp_path)) == CONTENT
    assert "HTTP 429, which asks to wait 86400 s; retrying in 0.0 s" in caplog.text
    hub.faults = [failing(503, 10**6, {"Retry-After": "9" * 400}, is_anything)]
    with pytest.raises(DataError, match="the last one: HTTP 503, which asks to wait"):
        read(hub_file(tmp_path / "2", retries=2))
